// The processes on a GPU: the largest first, at first only some of them.

import { element } from "./dom.js";
import { gpuName, quantity } from "./format.js";

const FIRST = 20;
const NONE = "None listed. The exporter lists processes only if it runs with --processes.";

/** Return a table of the processes on a GPU. `all` says whether it shows more than the first ones. */
export function processTable(gpu, all) {
  const { processes } = gpu;
  if (!processes.length) return element("p", { class: "muted" }, NONE);
  const sorted = [...processes].sort((a, b) => (b.memory ?? -1) - (a.memory ?? -1));
  const pods = processes.some((process) => process.pod);
  const heads = ["PID", ...(pods ? ["Pod"] : []), "Memory", "Command"];
  const rows = sorted.slice(0, all ? sorted.length : FIRST).map((process) =>
    element(
      "tr",
      {},
      element("th", { scope: "row", class: "number" }, String(process.pid ?? "–")),
      pods ? element("td", {}, process.pod ?? "") : "",
      element("td", { class: "number" }, quantity(process.memory, "bytes")),
      element("td", { class: "command" }, process.command || process.process || "–"),
    ),
  );
  return element(
    "table",
    { class: "processes" },
    element("caption", { class: "visually-hidden" }, `Processes on ${gpuName(gpu)}`),
    element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head)))),
    element("tbody", {}, ...rows),
  );
}

/** Return how many processes there are, if the table does not show all of them at first; otherwise 0. */
export function moreThanFirst(gpu) {
  return gpu.processes.length > FIRST ? gpu.processes.length : 0;
}

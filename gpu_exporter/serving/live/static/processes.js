// The processes on a GPU: the largest first, at first only some of them.

import { element } from "./dom.js";
import { gpuName, quantity } from "./format.js";

const FIRST = 20;

/** Return a table of the processes on a GPU. `all` says whether to show more than the first; `showAll` is called to change that. */
export function processTable(gpu, all, showAll) {
  const { processes } = gpu;
  const title = `Processes on ${gpuName(gpu)}`;
  if (!processes.length) return [element("p", { class: "muted" }, "None known. The exporter lists processes if it runs with --processes.")];
  const sorted = [...processes].sort((a, b) => (b.memory ?? -1) - (a.memory ?? -1));
  const shown = all ? sorted : sorted.slice(0, FIRST);
  const pods = processes.some((process) => process.pod);
  const heads = ["PID", ...(pods ? ["Pod"] : []), "Memory", "Command"];
  const rows = shown.map((process) =>
    element(
      "tr",
      {},
      element("th", { scope: "row", class: "number" }, String(process.pid ?? "–")),
      pods ? element("td", {}, process.pod ?? "") : "",
      element("td", { class: "number" }, quantity(process.memory, "bytes")),
      element("td", { class: "command" }, process.command || process.process || "–"),
    ),
  );
  const table = element(
    "table",
    { class: "processes" },
    element("caption", { class: "visually-hidden" }, title),
    element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head)))),
    element("tbody", {}, ...rows),
  );
  const rest = sorted.length - shown.length;
  return [
    element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title }, table),
    rest ? element("button", { type: "button", class: "more", on: { click: showAll } }, `Show all ${sorted.length} processes`) : "",
  ];
}

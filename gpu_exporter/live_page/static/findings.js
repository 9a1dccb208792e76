// What is wrong with a GPU, in numbers: findings with advice and runbook, lost time by cause, XIDs, what cannot be read.

import { badge, element } from "./dom.js";
import { bar } from "./drawing.js";
import { clock, gpuName, moment, quantity, sentence, since, words } from "./format.js";
import { runbook } from "./summary.js";

const TONES = { critical: "bad", warning: "warn", info: "idle" };
const SEVERITIES = { critical: "Critical", warning: "Warning", info: "Info" };

/** Return the findings of a GPU, the worst first; the problems of its verdict if the server sends no findings. */
export function findings(gpu, now) {
  const problems = gpu.problems.map((problem) =>
    element("li", {}, badge(problem.health === "degraded" ? "warn" : "bad", sentence(problem.health)), ` ${sentence(problem.what)}. `,
      ...(problem.todo ? [element("strong", {}, "What to do: "), `${problem.todo}.`] : [])),
  );
  const entries = gpu.findings.map((finding) => oneFinding(finding, now));
  if (!entries.length && !problems.length) return [element("p", {}, gpu.headroom || gpu.headline.words)];
  return [problems.length ? element("ul", { class: "faults" }, ...problems) : "", ...entries];
}

function oneFinding(finding, now) {
  const { action, advice } = finding;
  const first = action && !advice.toLowerCase().includes(action.toLowerCase()) ? `${sentence(action)}. ` : "";
  const evidence = [...new Set(finding.evidence)].map((statement) => element("li", {}, sentence(statement)));
  return element(
    "article",
    { class: "finding" },
    element("h5", {}, badge(TONES[finding.severity] ?? "unknown", SEVERITIES[finding.severity] ?? "Finding"), ` ${sentence(finding.words)}`),
    finding.since ? element("p", { class: "muted since", title: moment(finding.since) }, since(finding.since, now)) : "",
    evidence.length ? element("ul", { class: "evidence" }, ...evidence) : "",
    element("p", {}, element("strong", {}, "What to do: "), first, ...prose(advice)),
    element("p", {}, "Runbook: ", element("a", { href: runbook(finding.name) }, finding.name)),
  );
}

/** Return a text whose parts in backticks are code. */
function prose(text) {
  return text.split("`").map((part, index) => (index % 2 ? element("code", {}, part) : part));
}

const CAUSES = {
  no_process: "No process on the GPU",
  throttled: "Throttled",
  peers: "Waiting for other ranks",
  copies: "Copying data while no kernel runs",
  host: "Waiting for the host",
  underfilled: "SMs empty while a kernel runs",
  useful: "SMs working",
};

/** Return the words for a cause of lost time. */
function causeWords(cause) {
  return CAUSES[cause] ?? sentence(words(cause));
}

/** Return where the time of the GPU goes, the largest share first. */
export function loss(gpu) {
  const shares = Object.entries(gpu.time).sort((a, b) => b[1] - a[1]);
  if (!shares.length) return null;
  const rows = shares.map(([cause, share]) =>
    element(
      "tr",
      { class: cause === "useful" ? "useful" : "" },
      element("th", { scope: "row" }, causeWords(cause)),
      element("td", { class: "number" }, quantity(share, "ratio")),
      element("td", { class: "wide", "aria-hidden": "true" }, bar(share)),
    ),
  );
  return element("table", { class: "loss" }, element("caption", { class: "visually-hidden" }, `Time of ${gpuName(gpu)} by cause`), element("tbody", {}, ...rows));
}

/** Return the XIDs of a GPU, the newest first. */
export function xids(events, now) {
  const newest = [...events].sort((a, b) => b.at - a.at);
  return element(
    "ul",
    { class: "xid-list" },
    ...newest.map((event) => element("li", {}, element("strong", {}, `XID ${event.xid}`), " at ", element("span", { title: moment(event.at) }, clock(event.at, now, true)), `: ${event.meaning}`)),
  );
}

/** Return what this GPU does not support or what could not be judged, with the reason; GPUs share few reasons. */
export function notSupported(gpu) {
  const groups = new Map();
  const gaps = [...gpu.unknown.map(({ what, why }) => ({ name: what, why })), ...gpu.not_judged, ...gpu.not_supported];
  for (const { name, why } of gaps) {
    if (!groups.has(why)) groups.set(why, []);
    groups.get(why).push(name);
  }
  if (!groups.size) return null;
  const count = [...groups.values()].flat().length;
  const terms = [...groups].flatMap(([why, names]) => [element("dt", {}, sentence(words(why))), element("dd", {}, names.join(", "))]);
  return element("details", {}, element("summary", {}, `${count} not available, and why`), element("dl", { class: "reasons" }, ...terms));
}

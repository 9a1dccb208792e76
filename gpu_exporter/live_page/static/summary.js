// The first lines of the page: what is wrong, since when, who is hit, and what to do. The server decides what they say.

import { badge, element, renderIfChanged, setText } from "./dom.js";
import { moment, sentence, since } from "./format.js";

const SIGNS = { bad: "✖ ", warn: "▲ " };

/** Show the summary of a payload. `show` opens the row of a GPU. */
export function renderSummary(parts, { summary, gpus, node }, { show, now }) {
  setText(parts.title, summary.title);
  setText(parts.health, summary.health === summary.title ? "" : summary.health);
  const present = new Set(gpus.map(({ id }) => id));
  renderIfChanged(parts.problems, [summary.problems, summary.cost, Math.floor(now / 60)], () =>
    summary.problems.length
      ? [
          element("ul", { class: "problems" }, ...summary.problems.map((problem) => entry(problem, problem.gpus.filter((id) => present.has(id)), show, now))),
          summary.cost && element("p", { class: "muted" }, `${summary.cost}.`),
        ]
      : "",
  );
  document.title = `${SIGNS[summary.tone] ?? ""}${summary.title} · ${node ?? ""} · gpu-exporter`;
}

function entry(problem, [first], show, now) {
  const words = first ? element("button", { type: "button", class: "jump", on: { click: () => show(first) } }, problem.words) : element("strong", {}, problem.words);
  const about = [
    problem.also_hit,
    problem.owner,
    problem.since && element("span", { title: moment(problem.since) }, since(problem.since, now)),
    problem.cost,
  ].filter(Boolean);
  const todo = [problem.action && `${sentence(problem.action)}.`, problem.advice.replaceAll("`", "")].filter(Boolean).join(" ");
  return element(
    "li",
    { class: problem.tone },
    element("p", {}, badge(problem.tone, problem.badge), " ", words),
    about.length ? element("p", { class: "muted" }, ...about.flatMap((part, place) => (place ? [" · ", part] : [part]))) : "",
    todo ? element("p", {}, element("strong", {}, "What to do:"), ` ${todo} `, problem.runbook && element("a", { href: runbook(problem.runbook) }, "Runbook")) : "",
    ...problem.code.map((text) => element("p", { class: "where" }, text)),
  );
}

/** Show the incidents that have ended, the newest first. */
export function renderEarlier({ section, list }, incidents) {
  section.hidden = !incidents.length;
  renderIfChanged(list, incidents.map(({ id, end }) => [id, end]), () => incidents.map(ended));
}

function ended({ severity, words, start, end, lost_gpu_hours: lost, cause }) {
  const tone = severity === "critical" ? "bad" : "warn";
  const cost = lost >= 0.1 ? ` · cost ${lost.toFixed(1)} GPU-hours in all` : "";
  const about = `${moment(start)} to ${moment(end)}${cost} · `;
  return element(
    "li",
    { class: tone },
    element("p", {}, badge(tone, severity), " ", element("strong", {}, words)),
    element("p", { class: "muted" }, about, element("a", { href: runbook(cause) }, "Runbook")),
  );
}

/** Return the address of the runbook of a failure mode. */
export function runbook(name) {
  return new URL(`../runbooks/${name.toLowerCase()}`, import.meta.url).href;
}

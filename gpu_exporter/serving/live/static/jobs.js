// The ranks of each job side by side: who waits for whom, and how their measurements differ.

import { badge, element, renderIfChanged } from "./dom.js";
import { gpuName, gpuNames, quantity } from "./format.js";
import { bar, highest } from "./rows.js";

const STATES = {
  waited_for: { tone: "bad", words: "Others wait for it" },
  waiting: { tone: "idle", words: "Waiting" },
  working: { tone: "good", words: "Working" },
  unknown: { tone: "unknown", words: "Unknown" },
};
const COLUMNS = ["sm_active", "tensor_active", "nvlink", "pcie", "power"];

/** Show the jobs of a payload; hide the section if there are none. */
export function renderJobs(section, payload, view) {
  const jobs = payload.jobs ?? [];
  section.hidden = !jobs.length;
  const gpus = new Map(payload.gpus.map((gpu) => [gpu.id, gpu]));
  const columns = COLUMNS.map((name) => view.measurement(name)).filter((measurement) => measurement && jobs.some((job) =>
    job.ranks.some((rank) => (gpus.get(rank.id)?.measurements?.[measurement.name] ?? null) !== null)));
  const data = jobs.map((job) => ({
    ...job,
    ranks: job.ranks.map((rank) => ({ ...rank, measurements: gpus.get(rank.id)?.measurements })),
  }));
  renderIfChanged(section, data, () => [
    element("h2", { id: "jobs-title" }, jobs.length === 1 ? "Job" : "Jobs"),
    ...data.map((job, number) => oneJob(job, number, gpus, columns, view)),
  ]);
}

function oneJob(job, number, gpus, columns, view) {
  const heads = [element("th", { scope: "col" }, "GPU"), element("th", { scope: "col" }, "State"), ...columns.map(({ words }) => element("th", { scope: "col", class: "number" }, words))];
  const tops = new Map(columns.map((measurement) => {
    const values = job.ranks.map((rank) => rank.measurements?.[measurement.name]);
    const limit = Math.max(0, ...job.ranks.map((rank) => gpus.get(rank.id)?.limits?.[measurement.name] ?? 0));
    return [measurement.name, highest(measurement, limit, values)];
  }));
  const rows = job.ranks.map((rank) => {
    const state = STATES[rank.state] ?? STATES.unknown;
    const gpu = gpus.get(rank.id);
    const cells = columns.map(({ name, unit }) => {
      const value = rank.measurements?.[name];
      const known = value !== null && value !== undefined;
      return element("td", { class: "number" }, quantity(value, unit), known ? bar(value / tops.get(name)) : "");
    });
    const jump = () => element("button", { type: "button", class: "jump", on: { click: () => view.show(rank.id) } }, gpuName(gpu));
    return element(
      "tr",
      { class: rank.state },
      element("th", { scope: "row" }, gpu ? jump() : rank.id),
      element("td", {}, badge(state.tone, state.words)),
      ...cells,
    );
  });
  const table = element(
    "table",
    { class: "ranks" },
    element("thead", {}, element("tr", {}, ...heads)),
    element("tbody", {}, ...rows),
  );
  return element(
    "article",
    { class: "job", id: jobId(number), tabindex: "-1" },
    element("h3", {}, job.name),
    element("p", {}, `${heldUpBy(job, gpus).words}.`),
    element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Ranks of ${job.name}` }, table),
  );
}

/** Return the id of a job's element. */
export function jobId(number) {
  return `job-${number}`;
}

/** Say in one sentence which rank holds up a job, and whether one does. */
export function heldUpBy(job, gpus) {
  const named = (state) => job.ranks.filter((rank) => rank.state === state).map((rank) => gpus.get(rank.id)).filter(Boolean);
  const [slow, waiting] = [named("waited_for"), named("waiting")];
  const ranks = `${job.ranks.length} ranks on this node`;
  if (!waiting.length) return { slow: false, words: ranks };
  const wait = `${gpuNames(waiting)} ${waiting.length === 1 ? "waits" : "wait"} for`;
  return { slow: true, words: `${ranks}; ${wait} ${slow.length ? gpuNames(slow) : "a rank on another node"}` };
}

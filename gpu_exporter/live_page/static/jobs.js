// The ranks of each job side by side: who waits for whom, and how their measurements differ.

import { badge, board, element, renderIfChanged } from "./dom.js";
import { bar, highest } from "./drawing.js";
import { gpuName, gpuNames, quantity } from "./format.js";

// What a rank does that nothing is said about.
const STATES = {
  working: { tone: "good", words: "Working" },
  limited: { tone: "warn", words: "Limited" },
  unknown: { tone: "unknown", words: "Unknown" },
};
const COLUMNS = ["sm_active", "tensor_active", "nvlink", "pcie", "power"];

/** The section of jobs. Numbers change in place, so that the focus stays where it is. */
export class Jobs {
  #section;
  #view;
  #cells = new Map();

  constructor(section, view) {
    this.#section = section;
    this.#view = view;
  }

  /** Show the jobs of a payload; hide the section if there are none. */
  update({ jobs, gpus: entries, summary: { judgements } }) {
    this.#section.hidden = !jobs.length;
    const gpus = new Map(entries.map((gpu) => [gpu.id, gpu]));
    const names = jobs.flatMap((job) => job.ranks.map(({ id }) => gpus.get(id)?.index));
    const columns = COLUMNS.map((name) => this.#view.measurement(name)).filter(Boolean);
    const classes = jobs.flatMap((job) => job.ranks.map(({ id }) => gpus.get(id)?.class));
    renderIfChanged(this.#section, [jobs, names, classes, columns, judgements], () => {
      this.#cells.clear();
      return [
        element("h2", { id: "jobs-title" }, jobs.length === 1 ? "Job" : "Jobs"),
        ...jobs.map((job) => this.#job(job, gpus, columns, judgements)),
      ];
    });
    for (const job of jobs) for (const measurement of columns) this.#fill(job, measurement, gpus);
  }

  #fill(job, { name, unit, max }, gpus) {
    const values = job.ranks.map(({ id }) => gpus.get(id)?.measurements[name]);
    const limit = Math.max(0, ...job.ranks.map(({ id }) => gpus.get(id)?.limits[name] ?? 0));
    const top = highest({ max }, limit, values);
    job.ranks.forEach(({ id }, index) => {
      const cell = this.#cells.get(`${job.name} ${id} ${name}`);
      renderIfChanged(cell, [values[index], top], ([value]) => [
        document.createTextNode(quantity(value, unit)),
        value === null || value === undefined ? null : bar(value / top),
      ]);
    });
  }

  #job(job, gpus, columns, judgements) {
    const heads = [{ words: "GPU" }, { words: "State" }, ...columns.map(({ words }) => ({ words, class: "number" }))];
    const table = element(
      "table",
      { class: "ranks" },
      element("thead", {}, element("tr", {}, ...heads.map(({ words, ...rest }) => element("th", { scope: "col", ...rest }, words)))),
      element("tbody", {}, ...job.ranks.map((rank) => this.#rank(job, rank, gpus, columns, judgements[rank.id]))),
    );
    return element(
      "article",
      { class: "job" },
      element("h3", {}, job.name),
      board("job", { namespace: job.name.includes("/") ? job.name.split("/")[0] : ".*", workload: job.name.split("/").at(-1) }),
      element("p", {}, `${heldUpBy(job, gpus)}.`),
      element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Ranks of ${job.name}` }, table),
    );
  }

  #rank(job, { id, state }, gpus, columns, judgement) {
    const gpu = gpus.get(id);
    const { tone, words } = judgement && judgement.tone !== "good" ? { tone: judgement.tone, words: judgement.badge } : (STATES[state] ?? STATES.unknown);
    const says = words === STATES.limited.words && gpu?.class ? `${words}: ${gpu.class}` : words;
    const show = { click: () => this.#view.show(id) };
    const cells = columns.map(({ name }) => {
      const cell = element("td", { class: "number" });
      this.#cells.set(`${job.name} ${id} ${name}`, cell);
      return cell;
    });
    return element(
      "tr",
      { class: state },
      element("th", { scope: "row" }, gpu ? element("button", { type: "button", class: "jump", on: show }, gpuName(gpu)) : id),
      element("td", {}, badge(tone, says)),
      ...cells,
    );
  }
}

/** Say in one sentence which rank holds up a job. */
function heldUpBy(job, gpus) {
  const named = (state) => job.ranks.filter((rank) => rank.state === state).map((rank) => gpus.get(rank.id)).filter(Boolean);
  const [slow, waiting] = [named("waited_for"), named("waiting")];
  const ranks = `${job.ranks.length} ranks on this node`;
  if (!waiting.length) return ranks;
  const wait = `${gpuNames(waiting)} ${waiting.length === 1 ? "waits" : "wait"} for`;
  return `${ranks}; ${wait} ${slow.length ? gpuNames(slow) : "a rank on another node"}`;
}

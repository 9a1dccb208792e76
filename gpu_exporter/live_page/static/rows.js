// One row for each GPU: who holds it, is it healthy, what limits it, and the last hour of its measurements.

import { badge, element, renderIfChanged, setAttribute, setText } from "./dom.js";
import { Details } from "./details.js";
import { bar, drawing, drawSparkline, drawStrip, highest } from "./drawing.js";
import { duration, gpuName, limitWords, moment, quantity, sentence, since, usage } from "./format.js";

// Measurements beside the sparklines; the others are only in the opened row.
const SPARKLINES = ["sm_active", "tensor_active", "dram_active", "nvlink", "pcie", "power", "temperature"];
export const SHORT = {
  sm_active: "SM",
  tensor_active: "Tensor",
  dram_active: "DRAM",
  nvlink: "NVLink",
  pcie: "PCIe",
  power: "Power",
  temperature: "Temp.",
};
const MEMORY = "memory_used";

/** The row of one GPU, which lasts as long as the GPU is listed. */
export class Row {
  #id;
  #parts = {};
  #sparks = new Map();
  #details = null;
  #view;
  #gpu;

  constructor(id, view) {
    this.#id = id;
    this.#view = view;
    const details = `details-${view.number()}`;
    const p = this.#parts;
    p.button = element("button", { type: "button", "aria-expanded": "false", "aria-controls": details });
    p.model = element("span", { class: "muted model" });
    p.owner = element("span");
    p.verdict = element("div", { class: "verdict cell" });
    p.className = element("span", { class: "class-name" });
    p.classSince = element("span", { class: "muted since" });
    p.strip = drawing("strip");
    p.shares = element("span", { class: "visually-hidden" });
    p.sparks = element("dl", { class: "sparks cell" });
    p.memory = element("div", { class: "memory cell" });
    p.details = element("div", { id: details, class: "details", role: "group", hidden: true });
    p.row = element(
      "div",
      { class: "row", on: { click: (event) => this.#clicked(event) } },
      element("div", { class: "who cell" }, element("h3", {}, p.button, " ", p.model), element("p", { class: "owner" }, element("span", { class: "visually-hidden" }, "Held by "), p.owner)),
      p.verdict,
      element("div", { class: "class cell" }, element("p", {}, p.className, " ", p.classSince), p.strip, p.shares),
      p.sparks,
      p.memory,
    );
    this.node = element("li", { class: "gpu" }, p.row, p.details);
  }

  /** Show the newest values, and what the page says about the GPU. */
  update(gpu, judgement) {
    this.#gpu = gpu;
    const p = this.#parts;
    setAttribute(this.node, "data-tone", judgement.tone);
    setAttribute(this.node, "class", gpu.instance ? "gpu instance" : "gpu");
    setText(p.button, gpuName(gpu));
    setAttribute(p.details, "aria-label", `Details of ${gpuName(gpu)}`);
    setText(p.model, gpu.instance ? gpu.profile : (gpu.modelName ?? "").replace(/^NVIDIA /, ""));
    setText(p.owner, gpu.owner || "No owner known");
    renderIfChanged(p.verdict, [judgement, since(judgement.since, this.#view.now())], () => this.#verdict(judgement));
    setText(p.className, gpu.class ? `${sentence(gpu.class)}${gpu.quality === "approximate" ? " (approximate)" : ""}` : "Unknown");
    setAttribute(p.className, "title", this.#view.className(gpu.class)?.words);
    setText(p.classSince, this.#classSince(gpu));
    setAttribute(p.classSince, "title", moment(gpu.class_since));
    this.#measure(gpu);
    this.#memory(gpu);
    this.#details?.update(gpu);
  }

  /** Draw the last hour. */
  draw() {
    const { timeline } = this.#view;
    const [start, end] = timeline.window();
    const runs = timeline.runs(this.#id);
    drawStrip(this.#parts.strip, runs, this.#gpu.xids, { start, end, colour: this.#view.classColour });
    setText(this.#parts.shares, shares(runs));
    for (const [name, { target }] of this.#sparks) {
      const measurement = this.#view.measurement(name);
      const values = timeline.values(this.#id, name);
      const limit = this.#gpu.limits?.[name] ?? null;
      drawSparkline(target, values.slice(-Math.round((end - start) / timeline.step)), { high: highest(measurement, limit, values), limit });
    }
    this.#details?.draw();
  }

  /** Return for how long the GPU has its class; the history does not know when it began if it has no other class. */
  #classSince({ class_since: at }) {
    if (!at) return "";
    const known = this.#view.timeline.runs(this.#id).filter(({ name }) => name !== null);
    return `for ${known.length === 1 ? "≥ " : ""}${duration(this.#view.now() - at)}`;
  }

  /** Open the row, and move the focus there. */
  show() {
    this.#toggle(true);
    this.node.scrollIntoView({ block: "start", behavior: "auto" });
    this.#parts.button.focus({ preventScroll: true });
  }

  close() {
    this.#details?.close();
  }

  #clicked(event) {
    if (event.target.closest("a") || (getSelection()?.toString() && event.target !== this.#parts.button)) return;
    this.#toggle(this.#parts.details.hidden);
  }

  #toggle(open) {
    setAttribute(this.#parts.button, "aria-expanded", String(open));
    this.#parts.details.hidden = !open;
    if (open && !this.#details) {
      this.#details = new Details(this.#id, this.#view);
      this.#parts.details.append(this.#details.node);
      this.#details.update(this.#gpu);
      this.#details.draw();
    } else if (!open) {
      this.#details?.close();
      this.#details?.node.remove();
      this.#details = null;
    }
  }

  #verdict({ tone, badge: word, words, since: at }) {
    const text = [words, since(at, this.#view.now())].filter(Boolean).join(" · ");
    return [badge(tone, word), " ", element("span", { class: "headline", title: text }, words), at ? element("span", { class: "muted since", title: moment(at) }, ` ${since(at, this.#view.now())}`) : ""];
  }

  #measure(gpu) {
    for (const name of SPARKLINES) {
      const measurement = this.#view.measurement(name);
      if (!measurement) continue;
      if (!this.#sparks.has(name)) {
        const target = drawing("sparkline");
        const value = element("dd");
        const term = element("dt", { title: measurement.words }, SHORT[name]);
        this.#parts.sparks.append(element("div", { class: "spark" }, term, value, element("dd", { class: "plot" }, target)));
        this.#sparks.set(name, { target, value });
      }
      const value = gpu.measurements?.[name];
      const limit = gpu.limits?.[name];
      const text = quantity(value, measurement.unit);
      const { value: shown } = this.#sparks.get(name);
      setText(shown, text);
      setAttribute(shown, "title", limit ? limitWords(limit, measurement.unit) : null);
      setAttribute(shown, "class", limit && value >= limit && name === "temperature" ? "over" : null);
    }
  }

  #memory(gpu) {
    const used = gpu.measurements?.[MEMORY];
    const total = gpu.limits?.[MEMORY];
    const text = total ? usage(used, total) : quantity(used, "bytes");
    const share = total && used !== undefined && used !== null ? used / total : null;
    renderIfChanged(this.#parts.memory, [text, share], () => [
      element("p", { class: "label" }, "Memory"),
      element("p", { class: "value" }, text),
      share === null ? null : bar(share),
    ]);
  }
}

/** Say how the time was divided among the classes. */
function shares(runs) {
  const times = new Map();
  for (const { name, start, end } of runs) if (name) times.set(name, (times.get(name) ?? 0) + end - start);
  const total = [...times.values()].reduce((sum, time) => sum + time, 0);
  if (!total) return "";
  const parts = [...times].sort((a, b) => b[1] - a[1]).map(([name, time]) => `${name} ${quantity(time / total, "ratio")}`);
  return `In the time shown: ${parts.join(", ")}`;
}

/** Return the titles of the columns of wide rows. Each row has them, too, for screen readers and narrow screens. */
export function columnTitles() {
  const names = ["GPU and owner", "Judgement", "Class", ...SPARKLINES.map((name) => SHORT[name]), "Memory"];
  const [who, verdict, ofClass, ...rest] = names;
  const memory = rest.pop();
  const cell = (name, ...content) => element("div", { class: `${name} cell` }, ...content);
  const titles = element("div", { class: "sparks cell" }, ...rest.map((name) => element("span", { class: "spark" }, name)));
  return element("div", { class: "row titles muted", "aria-hidden": "true" }, cell("who", who), cell("verdict", verdict), cell("class", ofClass), titles, cell("memory", memory));
}

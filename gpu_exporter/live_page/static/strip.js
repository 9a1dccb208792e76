// All GPUs at a glance, in the order of their index: the class, SM activity and temperature of each.

import { element, renderIfChanged, setAttribute, setText } from "./dom.js";
import { gpuName, quantity, sentence } from "./format.js";

/** The strip of GPUs. `view.show` opens the row of one. */
export class Strip {
  #section;
  #view;
  #tiles = new Map();

  constructor(section, view) {
    this.#section = section;
    this.#view = view;
  }

  /** Show the newest values. MIG instances are part of their GPU. */
  update({ gpus, summary }) {
    const whole = gpus.filter(({ instance }) => !instance);
    this.#section.hidden = whole.length < 2;
    renderIfChanged(this.#section, whole.map(({ id }) => id), (ids) => {
      this.#tiles.clear();
      return element("ul", { class: "tiles" }, ...ids.map((id) => this.#tile(id)));
    });
    for (const gpu of whole) this.#fill(gpu, summary.judgements[gpu.id]);
  }

  #tile(id) {
    const parts = {
      name: element("strong"),
      className: element("span", { class: "tile-class" }),
      values: element("span", { class: "tile-values" }),
      judgement: element("span", { class: "visually-hidden" }),
      swatch: element("span", { class: "tile-swatch", "aria-hidden": "true" }),
    };
    parts.button = element("button", { type: "button", class: "tile", on: { click: () => this.#view.show(id) } }, parts.swatch, parts.name, parts.className, parts.values, parts.judgement);
    this.#tiles.set(id, parts);
    return element("li", {}, parts.button);
  }

  #fill(gpu, judgement) {
    const tile = this.#tiles.get(gpu.id);
    const name = sentence(gpu.class ?? "unknown");
    setText(tile.name, gpuName(gpu));
    setText(tile.className, ` ${name}`);
    setAttribute(tile.className, "title", this.#view.className(gpu.class)?.words);
    setText(tile.values, ` ${quantity(gpu.measurements.sm_active, "ratio")} · ${quantity(gpu.measurements.temperature, "celsius")}`);
    setText(tile.judgement, ` ${judgement.badge}`);
    setAttribute(tile.button, "data-tone", judgement.tone);
    setAttribute(tile.button, "title", `${judgement.badge}${judgement.words ? `: ${judgement.words}` : ""}`);
    tile.swatch.style.backgroundColor = this.#view.classColour(gpu.class);
  }
}

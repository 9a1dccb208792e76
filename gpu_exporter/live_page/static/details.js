// The opened row of a GPU.

import { Charts } from "./charts.js";
import { board, element, renderIfChanged, setAttribute, setText } from "./dom.js";
import { findings, loss, notSupported, xids } from "./findings.js";
import { gpuName, quantity, sentence, words } from "./format.js";
import { moreThanFirst, processTable } from "./processes.js";
import { profileTables, whereabouts } from "./profiles.js";
import { statistics } from "./timeline.js";

export class Details {
  #id;
  #view;
  #gpu = null;
  #allProcesses = false;
  #charts;
  #parts = {};

  constructor(id, view) {
    this.#id = id;
    this.#view = view;
    const section = (name, title) => {
      const body = element("div");
      this.#parts[name] = { body, section: element("section", { class: `part ${name}` }, element("h4", {}, title), body) };
      return this.#parts[name].section;
    };
    this.chartsSection = element("section", { class: "part history" }, element("h4", {}, "Last hour"));
    this.node = element(
      "div",
      { class: "opened" },
      element("div", { class: "column" }, section("findings", "Findings"), section("profile", "What its processes do"), section("loss", "Where the time goes"), section("xids", "XIDs"), section("processes", "Processes"), section("identity", "Identity and owner"), section("missing", "Not available")),
      this.chartsSection,
    );
    this.numbers = scrollRegion();
    this.processes = scrollRegion();
    this.more = element("button", { type: "button", class: "more", on: { click: () => this.#showAllProcesses() } });
    this.#parts.processes.body.append(this.processes, this.more);
  }

  /** Show the newest values. */
  update(gpu) {
    this.#gpu = gpu;
    const now = this.#view.now();
    if (!this.#charts) {
      this.#charts = new Charts(this.#id, this.#view, () => this.#gpu);
      this.chartsSection.append(this.#charts.node, this.numbers);
    }
    const profile = this.#view.profiles.of(gpu, now);
    const minute = Math.floor(now / 60);
    this.#show("findings", [gpu.problems, gpu.findings, gpu.headline.words, gpu.headroom, minute, profile?.id], () => [...findings(gpu, now), whereabouts(profile, gpu), board("gpu", { gpu: gpu.index })]);
    const trace = this.#view.profiles.traceOf(gpu, now);
    this.#show("profile", profile || trace ? [profile?.id, trace?.id] : null, () => profileTables(this.#view.profiles, gpu, now));
    this.#show("loss", gpu.time, () => loss(gpu));
    this.#showProcesses();
    this.#show("identity", [gpu.UUID, gpu.info, gpu.owners], () => identity(gpu));
    this.#show("missing", [gpu.not_supported, gpu.not_judged, gpu.unknown], () => notSupported(gpu));
    this.#showXids();
  }

  /** Show the newest history. */
  draw() {
    this.#charts?.draw();
    this.#showXids();
    const { timeline } = this.#view;
    const rows = this.#view.measurements().map((measurement) => ({
      ...measurement,
      now: this.#gpu.measurements?.[measurement.name],
      limit: this.#gpu.limits?.[measurement.name],
      ...statistics(timeline.values(this.#id, measurement.name)),
    }));
    setAttribute(this.numbers, "aria-label", `Measurements of ${gpuName(this.#gpu)}, as a table`);
    renderIfChanged(this.numbers, rows, () => numbers(rows, gpuName(this.#gpu)));
  }

  close() {
    this.#charts?.close();
  }

  #show(name, data, make) {
    const { body, section } = this.#parts[name];
    renderIfChanged(body, data ?? null, make);
    section.hidden = !body.childNodes.length;
  }

  #showXids() {
    const events = this.#gpu.xids;
    this.#show("xids", events, () => (events.length ? xids(events, this.#view.now()) : null));
  }

  #showProcesses() {
    const gpu = this.#gpu;
    const count = this.#allProcesses ? 0 : moreThanFirst(gpu);
    setAttribute(this.processes, "aria-label", `Processes on ${gpuName(gpu)}, as a table`);
    renderIfChanged(this.processes, [gpu.processes, this.#allProcesses], () => processTable(gpu, this.#allProcesses));
    setText(this.more, `Show all ${count} processes`);
    this.more.hidden = !count;
  }

  #showAllProcesses() {
    this.#allProcesses = true;
    this.#showProcesses();
    this.processes.focus();
  }
}

/** Return an element that scrolls, with the keyboard too. It stays when its contents change, and with it the position. */
function scrollRegion() {
  return element("div", { class: "scroll", tabindex: "0", role: "region" });
}

function identity(gpu) {
  const facts = { Model: gpu.modelName, UUID: gpu.UUID, ...gpu.info };
  gpu.owners.forEach((owner, index) => {
    const of = gpu.owners.length > 1 ? ` (${index + 1})` : "";
    for (const [name, text] of Object.entries(owner)) facts[`${name}${of}`] = text;
  });
  const terms = Object.entries(facts).filter(([, text]) => text).flatMap(([name, text]) => [element("dt", {}, sentence(words(name))), element("dd", {}, String(text))]);
  return terms.length ? element("dl", { class: "reasons" }, ...terms) : null;
}

function numbers(rows, name) {
  const heads = ["Measurement", "Now", "Mean", "Lowest", "Highest", "Limit"];
  const cells = (row) => [row.now, row.mean, row.min, row.max, row.limit].map((value) => element("td", { class: "number" }, quantity(value, row.unit)));
  return element(
    "table",
    {},
    element("caption", { class: "visually-hidden" }, `Measurements of ${name}`),
    element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head)))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, element("th", { scope: "row" }, row.words), ...cells(row)))),
  );
}

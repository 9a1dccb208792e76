// The large charts of an opened row, drawn by uPlot: a common time axis, zoom and cursor.

import { element } from "./dom.js";
import { highest } from "./drawing.js";
import { clock, limitWords, quantity } from "./format.js";

const HEIGHT = 150;
const CLASS_HEIGHT = 74;
const DASHES = [[], [6, 3], [2, 2], [8, 2, 2, 2]];

let loading = null;

/** Load uPlot when the first row is opened. */
function loadUPlot() {
  loading ??= new Promise((resolve, reject) => {
    const source = new URL("uPlot.iife.min.js", import.meta.url);
    document.head.append(element("script", { src: source, on: { load: () => resolve(window.uPlot), error: reject } }));
  });
  return loading;
}

/** Return the charts that measurements make: those with the same unit share one, except where a limit belongs to it. */
export function groups(measurements) {
  const wanted = [
    ["Activity", ({ unit }) => unit === "ratio"],
    ["Traffic", ({ unit }) => unit === "bytes_per_second"],
    ["Power", ({ unit }) => unit === "watts"],
    ["Temperature", ({ unit }) => unit === "celsius"],
    ["Memory", ({ unit }) => unit === "bytes"],
    ["Clock", ({ unit }) => unit === "hertz"],
  ];
  return wanted.map(([title, matches]) => ({ title, members: measurements.filter(matches) })).filter(({ members }) => members.length);
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Return black or white: what can be read on a colour such as #73bf69. */
function readableOn(background) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(background.slice(at, at + 2), 16));
  return 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "#000000" : "#ffffff";
}

/** All charts of one GPU. */
export class Charts {
  #id;
  #view;
  #plots = [];
  #observer;
  #scheme = matchMedia("(prefers-color-scheme: dark)");
  #rebuild = () => this.#build();
  #closed = false;
  #gpu;
  #window = null; // the zoom, in seconds before now; null: everything
  #zoomed = null;
  #sync;

  constructor(id, view, gpu) {
    this.#id = id;
    this.#view = view;
    this.#gpu = gpu;
    this.#sync = `gpu-${view.number()}`;
    this.figures = element("div", { class: "figures" });
    this.node = element("div", { class: "charts" }, this.#buttons(), this.figures);
    this.#observer = new ResizeObserver(() => this.#resize());
    this.#observer.observe(this.figures);
    this.#scheme.addEventListener("change", this.#rebuild);
    loadUPlot().then(this.#rebuild, () => this.figures.replaceChildren("The charts could not be loaded."));
  }

  /** Show the newest history. */
  draw() {
    for (const { plot, data } of this.#plots) plot.setData(data(), false);
    this.#applyZoom();
  }

  close() {
    this.#closed = true;
    this.#observer.disconnect();
    this.#scheme.removeEventListener("change", this.#rebuild);
    this.#destroy();
  }

  #destroy() {
    for (const { plot } of this.#plots) plot.destroy();
    this.#plots = [];
  }

  #buttons() {
    const make = (text, minutes) =>
      element("button", { type: "button", "aria-pressed": String(minutes === 60), on: { click: () => this.#choose(minutes) } }, text);
    this.choices = new Map([[60, make("All", 60)], [15, make("15 min", 15)], [5, make("5 min", 5)]]);
    const hint = element("span", { class: "muted hint" }, "Drag to zoom, double-click to reset, arrow keys move the cursor.");
    return element("div", { class: "zoom", role: "group", "aria-label": "Time range of the charts" }, ...this.choices.values(), hint);
  }

  #choose(minutes) {
    this.#zoomed = null;
    this.#window = minutes === 60 ? null : 60 * minutes;
    for (const [choice, button] of this.choices) button.setAttribute("aria-pressed", String(choice === minutes));
    this.#applyZoom();
  }

  #range() {
    const [start, end] = this.#view.timeline.window();
    return this.#zoomed ?? [this.#window ? end - this.#window : start, end];
  }

  #applyZoom() {
    const [min, max] = this.#range();
    for (const { plot } of this.#plots) plot.setScale("x", { min, max });
  }

  #build() {
    if (this.#closed) return;
    this.#destroy();
    this.figures.replaceChildren();
    this.#add(this.#classChart());
    for (const group of groups(this.#view.measurements())) this.#add(this.#lineChart(group));
    this.#applyZoom();
  }

  #add({ title, options, data, legend }) {
    const target = element("div", { class: "plot", role: "img", tabindex: "0", "aria-label": `${title}, last hour. The table below has the numbers.` });
    const caption = element("figcaption", {}, element("strong", {}, title), " ", legend);
    this.figures.append(element("figure", {}, caption, target));
    const plot = new window.uPlot({ ...options, width: this.#width(), tzDate: (at) => new Date(1000 * at) }, data(), target);
    target.addEventListener("keydown", (event) => this.#key(event, plot));
    this.#plots.push({ plot, data });
  }

  #width() {
    return Math.max(200, this.figures.clientWidth);
  }

  #resize() {
    const width = this.#width();
    for (const { plot } of this.#plots) if (plot.width !== width) plot.setSize({ width, height: plot.height });
  }

  #key(event, plot) {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") this.#choose(60);
    if (!move) return;
    event.preventDefault();
    const last = plot.data[0].length - 1;
    const index = Math.min(last, Math.max(0, (plot.cursor.idx ?? last + 1) + move * (event.shiftKey ? 6 : 1)));
    plot.setCursor({ left: plot.valToPos(plot.data[0][index], "x"), top: plot.bbox.height / 2 / devicePixelRatio });
  }

  #common(height, hooks) {
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    const zoomed = (plot) => {
      const { left, width } = plot.select;
      if (width < 4) return;
      this.#zoomed = [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")];
      for (const button of this.choices.values()) button.setAttribute("aria-pressed", "false");
      plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
      this.#applyZoom();
    };
    return {
      axis,
      options: {
        height,
        legend: { show: false },
        cursor: {
          sync: { key: this.#sync, setSeries: false, scales: ["x", null] },
          drag: { x: true, y: false, setScale: false },
          bind: { dblclick: () => () => this.#choose(60) },
          y: false,
        },
        hooks: { ...hooks, setSelect: [zoomed], draw: [...(hooks.draw ?? []), (plot) => this.#drawXids(plot)] },
      },
      time: { ...axis, size: 26, values: (plot, splits) => splits.map((at) => clock(at, at, splits[1] - splits[0] < 60)) },
    };
  }

  #lineChart({ title, members }) {
    const { timeline } = this.#view;
    const { unit } = members[0];
    const limit = this.#gpu().limits[members[0].name];
    const limits = members.length === 1 && limit ? [limit] : [];
    const values = members.map(() => element("span", { class: "value" }));
    const legend = element("span", { class: "legend" }, ...members.map(({ words }, index) => element("span", { class: `key series-${index % 6}` }, `${words} `, values[index])),
      ...limits.map((limit) => element("span", { class: "key limit" }, limitWords(limit, unit))));
    const data = () => [timeline.times, ...members.map(({ name }) => timeline.values(this.#id, name)), ...limits.map((limit) => timeline.times.map(() => limit))];
    const show = (plot) => values.forEach((node, index) => {
      const at = plot.cursor.idx ?? timeline.times.length - 1;
      node.textContent = quantity(plot.data[index + 1]?.[at], unit);
    });
    const { options, axis, time } = this.#common(HEIGHT, { setCursor: [show], setData: [show] });
    const top = () => highest(members[0], limits[0], members.flatMap(({ name }) => timeline.values(this.#id, name)));
    const line = (index) => ({ stroke: colour(`--series-${index % 6}`), width: 1.5, dash: DASHES[Math.floor(index / 2) % DASHES.length], points: { show: false }, spanGaps: false });
    return {
      title,
      legend,
      data,
      options: {
        ...options,
        scales: { x: { time: true }, y: { range: () => [0, top()] } },
        series: [{}, ...members.map((_, index) => line(index)), ...limits.map(() => ({ stroke: colour("--text"), width: 1, dash: [3, 4], points: { show: false } }))],
        axes: [time, { ...axis, size: 72, values: (plot, splits) => splits.map((value) => quantity(value, unit)) }],
      },
    };
  }

  #classChart() {
    const { timeline } = this.#view;
    const value = element("span", { class: "value" });
    const show = (plot) => {
      const at = plot.cursor.idx ?? timeline.times.length - 1;
      const index = timeline.values(this.#id, "class")[at];
      value.textContent = `${timeline.classes[index] ?? "unknown"}${timeline.times[at] ? ` at ${clock(timeline.times[at], this.#view.now())}` : ""}`;
    };
    const { options, axis, time } = this.#common(CLASS_HEIGHT, { setCursor: [show], setData: [show], draw: [(plot) => this.#drawClasses(plot)] });
    return {
      title: "What limits it",
      legend: element("span", { class: "legend" }, value),
      data: () => [timeline.times, timeline.times.map(() => null)],
      options: {
        ...options,
        scales: { x: { time: true }, y: { range: () => [0, 1] } },
        series: [{}, {}],
        axes: [time, { ...axis, size: 72, values: () => [], grid: { show: false } }],
      },
    };
  }

  #drawClasses(plot) {
    const { ctx, bbox } = plot;
    const right = bbox.left + bbox.width;
    ctx.save();
    ctx.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
    ctx.textBaseline = "middle";
    ctx.textAlign = "left";
    for (const run of this.#view.timeline.runs(this.#id)) {
      const from = Math.max(bbox.left, plot.valToPos(run.start, "x", true));
      const to = Math.min(right, plot.valToPos(run.end, "x", true));
      if (to <= from || run.name === null) continue;
      const fill = this.#view.classColour(run.name);
      ctx.fillStyle = fill;
      ctx.fillRect(from, bbox.top, Math.max(1, to - from - 1), bbox.height);
      const width = ctx.measureText(run.name).width + 8 * devicePixelRatio;
      if (width > to - from) continue;
      ctx.fillStyle = readableOn(fill);
      ctx.fillText(run.name, from + 4 * devicePixelRatio, bbox.top + bbox.height / 2);
    }
    ctx.restore();
  }

  #drawXids(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = colour("--bad");
    ctx.fillStyle = colour("--text");
    ctx.lineWidth = devicePixelRatio;
    ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
    ctx.textBaseline = "top";
    ctx.setLineDash([]);
    for (const event of this.#gpu().xids) {
      const x = Math.round(plot.valToPos(event.at, "x", true));
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      const left = x - bbox.left < 0.9 * bbox.width;
      ctx.textAlign = left ? "left" : "right";
      ctx.fillText(`XID ${event.xid}`, x + (left ? 4 : -4) * devicePixelRatio, bbox.top + 2 * devicePixelRatio);
    }
    ctx.restore();
  }
}

// The live page of a node: takes what the server sends, and shows it.

import { Connection } from "./connection.js";
import { element, renderIfChanged, setText } from "./dom.js";
import { clock, duration } from "./format.js";
import { Jobs } from "./jobs.js";
import { Profiles } from "./profiles.js";
import { columnTitles, Row } from "./rows.js";
import { Strip } from "./strip.js";
import { renderEarlier, renderSummary } from "./summary.js";
import { Timeline } from "./timeline.js";

const part = (id) => document.getElementById(id);
const list = element("ol", { class: "gpus" });
const rows = new Map();
let payload = null;
let ahead = 0; // of the server's clock, in seconds
let numbers = 0;
let scheduled = false;
let redraw = true;
// The GPU that a link to this page names: alerts do.
let linked = location.hash.slice(1);

const view = {
  timeline: new Timeline(),
  /** The time of the server, which may differ from that of the browser. */
  now: () => Date.now() / 1000 + ahead,
  className: (name) => payload?.classes?.find((each) => each.name === name),
  classColour: (name) => view.className(name)?.colour ?? "#8e8e8e",
  measurement: (name) => payload?.measurements?.find((measurement) => measurement.name === name),
  measurements: () => payload?.measurements ?? [],
  number: () => (numbers += 1),
  show: (id) => rows.get(id)?.show(),
};

const jobs = new Jobs(part("jobs"), view);
const strip = new Strip(part("strip"), view);
const first = { title: part("summary-title"), health: part("health"), problems: part("problems") };
const earlier = { section: part("earlier"), list: part("earlier-list") };
view.profiles = new Profiles(() => schedule(false));
const connection = new Connection({
  time(seconds) {
    // The server rounds its time down to a second; a smaller difference is none.
    const difference = seconds - Date.now() / 1000;
    ahead = Math.abs(difference) < 2 ? 0 : difference;
  },
  gpus(fresh) {
    // A GPU that cannot be read has no limits now, but its history is still drawn against those it had.
    const limits = new Map(payload?.gpus.map((gpu) => [gpu.id, gpu.limits]));
    for (const gpu of fresh.gpus) gpu.limits = { ...limits.get(gpu.id), ...gpu.limits };
    payload = fresh;
    view.profiles.update(fresh.newest_profile);
    schedule(false);
  },
  history(fresh) {
    view.timeline.load(fresh);
    schedule(true);
  },
  point(point) {
    view.timeline.append(point);
    schedule(true);
  },
  state(name, words) {
    part("connection").parentElement.dataset.state = name;
    setText(part("connection"), name === "lost" ? words.replace("lost.", `lost at ${clock(Date.now() / 1000, undefined, true)}.`) : words);
    document.body.dataset.connection = name;
    if (!payload && name !== "connecting") setText(part("summary-title"), "No numbers");
    showAge();
  },
});

/** Show everything before the next frame, at most once. `history`: the last hour has changed, too. */
function schedule(history) {
  redraw ||= history;
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    if (payload) render();
  });
}

function render() {
  setText(part("about"), [payload.source, payload.version && `gpu-exporter ${payload.version}`].filter(Boolean).join(" · "));
  const warning = [payload.banner, payload.problem].filter(Boolean).join(". ");
  part("banner").hidden = !warning;
  setText(part("banner"), warning);
  renderSummary(first, payload, { show: view.show, now: view.now() });
  renderEarlier(earlier, payload.earlier_incidents ?? []);
  strip.update(payload);
  jobs.update(payload);
  renderRows();
  showAge();
  if (rows.has(linked)) {
    view.show(linked);
    linked = "";
  }
}

function renderRows() {
  if (!list.isConnected) part("gpus").append(columnTitles(), list);
  const [start, end] = view.timeline.window();
  setText(part("span"), view.timeline.times.length ? `Strips and lines: the last ${duration(end - start)}` : "");
  const present = new Set(payload.gpus.map((gpu) => gpu.id));
  for (const [id, row] of rows) {
    if (present.has(id)) continue;
    row.close();
    row.node.remove();
    rows.delete(id);
  }
  renderIfChanged(part("legend"), view.timeline.classesSeen(), (names) => names.map(classKey));
  const focused = document.activeElement; // a row that moves would lose the focus
  const byId = new Map(payload.gpus.map((gpu) => [gpu.id, gpu]));
  payload.summary.order.map((id) => byId.get(id)).forEach((gpu, position) => {
    const fresh = !rows.has(gpu.id);
    if (fresh) rows.set(gpu.id, new Row(gpu.id, view));
    const row = rows.get(gpu.id);
    if (list.children[position] !== row.node) list.insertBefore(row.node, list.children[position] ?? null);
    row.update(gpu, payload.summary.judgements[gpu.id]);
    if (redraw || fresh) row.draw();
  });
  if (focused?.isConnected && focused !== document.activeElement) focused.focus({ preventScroll: true });
  redraw = false;
}

/** Return the entry of a class in the legend of the strips. */
function classKey(name) {
  const swatch = element("span", { class: "swatch", "aria-hidden": "true" });
  swatch.style.backgroundColor = view.classColour(name);
  return element("li", { title: view.className(name)?.words }, swatch, name);
}

/** Say how old the numbers are. Not part of the live region: a screen reader would read it out every second. */
function showAge() {
  if (!payload) return;
  setText(part("clock"), clock(view.now(), view.now(), true));
  const age = view.now() - payload.at;
  const state = part("connection").parentElement.dataset.state;
  const old = age > Math.max(5, 3 * (payload.interval ?? 1));
  setText(part("age"), old || state !== "live" ? `Numbers are ${duration(age)} old.` : "");
}

setInterval(showAge, 1000);
connection.start();

// Small drawings: sparklines, bars, and the strip of classes. They follow the style sheet and the size of their cell.

import { element, svg } from "./dom.js";

const WIDTH = 100;
const HEIGHT = 24;

/** Return an empty drawing that fills its cell. It is hidden from screen readers, which read the number beside it. */
export function drawing(name) {
  return svg("svg", {
    class: name,
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
    preserveAspectRatio: "none",
    "aria-hidden": "true",
    focusable: "false",
  });
}

/** Return the highest value of a measurement's scale. */
export function highest(measurement, limit, values) {
  if (measurement.max) return measurement.max;
  const largest = Math.max(0, ...values.filter((value) => value !== null && value !== undefined));
  return Math.max(limit ?? 0, 1.1 * largest) || 1;
}

/** Draw values over time, from `low` to `high`, with a dashed line at `limit`. Gaps stay empty. */
export function drawSparkline(target, values, { low = 0, high = 1, limit = null }) {
  const y = (value) => HEIGHT - 1 - (HEIGHT - 2) * Math.min(1, Math.max(0, (value - low) / (high - low || 1)));
  const x = (position) => (WIDTH * position) / Math.max(1, values.length - 1);
  let line = "";
  let area = "";
  let begin = null;
  const end = (position) => {
    if (begin !== null) area += `L${x(position).toFixed(1)},${HEIGHT}L${x(begin).toFixed(1)},${HEIGHT}Z`;
    begin = null;
  };
  values.forEach((value, position) => {
    if (value === null || value === undefined) return end(position - 1);
    const point = `${x(position).toFixed(1)},${y(value).toFixed(1)}`;
    line += `${begin === null ? "M" : "L"}${point}`;
    area += `${begin === null ? "M" : "L"}${point}`;
    begin ??= position;
    return undefined;
  });
  end(values.length - 1);
  const marks = limit === null ? [] : [svg("path", { class: "limit", d: `M0,${y(limit).toFixed(1)}H${WIDTH}` })];
  target.replaceChildren(svg("path", { class: "area", d: area }), ...marks, svg("path", { class: "line", d: line }));
}

/** Return a bar that is filled to a share. It repeats a number, so screen readers skip it. */
export function bar(share) {
  const filled = element("span", { class: "filled" });
  filled.style.width = `${Math.round(100 * Math.min(1, Math.max(0, share)))}%`;
  return element("span", { class: "bar", "aria-hidden": "true" }, filled);
}

// How high a class is drawn, because not everybody can tell colours apart: useful work high, losses lower, idle low.
const HEIGHTS = { "compute-bound": 1, "memory-bound": 1, mixed: 1, idle: 0.2 };
const LOSS = 0.6;

/** Draw runs of classes from `start` to `end`, and a mark for each XID. */
export function drawStrip(target, runs, events, { start, end, colour }) {
  const x = (time) => (WIDTH * (time - start)) / (end - start || 1);
  const bars = runs.flatMap((run) => {
    if (run.name === null) return [];
    const height = HEIGHT * (HEIGHTS[run.name] ?? LOSS);
    const from = Math.max(0, x(run.start));
    const box = { x: from, y: HEIGHT - height, width: Math.max(0.1, x(run.end) - from), height };
    return [svg("rect", { fill: colour(run.name), ...box }, svg("title", {}, run.name))];
  });
  const recent = events.filter((event) => event.at >= start);
  const marks = recent.map((event) => svg("path", { class: "xid", d: `M${x(event.at).toFixed(1)},0V${HEIGHT}` }));
  target.replaceChildren(...bars, ...marks);
}

// Profiles of the processes on the GPUs: where in the code they are, and flame graphs. Only some users may see them.

import { element } from "./dom.js";
import { clock, duration, gpuName, quantity, sentence } from "./format.js";

// A profile says nothing about a GPU any more after this time, in seconds.
const SHOWN = 3600;
const MOST_PROCESSES = 4;
// Narrower frames are left out of flame graphs, and deeper ones, too.
const LEAST_SHARE = 0.004;
const MOST_DEPTH = 60;

const REASONS = {
  stall: "the job makes no progress",
  straggler: "the other ranks wait for this one",
  "host-bound": "the GPU waits for its host",
  schedule: "on schedule",
};

/** The profiles of a node. `changed` is called when there are new ones. */
export class Profiles {
  #newest = null;
  #refused = false;
  #profiles = [];
  #changed;

  constructor(changed) {
    this.#changed = changed;
  }

  /** Ask for the profiles if there are new ones: `newest` is the id of the newest, null if profiles are off. */
  async update(newest) {
    if (this.#refused || !newest || newest === this.#newest) return;
    this.#newest = newest;
    try {
      const answer = await fetch("api/v1/profiles", { cache: "no-store" });
      this.#refused = answer.status === 403;
      if (!answer.ok) return;
      this.#profiles = (await answer.json()).profiles;
      this.#changed();
    } catch {
      this.#newest = null; // no connection: ask again
    }
  }

  /** Return the latest profile with stacks of a process on a GPU, if it is new enough. */
  of(gpu, now) {
    return this.#profiles.find((profile) => now - profile.at < SHOWN && processesOf(profile, gpu).length);
  }
}

function processesOf(profile, gpu) {
  return profile.processes.filter((process) => process.gpus.includes(gpu.UUID)).slice(0, MOST_PROCESSES);
}

function nameOf(process) {
  return `process ${process.pid} (${process.command}${process.rank && `, rank ${process.rank}`})`;
}

/** Return where a GPU's processes are most of the time, as one sentence for each; null without a profile. */
export function whereabouts(profile, gpu) {
  const sentences = (profile ? processesOf(profile, gpu) : []).flatMap((process) => {
    const [cause] = process.causes;
    if (!cause?.lines.length) return [];
    const line = element("code", {}, cause.lines[0].frame);
    return [element("p", { class: "where" }, element("strong", {}, "Where: "), `${quantity(cause.share, "share")} of the time ${cause.words}, at `, line)];
  });
  for (const odd of profile?.odd ?? []) {
    const name = `Process ${odd.pid}${odd.rank && ` (rank ${odd.rank})`}`;
    sentences.push(element("p", { class: "where" }, element("strong", {}, `${name} is elsewhere: `), "at ", element("code", {}, odd.line), `, while ${odd.others === 1 ? "1 other is" : `${odd.others} others are`} at `, element("code", {}, odd.others_line)));
  }
  return sentences.length ? sentences : null;
}

/** Return what the main threads of the processes on a GPU did, by cause and line. */
export function profileTables(profile, gpu, now) {
  if (!profile) return null;
  const about = `Stacks sampled for ${profile.seconds} s at ${clock(profile.at, now)} (${duration(now - profile.at)} ago): ${REASONS[profile.reason] ?? profile.reason}${profile.finding && ` (${profile.finding})`}.`;
  return [element("p", { class: "muted" }, about), ...processesOf(profile, gpu).map((process) => processTable(profile, process, gpu))];
}

function processTable(profile, process, gpu) {
  const rows = process.causes.map((cause) => {
    const lines = cause.lines.map((line) => element("li", {}, `${quantity(line.share, "share")} `, element("code", {}, line.frame)));
    return element(
      "tr",
      {},
      element("td", { class: "number" }, quantity(cause.share, "share")),
      element("th", { scope: "row" }, sentence(cause.words)),
      element("td", {}, element("ul", { class: "lines" }, ...lines)),
    );
  });
  const caption = `The main thread of ${nameOf(process)} on ${gpuName(gpu)}`;
  const place = element("div", { class: "flame scroll", tabindex: "0", role: "region", "aria-label": `Flame graph of process ${process.pid}` });
  place.hidden = true;
  const button = element("button", { type: "button", class: "more", "aria-expanded": "false", on: { click: () => toggle(button, place, profile, process) } }, `Flame graph of process ${process.pid}`);
  const heads = ["Share", "What it did", "Where"].map((head) => element("th", { scope: "col" }, head));
  return element(
    "div",
    { class: "profile" },
    element("table", {}, element("caption", {}, caption), element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...rows)),
    button,
    place,
  );
}

async function toggle(button, place, profile, process) {
  place.hidden = !place.hidden;
  button.setAttribute("aria-expanded", String(!place.hidden));
  if (place.hidden || place.childNodes.length) return;
  const answer = await fetch(`api/v1/profiles?id=${encodeURIComponent(profile.id)}`, { cache: "no-store" });
  const found = answer.ok ? (await answer.json()).stacks.find((stacks) => stacks.pid === process.pid) : null;
  place.replaceChildren(found ? flame(found.stacks) : element("p", {}, "The stacks of this profile are not stored any more."));
}

/** Return a flame graph of folded stacks with seconds: the outermost frame on top, the width is the share of time. */
function flame(stacks) {
  const root = { name: "all threads", seconds: 0, children: new Map() };
  for (const [stack, seconds] of Object.entries(stacks)) {
    let node = root;
    node.seconds += seconds;
    for (const name of stack.split(";").slice(0, MOST_DEPTH)) {
      if (!node.children.has(name)) node.children.set(name, { name, seconds: 0, children: new Map() });
      node = node.children.get(name);
      node.seconds += seconds;
    }
  }
  return element("ul", { class: "frames" }, frame(root, root.seconds, root.seconds));
}

function frame(node, above, whole) {
  const children = [...node.children.values()].filter((child) => child.seconds >= LEAST_SHARE * whole).sort((a, b) => b.seconds - a.seconds);
  const share = quantity(node.seconds / whole, "share");
  const item = element("li", {}, element("span", { title: `${share}: ${node.name}` }, node.name));
  item.style.width = `${(100 * node.seconds) / above}%`;
  if (children.length) item.append(element("ul", {}, ...children.map((child) => frame(child, node.seconds, whole))));
  return item;
}

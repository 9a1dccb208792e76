// Profiles of the processes on the GPUs: where in the code they are, and flame graphs. Only some users may see them.

import { element } from "./dom.js";
import { clock, gpuName, quantity, sentence } from "./format.js";

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
  request: "somebody asked for it",
};
// The stacks of a trace, by what their seconds are.
const OF_TRACE = { gpu: "GPU time by the code that launched it", idle: "Idle time by what the host did" };
// With how many earlier profiles one can be compared.
const MOST_EARLIER = 20;
// Frames whose share changed by less are drawn as unchanged.
const LEAST_CHANGE = 0.01;

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

  /** Return the latest trace with kernels of a GPU, if it is new enough. */
  traceOf(gpu, now) {
    return this.#profiles.find((profile) => now - profile.at < SHOWN && profile.kernels.some((kernels) => kernels.gpu === gpu.UUID));
  }

  /** Return earlier profiles of the program of a process on the same GPU, the newest first: [profile, process] each. */
  earlier(profile, process, gpu) {
    return this.#profiles
      .filter((other) => other.at < profile.at)
      .map((other) => [other, processesOf(other, gpu).find((each) => each.command === process.command && each.rank === process.rank)])
      .filter(([, found]) => found)
      .slice(0, MOST_EARLIER);
  }
}

/** Return the processes on a GPU whose stacks were sampled: those that only recorded a trace have no samples. */
function processesOf(profile, gpu) {
  return profile.processes.filter((process) => process.samples && process.gpus.includes(gpu.UUID)).slice(0, MOST_PROCESSES);
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
    return [element("p", { class: "where" }, element("strong", {}, "Where: "), `${quantity(cause.share, "ratio")} of the time ${cause.words}, at `, line)];
  });
  for (const odd of profile?.odd ?? []) {
    const name = `Process ${odd.pid}${odd.rank && ` (rank ${odd.rank})`}`;
    sentences.push(element("p", { class: "where" }, element("strong", {}, `${name} is elsewhere: `), "at ", element("code", {}, odd.line), `, while ${odd.others === 1 ? "1 other is" : `${odd.others} others are`} at `, element("code", {}, odd.others_line)));
  }
  return sentences.length ? sentences : null;
}

/** Return what the main threads of the processes on a GPU did, by cause and line, and what a trace says. */
export function profileTables(profiles, gpu, now) {
  const [profile, trace] = [profiles.of(gpu, now), profiles.traceOf(gpu, now)];
  const parts = [];
  if (profile) {
    const about = `Stacks sampled for ${profile.seconds} s at ${clock(profile.at, now)}: ${REASONS[profile.reason] ?? profile.reason}${profile.finding && ` (${profile.finding})`}.`;
    parts.push(element("p", { class: "muted" }, about), ...processesOf(profile, gpu).map((process) => processTable(profiles, profile, process, gpu, now)));
  }
  if (trace) parts.push(traceTable(trace, gpu, now));
  return parts.length ? parts : null;
}

function table(caption, heads, rows) {
  const columns = heads.map((head) => element("th", { scope: "col" }, head));
  return element("table", {}, element("caption", {}, caption), element("thead", {}, element("tr", {}, ...columns)), element("tbody", {}, ...rows));
}

function processTable(profiles, profile, process, gpu, now) {
  const rows = process.causes.map((cause) => {
    const lines = cause.lines.map((line) => element("li", {}, `${quantity(line.share, "ratio")} `, element("code", {}, line.frame)));
    return element(
      "tr",
      {},
      element("td", { class: "number" }, quantity(cause.share, "ratio")),
      element("th", { scope: "row" }, sentence(cause.words)),
      element("td", {}, element("ul", { class: "lines" }, ...lines)),
    );
  });
  const caption = `The main thread of ${nameOf(process)} on ${gpuName(gpu)}`;
  const shown = table(caption, ["Share", "What it did", "Where"], rows);
  const drawn = graph(`Flame graph of process ${process.pid}`, async () => flame(await stacksOf(profile, process.pid, "wall")));
  return element("div", { class: "profile" }, shown, ...drawn, ...comparison(profiles, profile, process, gpu, now));
}

/** Return a choice of earlier profiles, and the place for the flame graph that shows what has changed since. */
function comparison(profiles, profile, process, gpu, now) {
  const earlier = profiles.earlier(profile, process, gpu);
  if (!earlier.length) return [];
  const name = `What changed in process ${process.pid}`;
  const place = element("div", { class: "flame scroll", tabindex: "0", role: "region", "aria-label": name });
  place.hidden = true;
  const options = earlier.map(([other], number) => element("option", { value: String(number) }, `${clock(other.at, now)}, ${REASONS[other.reason] ?? other.reason}`));
  const choose = async () => {
    place.hidden = choice.value === "";
    if (place.hidden) return;
    const chosen = choice.value;
    const [other, before] = earlier[Number(chosen)];
    const drawn = flame(await stacksOf(profile, process.pid, "wall"), await stacksOf(other, before.pid, "wall"));
    if (choice.value === chosen) place.replaceChildren(drawn); // the answer to an earlier choice may come later
  };
  const choice = element("select", { on: { change: choose } }, element("option", { value: "" }, "nothing"), ...options);
  return [element("label", { class: "compare" }, `Compare process ${process.pid} with `, choice), place];
}

/** Return the kernels of a GPU in a trace by class, and flame graphs of its GPU time and idle time. */
function traceTable(trace, gpu, now) {
  const kernels = trace.kernels.filter((each) => each.gpu === gpu.UUID).sort((a, b) => b.seconds - a.seconds);
  const whole = kernels.reduce((sum, each) => sum + each.seconds, 0);
  const rows = kernels.map((each) => element("tr", {}, element("td", { class: "number" }, quantity(each.seconds / whole, "ratio")), element("th", { scope: "row" }, sentence(each.kernel_class))));
  const about = `Trace of ${trace.seconds} s at ${clock(trace.at, now)}: ${REASONS[trace.reason] ?? trace.reason}.`;
  const pids = trace.processes.filter((process) => process.gpus.includes(gpu.UUID)).map((process) => process.pid);
  const graphs = pids.flatMap((pid) => Object.entries(OF_TRACE).flatMap(([kind, words]) => graph(`${words}, process ${pid}`, async () => flame(await stacksOf(trace, pid, kind)))));
  return element("div", { class: "profile" }, element("p", { class: "muted" }, about), table(`GPU time of ${gpuName(gpu)} by kernel class`, ["Share", "Kernels"], rows), ...graphs);
}

/** Return a button that shows and hides a flame graph, which `draw` makes when it is shown first. */
function graph(name, draw) {
  const place = element("div", { class: "flame scroll", tabindex: "0", role: "region", "aria-label": name });
  place.hidden = true;
  const toggle = async () => {
    place.hidden = !place.hidden;
    button.setAttribute("aria-expanded", String(!place.hidden));
    if (!place.hidden && !place.childNodes.length) place.replaceChildren(await draw());
  };
  const button = element("button", { type: "button", class: "more", "aria-expanded": "false", on: { click: toggle } }, name);
  return [button, place];
}

/** Return the folded stacks of a process of one kind, with seconds; null if they are not stored any more. */
async function stacksOf(profile, pid, kind) {
  const answer = await fetch(`api/v1/profiles?id=${encodeURIComponent(profile.id)}`, { cache: "no-store" });
  const found = answer.ok ? (await answer.json()).stacks.find((stacks) => stacks.pid === pid && stacks.kind === kind) : null;
  return found?.stacks ?? null;
}

/** Return the tree of folded stacks. `share` is of the time of all. */
function tree(stacks) {
  const whole = Object.values(stacks).reduce((sum, seconds) => sum + seconds, 0);
  const root = { name: "all", share: 0, children: new Map() };
  for (const [stack, seconds] of Object.entries(stacks)) {
    let node = root;
    node.share += seconds / whole;
    for (const name of stack.split(";").slice(0, MOST_DEPTH)) {
      if (!node.children.has(name)) node.children.set(name, { name, share: 0, children: new Map() });
      node = node.children.get(name);
      node.share += seconds / whole;
    }
  }
  return root;
}

/** Return a flame graph of folded stacks: the outermost frame on top, the width is the share of time. With those of
 * earlier, frames show how much their share has changed since. */
function flame(stacks, earlier) {
  if (!stacks || earlier === null) return element("p", {}, "The stacks of this profile are not stored any more.");
  const [root, before] = [tree(stacks), earlier && tree(earlier)];
  const parts = before ? [element("p", { class: "muted" }, "Points are percentage points of the time, compared with the earlier profile. Code that runs no more is not drawn.")] : [];
  return element("div", {}, ...parts, element("ul", { class: "frames" }, frame(root, root.share, before, Boolean(before))));
}

function frame(node, above, before, isCompared) {
  const children = [...node.children.values()].filter((child) => child.share >= LEAST_SHARE).sort((a, b) => b.share - a.share);
  const change = isCompared ? node.share - (before?.share ?? 0) : 0;
  const kind = change >= LEAST_CHANGE ? "grew" : change <= -LEAST_CHANGE ? "shrank" : "";
  const points = kind && `${change > 0 ? "+" : "−"}${Math.round(100 * Math.abs(change))} points: `;
  const share = quantity(node.share, "ratio");
  const item = element("li", {}, element("span", { class: kind, title: `${share}: ${points}${node.name}` }, `${points}${node.name}`));
  item.style.width = `${(100 * node.share) / above}%`;
  if (children.length) item.append(element("ul", {}, ...children.map((child) => frame(child, node.share, before?.children.get(child.name), isCompared))));
  return item;
}

// The first lines of the page: how many GPUs are healthy, which ones are not, since when, and what to do.

import { badge, element, renderIfChanged } from "./dom.js";
import { healthTone } from "./findings.js";
import { actionWords, clock, gpuName, gpuNames, sentence } from "./format.js";
import { heldUpBy, jobId } from "./jobs.js";

const STALL = "GpuCollectiveStall";
const STOPPED = "Stopped";
const ORDER = ["unhealthy", "degraded", "unknown"];

/** Show the summary of a payload. `show` opens the row of a GPU. */
export function renderSummary(section, payload, { show, now }) {
  const items = [...sick(payload, now), ...missing(payload), ...incidents(payload, now), ...heldUp(payload, now)];
  const data = { title: title(payload, items), items: items.map(({ gpu, ...item }) => ({ ...item, id: gpu?.id })) };
  const gpus = new Map(payload.gpus.map((gpu) => [gpu.id, gpu]));
  renderIfChanged(section, data, ({ title: text, items: entries }) => [
    element("h2", { id: "summary-title" }, text),
    entries.length
      ? element("ul", { class: "problems" }, ...entries.map((item) => line(item, gpus.get(item.id), show)))
      : "",
  ]);
  document.title = `${tabTitle(payload)} · ${payload.node ?? ""} · gpu-exporter`;
}

function line(item, gpu, show) {
  const about = gpu
    ? element("button", { type: "button", class: "jump", on: { click: () => show(gpu.id) } }, item.name)
    : item.target ? element("a", { href: `#${item.target}` }, item.name) : element("strong", {}, item.name);
  const parts = [badge(item.tone, item.badge), " ", about, item.of ? ` (${item.of})` : "", `: ${item.words}.`];
  if (item.since) parts.push(` Since ${item.since}.`);
  if (item.cost) parts.push(` ${item.cost}.`);
  if (item.action) parts.push(" ", element("strong", {}, "What to do: "), `${item.action}.`);
  return element("li", {}, ...parts, ...(item.code ?? []).map((text) => element("p", { class: "where" }, text)));
}

/** Return one entry per GPU, not per MIG instance: the verdict is on the whole GPU. */
function devices(payload) {
  return payload.gpus.filter((gpu) => !gpu.instance);
}

function title(payload, items) {
  const all = devices(payload);
  const healthy = all.filter((gpu) => gpu.health === "healthy").length;
  const total = all.length + (payload.missing || 0);
  if (!total) return "No GPU";
  if (healthy === total) return `${total === 1 ? "The GPU is healthy" : `All ${total} GPUs are healthy`}${but(items)}`;
  return `${healthy} of ${total} ${total === 1 ? "GPU" : "GPUs"} healthy`;
}

/** Say what a heading about healthy GPUs must not hide. */
function but(items) {
  const jobs = items.filter((item) => item.target || item.hits);
  const stopped = jobs.filter((item) => item.badge === STOPPED || item.hits === STOPPED).length;
  const held = jobs.length - stopped;
  const gpus = items.length - jobs.length;
  const parts = [
    stopped && `${stopped} ${stopped === 1 ? "job makes" : "jobs make"} no progress`,
    held && `${held} ${held === 1 ? "job is" : "jobs are"} slow`,
    !jobs.length && gpus && `${gpus} ${gpus === 1 ? "warning" : "warnings"}`,
  ].filter(Boolean);
  return parts.length ? `, but ${parts.join(" and ")}` : "";
}

function tabTitle(payload) {
  const all = devices(payload);
  const bad = all.filter((gpu) => gpu.health === "unhealthy").length + (payload.missing || 0);
  return bad ? `✖ ${bad} unhealthy` : title(payload, []);
}

function* sick(payload, now) {
  const all = devices(payload).filter((gpu) => gpu.health !== "healthy");
  all.sort((a, b) => ORDER.indexOf(a.health) - ORDER.indexOf(b.health));
  for (const gpu of all) {
    const said = gpu.problems.map((problem) => problem.what);
    const [own] = payload.incidents.filter((incident) => culprits(incident, payload).includes(gpu));
    yield {
      gpu,
      name: gpuName(gpu),
      of: gpu.owner,
      tone: healthTone(gpu.health),
      badge: sentence(gpu.health),
      words: `${said.length ? said.join("; ") : unknown(gpu)}${own ? alsoHit(own, payload) : ""}`,
      since: gpu.since ? clock(gpu.since, now) : "",
      cost: own ? cost(own) : "",
      action: own ? advice(own) : gpu.problems.length ? actionWords(gpu.action) : "",
    };
  }
}

function unknown(gpu) {
  if (!gpu.up) return gpu.headline.words;
  return gpu.unknown.map(({ what, why }) => `${what}: ${why}`).join("; ") || gpu.headline.words;
}

function* missing(payload) {
  if (!payload.missing) return;
  yield {
    name: `${payload.missing} expected ${payload.missing === 1 ? "GPU" : "GPUs"}`,
    tone: "bad",
    badge: "Missing",
    words: "the driver does not list them",
    action: "run `gpu-exporter doctor` on the node",
  };
}

/** Yield the incidents that the line of no sick GPU tells: the cause, and whom it hits. */
function* incidents(payload, now) {
  for (const incident of payload.incidents) {
    const gpus = culprits(incident, payload);
    if (incident.severity === "info" || !gpus.length || gpus.some(isSick)) continue;
    const finding = gpus[0].findings.find(({ name }) => name === incident.cause);
    const name = gpuName(gpus[0]);
    const words = gpus.length > 1 && finding
      ? finding.words.replace("this GPU", "each GPU")
      : sentence(incident.words.replace(`${name} on ${payload.node} `, `${name} `).replace(`${name} `, "this GPU "));
    yield {
      gpu: gpus[0],
      name: gpuNames(gpus),
      of: incident.jobs[0] ?? holder(gpus),
      tone: incident.severity === "critical" ? "bad" : "warn",
      badge: sentence(incident.severity),
      words: `${words}${alsoHit(incident, payload)}`,
      since: incident.since ? clock(incident.since, now) : "",
      cost: cost(incident),
      action: advice(incident),
      hits: incident.cause === STALL ? STOPPED : incident.hit.length && incident.jobs.length ? "Slow" : "",
      code: incident.code,
    };
  }
}

/** Return the GPUs that cause an incident. */
function culprits(incident, payload) {
  const ids = incident.culprits.map(idOf);
  return payload.gpus.filter(({ id }) => ids.includes(id));
}

function idOf({ UUID: uuid, GPU_I_ID: instance }) {
  return instance ? `${uuid}/${instance}` : uuid;
}

/** Say which GPUs an incident hits besides its cause. */
function alsoHit(incident, payload) {
  const ids = incident.hit.map(idOf);
  const gpus = payload.gpus.filter(({ id }) => ids.includes(id));
  return gpus.length ? `; also hit: ${gpuNames(gpus)}` : "";
}

function isSick(gpu) {
  return gpu.health === "unhealthy" || gpu.health === "degraded";
}

/** Yield the jobs whose ranks wait for one of them, if no incident tells why. */
function* heldUp(payload, now) {
  const gpus = new Map(payload.gpus.map((gpu) => [gpu.id, gpu]));
  for (const [number, job] of payload.jobs.entries()) {
    const { slow: held, words } = heldUpBy(job, gpus);
    if (!held || payload.incidents.some(({ jobs, severity }) => severity !== "info" && jobs.includes(job.name))) continue;
    const began = job.ranks.map(({ id }) => stallOf(gpus.get(id))?.since).filter(Boolean);
    const stopped = job.ranks.some(({ id }) => stallOf(gpus.get(id)));
    yield {
      name: `Job ${job.name}`,
      target: jobId(number),
      tone: stopped ? "bad" : "warn",
      badge: stopped ? STOPPED : "Slow",
      words: stopped ? `no progress; ${words}` : words,
      since: began.length ? clock(Math.min(...began), now) : "",
      action: "",
    };
  }
}

function stallOf(gpu) {
  return gpu?.findings?.find(({ name }) => name === STALL);
}

/** Return who holds some GPUs, if that is the same for all. */
function holder(gpus) {
  const names = new Set(gpus.map(({ owner }) => owner));
  return names.size === 1 ? [...names][0] : "";
}

/** Say what an incident costs. */
function cost({ lost_gpu_hours_per_hour: lost }) {
  return lost >= 0.5 ? `It costs ${lost.toFixed(1)} GPU-hours an hour` : "";
}

function advice(incident) {
  return incident.advice.replace(/\.$/, "").replaceAll("`", "");
}

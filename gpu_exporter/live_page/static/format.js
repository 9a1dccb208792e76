// Numbers, times and names for people.

const MINUTE = 60;
const HOUR = 3600;
const DAY = 86400;

/** Return a value with its unit as `measured` of reports/numbers.py writes it, or "–" if it could not be read. */
export function quantity(value, unit) {
  if (value === null || value === undefined) return "–";
  switch (unit) {
    case "ratio":
      return percent(value);
    case "watts":
      return `${digits(value)} W`;
    case "celsius":
      return `${digits(value)} °C`;
    case "bytes":
      return scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]);
    case "bytes_per_second":
      return scaled(value, 1000, ["B/s", "kB/s", "MB/s", "GB/s", "TB/s"]);
    case "hertz":
      return `${digits(value / 1e6)} MHz`;
    default:
      return digits(value);
  }
}

function percent(share) {
  const number = 100 * share;
  return `${Math.abs(number) >= 9.95 ? Math.round(number) : Number(Number(number.toFixed(2)).toPrecision(2))} %`;
}

function digits(value) {
  return Math.abs(value) < 99.95 ? String(Number(value.toPrecision(3))) : value.toFixed(0);
}

/** Return the limit of a measurement: of a temperature, the one at which the hardware slows the GPU down. */
export function limitWords(limit, unit) {
  return `${unit === "celsius" ? "Slowdown at" : "Limit"} ${quantity(limit, unit)}`;
}

/** Return "80 / 140 GiB": how much of a total is in use. */
export function usage(used, total) {
  const [of, unit] = quantity(total, "bytes").split(" ");
  const [number, smaller] = quantity(used, "bytes").split(" ");
  return `${number}${smaller && smaller !== unit ? ` ${smaller}` : ""} / ${of} ${unit}`;
}

function scaled(value, base, units) {
  let rank = 0;
  while (value >= 0.9995 * base && rank < units.length - 1) {
    value /= base;
    rank += 1;
  }
  return `${digits(value)} ${units[rank]}`;
}

/** Return a duration in its largest unit, rounded down; as `whole_duration` of reports/numbers.py. */
export function duration(seconds) {
  if (seconds < MINUTE) return `${Math.max(0, Math.floor(seconds))} s`;
  if (seconds < HOUR) return `${Math.floor(seconds / MINUTE)} min`;
  return seconds < 2 * DAY ? `${Math.floor(seconds / HOUR)} h` : `${Math.floor(seconds / DAY)} d`;
}

/** Return the time of day in the browser's time zone; with the date if it is not today. */
export function clock(at, now = Date.now() / 1000, seconds = false) {
  const time = new Date(1000 * at);
  const of_day = time.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false, ...(seconds && { second: "2-digit" }) });
  if (time.toDateString() === new Date(1000 * now).toDateString()) return of_day;
  return `${time.toLocaleDateString([], { month: "short", day: "numeric" })}, ${of_day}`;
}

/** Return the date and time in the browser's time zone, with its name. */
export function moment(at) {
  return at ? new Date(1000 * at).toLocaleString([], { dateStyle: "medium", timeStyle: "long", hour12: false }) : null;
}

/** Return "since 14:02 (35 min)"; "" if the time is not known. */
export function since(at, now) {
  return at === null || at === undefined ? "" : `since ${clock(at, now)} (${duration(now - at)})`;
}

/** Return the name of a GPU, or of its MIG instance. */
export function gpuName(gpu) {
  const index = gpu.index ?? gpu.gpu ?? "?";
  return gpu.instance ? `GPU ${index} instance ${gpu.instance}` : `GPU ${index}`;
}

/** Return several names of GPUs in short: "GPUs 0-3, 5". */
export function gpuNames(gpus) {
  const numbers = gpus.map((gpu) => Number(gpu.index));
  if (gpus.length === 1) return gpuName(gpus[0]);
  if (gpus.some((gpu) => gpu.instance) || numbers.some(Number.isNaN)) return gpus.map(gpuName).join(", ");
  numbers.sort((a, b) => a - b);
  const runs = [];
  for (const number of numbers) {
    const run = runs.at(-1);
    if (run && number === run.end + 1) run.end = number;
    else runs.push({ start: number, end: number });
  }
  const short = ({ start, end }) => (end - start > 1 ? `${start}-${end}` : start === end ? start : `${start}, ${end}`);
  return `GPUs ${runs.map(short).join(", ")}`;
}

/** Return a text with a capital first letter. */
export function sentence(text) {
  return text ? text[0].toUpperCase() + text.slice(1) : "";
}

/** Return an identifier such as `gpu_reset` as words. */
export function words(identifier) {
  return String(identifier).replace(/[_-]/g, " ");
}

// The last hour of measurements, as the server sends it: one array of the same length for each measurement.

const LEAST = 300;

export class Timeline {
  step = 10;
  times = [];
  classes = [];
  #gpus = new Map();
  #length = 360;

  /** Take what /api/v1/history answered. */
  load({ start, step, points, classes, gpus }) {
    this.step = step;
    this.classes = classes;
    this.#gpus = new Map(Object.entries(gpus));
    this.#length = points;
    this.times = Array.from({ length: points }, (_, index) => start + index * step);
  }

  /** Add the newest point; what is older than an hour is dropped. */
  append({ at, gpus }) {
    if (this.times.length && at <= this.times.at(-1)) return;
    // Steps without a point, such as those of a pause of the exporter, stay empty.
    const steps = this.times.length ? Math.round((at - this.times.at(-1)) / this.step) : 1;
    for (let missing = Math.min(steps, this.#length) - 1; missing > 0; missing -= 1) this.#push(at - missing * this.step, {});
    this.#push(at, gpus);
  }

  #push(at, gpus) {
    this.times.push(at);
    for (const [id, values] of Object.entries(gpus)) {
      if (!this.#gpus.has(id)) this.#gpus.set(id, {});
      const arrays = this.#gpus.get(id);
      for (const name of Object.keys(values)) arrays[name] ??= Array(this.times.length - 1).fill(null);
      for (const [name, array] of Object.entries(arrays)) array.push(values[name] ?? null);
    }
    for (const [id, arrays] of this.#gpus) {
      if (!(id in gpus)) for (const array of Object.values(arrays)) array.push(null);
    }
    const excess = this.times.length - this.#length;
    if (excess > 0) {
      this.times.splice(0, excess);
      for (const arrays of this.#gpus.values()) for (const array of Object.values(arrays)) array.splice(0, excess);
    }
  }

  /** Return the first and the last moment to draw: the last hour, or less if nothing is older; at least five minutes. */
  window() {
    const end = (this.times.at(-1) ?? 0) + this.step;
    const arrays = [...this.#gpus.values()].flatMap((each) => Object.values(each));
    const first = Math.min(...arrays.map((array) => array.findIndex((value) => value !== null)).filter((at) => at >= 0));
    const start = Number.isFinite(first) ? this.times[first] : end;
    return [Math.max(this.times[0] ?? 0, Math.min(start, end - LEAST)), end];
  }

  /** Return the names of all classes that some GPU had, the most frequent first. */
  classesSeen() {
    const counts = new Map();
    for (const { class: indexes = [] } of this.#gpus.values()) {
      for (const index of indexes) if (index !== null) counts.set(index, (counts.get(index) ?? 0) + 1);
    }
    return [...counts].sort((a, b) => b[1] - a[1]).map(([index]) => this.classes[index]);
  }

  /** Return a measurement of a GPU over time; null where it could not be read. */
  values(id, name) {
    return this.#gpus.get(id)?.[name] ?? Array(this.times.length).fill(null);
  }

  /** Return the classes of a GPU over time, as runs: {start, end, name}; name is null where no class is known. */
  runs(id) {
    const runs = [];
    this.values(id, "class").forEach((index, position) => {
      const name = index === null ? null : (this.classes[index] ?? null);
      const start = this.times[position];
      const run = runs.at(-1);
      if (run && run.name === name) run.end = start + this.step;
      else runs.push({ start, end: start + this.step, name });
    });
    return runs;
  }
}

/** Return mean, minimum and maximum of the values that could be read; null if there are none. */
export function statistics(values) {
  const read = values.filter((value) => value !== null);
  if (!read.length) return null;
  const sum = read.reduce((total, value) => total + value, 0);
  return { mean: sum / read.length, min: Math.min(...read), max: Math.max(...read) };
}

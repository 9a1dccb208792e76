// The connection to the server: the history once, then server-sent events. Without these, it asks every few seconds.

const PATIENCE = 8000; // for one answer, in milliseconds
const FIRST_RETRY = 1000;
const LAST_RETRY = 15000;
const POLL = 5000;
// The stream is dead if it brings nothing for this many intervals of collection, at least SILENCE milliseconds.
const SILENT_INTERVALS = 4;
const SILENCE = 10000;

const OFF = "the live page is off: start the exporter with --live-page true";

class Refused extends Error {}

/** Return the time of an answer by the server's clock, in seconds. */
function serverTime(answer) {
  const at = Date.parse(answer.headers.get("Date") ?? "");
  return Number.isNaN(at) ? Date.now() / 1000 : at / 1000;
}

/** Return the answer as JSON. Throws Refused, with what the server says, if it answers with an error. */
async function ask(path, heard) {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE) });
  heard?.(serverTime(answer));
  if (answer.ok) return answer.json();
  const text = (await answer.text()).trim().slice(0, 300);
  if (answer.status === 401) throw new Refused("The server wants a password: reload the page");
  throw new Refused(text || `The server answers ${answer.status}`);
}

/** Follows the server until the page is closed. A hidden page disconnects: browsers allow six connections to a host. */
export class Connection {
  #handlers;
  #stream = null;
  #timer = 0;
  #retry = FIRST_RETRY;
  #heard = 0;
  #interval = 1000;
  #attempt = 0;

  /** `handlers`: time(seconds of the server's clock), gpus(payload), history(history), point(point), state(name, words). */
  constructor(handlers) {
    this.#handlers = handlers;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.#pause() : this.#connect()));
    addEventListener("pagehide", () => this.#close());
    addEventListener("online", () => this.#connect());
    setInterval(() => this.#watch(), 1000);
  }

  start() {
    this.#handlers.state("connecting", "Connecting …");
    this.#connect();
  }

  async #connect() {
    this.#close();
    const attempt = ++this.#attempt;
    try {
      const [payload, history] = await Promise.all([ask("api/v1/gpus", this.#handlers.time), ask("api/v1/history").catch(ignoreRefusal)]);
      if (attempt !== this.#attempt) return;
      if (!payload.measurements) throw new Refused(OFF);
      if (history) this.#handlers.history(history);
      this.#take(payload);
      this.#retry = FIRST_RETRY;
      this.#follow();
    } catch (error) {
      if (attempt === this.#attempt) this.#lost(error instanceof Refused ? error.message : "");
    }
  }

  #follow() {
    const stream = (this.#stream = new EventSource("api/v1/stream"));
    stream.addEventListener("open", () => this.#handlers.state("live", "Live"));
    stream.addEventListener("gpus", (event) => this.#take(JSON.parse(event.data)));
    stream.addEventListener("point", (event) => this.#handlers.point(JSON.parse(event.data)));
    stream.addEventListener("error", () => {
      if (stream !== this.#stream) return;
      const refused = stream.readyState === EventSource.CLOSED;
      this.#close();
      // A server that refuses the stream may still answer requests.
      if (refused) this.#poll();
      else this.#lost("");
    });
    this.#heard = performance.now();
  }

  async #poll() {
    const attempt = this.#attempt;
    try {
      const payload = await ask("api/v1/gpus", this.#handlers.time);
      if (attempt !== this.#attempt) return;
      this.#take(payload);
      this.#handlers.state("polling", `Updated every ${POLL / 1000} s: the server has no free stream`);
      this.#timer = setTimeout(() => this.#connect(), POLL);
    } catch (error) {
      if (attempt === this.#attempt) this.#lost(error instanceof Refused ? error.message : "");
    }
  }

  #take(payload) {
    this.#heard = performance.now();
    this.#interval = 1000 * (payload.interval ?? 1);
    this.#handlers.gpus(payload);
  }

  #lost(why) {
    this.#close();
    if (why) this.#handlers.state("refused", `No new numbers: ${why}`);
    else this.#handlers.state("lost", "Connection lost. Trying to reconnect …");
    this.#timer = setTimeout(() => this.#connect(), this.#retry * (0.8 + 0.4 * Math.random()));
    this.#retry = Math.min(LAST_RETRY, 1.6 * this.#retry);
  }

  #watch() {
    const silent = performance.now() - this.#heard;
    if (this.#stream && silent > Math.max(SILENCE, SILENT_INTERVALS * this.#interval)) this.#connect();
  }

  #pause() {
    this.#close();
    this.#handlers.state("paused", "Paused while hidden");
  }

  #close() {
    clearTimeout(this.#timer);
    this.#attempt += 1;
    this.#stream?.close();
    this.#stream = null;
  }
}

function ignoreRefusal(error) {
  if (error instanceof Refused) return null;
  throw error;
}

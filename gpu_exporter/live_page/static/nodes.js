// Keeps the list of nodes up to date.

import { setText } from "./dom.js";
import { clock } from "./format.js";

const EVERY = 5000;
const status = document.getElementById("connection");

async function update() {
  try {
    const answer = await fetch("./", { cache: "no-store", signal: AbortSignal.timeout(EVERY) });
    if (!answer.ok) throw new Error(String(answer.status));
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    const rows = document.querySelector("tbody");
    const focused = document.activeElement?.getAttribute?.("href");
    rows.replaceChildren(...document.importNode(fresh.querySelector("tbody"), true).children);
    if (focused) [...rows.querySelectorAll("a")].find((link) => link.getAttribute("href") === focused)?.focus();
    setText(document.getElementById("summary-title"), fresh.getElementById("summary-title").textContent);
    status.parentElement.dataset.state = "live";
    setText(status, `Live: updated every ${EVERY / 1000} s`);
  } catch {
    if (status.parentElement.dataset.state !== "lost") {
      setText(status, `Connection lost at ${clock(Date.now() / 1000, undefined, true)}. Trying to reconnect …`);
    }
    status.parentElement.dataset.state = "lost";
  }
  setTimeout(update, EVERY);
}

update();

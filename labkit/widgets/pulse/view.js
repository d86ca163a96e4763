// The time of a message to the kernel and back: the shortest of five. The first one may wait for
// cells that were started after this one.

import { h } from "../base/elements.js";
import { listen, put } from "../base/model.js";
import { view } from "../base/root.js";

/** @import { Life } from "../base/lifetime.js" */
/** @import { Model } from "../base/model.js" */

/**
 * @typedef {object} Traits
 * @property {number} round_trip_ms 0 until the kernel has answered.
 */

// The number of messages, of which the fastest counts.
const PINGS = 5;
// The time after which the line says that the kernel has not answered.
const LATE_MS = 8000;
const LATE =
  "The browser draws, but the kernel has not answered yet. " +
  "Is a cell still running ([*])? Else: Kernel, Restart.";

/**
 * @param {HTMLElement} root
 * @param {Model<Traits>} model
 * @param {Life} life
 */
function fillPulse(root, model, life) {
  const mark = h("span", { class: "pl-mark", "aria-hidden": "true" });
  const words = h("span");
  const line = h("div", { class: "lk-row lk-tight pl-line", role: "status" }, mark, words);
  /** @type {number[]} */
  const times = [];
  let sent = 0;
  let number = 0;
  root.append(line);

  /**
   * @param {"waiting" | "alive" | "late"} state
   * @param {string} sign
   * @param {string} text
   */
  function say(state, sign, text) {
    line.dataset.state = state;
    mark.textContent = sign;
    words.textContent = text;
  }

  function ping() {
    // Two views of one widget must not answer for each other.
    number = crypto.getRandomValues(new Uint32Array(1))[0];
    sent = performance.now();
    model.send({ ping: number });
  }

  /** @param {{ pong?: number }} message */
  function hear(message) {
    if (message.pong !== number) return;
    times.push(performance.now() - sent);
    if (times.length < PINGS) ping();
    else end(Math.min(...times));
  }

  /** @param {number} best in ms */
  function end(best) {
    clearTimeout(late);
    say("alive", "\u2713", `Widgets are alive: ${Math.max(1, Math.round(best))} ms there and back`);
    line.dataset.ms = String(best);
    put(model, { round_trip_ms: best });
  }

  listen(life, model, hear);
  const late = setTimeout(() => say("late", "\u25cb", LATE), LATE_MS);
  life.add(() => clearTimeout(late));
  say("waiting", "\u2026", "Asking the kernel\u2026");
  ping();
}

export default view({ label: "Are widgets alive?", kind: "pulse" }, fillPulse);

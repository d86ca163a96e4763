// The controls of time: start, pause, one step, reset, speed and seed; and the button that copies
// the link.

import { button, choice } from "../base/controls.js";
import { h } from "../base/elements.js";
import { MOST_STEPS } from "./session.js";

/** @typedef {"fast" | "medium" | "slow"} Speed */

/**
 * What the buttons do.
 *
 * @typedef {object} Transports
 * @property {() => void} toggle Start or pause.
 * @property {() => void} step
 * @property {() => void} reset
 * @property {(speed: Speed) => void} setSpeed
 */

const LARGEST_SEED_SHOWN = 9999;
const COPIED_MS = 2000;

/**
 * @param {number} seed the first one
 * @param {Transports} does
 */
export function transportBar(seed, does) {
  const start = button({ label: "Start", kind: "primary", onPress: does.toggle });
  const one = button({ label: "One step", onPress: does.step });
  const again = button({ label: "Reset", onPress: does.reset });
  const speed = choice({
    label: "speed",
    onChange: (value) => does.setSpeed(/** @type {Speed} */ (value)),
  });
  speed.show(
    ["fast", "medium", "slow"].map((name) => [name, name]),
    "fast",
  );
  const field = h("input", {
    type: "number",
    min: 0,
    max: LARGEST_SEED_SHOWN,
    value: seed,
    "aria-label": "seed",
    class: "pg-seed",
  });
  field.addEventListener("change", does.reset);
  const count = h("span", { class: "lk-quiet pg-count" });
  const title = h("span", { class: "lk-title", text: "Playground" });
  const seedLabel = h("label", { class: "lk-row lk-tight" }, "seed", field);
  const parts = [start.element, one.element, again.element, speed.element, seedLabel, count];
  return {
    element: h("div", { class: "lk-row" }, title, ...parts),
    seed() {
      const asked = Math.round(Number(field.value)) || 0;
      const next = Math.min(LARGEST_SEED_SHOWN, Math.max(0, asked));
      field.value = String(next);
      return next;
    },
    /** @param {number} next */
    setSeed(next) {
      field.value = String(next);
    },
    /**
     * @param {number} steps
     * @param {boolean} running
     */
    show(steps, running) {
      start.setLabel(running ? "Pause" : "Start");
      const end = steps < MOST_STEPS ? "" : ", the last: Reset begins again";
      count.textContent = `step ${steps.toLocaleString("en-US")}${end}`;
    },
  };
}

/**
 * A button that copies the page's address.
 *
 * @param {() => void} before brings the address up to date
 */
export function linkButton(before) {
  const control = button({ label: "Copy link", onPress: copy });
  async function copy() {
    before();
    try {
      await navigator.clipboard.writeText(location.href);
      control.setLabel("Copied");
    } catch {
      control.setLabel("The address above is the link");
    }
    setTimeout(() => control.setLabel("Copy link"), COPIED_MS);
  }
  return control;
}

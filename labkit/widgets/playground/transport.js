// The bar with the controls of a training (start, pause, one step, reset, speed, seed), and the
// button that copies the link.

import { button, choice } from "../base/controls.js";
import { h } from "../base/elements.js";
import { LARGEST_SEED } from "./address.js";
import { MOST_STEPS } from "./session.js";

/** @typedef {"fast" | "medium" | "slow"} Speed */

/**
 * Functions that the controls call.
 *
 * @typedef {object} Actions
 * @property {() => void} toggle Starts or pauses.
 * @property {() => void} step Does one step.
 * @property {() => void} reset Begins again with the seed in the bar.
 * @property {(speed: Speed) => void} setSpeed
 */

// The time for which the button says that the link was copied.
const COPIED_MS = 2000;

/**
 * Return the bar of controls.
 *
 * @param {number} seed the first one
 * @param {Actions} actions
 */
export function transportBar(seed, actions) {
  const start = button({ label: "Start", kind: "primary", onPress: actions.toggle });
  const one = button({ label: "One step", onPress: actions.step });
  const again = button({ label: "Reset", onPress: actions.reset });
  const speed = choice({
    label: "speed",
    onChange: (value) => actions.setSpeed(/** @type {Speed} */ (value)),
  });
  speed.show(
    ["fast", "medium", "slow"].map((name) => [name, name]),
    "fast",
  );
  const field = h("input", {
    type: "number",
    min: 0,
    max: LARGEST_SEED,
    value: seed,
    "aria-label": "seed",
    class: "pg-seed",
  });
  field.addEventListener("change", actions.reset);
  const count = h("span", { class: "lk-quiet pg-count" });
  const title = h("span", { class: "lk-title", text: "Playground" });
  const seedLabel = h("label", { class: "lk-row lk-tight" }, "seed", field);
  const parts = [start.element, one.element, again.element, speed.element, seedLabel, count];
  return {
    element: h("div", { class: "lk-row" }, title, ...parts),
    /** Return the seed in the field; a text that is not a valid one is replaced by the nearest. */
    seed() {
      const typed = Math.round(Number(field.value));
      const number = Number.isNaN(typed) ? 0 : typed;
      const next = Math.min(LARGEST_SEED, Math.max(0, number));
      field.value = String(next);
      return next;
    },
    /**
     * Put a seed into the field.
     *
     * @param {number} next
     */
    setSeed(next) {
      field.value = String(next);
    },
    /**
     * Show how many steps are done, and whether more are done now.
     *
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
 * Return a button that copies the page's address.
 *
 * @param {() => void} before updates the address
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

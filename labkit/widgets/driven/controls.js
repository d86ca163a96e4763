// The controls that widgets with a training share: buttons, sliders and the choice of the device.

import { choice, slider } from "../base/controls.js";
import { h, required } from "../base/elements.js";
import { tell, upToDate } from "./store.js";

/** @import { Slider } from "../base/controls.js" */
/** @import { DrivenState, Press, Store } from "./store.js" */

/** @type {Record<Press, string>} the path of each button's icon, on 14 x 14 units */
const ICONS = {
  start: "M3 1.5v11l9-5.5z",
  pause: "M3 2h3v10H3zM8 2h3v10H8z",
  step: "M2 1.5v11l7-5.5zM10 2h2v10h-2z",
  stop: "M2.5 2.5h9v9h-9z",
  reset: "M7 2.5V0L3.5 3.2 7 6.4V4a3.5 3.5 0 1 1-3.5 3.5H2A5 5 0 1 0 7 2.5z",
};
/** @type {Record<Press, string>} */
const LABELS = { start: "Start", pause: "Pause", step: "Step", stop: "Stop", reset: "Reset" };

/**
 * Return a button of a run. It has `aria-disabled` instead of `disabled`: if a run ends while its
 * button has the focus, the focus must stay there for the keyboard.
 *
 * @param {Press} name
 * @param {(name: Press) => void} press called with the name that the button has when it is clicked
 */
function pressButton(name, press) {
  let now = name;
  const words = h("span", { text: LABELS[name] });
  const data = name === "start" ? { button: name, kind: "primary" } : { button: name };
  const element = h("button", { type: "button", class: "lk-button run-button", data });
  element.innerHTML =
    '<svg viewBox="0 0 14 14" width="12" height="12" aria-hidden="true">' +
    `<path d="${ICONS[name]}"/></svg>`;
  element.append(words);
  element.addEventListener("click", () => {
    if (element.getAttribute("aria-disabled") !== "true") press(now);
  });
  return {
    element,
    /**
     * @param {Press} next
     * @param {string} text
     * @param {boolean} on
     */
    show(next, text, on) {
      now = next;
      element.dataset.button = next;
      required(element, "path").setAttribute("d", ICONS[next]);
      words.textContent = text;
      element.setAttribute("aria-disabled", String(!on));
    },
  };
}

/**
 * Return the label of the first button: Start, Pause, Continue, or a label for another run.
 *
 * @param {DrivenState} state
 * @param {string} again the label after a run has ended
 */
function startLabel({ phase, step }, again) {
  if (phase === "running") return LABELS.pause;
  if (phase === "finished" || phase === "failed") return again;
  return step > 0 ? "Continue" : LABELS.start;
}

/**
 * Return the buttons of a run.
 *
 * @template {DrivenState} State
 * @template {object} Points
 * @param {Store<State, Points>} store
 * @param {Press[]} names the names of the buttons; "start" also pauses and continues
 * @param {string} [again] the label of "start" after a run has ended
 */
export function pressButtons(store, names, again = "Run again") {
  /** @param {Press} button */
  const press = (button) => tell(store, { do: "press", button });
  const made = names.map((name) => ({ name, button: pressButton(name, press) }));
  return {
    elements: made.map(({ button }) => button.element),
    press,
    /** @param {DrivenState} state */
    show(state) {
      for (const { name, button } of made) {
        if (name === "start") {
          const next = state.phase === "running" ? "pause" : "start";
          button.show(next, startLabel(state, again), true);
          button.element.toggleAttribute("data-invites", state.phase === "idle");
        } else {
          button.show(name, LABELS[name], state.enabled.includes(name));
        }
      }
    },
  };
}

/** @typedef {Slider & { held: boolean }} HeldSlider */

/**
 * Return a slider that knows whether it is being dragged. Meanwhile the kernel's state, which is
 * older, must not move it.
 *
 * @param {Parameters<typeof slider>[0]} given
 * @returns {HeldSlider}
 */
export function heldSlider(given) {
  const made = /** @type {HeldSlider} */ (slider(given));
  made.held = false;
  made.input.addEventListener("pointerdown", () => {
    made.held = true;
  });
  for (const type of ["pointerup", "pointercancel", "blur"]) {
    made.input.addEventListener(type, () => {
      made.held = false;
    });
  }
  return made;
}

/**
 * Return the choice of the device, which is hidden if there is one device only, and beside it a
 * text about the device.
 *
 * @template {DrivenState} State
 * @template {object} Points
 * @param {Store<State, Points>} store
 */
export function deviceKnob(store) {
  const { places } = store.model.get("_offers");
  /** @type {[string, string][]} */
  const options = places.map(({ key, label }) => [key, label]);
  /** @param {string} place */
  const onChange = (place) => tell(store, { do: "choose", place });
  const made = choice({ label: "Train on", onChange });
  const rates = h("span", { tabindex: "0" });
  made.element.hidden = places.length < 2;
  made.element.dataset.knob = "device";
  return {
    element: h("div", { class: "lk-row lk-quiet run-place" }, made.element, rates),
    /** @param {DrivenState} state */
    show({ place }) {
      if (upToDate(store)) made.show(options, place.key);
      rates.textContent = place.rates;
      rates.title = place.says;
    },
  };
}

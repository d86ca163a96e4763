// A guided tour: a few steps, each with a text, a ring around a part of the widget, and the traits
// of its state. Python calls the methods that a step names.

import { button } from "./controls.js";
import { h, rich } from "./elements.js";
import { put, watch } from "./model.js";
import { reducedMotion } from "./theme.js";

/** @import { Life } from "./lifetime.js" */
/** @import { Model, SharedTraits, TourStep } from "./model.js" */

/**
 * Put a tour's bar above a widget that has one.
 *
 * @param {HTMLElement} root
 * @param {Life} life
 * @param {Model<SharedTraits>} model
 */
export function guide(root, life, model) {
  const steps = model.get("tour") ?? [];
  if (!steps.length) return;
  const now = () => model.get("tour_step");
  const last = steps.length - 1;

  /** @param {number} step -1 ends the tour */
  function go(step) {
    const set = step < 0 ? {} : traitsOf(model, steps[step]);
    put(model, { ...set, tour_step: step });
  }

  const bar = tourBar(steps.length, {
    open: () => go(0),
    back: () => go(now() - 1),
    next: () => go(now() < last ? now() + 1 : -1),
    close: () => go(-1),
  });
  let wasOn = false;

  function show() {
    const step = now();
    const on = step >= 0;
    const held = bar.element.contains(document.activeElement);
    for (const one of root.querySelectorAll(".lk-ringed")) one.classList.remove("lk-ringed");
    bar.show(on);
    if (on) {
      bar.say(steps[step].text, step);
      const ringed = root.querySelector(steps[step].ring);
      ringed?.classList.add("lk-ringed");
      ringed?.scrollIntoView({ block: "nearest", behavior: reducedMotion() ? "auto" : "smooth" });
    }
    if (on !== wasOn && held) bar.focus(on);
    wasOn = on;
  }

  // Esc closes the tour; the next Esc leaves the widget.
  const leave = (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "Escape" || now() < 0) return;
    event.preventDefault();
    bar.show(false);
    bar.focus(false);
    go(-1);
  };
  life.listen(root, "keydown", leave, true);
  watch(life, model, ["tour_step"], show);
  root.prepend(bar.element);
  // In a microtask, when the widget's own view has made the elements that a step points at.
  queueMicrotask(show);
}

/**
 * Return the traits that a step sets. A name that the model does not have is that of a method,
 * which Python calls.
 *
 * @param {Model<SharedTraits>} model
 * @param {TourStep} step
 */
function traitsOf(model, step) {
  const known = Object.entries(step.set).filter(
    ([name]) => model.get(/** @type {keyof SharedTraits} */ (name)) !== undefined,
  );
  return Object.fromEntries(known);
}

/**
 * Return the bar of a tour: a button that opens it, and a panel with the text of a step.
 *
 * @param {number} steps how many the tour has
 * @param {Record<"open" | "back" | "next" | "close", () => void>} presses called when the button is
 *   pressed
 */
function tourBar(steps, presses) {
  const open = button({ label: `Tour in ${steps} steps`, onPress: presses.open });
  const back = button({ label: "Back", onPress: presses.back });
  const next = button({ label: "Next", kind: "primary", onPress: presses.next });
  const close = button({
    label: "Close",
    title: "Esc closes the tour, too",
    onPress: presses.close,
  });
  const count = h("span", { class: "lk-quiet" });
  const text = h("p", { class: "lk-tour-text", role: "status" });
  const buttons = h("div", { class: "lk-row" }, back.element, next.element, close.element, count);
  const panel = h("div", { class: "lk-tour-panel" }, text, buttons);
  const about = { class: "lk-tour", role: "group", "aria-label": "Guided tour" };
  return {
    element: h("div", about, open.element, panel),
    /**
     * Show the panel or the button that opens it.
     *
     * @param {boolean} on whether the tour is open
     */
    show(on) {
      open.element.hidden = on;
      panel.hidden = !on;
    },
    /**
     * Show the text of a step.
     *
     * @param {string} words
     * @param {number} step from 0
     */
    say(words, step) {
      text.replaceChildren(rich(words));
      count.textContent = `${step + 1} of ${steps}`;
      back.enable(step > 0);
      next.setLabel(step + 1 < steps ? "Next" : "Done");
    },
    /**
     * Give the focus to the button that continues the tour, or to the one that opens it.
     *
     * @param {boolean} on whether the tour is open
     */
    focus(on) {
      (on ? next : open).element.focus({ preventScroll: true });
    },
  };
}

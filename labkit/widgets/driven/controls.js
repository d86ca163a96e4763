// What a learner can press and drag in every widget that trains, and what the kernel's state makes of it.

import { choice, slider } from "../base/controls.js";
import { h } from "../base/elements.js";
import { tell, upToDate } from "./store.js";

const ICONS = {
  start: "M3 1.5v11l9-5.5z",
  pause: "M3 2h3v10H3zM8 2h3v10H8z",
  step: "M2 1.5v11l7-5.5zM10 2h2v10h-2z",
  stop: "M2.5 2.5h9v9h-9z",
  reset: "M7 2.5V0L3.5 3.2 7 6.4V4a3.5 3.5 0 1 1-3.5 3.5H2A5 5 0 1 0 7 2.5z",
};
const PRESS = { start: "Start", step: "Step", stop: "Stop", reset: "Reset" };

// Not `disabled`: that would drop the focus, and a keyboard's place with it, when a run ends under the finger.
function pressButton(name, press) {
  const words = h("span", { text: PRESS[name] });
  const kind = name === "start" ? { kind: "primary" } : {};
  const element = h("button", {
    type: "button",
    class: "lk-button run-button",
    data: { button: name, ...kind },
  });
  element.innerHTML = `<svg viewBox="0 0 14 14" width="12" height="12" aria-hidden="true"><path d="${ICONS[name]}"/></svg>`;
  element.append(words);
  element.addEventListener(
    "click",
    () => element.getAttribute("aria-disabled") === "true" || press(element.dataset.button),
  );
  return {
    element,
    show(next, text, on) {
      element.dataset.button = next;
      element.querySelector("path").setAttribute("d", ICONS[next]);
      words.textContent = text;
      element.setAttribute("aria-disabled", String(!on));
    },
  };
}

// The buttons of a run; the first is Start, Pause, Continue and Run again in turn.
export function pressButtons(store, names, again = "Run again") {
  const press = (button) => tell(store, { do: "press", button });
  const made = names.map((name) => [name, pressButton(name, press)]);
  return {
    elements: made.map(([, { element }]) => element),
    press,
    show({ phase, step, enabled }) {
      const over = phase === "finished" || phase === "failed";
      const go = phase === "running" ? "Pause" : over ? again : step > 0 ? "Continue" : "Start";
      for (const [name, one] of made) {
        if (name === "start") {
          one.show(phase === "running" ? "pause" : "start", go, true);
          one.element.toggleAttribute("data-invites", phase === "idle");
        } else one.show(name, PRESS[name], enabled.includes(name));
      }
    },
  };
}

// A slider that the kernel's state leaves alone while a hand holds it.
export function heldSlider(options) {
  const made = slider(options);
  made.input.addEventListener("pointerdown", () => (made.held = true));
  for (const type of ["pointerup", "pointercancel", "blur"])
    made.input.addEventListener(type, () => (made.held = false));
  return made;
}

// Where it trains: a choice where there is one, and beside it what is known of the place.
export function deviceKnob(store) {
  const { places } = store.model.get("_offers");
  const made = choice({
    label: "Train on",
    onChange: (place) => tell(store, { do: "choose", place }),
  });
  const rates = h("span", { tabindex: "0" });
  made.element.hidden = places.length < 2;
  made.element.dataset.knob = "device";
  return {
    element: h("div", { class: "lk-row lk-quiet run-place" }, made.element, rates),
    show({ place }) {
      if (upToDate(store))
        made.show(
          places.map(({ key, label }) => [key, label]),
          place.key,
        );
      rates.textContent = place.rates;
      rates.title = place.says;
    },
  };
}

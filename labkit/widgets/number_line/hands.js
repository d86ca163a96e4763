// Pointer, wheel and keys on the number line, and its controls.

import { button, choice, newName, segmented } from "../base/controls.js";
import { h, isMainButton, rich } from "../base/elements.js";
import { put } from "../base/model.js";
import { derived, parse, ROUNDINGS, withMinus } from "../exact/numbers.js";
import { MODE_NAMES } from "./rounding.js";
import { asText, EDGE } from "./scale.js";

/** @import { Figure } from "../base/canvas.js" */
/** @import { Life } from "../base/lifetime.js" */
/** @import { Model } from "../base/model.js" */
/** @import { KnownFormats } from "../exact/known.js" */
/** @import { Rounding } from "../exact/numbers.js" */
/** @import { LineFormat, RoundedView } from "./rounding.js" */
/** @import { Ends, Lens } from "./scale.js" */
/** @import { Traits } from "./view.js" */

/** @typedef {"everything" | "subnormals" | "x"} Sight A part of the line that a button shows. */

/**
 * The actions of pointers, keys and buttons.
 *
 * @typedef {object} Acts
 * @property {() => Lens} lens Return the current lens.
 * @property {(value: number) => void} moveTo Move x to a value.
 * @property {(pixels: number) => void} step Move x by a distance.
 * @property {(pixels: number) => void} pan Move the window by a distance.
 * @property {(factor: number, place?: number) => void} zoom Widen the window about a place, in u.
 * @property {(ends: Ends) => void} frame Set the window, in u.
 * @property {(sight: Sight) => void} look Show a part of the line.
 * @property {(scale: "log" | "linear") => void} rescale Choose the scale of the line.
 * @property {(text: string) => string} type Set x, and return the problem of the text, or "".
 */

// --- pointer and keys ----------------------------------------------------------------------------

/**
 * A drag of x or of the line.
 *
 * @typedef {object} Held
 * @property {"x" | "line"} what
 * @property {number} start The position at which the drag began, in pixels.
 * @property {boolean} moved
 * @property {Lens} lens The lens when the drag began.
 */

// A press that moves at most this many pixels is a click.
const CLICK_DISTANCE = 3;
// A press that is less than this many pixels from x drags x.
const GRAB_DISTANCE = 8;
// The distances that a key moves, in pixels.
const KEY_STEP = 4;
const SHIFT_KEY_STEP = 25;
const PAGE_STEP = 50;
const PAN_STEP = 60;

/**
 * Let pointers drag x and the line, and the wheel pan and zoom.
 *
 * @param {Figure} line
 * @param {HTMLElement} handle
 * @param {Life} life
 * @param {Acts} acts
 */
export function pointing(line, handle, life, acts) {
  /** @type {Held | null} */
  let held = null;
  /**
   * Return the x of an event, in pixels of the picture.
   *
   * @param {MouseEvent} event
   */
  function placeIn(event) {
    return (event.clientX - line.element.getBoundingClientRect().left) / line.grown;
  }

  /**
   * Begin a drag.
   *
   * @param {PointerEvent} event
   * @param {HTMLElement} target
   * @param {"x" | "line"} what
   */
  function grab(event, target, what) {
    if (!isMainButton(event)) return;
    held = { what, start: placeIn(event), moved: false, lens: acts.lens() };
    target.setPointerCapture(event.pointerId);
    event.preventDefault();
    const focused = what === "x" ? handle : line.canvas;
    focused.focus({ preventScroll: true });
  }
  /**
   * Move the window with the pointer.
   *
   * @param {Held} drag
   * @param {number} place of the pointer, in pixels
   */
  function dragLine(drag, place) {
    const current = acts.lens();
    if (current.u !== drag.lens.u) {
      // Python has set another scale meanwhile, so that the old lens has other coordinates.
      drag.start = place;
      drag.lens = current;
      return;
    }
    const { from, to, perPixel } = drag.lens;
    const shift = (place - drag.start) * perPixel;
    acts.frame([from - shift, to - shift]);
  }
  /** @param {PointerEvent} event */
  function drag(event) {
    if (!held) return;
    const place = placeIn(event);
    const distance = place - held.start;
    if (Math.abs(distance) > CLICK_DISTANCE) held.moved = true;
    if (!held.moved) return;
    if (held.what === "line") {
      dragLine(held, place);
    } else {
      const inside = Math.min(line.width - EDGE, Math.max(EDGE, place));
      acts.moveTo(acts.lens().at(inside));
    }
  }
  /** @param {PointerEvent} event */
  function release(event) {
    if (held?.what === "line" && !held.moved) acts.moveTo(acts.lens().at(placeIn(event)));
    held = null;
  }
  function drop() {
    held = null;
  }
  /** @param {WheelEvent} event */
  function onWheel(event) {
    // Without focus or Ctrl, the wheel scrolls the page.
    const focused = line.element.contains(document.activeElement);
    if (!focused && !event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const { deltaX, deltaY } = event;
    if (Math.abs(deltaX) > Math.abs(deltaY)) {
      acts.pan(deltaX);
      return;
    }
    const current = acts.lens();
    // A notch of a mouse wheel is about 100 to 120; a touchpad sends many small values.
    const octaves = Math.sign(deltaY) * Math.min(1, Math.abs(deltaY) / 200);
    acts.zoom(2 ** octaves, current.u(current.at(placeIn(event))));
  }

  life.listen(handle, "pointerdown", (event) => grab(event, handle, "x"));
  life.listen(line.canvas, "pointerdown", (event) => {
    const x = Number(handle.getAttribute("aria-valuenow"));
    const near = Math.abs(placeIn(event) - acts.lens().x(x)) < GRAB_DISTANCE;
    grab(event, line.canvas, near ? "x" : "line");
  });
  for (const target of [handle, line.canvas]) {
    life.listen(target, "pointermove", drag);
    life.listen(target, "pointerup", release);
    life.listen(target, "pointercancel", drop);
  }
  life.listen(line.element, "wheel", onWheel, { passive: false });
}

/** @typedef {Record<string, (pixels: number) => void>} Keys The action of each key. */

/**
 * Let keys on the line pan and zoom, and keys on the handle move x.
 *
 * @param {Figure} line
 * @param {HTMLElement} handle
 * @param {Life} life
 * @param {Acts} acts
 */
export function keyboard(line, handle, life, { step, zoom, look, pan }) {
  /** @type {Keys} */
  const shared = {
    "+": () => zoom(0.5),
    "=": () => zoom(0.5),
    "-": () => zoom(2),
    Home: () => look("everything"),
  };
  /** @type {Keys} */
  const lineKeys = {
    ArrowLeft: () => pan(-PAN_STEP),
    ArrowRight: () => pan(PAN_STEP),
    ...shared,
  };
  /** @type {Keys} */
  const handleKeys = {
    ArrowLeft: (pixels) => step(-pixels),
    ArrowDown: (pixels) => step(-pixels),
    ArrowRight: (pixels) => step(pixels),
    ArrowUp: (pixels) => step(pixels),
    PageUp: () => step(PAGE_STEP),
    PageDown: () => step(-PAGE_STEP),
    ...shared,
  };
  life.listen(line.canvas, "keydown", (event) => press(event, lineKeys));
  life.listen(handle, "keydown", (event) => press(event, handleKeys));
}

/**
 * Run the action of a key; with Shift it goes farther.
 *
 * @param {KeyboardEvent} event
 * @param {Keys} keys
 */
function press(event, keys) {
  const act = keys[event.key];
  if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  act(event.shiftKey ? SHIFT_KEY_STEP : KEY_STEP);
}

// --- controls ------------------------------------------------------------------------------------

/**
 * The buttons that change the window.
 *
 * @type {{ label: string, title: string, act: (acts: Acts) => void }[]}
 */
const SIGHTS = [
  { label: "\u2212", title: "zoom out (minus key)", act: (acts) => acts.zoom(2) },
  { label: "+", title: "zoom in (plus key)", act: (acts) => acts.zoom(0.5) },
  {
    label: "everything",
    title: "all numbers of the format (Home)",
    act: (acts) => acts.look("everything"),
  },
  {
    label: "subnormals",
    title: "where the exponent field is 0",
    act: (acts) => acts.look("subnormals"),
  },
  {
    label: "around x",
    title: "close enough to see single numbers",
    act: (acts) => acts.look("x"),
  },
];

/**
 * Return the row with the box of x, the choices of format and scale, and the buttons.
 *
 * @param {Model<Traits>} model
 * @param {KnownFormats<LineFormat>} formats
 * @param {Acts} acts
 */
export function controlsRow(model, formats, acts) {
  const id = newName("nl");
  const box = h("input", {
    id,
    class: "nl-box",
    type: "text",
    spellcheck: "false",
    autocomplete: "off",
    "aria-describedby": `${id}-problem`,
  });
  const format = choice({ label: "Format", onChange: (name) => put(model, { format: name }) });
  const scale = segmented({
    label: "Scale",
    labelled: false,
    options: [
      { value: "log", label: "log", title: "positive numbers, by powers of two" },
      "linear",
    ],
    value: model.get("scale"),
    onChange: acts.rescale,
  });
  const buttons = SIGHTS.map(({ label, title, act }) =>
    button({ label, title, onPress: () => act(acts) }),
  );
  const sights = h(
    "div",
    { class: "lk-row lk-tight", role: "group", "aria-label": "What is seen" },
    ...buttons.map(({ element }) => element),
  );
  const problem = h("p", { class: "nl-problem lk-error", id: `${id}-problem`, role: "status" });
  const number = h("div", { class: "lk-row lk-tight" }, h("label", { for: id, text: "x" }), box);
  const row = h("div", { class: "lk-row" }, number, format.element, scale.element, sights);

  /** @param {string} text the problem, or "" */
  function showProblem(text) {
    box.setAttribute("aria-invalid", String(text !== ""));
    problem.replaceChildren(rich(text === "" ? "" : `\u2717 ${text}`));
  }
  box.addEventListener("input", () => showProblem(acts.type(box.value)));
  return {
    element: h("div", {}, row, problem),
    /** Update the controls from the traits. */
    set() {
      /** @type {[string, string][]} */
      const options = formats.names().map((name) => [name, name]);
      const x = model.get("x");
      format.show(options, model.get("format"));
      scale.set(model.get("scale"));
      // A text that already means x stays as it was typed.
      if (readPlace(box.value).x !== x) box.value = asText(x);
      showProblem("");
    },
  };
}

// The format of x.
const FP64 = derived({
  name: "FP64",
  exponent_bits: 11,
  significand_bits: 52,
  specials: "IEEE",
  signed: true,
  has_zero: true,
});

/**
 * Parse a text as a place on the line, or return its problem.
 *
 * @param {string} text
 * @returns {{ x: number, problem: "" } | { x: null, problem: string }}
 */
export function readPlace(text) {
  if (!text.trim()) return { x: null, problem: "Nothing is typed. Give a number, such as 0.1." };
  try {
    const { value } = parse(text, FP64);
    if (Number.isFinite(value)) return { x: value, problem: "" };
    const why = "has no place on this line. Give a finite number, such as 65520.";
    return { x: null, problem: `${text.trim()} ${why}` };
  } catch (error) {
    return { x: null, problem: error instanceof Error ? error.message : String(error) };
  }
}

// --- the table of roundings ----------------------------------------------------------------------

const HEADINGS = ["x is rounded", "and becomes", "error or odds"];

/**
 * Return the table of rounding modes, each with its result; a radio button chooses one.
 *
 * @param {(mode: Rounding) => void} onChoose
 */
export function modes(onChoose) {
  const group = newName("nl-modes");
  const rows = ROUNDINGS.map((mode) => modeChoice(mode, group, onChoose));
  const heads = HEADINGS.map((text) => h("span", { text }));
  const about = { role: "radiogroup", "aria-label": "Rounding whose interval is shaded" };
  const element = h(
    "fieldset",
    { class: "nl-modes", ...about },
    h("div", { class: "nl-mode nl-heads lk-quiet", "aria-hidden": "true" }, ...heads),
    ...rows.map((row) => row.element),
  );
  return {
    element,
    /**
     * Show the results of all modes.
     *
     * @param {RoundedView} view
     */
    set({ rounding, rows: answers }) {
      for (const [i, { input, value, error }] of rows.entries()) {
        const answer = answers[i];
        input.checked = answer.mode === rounding;
        // `rich` reads exponents with a hyphen.
        value.replaceChildren(rich(withMinus(answer.value).replaceAll("^\u2212", "^-")));
        error.textContent = withMinus(answer.error);
      }
    },
  };
}

/**
 * Return the row of a rounding mode.
 *
 * @param {Rounding} mode
 * @param {string} group the name of the radio buttons
 * @param {(mode: Rounding) => void} onChoose
 */
function modeChoice(mode, group, onChoose) {
  const input = h("input", { type: "radio", name: group, value: mode });
  const name = h("span", {}, input, withMinus(MODE_NAMES[mode]));
  const value = h("b", { class: "nl-value" });
  const error = h("span", { class: "nl-error" });
  input.addEventListener("change", () => onChoose(mode));
  return { element: h("label", { class: "nl-mode" }, name, value, error), input, value, error };
}

// The number line: the numbers of a format, and the rounding of a real number x (rounding.js).

import { figure, hovering } from "../base/canvas.js";
import { sentence } from "../base/controls.js";
import { h } from "../base/elements.js";
import { put, watch } from "../base/model.js";
import { view } from "../base/root.js";
import { colours, formatColour } from "../base/theme.js";
import { knownFormats } from "../exact/known.js";
import { withMinus } from "../exact/numbers.js";
import { controlsRow, keyboard, modes, pointing, readPlace } from "./hands.js";
import {
  CLOSEST,
  drawAxis,
  drawCounts,
  drawMarks,
  drawOutcome,
  drawZones,
  TALL,
  TOP,
} from "./plot.js";
import { lineFormat, roundedView } from "./rounding.js";
import { asText, inside, lens, nearby, plainDecimal, spacingAt, tidy, wholeOf } from "./scale.js";

/** @import { Figure, Pen, Spot } from "../base/canvas.js" */
/** @import { Life } from "../base/lifetime.js" */
/** @import { Model } from "../base/model.js" */
/** @import { Palette } from "../base/theme.js" */
/** @import { KnownFormats } from "../exact/known.js" */
/** @import { FormatRow, Rounding } from "../exact/numbers.js" */
/** @import { Acts, Sight } from "./hands.js" */
/** @import { LineFormat, RoundedView } from "./rounding.js" */
/** @import { Ends, Lens } from "./scale.js" */

/**
 * The traits of `NumberLine`.
 *
 * @typedef {object} Traits
 * @property {string} format The name of the format.
 * @property {Rounding} rounding The mode whose interval is shaded.
 * @property {number} x
 * @property {"log" | "linear"} scale
 * @property {Ends} window The values at both ends of the line.
 * @property {string} sentence
 * @property {FormatRow[]} _formats All formats that can be chosen.
 */

/**
 * The state of the widget.
 *
 * @typedef {object} State
 * @property {HTMLElement} root
 * @property {Model<Traits>} model
 * @property {KnownFormats<LineFormat>} formats
 * @property {RoundedView} answer
 * @property {Palette} tint
 * @property {Figure} line
 * @property {HTMLElement} handle The handle that moves x.
 */

const KEYS = "arrow keys move along, plus and minus zoom, Home shows everything";

// --- the window ----------------------------------------------------------------------------------

/**
 * Return whether the scale is logarithmic.
 *
 * @param {Pick<State, "model">} state
 */
function isLog({ model }) {
  return model.get("scale") === "log";
}

/**
 * Return the chosen format.
 *
 * @param {Pick<State, "model" | "formats">} state
 */
function formatOf({ model, formats }) {
  return formats.called(model.get("format"));
}

/**
 * Return the lens of the present window.
 *
 * @param {State} state
 * @returns {Lens}
 */
function lensOf(state) {
  const [low, high] = state.model.get("window");
  return lens(low, high, isLog(state), state.line.width);
}

/**
 * Return the results of rounding x.
 *
 * @param {Pick<State, "model" | "formats">} state
 */
function answerOf(state) {
  const { model } = state;
  return roundedView(model.get("x"), formatOf(state), model.get("rounding"));
}

/**
 * Return the window that shows everything, the subnormal numbers, or the neighbours of x.
 *
 * @param {State} state
 * @param {Sight} sight
 * @returns {Ends}
 */
function windowOf(state, sight) {
  const format = formatOf(state);
  const log = isLog(state);
  const x = state.model.get("x");
  const normal = 2 ** format.emin;
  if (sight === "everything" || (sight === "x" && log && x <= 0)) return wholeOf(format, log);
  if (sight === "subnormals") {
    const least = 2 ** (format.emin - format.p);
    return log ? [least / 4, 4 * normal] : [-1.5 * normal, 1.5 * normal];
  }
  const gap = spacingAt(x || normal, format);
  const low = x - 6 * gap;
  const high = x + 6 * gap;
  // A logarithmic scale cannot begin at or below 0.
  return log ? [Math.max(low, x / 16), high] : [low, high];
}

/**
 * Return the window after a change of the scale.
 *
 * @param {State} state
 * @param {"log" | "linear"} scale
 * @returns {Ends}
 */
function rescaled(state, scale) {
  const format = formatOf(state);
  const [low, high] = state.model.get("window");
  const whole = wholeOf(format, scale === "log");
  // If everything was in the window, it stays so.
  if (high > format.max) return whole;
  if (scale === "linear" || low > 0) return [low, high];
  // A logarithmic scale cannot begin at or below 0.
  return high > 0 ? [Math.min(high / 64, whole[0] * 8), high] : whole;
}

// --- pointer and keyboard ------------------------------------------------------------------------

/**
 * Return the actions of pointers, keys and buttons.
 *
 * @param {State} state
 * @param {() => void} show
 * @returns {Acts}
 */
function actsOn(state, show) {
  const { model } = state;

  /** @param {Ends} ends in u */
  function frame(ends) {
    const log = isLog(state);
    const [from, to] = inside(ends, formatOf(state), log);
    put(model, { window: log ? [2 ** from, 2 ** to] : [from, to] });
    show();
  }

  /** @param {number} distance in u */
  function shift(distance) {
    const { from, to } = lensOf(state);
    frame([from + distance, to + distance]);
  }

  /** @param {number} value */
  function moveTo(value) {
    const [low, high] = model.get("window");
    const current = lensOf(state);
    const next = tidy(value, current, isLog(state));
    if (!Number.isFinite(next) || next === model.get("x")) return;
    put(model, { x: next });
    // Centre the window on x if x has left it.
    if (next < low || next > high) shift(current.u(next) - (current.from + current.to) / 2);
    show();
  }

  return {
    lens: () => lensOf(state),
    frame,
    moveTo,
    pan: (pixels) => shift(pixels * lensOf(state).perPixel),
    step(pixels) {
      const current = lensOf(state);
      const x = model.get("x");
      if (isLog(state) && x <= 0) {
        moveTo(model.get("window")[0]);
      } else {
        moveTo(current.value(current.u(x) + pixels * current.perPixel));
      }
    },
    zoom(factor, place) {
      const { from, to, u, value } = lensOf(state);
      const x = model.get("x");
      const middle = x >= value(from) && x <= value(to) ? u(x) : (from + to) / 2;
      const centre = place ?? middle;
      frame([centre - (centre - from) * factor, centre + (to - centre) * factor]);
    },
    look(sight) {
      const { u } = lensOf(state);
      const [low, high] = windowOf(state, sight);
      frame([u(low), u(high)]);
    },
    rescale(scale) {
      put(model, { scale, window: rescaled(state, scale) });
      show();
    },
    type(text) {
      const { x, problem } = readPlace(text);
      if (x !== null) put(model, { x });
      return problem;
    },
  };
}

// --- the picture ---------------------------------------------------------------------------------

/**
 * Return the figure of the line, without the handle of x.
 *
 * @param {Life} life
 * @param {(pen: Pen) => void} draw
 */
function lineFigure(life, draw) {
  const line = figure({ life, label: "", height: TALL, draw });
  line.canvas.setAttribute("role", "application");
  line.canvas.setAttribute("aria-roledescription", "number line");
  line.canvas.tabIndex = 0;
  line.element.classList.add("nl-line", "lk-drag");
  return line;
}

/**
 * Draw the line, and move the handle of x.
 *
 * @param {State} state
 * @param {Pen} pen
 */
function drawLine(state, pen) {
  const { tint } = state;
  const format = formatOf(state);
  const scene = { pen, tint, lens: lensOf(state), format, log: isLog(state) };
  pen.font = `${tint.size - 1}px ${tint.font}`;
  drawZones(scene);
  const tightest = drawMarks(scene);
  drawAxis(scene);
  drawCounts(scene);
  drawOutcome(scene, state.answer, formatColour(format.name, tint));
  placeHandle(state, scene.lens);
  state.root.dataset.dense = String(tightest < CLOSEST);
}

/**
 * Move the handle to x, or to the end of the line nearest to x.
 *
 * @param {State} state
 * @param {Lens} current
 */
function placeHandle({ answer, handle, line }, current) {
  const place = current.x(answer.x);
  handle.textContent = handleText(withMinus(asText(answer.x)), place, current.width);
  const handleWidth = handle.offsetWidth;
  const lineWidth = current.width * line.grown;
  const wanted = place * line.grown - handleWidth / 2;
  const left = Math.min(lineWidth - handleWidth, Math.max(0, wanted));
  handle.style.transform = `translateX(${Math.round(left)}px)`;
}

/**
 * Return the handle's text: x, with an arrow towards x if it is outside the window.
 *
 * @param {string} text
 * @param {number} place
 * @param {number} width
 */
function handleText(text, place, width) {
  if (place < 0) return `\u25c2 ${text}`;
  return place > width ? `${text} \u25b8` : text;
}

/**
 * Return the label for the numbers under the pointer, and its place.
 *
 * @param {State} state
 * @param {Spot | null} spot
 * @returns {[x: number, y: number, text: string] | null}
 */
function hoverLabel(state, spot) {
  if (!spot || spot.held || spot.y < TOP - 10) return null;
  const text = nearby(lensOf(state).at(spot.x), formatOf(state), isLog(state));
  return text === null ? null : [spot.x, spot.y - 20, text];
}

/**
 * Describe x and the line to screen readers.
 *
 * @param {State} state
 */
function describe({ model, answer, handle, line }) {
  const values = answer.values.map(({ text }) => text).join(" or ");
  const [low, high] = model.get("window");
  handle.setAttribute("aria-valuetext", `${asText(answer.x)}, becomes ${values}`);
  handle.setAttribute("aria-valuenow", plainDecimal(answer.x));
  handle.setAttribute("aria-valuemin", plainDecimal(low));
  handle.setAttribute("aria-valuemax", plainDecimal(high));
  line.canvas.setAttribute("aria-label", `The numbers of ${model.get("format")}; ${KEYS}`);
}

// --- the widget ----------------------------------------------------------------------------------

/**
 * Fill the root of the number line.
 *
 * @param {HTMLElement} root
 * @param {Model<Traits>} model
 * @param {Life} life
 */
function fillNumberLine(root, model, life) {
  const tint = colours(root, life, () => state.line.redraw());
  const formats = knownFormats(model, lineFormat);
  const about = { role: "slider", tabindex: "0", "aria-label": "The number x" };
  /** @type {State} */
  const state = {
    root,
    model,
    formats,
    tint,
    answer: answerOf({ model, formats }),
    line: lineFigure(life, (pen) => drawLine(state, pen)),
    handle: h("div", { class: "nl-handle", ...about }),
  };
  const { line, handle } = state;
  const acts = actsOn(state, show);
  const top = controlsRow(model, formats, acts);
  const table = modes((rounding) => put(model, { rounding }));
  const words = sentence(model);
  line.element.append(handle);
  for (const part of [line, table, words]) part.element.classList.add("lk-answer");
  root.append(top.element, line.element, table.element, words.element);

  function show() {
    state.answer = answerOf(state);
    top.set();
    table.set(state.answer);
    words.say(state.answer.sentence);
    describe(state);
    root.dataset.x = String(state.answer.x);
    root.dataset.window = model.get("window").join(" ");
    line.redraw();
  }

  watch(life, model, ["x", "window", "scale", "rounding", "format"], show);
  pointing(line, handle, life, acts);
  keyboard(line, handle, life, acts);
  hovering(life, line, (spot) => hoverLabel(state, spot));
  show();
}

export default view({ label: "Number line", kind: "number-line", alone: true }, fillNumberLine);

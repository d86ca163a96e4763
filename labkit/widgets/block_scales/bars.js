// Numbers as bars on an axis, with marks at their rounded values, and the dragging of bars.

import { h, isMainButton, rich } from "../base/elements.js";
import { decimal } from "../base/number_words.js";
import { derived, neighbour, roundValue } from "../exact/numbers.js";
import { scaleText } from "./blocks.js";

/** @import { Life } from "../base/lifetime.js" */
/** @import { NumberFate, RoundedRow } from "./blocks.js" */

// --- the axis ------------------------------------------------------------------------------------

// The axis is about linear up to its end divided by this, and logarithmic beyond.
const REACH = 256;
const TICKS = [-1, -1 / 4, -1 / 16, -1 / 64, 0, 1 / 64, 1 / 16, 1 / 4, 1];
// The stop at the end of the axis.
const LAST_STOP = 16;

// The values at which dragging stops: multiples of 1/32 up to 1/4, then 8 in each power of two.
const STOPS = derived({
  name: "stops",
  exponent_bits: 3,
  significand_bits: 3,
  specials: "NONE",
  signed: true,
  has_zero: true,
});

/** @typedef {ReturnType<typeof barAxis>} Axis */

/**
 * Return the axis of the bars, from -top to top.
 *
 * @param {number} top
 */
export function barAxis(top) {
  const least = top / REACH;
  const reach = Math.log2(1 + REACH);
  /** @param {number} x */
  const nearestStop = (x) => roundValue((LAST_STOP * x) / top, STOPS);
  /** @param {number} stop */
  const inside = (stop) => Math.max(-top, Math.min(top, (stop * top) / LAST_STOP));
  return {
    ticks: TICKS.map((share) => share * top),
    /**
     * Return the place of a number, from -1 to 1.
     *
     * @param {number} x
     */
    at(x) {
      const place = (Math.sign(x) * Math.log2(1 + Math.abs(x) / least)) / reach;
      return Math.max(-1, Math.min(1, place));
    },
    /**
     * Return the number at a place.
     *
     * @param {number} at
     */
    value: (at) => Math.sign(at) * least * (2 ** (Math.abs(at) * reach) - 1),
    /** @param {number} x */
    stop: (x) => inside(nearestStop(x)),
    /**
     * Return the next stop in a direction.
     *
     * @param {number} x
     * @param {number} direction +1 or -1
     */
    next(x, direction) {
      const near = nearestStop(x);
      // The nearest stop may already lie in this direction.
      const ahead = ((near * top) / LAST_STOP - x) * direction > 0;
      if (ahead) return inside(near);
      return inside(neighbour(near, STOPS, direction) ?? near);
    },
  };
}

// --- bars ----------------------------------------------------------------------------------------

/** @type {Record<NumberFate, string>} */
const NOTES = { zero: "0", cut: "max", kept: "" };

/** @typedef {ReturnType<typeof makeBars>} Bars */

/**
 * Return the bars and marks of some numbers.
 *
 * @param {number} count
 * @param {Axis} axis
 */
export function makeBars(count, axis) {
  const bars = Array.from({ length: count }, (_, i) => makeBar(i));
  const heads = h("div", { class: "bs-heads" });
  const ticks = axis.ticks.map((x) =>
    h(
      "span",
      { class: "bs-tick", style: { bottom: bottomOf(axis, x) } },
      h("span", { class: "lk-quiet", text: decimal(x).replace("-", "\u2212") }),
    ),
  );
  const columns = h("div", { class: "bs-columns" }, ...bars.map(({ element }) => element));
  const field = h("div", { class: "bs-field" }, ...ticks, columns);
  return {
    element: h("div", { class: "bs-bars" }, heads, field),
    columns,
    items: bars.map(({ element }) => element),
    /**
     * @param {RoundedRow} row
     * @param {readonly number[]} numbers
     * @param {readonly number[]} becomes
     * @param {readonly NumberFate[]} fates
     */
    draw(row, numbers, becomes, fates) {
      heads.replaceChildren(...blockHeads(row));
      for (const [i, { element, bar, mark, note }] of bars.entries()) {
        element.dataset.fate = fates[i];
        element.classList.toggle("bs-first", i > 0 && i % row.format.size === 0);
        bar.style.bottom = bottomOf(axis, Math.min(0, numbers[i]));
        bar.style.height = `${50 * Math.abs(axis.at(numbers[i]))}%`;
        mark.style.bottom = bottomOf(axis, becomes[i]);
        note.textContent = NOTES[fates[i]];
        element.dataset.down = String(numbers[i] < 0);
      }
    },
  };
}

/**
 * Return the place of a number in the field, as CSS `bottom`.
 *
 * @param {Axis} axis
 * @param {number} x
 */
function bottomOf(axis, x) {
  return `${50 + 50 * axis.at(x)}%`;
}

/** @param {number} i */
function makeBar(i) {
  const bar = h("span", { class: "bs-bar" });
  const mark = h("span", { class: "bs-mark" });
  const note = h("span", { class: "bs-note" });
  const element = h("div", { class: "bs-number", data: { i } }, bar, mark, note);
  return { element, bar, mark, note };
}

/**
 * Return the headings of the blocks, with their scales.
 *
 * @param {RoundedRow} row
 */
function blockHeads({ scales, format }) {
  const block = scales.length > 1 ? "block of" : "one block of";
  return scales.map((x) => {
    const scale = h("b", {}, rich(scaleText(x, format)));
    const words = h("span", {}, `${block} ${format.size}, scale `, scale);
    return h("div", { class: "bs-head", style: { flex: String(format.size) } }, words);
  });
}

// --- pointer and keys ----------------------------------------------------------------------------

// A press that moves at most this many pixels is a click.
const CLICK_DISTANCE_OF_BARS = 3;

/** @type {Record<string, number>} */
const STEP_KEYS = {
  ArrowUp: 1,
  ArrowDown: -1,
  PageUp: 8,
  PageDown: -8,
  Home: -Infinity,
  End: Infinity,
};
/** @type {Record<string, number>} */
const ASIDE_KEYS = { ArrowLeft: -1, ArrowRight: 1 };

/**
 * What pointers and keys can do to bars.
 *
 * @typedef {object} HandActions
 * @property {(i: number) => void} select
 * @property {(i: number | null) => void} look Point at a bar; null: at none.
 * @property {(i: number, steps: number) => void} move
 * @property {(i: number, at: number) => void} to A place on the axis, from -1 to 1.
 */

/**
 * @param {Bars} bars
 * @param {Life} life
 * @param {HandActions} actions
 */
export function barHands(bars, life, actions) {
  /** @type {{ y: number, moved: boolean } | null} */
  let held = null;

  /**
   * @param {HTMLElement} item
   * @param {PointerEvent} event
   */
  function grasp(item, event) {
    if (!isMainButton(event)) return;
    event.preventDefault();
    held = { y: event.clientY, moved: false };
    item.setPointerCapture(event.pointerId);
    item.focus({ preventScroll: true });
  }

  /**
   * @param {HTMLElement} item
   * @param {number} i
   * @param {PointerEvent} event
   */
  function drag(item, i, event) {
    if (!held) return;
    if (Math.abs(event.clientY - held.y) > CLICK_DISTANCE_OF_BARS) held.moved = true;
    if (!held.moved) return;
    item.dataset.held = "true";
    const box = bars.columns.getBoundingClientRect();
    actions.to(i, 1 - (2 * (event.clientY - box.top)) / box.height);
  }

  for (const [i, item] of bars.items.entries()) {
    life.listen(item, "pointerenter", () => {
      if (!held) actions.look(i);
    });
    life.listen(item, "pointerleave", () => {
      if (!held) actions.look(null);
    });
    life.listen(item, "focus", () => actions.select(i));
    life.listen(item, "pointerdown", (event) => grasp(item, event));
    life.listen(item, "pointermove", (event) => drag(item, i, event));
    for (const type of ["pointerup", "pointercancel"]) {
      life.listen(item, type, () => {
        held = null;
        delete item.dataset.held;
      });
    }
    life.listen(item, "keydown", (event) => pressKey(bars, actions, i, event));
  }
}

/**
 * @param {Bars} bars
 * @param {HandActions} actions
 * @param {number} i
 * @param {KeyboardEvent} event
 */
function pressKey(bars, actions, i, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const steps = STEP_KEYS[event.key];
  const aside = ASIDE_KEYS[event.key];
  if (!steps && !aside) return;
  event.preventDefault();
  if (steps) {
    actions.move(i, steps);
  } else {
    bars.items[i + aside]?.focus({ preventScroll: true });
  }
}

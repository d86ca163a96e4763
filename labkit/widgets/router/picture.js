// The picture of one token's choice: exact scores above, rounded scores below; and the map of all
// tokens.

import { inkCross, inkDot, inkRing, inkSegment, inkText } from "../base/plot.js";
import { formatColour } from "../base/theme.js";
import { PLAYGROUND_FORMATS, toNearest } from "../playground/rounding.js";
import { largest } from "./choosing.js";

/** @import { Ink } from "../base/plot.js" */
/** @import { RouterSettings, TokenChoice } from "./choosing.js" */

// The columns of the map of tokens.
export const COLUMNS = 45;
// The number of experts that are shown although they are not chosen.
const BESIDE = 6;
// More ticks would make a grey band.
const MOST_TICKS = 100;
// If more experts change, their number is written instead. The sentence has all of them.
const MOST_NAMED = 4;

// Lengths in pixels.
export const CHOICE_HEIGHT = 222;
const MARGIN = { left: 16, right: 16 };
// The heights of the axis of exact scores, and of that of rounded scores.
const ABOVE = 66;
const BELOW = 134;
// The distance between marks of equal scores, and the height of all of them at most.
const STACK = 12;
const STACK_ROOM = 66;
const RADIUS = 4.5;

/**
 * Draw the exact scores of a token's best experts on one axis, the rounded scores on another axis
 * below it, and a line between both scores of each expert.
 *
 * @param {Ink} ink
 * @param {number} width
 * @param {TokenChoice} choice
 * @param {RouterSettings} settings
 */
export function drawChoice(ink, width, choice, settings) {
  const { tint } = ink;
  const shown = shownExperts(choice, settings.chosen);
  const scores = shown.map((expert) => choice.exact[expert]);
  const roundedScores = shown.map((expert) => choice.rounded[expert]);
  const format = PLAYGROUND_FORMATS[settings.format];
  const least = Math.min(...scores, ...roundedScores);
  // The rounded number may be below or above.
  const firstTick = toNearest(least, format);
  const low = Math.min(least, firstTick);
  const high = Math.max(...scores, ...roundedScores);
  const room = width - MARGIN.left - MARGIN.right;
  /** @param {number} score */
  const x = (score) => MARGIN.left + (room * (score - low)) / (high - low || 1);

  inkText(ink, `exact ${settings.rounded} (FP32)`, MARGIN.left, 14);
  inkText(ink, `rounded to ${settings.format}`, MARGIN.left, CHOICE_HEIGHT - 4);
  inkSegment(ink, [MARGIN.left, ABOVE], [width - MARGIN.right, ABOVE], tint.line, 1);
  inkSegment(ink, [MARGIN.left, BELOW], [width - MARGIN.right, BELOW], tint.line, 1);
  drawCut(ink, choice, settings.chosen, x);
  drawTicks(ink, formatNumbers(firstTick, high, settings.format), x);

  const colour = formatColour(settings.format, tint);
  /** @type {Map<number, number>} how many marks are at a place of the lower line */
  const equal = new Map();
  for (const score of roundedScores) equal.set(score, (equal.get(score) ?? 0) + 1);
  /** @type {Map<number, number>} how many of them are drawn */
  const stacked = new Map();
  for (const expert of shown) {
    const above = /** @type {[number, number]} */ ([x(choice.exact[expert]), ABOVE]);
    const score = choice.rounded[expert];
    const height = stacked.get(score) ?? 0;
    stacked.set(score, height + 1);
    const gap = Math.min(STACK, STACK_ROOM / (equal.get(score) ?? 1));
    const below = /** @type {[number, number]} */ ([x(score), BELOW + gap * height]);
    inkSegment(ink, above, below, tint.line, 1);
    drawExpert(ink, above, choice.before.includes(expert), expert, choice, colour);
    drawExpert(ink, below, choice.after.includes(expert), expert, choice, colour);
  }
  drawNames(ink, width, choice, x);
}

/**
 * Return the experts chosen by exact or by rounded scores, and the best of the others.
 *
 * @param {TokenChoice} choice
 * @param {number} chosen
 */
function shownExperts(choice, chosen) {
  const best = largest(choice.exact, Math.min(chosen + BESIDE, choice.exact.length));
  const changed = [...choice.leaving, ...choice.coming];
  const others = new Set([...best, ...choice.after].filter((expert) => !changed.includes(expert)));
  // Experts that leave or come in are drawn last, so that no other mark hides them.
  return [...others, ...changed];
}

/**
 * Return the numbers of a format between two of them; none if they are more than MOST_TICKS.
 *
 * @param {number} low
 * @param {number} high
 * @param {string} name
 */
function formatNumbers(low, high, name) {
  const { emin, significandBits } = PLAYGROUND_FORMATS[name];
  const numbers = [];
  let number = low;
  while (number <= high && numbers.length <= MOST_TICKS) {
    numbers.push(number);
    number += 2 ** (Math.max(exponentAbove(number), emin) - significandBits);
  }
  return numbers.length > MOST_TICKS ? [] : numbers;
}

/**
 * Return the exponent of the numbers just above a number; -Infinity above 0.
 *
 * @param {number} number
 */
function exponentAbove(number) {
  const exponent = Math.log2(Math.abs(number));
  // Above -4 the numbers are smaller in size: their exponent is 1, and not 2 as above 4.
  return number < 0 ? Math.ceil(exponent) - 1 : Math.floor(exponent);
}

/**
 * @param {Ink} ink
 * @param {readonly number[]} numbers
 * @param {(score: number) => number} x
 */
function drawTicks(ink, numbers, x) {
  for (const number of numbers) {
    inkSegment(ink, [x(number), BELOW - 5], [x(number), BELOW], ink.tint.ink2, 1);
  }
}

/**
 * Draw the line between the last expert chosen by exact scores and the best of the others.
 *
 * @param {Ink} ink
 * @param {TokenChoice} choice
 * @param {number} chosen
 * @param {(score: number) => number} x
 */
function drawCut(ink, choice, chosen, x) {
  const order = largest(choice.exact, Math.min(chosen + 1, choice.exact.length));
  if (order.length <= chosen) return;
  const at = (x(choice.exact[order[chosen - 1]]) + x(choice.exact[order[chosen]])) / 2;
  inkSegment(ink, [at, ABOVE - 22], [at, ABOVE + 16], ink.tint.ink2, 1.2, { dash: [4, 3] });
  inkText(ink, "chosen \u2192", at + 4, ABOVE - 26);
}

/**
 * Draw the mark of an expert: filled if it is chosen, a ring if it is not, a cross if rounding
 * makes it lose its place.
 *
 * @param {Ink} ink
 * @param {readonly [number, number]} at
 * @param {boolean} chosen
 * @param {number} expert
 * @param {TokenChoice} choice
 * @param {string} colour
 */
function drawExpert(ink, [x, y], chosen, expert, choice, colour) {
  const { tint } = ink;
  if (choice.leaving.includes(expert)) {
    if (chosen) inkDot(ink, x, y, RADIUS, tint.underflowed);
    else inkCross(ink, x, y, RADIUS, tint.underflowed, 2.4);
    return;
  }
  if (choice.coming.includes(expert)) {
    if (chosen) inkDot(ink, x, y, RADIUS, tint.overflowed);
    else inkRing(ink, x, y, tint.overflowed);
    return;
  }
  if (chosen) inkDot(ink, x, y, RADIUS, colour);
  else inkRing(ink, x, y, tint.ink2);
}

/**
 * Write the numbers of the experts that leave and of those that come in below their exact scores.
 * Each group has one label, so that no label covers another.
 *
 * @param {Ink} ink
 * @param {number} width
 * @param {TokenChoice} choice
 * @param {(score: number) => number} x
 */
function drawNames(ink, width, { exact, leaving, coming }, x) {
  /**
   * @param {readonly number[]} experts
   * @param {readonly [string, string]} verbs
   * @param {number} y
   */
  const label = (experts, [one, several], y) => {
    if (experts.length === 0) return;
    const places = experts.map((expert) => x(exact[expert]));
    const at = places.reduce((sum, place) => sum + place, 0) / places.length;
    const who = experts.length > MOST_NAMED ? `${experts.length} experts` : experts.join(", ");
    const words = `${who} ${experts.length === 1 ? one : several}`;
    const align = at > width / 2 ? "right" : "left";
    inkText(ink, words, at, y, { align, fill: ink.tint.ink, bold: true, halo: true });
  };
  label(leaving, ["leaves", "leave"], ABOVE + 30);
  label(coming, ["comes in", "come in"], ABOVE + 48);
}

/**
 * Draw a cell for each token, with another colour if its set of experts changes.
 *
 * @param {Ink} ink
 * @param {number} width
 * @param {boolean[]} changed
 * @param {number} selected
 */
export function drawTokens(ink, width, changed, selected) {
  const { pen, tint } = ink;
  const cell = cellOf(width);
  for (const [token, isChanged] of changed.entries()) {
    const left = (token % COLUMNS) * cell;
    const top = Math.floor(token / COLUMNS) * cell;
    pen.fillStyle = isChanged ? tint.underflowed : tint.surface2;
    pen.fillRect(left + 1, top + 1, cell - 2, cell - 2);
  }
  const left = (selected % COLUMNS) * cell;
  const top = Math.floor(selected / COLUMNS) * cell;
  pen.strokeStyle = tint.ink;
  pen.lineWidth = 2;
  pen.strokeRect(left + 1, top + 1, cell - 2, cell - 2);
}

/**
 * Return the side of a cell of the map.
 *
 * @param {number} width
 */
export function cellOf(width) {
  return width / COLUMNS;
}

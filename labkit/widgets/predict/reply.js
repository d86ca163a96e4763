// The reply to a choice on a page without a kernel. It equals `reply` and `Ruler.distance` in
// widget.py, as a test checks.

import { decimal } from "../base/number_words.js";

/** @import { KnownNumber, NoRuler, Replies, Reply, Ruler } from "./view.js" */

// Below this factor a guess equals the truth to two digits (EQUAL_FACTOR of widget.py).
const EQUAL_FACTOR = 1.05;

/**
 * Return the reply to a choice or to a number.
 *
 * @param {Replies} known
 * @param {Ruler | NoRuler} ruler
 * @param {string} choice
 * @returns {Reply}
 */
export function replied(known, ruler, choice) {
  if (known.near === undefined) {
    const right = choice === known.answer;
    return { answered: known.choices[choice], answer: known.answer, right };
  }
  return repliedToNumber(known, ruler.unit ?? "", Number(choice));
}

/**
 * @param {KnownNumber} known
 * @param {string} unit
 * @param {number} guess
 * @returns {Reply}
 */
function repliedToNumber({ choices, near, truth }, unit, guess) {
  if (!truth) return { answered: choices.lost, right: false };
  const factor = Math.max(guess / truth, truth / guess);
  const right = factor <= near;
  const wrongSide = guess < truth ? "less" : "more";
  const verdict = right ? "Yes" : "Not quite";
  const distance = distanceText(guess, truth, factor, unit);
  const reason = choices[right ? "near" : wrongSide];
  return { answered: `${verdict}: ${distance} ${reason}`, right, truth };
}

/**
 * @param {number} guess
 * @param {number} truth
 * @param {number} factor how many times the larger is the smaller
 * @param {string} unit
 */
function distanceText(guess, truth, factor, unit) {
  const measured = decimal(Number(truth.toPrecision(3)));
  const compared = `you said ${decimal(guess)}${unit}, it was ${measured}${unit}`;
  if (factor < EQUAL_FACTOR) return `${compared}.`;
  const times =
    factor >= 10
      ? Math.round(factor).toLocaleString("en-US")
      : String(Number(factor.toPrecision(2)));
  return `${compared}: ${times} times ${truth > guess ? "more" : "less"}.`;
}

// Bars glide from one loss scale to the next, and what leaves the format on the way falls off its
// edge. With reduced motion they are there at once.
//
// Nothing runs by itself: a picture asks where its bars are now, and draws again while they move.

import { reducedMotion } from "../base/theme.js";
import { fateOf } from "./plot.js";

/** @import { Fall, PreparedRow } from "./plot.js" */
/** @import { Windows } from "./view.js" */

const GLIDE_TIME = 200; // ms from one scale to the next
const FALL_TIME = 500; // ms until a bar that was lost is out of sight

/**
 * What is drawn at a time.
 *
 * @typedef {object} Moment
 * @property {number} log2Scale Where the bars are, between two scales.
 * @property {Fall[]} falls
 * @property {boolean} moving Whether the picture changes by itself.
 */

/** The bars of one histogram on their way. */
export function scaleMotion() {
  let from = NaN; // log2 of the scale that was left
  let to = NaN;
  let began = 0;
  /** @type {{ exponents: number[], began: number }[]} */
  let lost = [];

  /** @param {number} now */
  function place(now) {
    const done = Math.min(1, (now - began) / GLIDE_TIME);
    return from + (to - from) * (1 - (1 - done) ** 2);
  }

  /** @param {number} log2Scale */
  function jump(log2Scale) {
    from = log2Scale;
    to = log2Scale;
    lost = [];
  }

  /**
   * @param {PreparedRow} row
   * @param {Windows} limits
   * @param {number} log2Scale
   * @param {number} now
   */
  function leave(row, limits, log2Scale, now) {
    const exponents = newlyLost(row, limits, to, log2Scale);
    if (exponents.length) lost.push({ exponents, began: now });
    from = place(now);
    to = log2Scale;
    began = now;
  }

  return {
    /**
     * @param {PreparedRow} row
     * @param {Windows} limits
     * @param {number} log2Scale where the bars shall be
     * @param {boolean} held whether a hand moves them, and they follow it at once
     * @param {number} now in ms
     * @returns {Moment}
     */
    at(row, limits, log2Scale, held, now) {
      if (Number.isNaN(to) || reducedMotion()) jump(log2Scale);
      else if (log2Scale !== to) leave(row, limits, log2Scale, now);
      if (held) from = to;
      lost = lost.filter((one) => now - one.began < FALL_TIME);
      const falls = lost.map((one) => ({
        exponents: one.exponents,
        done: (now - one.began) / FALL_TIME,
      }));
      const moving = falls.length > 0 || (from !== to && now - began < GLIDE_TIME);
      return { log2Scale: place(now), falls, moving };
    },
  };
}

/**
 * The bars that a format holds at one scale, and not at the next: their exponents at scale 1.
 *
 * @param {PreparedRow} row
 * @param {Windows} limits
 * @param {number} before log2 of a scale
 * @param {number} after
 */
export function newlyLost(row, limits, before, after) {
  /** @param {number} exponent */
  const isLost = (exponent) => {
    const fate = fateOf(exponent, limits);
    return fate === "underflowed" || fate === "overflowed";
  };
  const exponents = row.counts.map((_, i) => row.lo + i);
  return exponents.filter(
    (exponent, i) => row.counts[i] > 0 && !isLost(exponent + before) && isLost(exponent + after),
  );
}

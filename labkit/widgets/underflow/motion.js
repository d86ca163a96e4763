// The motion of bars from one loss scale to the next; bars that leave the format fall. With reduced
// motion they jump.
//
// There are no timers: a picture asks for the place of its bars, and draws again while they move.

import { reducedMotion } from "../base/theme.js";
import { fateOf } from "./plot.js";

/** @import { Fall, PreparedRow } from "./plot.js" */
/** @import { Windows } from "./view.js" */

// The time from one scale to the next, and the time in which a lost bar disappears, in ms.
const GLIDE_TIME = 200;
const FALL_TIME = 500;

/**
 * The state of the motion at one time.
 *
 * @typedef {object} Moment
 * @property {number} log2Scale The log2 of the scale that is drawn, between two scales.
 * @property {Fall[]} falls
 * @property {boolean} moving Whether the picture changes by itself.
 */

/** Return the motion of one histogram's bars. */
export function scaleMotion() {
  // The log2 of the scales between which the bars move; NaN before the first picture.
  let from = NaN;
  let to = NaN;
  let began = 0;
  /** @type {{ exponents: number[], began: number }[]} */
  let lost = [];

  /**
   * Return the log2 of the scale at a time. The motion becomes slower towards its end.
   *
   * @param {number} now
   */
  function place(now) {
    const done = Math.min(1, (now - began) / GLIDE_TIME);
    return from + (to - from) * (1 - (1 - done) ** 2);
  }

  /**
   * Move all bars at once.
   *
   * @param {number} log2Scale
   */
  function jump(log2Scale) {
    from = log2Scale;
    to = log2Scale;
    lost = [];
  }

  /**
   * Begin a motion to another scale, from where the bars are now.
   *
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
     * Return the state of the motion now. It begins a motion if the scale is another one.
     *
     * @param {PreparedRow} row
     * @param {Windows} limits
     * @param {number} log2Scale the scale to which the bars move
     * @param {boolean} held whether a pointer drags them, so that they follow without delay
     * @param {number} now in ms
     * @returns {Moment}
     */
    at(row, limits, log2Scale, held, now) {
      if (Number.isNaN(to) || reducedMotion()) {
        jump(log2Scale);
      } else if (log2Scale !== to) {
        leave(row, limits, log2Scale, now);
      }
      if (held) from = to;
      lost = lost.filter((bars) => now - bars.began < FALL_TIME);
      const falls = lost.map((bars) => ({
        exponents: bars.exponents,
        done: (now - bars.began) / FALL_TIME,
      }));
      const moving = falls.length > 0 || (from !== to && now - began < GLIDE_TIME);
      return { log2Scale: place(now), falls, moving };
    },
  };
}

/**
 * Return the bars that a format holds at one scale but not at the next, as exponents at scale 1.
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

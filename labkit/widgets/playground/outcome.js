// The outcome of a training beside its twin, which answers the question of a scene.

/** @import { Session } from "./session.js" */

/**
 * The outcome of a training. same: its loss is about that of the twin; worse: it fell less; stuck:
 * it hardly fell; broken: the weights hold inf or NaN.
 *
 * @typedef {"same" | "worse" | "stuck" | "broken"} Outcome
 */

// The number of steps whose losses are averaged.
const WINDOW = 20;
// A loss is the same as the twin's if it is at most this many times as large.
const SAME = 1.25;
// A loss is stuck if it fell by less than this share of the fall of the twin's loss.
const STUCK = 0.2;

/**
 * Return the mean of the latest losses, since that of a single batch varies.
 *
 * @param {readonly number[]} losses at least one
 */
export function latestLoss(losses) {
  return meanOf(losses.slice(-WINDOW));
}

/**
 * Return the mean of numbers.
 *
 * @param {readonly number[]} values at least one
 */
function meanOf(values) {
  return values.reduce((a, b) => a + b, 0) / values.length;
}

/**
 * Return the outcome of a session.
 *
 * @param {Pick<Session, "losses" | "twinLosses" | "skipped" | "broken">} session
 *   with at least one step
 * @returns {Outcome}
 */
export function outcomeOf({ losses, twinLosses, skipped, broken }) {
  if (broken) return "broken";
  const own = latestLoss(losses);
  const twin = latestLoss(twinLosses);
  const allSkipped = skipped.length === losses.length;
  if (own <= SAME * twin && !allSkipped) return "same";
  const first = meanOf(losses.slice(0, WINDOW));
  const fall = (first - own) / (first - twin);
  return fall >= STUCK ? "worse" : "stuck";
}

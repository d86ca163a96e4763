// The outcome of a training beside its twin, which answers the question of a scene.

/** @import { Session } from "./session.js" */

/**
 * @typedef {"same" | "worse" | "stuck" | "broken"} Outcome
 *   same: its loss is that of the twin; worse: it fell less; stuck: hardly at all; broken: the
 *   weights hold inf or NaN
 */

const WINDOW = 20; // steps whose losses are averaged
const SAME = 1.25; // losses that differ less than this factor are the same
const STUCK = 0.2; // of the way that the twin went

/**
 * The mean of the latest losses: a batch alone says little.
 *
 * @param {readonly number[]} losses
 */
export function latestLoss(losses) {
  return meanOf(losses.slice(-WINDOW));
}

/** @param {readonly number[]} values */
function meanOf(values) {
  return values.reduce((a, b) => a + b, 0) / values.length;
}

/**
 * @param {Pick<Session, "losses" | "twinLosses" | "skipped" | "broken">} session
 *   with a step at least
 * @returns {Outcome}
 */
export function outcomeOf({ losses, twinLosses, skipped, broken }) {
  if (broken) return "broken";
  const own = latestLoss(losses);
  const twin = latestLoss(twinLosses);
  if (own <= SAME * twin && skipped.length < losses.length) return "same";
  const first = meanOf(losses.slice(0, WINDOW));
  const way = (first - own) / (first - twin);
  return way >= STUCK ? "worse" : "stuck";
}

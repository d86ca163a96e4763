// The sentences of a game that a page plays on recorded gradients.

import { counted } from "../exact/numbers.js";

/** @import { Game } from "./page_game.js" */
/** @import { Score } from "./plot.js" */

/**
 * @param {Pick<Game, "phase" | "total" | "inSight">} game
 * @param {Score} score so far
 */
export function gameSentence({ phase, total, inSight }, score) {
  const { steps } = score;
  if (!steps && phase !== "running") {
    return (
      "Press Start and keep the scale in the window, which you do not see: \u2191 doubles the " +
      "scale, \u2193 halves it. Beside you a dynamic scaler meets the same gradients, which are " +
      "on record."
    );
  }
  const [mine, theirs] = score.useful.map(wholePercent);
  if (phase === "finished") return verdict(score, mine, theirs, total);
  const where = `${phase === "paused" ? "Paused at step" : "Step"} ${steps} of ${total}: `;
  if (inSight) return `${where}${mine} of your steps were useful, ${theirs} of the scaler's.`;
  const [skipped, scalers] = score.skipped;
  const skips = `you have skipped ${counted(skipped, "step")}, the scaler ${scalers}.`;
  return `${where}${skips} The end adds those that lost gradients.`;
}

/**
 * @param {Score} score
 * @param {string} mine
 * @param {string} theirs
 * @param {number} total
 */
function verdict({ steps, useful, skipped, lossy, peeked }, mine, theirs, total) {
  let end = "A draw";
  if (useful[0] > useful[1]) end = "You win";
  if (useful[0] < useful[1]) end = "The scaler wins";
  const sight = peeked ? " with the window in sight" : "";
  const yours = `${mine} of your ${counted(steps, "step")} were useful`;
  const shares = `${yours}, ${theirs} of the scaler's.`;
  const early = steps < total ? ` You stopped at step ${steps} of ${total}.` : "";
  const lost = `You skipped ${skipped[0]} and ran ${lossy[0]} at a scale that loses gradients`;
  const other = `the scaler ${skipped[1]} and ${lossy[1]}`;
  return `${end}${sight}: ${shares}${early} ${lost}; ${other}.`;
}

/** @param {number} share */
function wholePercent(share) {
  return `${(100 * share).toFixed(0)}%`;
}

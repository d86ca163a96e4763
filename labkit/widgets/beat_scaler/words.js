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
  if (phase === "finished") return verdict(score, total);
  const where = `${phase === "paused" ? "Paused at step" : "Step"} ${steps} of ${total}: `;
  if (inSight) return `${where}${usefulCounts(score, "your steps")}`;
  const [skipped, scalers] = score.skipped;
  const skips = `you have skipped ${counted(skipped, "step")}, the scaler ${scalers}.`;
  return `${where}${skips} The end adds those that lost gradients.`;
}

/**
 * @param {Score} score
 * @param {number} total
 */
function verdict(score, total) {
  const { steps, useful, skipped, lossy, peeked } = score;
  let end = "A draw";
  if (useful[0] > useful[1]) end = "You win";
  if (useful[0] < useful[1]) end = "The scaler wins";
  const sight = peeked ? " with the window in sight" : "";
  const counts = usefulCounts(score, `your ${counted(steps, "step")}`);
  const early = steps < total ? ` You stopped at step ${steps} of ${total}.` : "";
  const lost = `You skipped ${skipped[0]} and ran ${lossy[0]} at a scale that loses gradients`;
  const other = `the scaler ${skipped[1]} and ${lossy[1]}`;
  return `${end}${sight}: ${counts}${early} ${lost}; ${other}.`;
}

/**
 * Return a sentence with the numbers of useful steps. Rounded shares could be equal although one
 * side has won.
 *
 * @param {Score} score
 * @param {string} yours the learner's steps, as text
 */
function usefulCounts({ steps, skipped, lossy }, yours) {
  const [mine, theirs] = skipped.map((count, i) => steps - count - lossy[i]);
  const were = mine === 1 ? "was" : "were";
  return `${mine} of ${yours} ${were} useful, ${theirs} of the scaler's.`;
}

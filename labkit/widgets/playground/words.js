// One sentence about what happens in a training now, and why.

import { decimal, percent, power } from "../base/number_words.js";

/** @import { Report, Training } from "./trainer.js" */

// The share of zeros of a layer's gradients, beyond that of the twin, from which they count as
// lost.
const MANY_ZEROS = 0.2;
// The share of swallowed updates from which the sentence is about them.
const MANY_SWALLOWED = 0.5;
// A loss is as good as the twin's if it is at most this many times as large.
const ALIKE = 1.05;

/**
 * The facts that the sentence is made of.
 *
 * @typedef {object} Both
 * @property {Training} training
 * @property {Report | null} last The latest step; null before the first.
 * @property {Report | null} twin The latest step of the twin; null before the first.
 * @property {number} skips The number of steps in a row that were skipped up to now.
 * @property {{ step: number, name: string } | null} broken The first parameter that held inf or
 *   NaN, and after which step.
 */

/**
 * Return the sentence.
 *
 * @param {Both} both
 * @param {string} question of the scene, which is shown before the first step
 */
export function happening({ training, last, twin, skips, broken }, question) {
  if (!last || !twin) return `${question} Guess, and press Start.`;
  const { recipe } = training;
  if (broken) {
    return `Step ${broken.step} put inf or NaN into ${broken.name}. No later step can repair it: \
reset, and change a setting before the first step.`;
  }
  if (last.skipped) return skippedWords(last, recipe.scaling, skips);
  const lost = lostLayer(last, twin);
  if (lost !== null) return lostWords(lost, last, twin, recipe);
  const alike = last.loss <= twin.loss * ALIKE;
  if (!alike && last.swallowed > MANY_SWALLOWED && recipe.rounding === "nearest") {
    return `${percent(last.swallowed)} of the updates leave their weight as it was: each is below \
half the distance to the next ${recipe.weights} number. Switch FP32 master weights on.`;
  }
  if (alike) {
    return `The loss, ${decimal(last.loss)}, is as good as that of the twin in FP32.`;
  }
  return `The loss is ${decimal(last.loss)}; that of the twin in FP32 is ${decimal(twin.loss)}.`;
}

/**
 * Return the sentence about a skipped step.
 *
 * @param {Report} last
 * @param {string} scaling
 * @param {number} skips
 */
function skippedWords({ culprit, scale }, scaling, skips) {
  const where = `the gradients of ${culprit} hold inf or NaN at scale ${power(Math.log2(scale))}`;
  const often = skips > 1 ? `${skips} steps in a row were skipped` : "The step was skipped";
  let then = "Lower the loss scale.";
  if (scaling === "dynamic") then = "The scale halves.";
  if (scaling === "none") then = "There is no loss scale to lower: look at the formats.";
  return `${often}: ${where}. ${then}`;
}

/**
 * Return the share of a layer's gradients that are zero.
 *
 * @param {Report["spreads"][number]} spread
 */
function shareOfZeros({ zeros, elements }) {
  return zeros / elements;
}

/**
 * Return the first layer that has many more zeros than that of the twin; null if none has.
 *
 * @param {Report} last
 * @param {Report} twin
 */
function lostLayer({ spreads }, twin) {
  for (const [layer, spread] of spreads.entries()) {
    const more = shareOfZeros(spread) - shareOfZeros(twin.spreads[layer]);
    if (more > MANY_ZEROS) return layer;
  }
  return null;
}

/**
 * Return the sentence about a layer whose gradients are lost.
 *
 * @param {number} layer
 * @param {Report} last
 * @param {Report} twin
 * @param {Training["recipe"]} recipe
 */
function lostWords(layer, last, twin, { gradients, scaling }) {
  const here = percent(shareOfZeros(last.spreads[layer]));
  const there = percent(shareOfZeros(twin.spreads[layer]));
  let remedy = scaling === "none" ? "Switch a loss scale on." : "Raise the loss scale.";
  if (last.loss <= twin.loss * ALIKE) remedy = "Yet the loss is as good as the twin's.";
  return `${here} of the gradients of layer ${layer + 1} are zero in ${gradients}, and ${there} in \
the twin in FP32. ${remedy}`;
}

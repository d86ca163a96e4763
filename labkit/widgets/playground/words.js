// One sentence that says what happens in a training now, and why.

import { decimal, percent, power } from "../base/number_words.js";

/** @import { Report, Training } from "./trainer.js" */

const MANY_ZEROS = 0.2; // of a layer's gradients
const MANY_SWALLOWED = 0.5; // of the updates
const ALIKE = 1.05; // a loss is as good as another up to this factor

/**
 * What the sentence is about.
 *
 * @typedef {object} Both
 * @property {Training} training
 * @property {Report | null} last The step that was the last; null before the first.
 * @property {Report | null} twin That of the twin.
 * @property {number} skips The number of steps in a row that were skipped.
 * @property {{ step: number, name: string } | null} broken
 */

/**
 * @param {Both} both
 * @param {string} question of the scene
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

/** @param {Report["spreads"][number]} spread */
function shareOfZeros({ zeros, elements }) {
  return zeros / elements;
}

/**
 * The first layer that has many more zeros than the twin's; null where there is none.
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

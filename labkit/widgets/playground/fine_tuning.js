// Fine-tuning as a problem: a network that reads digits goes on with digits that stand lower.

import { DIGIT_SIDE, digits, testDigits } from "./digits.js";
import { RECIPE_PRESETS } from "./recipe.js";
import { newTraining, trainStep } from "./trainer.js";

/** @import { Problem } from "./problems.js" */

const STEPS_BEFORE = 150;
const LOWER = DIGIT_SIDE; // pixels: one row

/**
 * Pictures, one after another, each moved down by a row; their last row is lost.
 *
 * @param {Float32Array} inputs
 */
function movedDown(inputs) {
  const pixels = DIGIT_SIDE * DIGIT_SIDE;
  return inputs.map((_, i) => (i % pixels < LOWER ? 0 : inputs[i - LOWER]));
}

/** @type {ReturnType<typeof testDigits> | null} */
let lowerSamples = null;

/** Digits that stand lower, and that no network is trained on. */
export function lowerTestDigits() {
  const { inputs, targets } = testDigits();
  lowerSamples ??= { inputs: movedDown(inputs), targets };
  return lowerSamples;
}

/** @type {Map<number, Float32Array[]>} */
const trainedBefore = new Map();

/**
 * The weights of a network that was trained on digits in their usual place.
 *
 * @param {number} seed
 */
function weightsBefore(seed) {
  const known = trainedBefore.get(seed);
  if (known) return known;
  const training = newTraining(digits(), RECIPE_PRESETS["FP16 static"], seed);
  for (let step = 0; step < STEPS_BEFORE; step++) trainStep(training);
  const found = training.parameters.map(({ values }) => values);
  trainedBefore.clear();
  trainedBefore.set(seed, found);
  return found;
}

/**
 * Digits that stand lower, for a network that knows digits.
 *
 * @returns {Problem}
 */
export function fine_tuning() {
  const usual = digits();
  return {
    ...usual,
    name: "fine_tuning",
    inputs: movedDown(usual.inputs),
    first: weightsBefore,
    method: { kind: "Adam", rate: 2 ** -15, momentum: 0.9, epsilon: 1e-8 },
  };
}

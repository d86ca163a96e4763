// Fine-tuning as a problem: a network that was trained on digits continues with digits that are
// moved down by one row of pixels.

import { DIGIT_SIDE, digits, testDigits } from "./digits.js";
import { RECIPE_PRESETS } from "./recipe.js";
import { newTraining, trainStep } from "./trainer.js";

/** @import { Problem } from "./problems.js" */

// Steps of the training that precedes the fine-tuning.
const PRETRAINING_STEPS = 150;

/**
 * Return pictures moved down by one row. The first row becomes 0, and the last row is lost.
 *
 * @param {Float32Array} inputs The pixels of all pictures, one picture after another.
 */
function movedDown(inputs) {
  const pixels = DIGIT_SIDE * DIGIT_SIDE;
  return inputs.map((_, i) => {
    const isFirstRow = i % pixels < DIGIT_SIDE;
    return isFirstRow ? 0 : inputs[i - DIGIT_SIDE];
  });
}

/** @type {ReturnType<typeof testDigits> | null} */
let lowerSamples = null;

/** Return the moved test digits, which no network is trained on. They are computed once. */
export function lowerTestDigits() {
  if (lowerSamples === null) {
    const { inputs, targets } = testDigits();
    lowerSamples = { inputs: movedDown(inputs), targets };
  }
  return lowerSamples;
}

/**
 * The pretrained weights of the last seed that was asked for.
 *
 * @type {{ seed: number, weights: Float32Array[] } | null}
 */
let pretrained = null;

/**
 * Return the weights of a network that was trained on digits in their usual place.
 *
 * @param {number} seed
 */
function pretrainedWeights(seed) {
  if (pretrained?.seed !== seed) {
    const training = newTraining(digits(), RECIPE_PRESETS["FP16 static"], seed);
    for (let step = 0; step < PRETRAINING_STEPS; step++) trainStep(training);
    pretrained = { seed, weights: training.parameters.map(({ values }) => values) };
  }
  return pretrained.weights;
}

/**
 * Return the problem: moved digits, for a network that was trained on digits in their usual place.
 *
 * @returns {Problem}
 */
export function fine_tuning() {
  const usual = digits();
  return {
    ...usual,
    name: "fine_tuning",
    inputs: movedDown(usual.inputs),
    first: pretrainedWeights,
    method: { kind: "Adam", rate: 2 ** -15, momentum: 0.9, epsilon: 1e-8 },
  };
}

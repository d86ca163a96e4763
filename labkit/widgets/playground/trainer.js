// A training of one network, step by step, and its twin in FP32.
//
// One step: forward, loss times the scale, backward, a check for inf and NaN, gradients divided by
// the scale, a step of the optimizer or none, the next scale. The twin does the same steps in FP32,
// from the same weights, on the same samples.

import { advance } from "../scaler_timeline/replay.js";
import { backward, forward, knownFormat, lossOf } from "./network.js";
import { newMemory, stepAll } from "./optimizer.js";
import { RECIPE_PRESETS, scalerConfig } from "./recipe.js";
import { randomBitsAt, roundAll, streamKey, toNearest } from "./rounding.js";

/** @import { Scaler } from "../scaler_timeline/replay.js" */
/** @import { Parameter, Shape } from "./network.js" */
/** @import { Memory } from "./optimizer.js" */
/** @import { Problem } from "./problems.js" */
/** @import { Method, Recipe } from "./recipe.js" */

/**
 * The gradients of a layer's weights, times the scale.
 *
 * @typedef {object} Spread
 * @property {number[]} counts The number of gradients with each exponent from `LOWEST` on, before
 *   rounding.
 * @property {number} zeros The number of gradients that are 0 after rounding.
 * @property {number} nonFinite The number of gradients that are inf or NaN after rounding.
 * @property {number} elements The number of all gradients.
 */

/**
 * The results of a step.
 *
 * @typedef {object} Report
 * @property {number} loss
 * @property {number} scale
 * @property {boolean} skipped
 * @property {string} culprit The parameter whose gradient was the first to hold inf or NaN; "" for
 *   none.
 * @property {string} broken A parameter that holds inf or NaN after the step; "" for none.
 * @property {number} swallowed The share of updates that did not change their weight.
 * @property {Spread[]} spreads One for each layer.
 */

/**
 * The state of a training between two steps.
 *
 * @typedef {object} Training
 * @property {Problem} problem
 * @property {Recipe} recipe
 * @property {Method} method
 * @property {number} seed
 * @property {Parameter[]} parameters
 * @property {Memory} memory
 * @property {Scaler} scaler
 * @property {number} steps The number of steps that are done.
 */

// The first part of the keys of streams of random bits, which keeps the streams apart.
const START_STREAM = 1;
const BATCH_STREAM = 2;
const ROUNDING_STREAM = 3;
// The exponents that are counted. Others count as the nearest of them.
export const LOWEST = -60;
export const HIGHEST = 40;

/**
 * Return a training before its first step.
 *
 * @param {Problem} problem
 * @param {Recipe} recipe
 * @param {number} seed
 * @returns {Training}
 */
export function newTraining(problem, recipe, seed) {
  const method = { ...problem.method };
  const memory = newMemory(method.kind);
  const parameters = firstParameters(problem, seed);
  const scaler = firstScaler(recipe);
  /** @type {Training} */
  const training = { problem, recipe, method, seed, parameters, memory, scaler, steps: 0 };
  takeRecipe(training, recipe);
  return training;
}

/**
 * Return the twin of a training that has done no steps.
 *
 * @param {Training} of
 */
export function twinOf({ problem, seed }) {
  return newTraining(problem, RECIPE_PRESETS.FP32, seed);
}

/**
 * Return the state of a recipe's loss scaler before the first step.
 *
 * @param {Recipe} recipe
 * @returns {Scaler}
 */
function firstScaler(recipe) {
  return { scale: scalerConfig(recipe).init_scale, clean: 0, held: 0 };
}

/**
 * Return the first weights and biases: those of the problem, or uniform numbers of at most
 * 1 / sqrt(inputs), as in torch's Linear.
 *
 * @param {Problem} problem
 * @param {number} seed
 * @returns {Parameter[]}
 */
function firstParameters({ shape, lastUnit, first }, seed) {
  /** @type {Parameter[]} */
  const parameters = [];
  const pretrained = first?.(seed);
  const last = shape.sizes.length - 2;
  for (let layer = 0; layer <= last; layer++) {
    const rows = shape.sizes[layer];
    const columns = shape.sizes[layer + 1];
    const unit = layer === last ? lastUnit : 1;
    const bound = unit / Math.sqrt(rows);
    for (const [kind, size] of /** @type {const} */ ([
      ["weight", rows * columns],
      ["bias", columns],
    ])) {
      const number = parameters.length;
      const key = streamKey(START_STREAM, seed, number);
      const drawn = Float32Array.from({ length: size }, (_, i) => {
        return (randomBitsAt(key, i) / 2 ** 31 - 1) * bound;
      });
      /** @type {Float32Array} */
      const values = pretrained ? pretrained[number].slice() : drawn;
      parameters.push({ name: `layer ${layer + 1} ${kind}`, layer, values });
    }
  }
  return parameters;
}

/**
 * Use another recipe from the next step on. Without masters, the weights are rounded at once.
 *
 * @param {Training} training changed in place
 * @param {Recipe} recipe
 */
export function takeRecipe(training, recipe) {
  const before = training.recipe;
  training.recipe = recipe;
  if (before.scaling !== recipe.scaling || before.log2_scale !== recipe.log2_scale) {
    restartScale(training);
  }
  if (recipe.master) return;
  for (const { values } of training.parameters) roundAll(values, knownFormat(recipe.weights));
}

/**
 * Set the loss scale back to that of the recipe.
 *
 * @param {Training} training changed in place
 */
export function restartScale(training) {
  training.scaler = firstScaler(training.recipe);
}

/**
 * Use other settings of the optimizer from the next step on. Another kind of optimizer begins
 * without state.
 *
 * @param {Training} training changed in place
 * @param {Method} method
 */
export function takeMethod(training, method) {
  if (method.kind !== training.method.kind) training.memory = newMemory(method.kind);
  training.method = method;
}

/**
 * Return the samples of the next step.
 *
 * @param {Training} training
 */
function batchOf({ problem, seed, steps }) {
  const { inputs, targets, count, batch, shape } = problem;
  if (batch === count) return { inputs, targets };
  const key = streamKey(BATCH_STREAM, seed, steps);
  const wide = shape.sizes[0];
  const chosenInputs = new Float32Array(batch * wide);
  const chosenTargets = new Float32Array(batch);
  for (let i = 0; i < batch; i++) {
    const sample = randomBitsAt(key, i) % count;
    chosenInputs.set(inputs.subarray(sample * wide, (sample + 1) * wide), i * wide);
    chosenTargets[i] = targets[sample];
  }
  return { inputs: chosenInputs, targets: chosenTargets };
}

/**
 * Do one step.
 *
 * @param {Training} training changed in place
 * @returns {Report}
 */
export function trainStep(training) {
  const { problem, recipe, parameters, scaler } = training;
  const { shape } = problem;
  const batch = batchOf(training);
  const pass = forward(shape, parameters, batch.inputs, recipe);
  const { loss, slopes } = lossOf(shape.loss, pass, batch.targets, scaler.scale, recipe);
  /** @type {Spread[]} */
  const spreads = [];
  const gradients = backward(shape, pass, slopes, recipe, (layer, sums) => {
    spreads[layer] = spreadOf(sums);
  });
  for (const [layer, spread] of spreads.entries()) {
    const gradient = gradients[2 * layer];
    spread.zeros = gradient.filter((value) => value === 0).length;
    spread.nonFinite = gradient.filter((value) => !Number.isFinite(value)).length;
  }
  const culprit = lastNonFinite(parameters, gradients);
  const config = scalerConfig(recipe);
  const skipped = culprit !== "" && config.skip_on_inf;
  let swallowed = 0;
  if (!skipped) {
    unscale(gradients, scaler.scale, recipe);
    const key = streamKey(ROUNDING_STREAM, training.seed, training.steps);
    swallowed = stepAll(parameters, gradients, training.memory, training.method, recipe, key);
  }
  training.scaler = advance(scaler, skipped, config);
  training.steps += 1;
  const kept = parameters.map(({ values }) => values);
  const broken = lastNonFinite(parameters, kept);
  return { loss, scale: scaler.scale, skipped, culprit, broken, swallowed, spreads };
}

/**
 * Divide gradients by the scale as torch's GradScaler does, by a product with its reciprocal in
 * FP32.
 *
 * @param {Float32Array[]} gradients changed in place
 * @param {number} scale
 * @param {Recipe} recipe
 */
function unscale(gradients, scale, recipe) {
  const reciprocal = Math.fround(1 / scale);
  const format = knownFormat(recipe.optimizer);
  for (const gradient of gradients) {
    for (let i = 0; i < gradient.length; i++) {
      gradient[i] = toNearest(gradient[i] * reciprocal, format);
    }
  }
}

/**
 * Return the name of the last parameter whose tensor holds inf or NaN; "" if none does. For
 * gradients it is the first one that did, because the backward pass begins with the last layer.
 *
 * @param {Parameter[]} parameters
 * @param {Float32Array[]} tensors one for each
 */
function lastNonFinite(parameters, tensors) {
  for (let i = tensors.length - 1; i >= 0; i--) {
    if (!tensors[i].every(Number.isFinite)) return parameters[i].name;
  }
  return "";
}

/**
 * Return the spread of gradients before they are rounded; `trainStep` replaces `zeros` and
 * `nonFinite` by the numbers after rounding.
 *
 * @param {Float32Array} sums
 * @returns {Spread}
 */
function spreadOf(sums) {
  const counts = Array(HIGHEST - LOWEST + 1).fill(0);
  const bits = new Int32Array(sums.buffer, sums.byteOffset, sums.length);
  let zeros = 0;
  let nonFinite = 0;
  for (let i = 0; i < bits.length; i++) {
    // The exponent field of an FP32 number; its largest value means inf or NaN.
    const field = (bits[i] >>> 23) & 0xff;
    if (sums[i] === 0) {
      zeros += 1;
    } else if (field === 0xff) {
      nonFinite += 1;
    } else {
      const exponent = Math.min(HIGHEST, Math.max(LOWEST, field - 127));
      counts[exponent - LOWEST] += 1;
    }
  }
  return { counts, zeros, nonFinite, elements: sums.length };
}

/**
 * Return the outputs of a network for samples, one sample after another.
 *
 * @param {Training} training
 * @param {Float32Array} inputs
 */
export function outputsOf({ problem, parameters, recipe }, inputs) {
  const { states } = forward(problem.shape, parameters, inputs, recipe);
  return states[states.length - 1];
}

// A training of one network, step by step, and its twin in FP32.
//
// One step: forward, loss times the scale, backward, a look for inf and NaN, gradients divided by
// the scale, a step of the optimizer or none, the next scale. The twin takes the same steps in
// FP32, from the same weights, on the same samples.

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
 * @property {number} zeros What is 0 once they are rounded.
 * @property {number} nonFinite What is inf or NaN once they are rounded.
 * @property {number} elements
 */

/**
 * What a step did.
 *
 * @typedef {object} Report
 * @property {number} loss
 * @property {number} scale
 * @property {boolean} skipped
 * @property {string} culprit The first gradient that held inf or NaN; "" for none.
 * @property {string} broken The first parameter that holds inf or NaN after it; "" for none.
 * @property {number} swallowed The share of updates that left their weight as it was.
 * @property {Spread[]} spreads One for each layer.
 */

/**
 * @typedef {object} Training
 * @property {Problem} problem
 * @property {Recipe} recipe
 * @property {Method} method
 * @property {number} seed
 * @property {Parameter[]} parameters
 * @property {Memory} memory
 * @property {Scaler} scaler
 * @property {number} steps That are done.
 */

const START_STREAM = 1; // streams of random bits
const BATCH_STREAM = 2;
const ROUNDING_STREAM = 3;
export const LOWEST = -60; // exponents that are counted; others count as the nearest of them
export const HIGHEST = 40;

/**
 * A training before its first step.
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
  const made = { problem, recipe, method, seed, parameters, memory, scaler, steps: 0 };
  takeRecipe(made, recipe);
  return made;
}

/**
 * The twin of a training that has not begun.
 *
 * @param {Training} of
 */
export function twinOf({ problem, seed }) {
  return newTraining(problem, RECIPE_PRESETS.FP32, seed);
}

/**
 * @param {Recipe} recipe
 * @returns {Scaler}
 */
function firstScaler(recipe) {
  return { scale: scalerConfig(recipe).init_scale, clean: 0, held: 0 };
}

/**
 * Weights and biases: those that a problem begins with, or uniform up to 1 / sqrt(inputs), as
 * torch's Linear begins.
 *
 * @param {Problem} problem
 * @param {number} seed
 * @returns {Parameter[]}
 */
function firstParameters({ shape, lastUnit, first }, seed) {
  /** @type {Parameter[]} */
  const found = [];
  const known = first?.(seed);
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
      const key = streamKey(START_STREAM, seed, found.length);
      const drawn = Float32Array.from({ length: size }, (_, i) => {
        return (randomBitsAt(key, i) / 2 ** 31 - 1) * bound;
      });
      /** @type {Float32Array} */
      const values = known ? known[found.length].slice() : drawn;
      found.push({ name: `layer ${layer + 1} ${kind}`, layer, values });
    }
  }
  return found;
}

/**
 * Go on with another recipe: it holds from the next step on.
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
 * Let the loss scale begin again at that of the recipe.
 *
 * @param {Training} training changed in place
 */
export function restartScale(training) {
  training.scaler = firstScaler(training.recipe);
}

/**
 * Go on with another optimizer: it begins without a memory.
 *
 * @param {Training} training changed in place
 * @param {Method} method
 */
export function takeMethod(training, method) {
  if (method.kind !== training.method.kind) training.memory = newMemory(method.kind);
  training.method = method;
}

/**
 * The samples of the next step.
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
 * Take one step.
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
  const culprit = firstNonFinite(parameters, gradients);
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
  const broken = firstNonFinite(parameters, kept);
  return { loss, scale: scaler.scale, skipped, culprit, broken, swallowed, spreads };
}

/**
 * Divide gradients by the scale, as GradScaler does: times its reciprocal in FP32.
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
 * The tensor in which inf or NaN appeared first: the backward pass begins with the last layer.
 *
 * @param {Parameter[]} parameters
 * @param {Float32Array[]} tensors one for each
 */
function firstNonFinite(parameters, tensors) {
  for (let i = tensors.length - 1; i >= 0; i--) {
    if (!tensors[i].every(Number.isFinite)) return parameters[i].name;
  }
  return "";
}

/**
 * @param {Float32Array} sums
 * @returns {Spread} with the zeros of the sums themselves
 */
function spreadOf(sums) {
  const counts = Array(HIGHEST - LOWEST + 1).fill(0);
  const bits = new Int32Array(sums.buffer, sums.byteOffset, sums.length);
  let zeros = 0;
  let nonFinite = 0;
  for (let i = 0; i < bits.length; i++) {
    const field = (bits[i] >>> 23) & 0xff;
    if (sums[i] === 0) zeros += 1;
    else if (field === 0xff) nonFinite += 1;
    else counts[Math.min(HIGHEST, Math.max(LOWEST, field - 127)) - LOWEST] += 1;
  }
  return { counts, zeros, nonFinite, elements: sums.length };
}

/**
 * What a network makes of samples now.
 *
 * @param {Training} training
 * @param {Float32Array} inputs
 */
export function outputsOf({ problem, parameters, recipe }, inputs) {
  const { states } = forward(problem.shape, parameters, inputs, recipe);
  return states[states.length - 1];
}

// Optimizers: SGD with momentum, and Adam, with the operations of torch in their order. Adam's mean
// is computed by a product and a sum, as in older versions of torch; newer ones use `lerp_`, which
// differs by a rounding.
//
// Gradients and state have the optimizer's format: each operation is rounded once to it. The step
// itself, as torch's `p.add_(g, alpha=-rate)`, is a fused multiply-add in FP32; its result becomes
// a master, or is rounded to the format of the weights.

import { knownFormat } from "./network.js";
import {
  addOdd,
  fusedFp32,
  randomBitsAt,
  roundAll,
  streamKey,
  toNearest,
  toRandom,
} from "./rounding.js";

/** @import { Parameter } from "./network.js" */
/** @import { Method, Recipe } from "./recipe.js" */
/** @import { RoundingFormat } from "./rounding.js" */

/**
 * The state of an optimizer, with an array for each parameter.
 *
 * @typedef {object} Memory
 * @property {string} kind The name of the optimizer that wrote the state.
 * @property {number} steps The number of steps so far.
 * @property {Float32Array[]} first Means of gradients; empty before the first step.
 * @property {Float32Array[]} second Means of their squares (Adam).
 */

// The factors of Adam's mean of gradients, and of its mean of squares, in each step.
const DECAYS = [0.9, 0.999];

/**
 * Return the state of an optimizer before its first step.
 *
 * @param {string} kind
 * @returns {Memory}
 */
export function newMemory(kind) {
  return { kind, steps: 0, first: [], second: [] };
}

/**
 * Step all parameters.
 *
 * @param {Parameter[]} parameters changed in place
 * @param {Float32Array[]} gradients without a scale, in the optimizer's format
 * @param {Memory} memory changed in place
 * @param {Method} method
 * @param {Recipe} recipe
 * @param {number} key of the random bits of this step
 * @returns {number} the share of the updates that did not change their weight
 */
export function stepAll(parameters, gradients, memory, method, recipe, key) {
  const format = knownFormat(recipe.optimizer);
  const weights = knownFormat(recipe.weights);
  let updates = 0;
  let swallowed = 0;
  memory.steps += 1;
  for (const [i, parameter] of parameters.entries()) {
    const move =
      method.kind === "SGD"
        ? momentumMove(gradients[i], memory, i, method, format)
        : adamMove(gradients[i], memory, i, method, format);
    const { values } = parameter;
    const before = values.slice();
    const rate = method.kind === "SGD" ? -Math.fround(method.rate) : -1;
    for (let j = 0; j < values.length; j++) values[j] = fusedFp32(rate, move[j], values[j]);
    if (!recipe.master && recipe.rounding === "nearest") roundAll(values, weights);
    if (!recipe.master && recipe.rounding !== "nearest") {
      roundRandomly(values, weights, streamKey(key, i));
    }
    for (let j = 0; j < values.length; j++) {
      if (move[j] === 0) continue;
      updates += 1;
      if (values[j] === before[j]) swallowed += 1;
    }
  }
  return updates ? swallowed / updates : 0;
}

/**
 * Round numbers to one of their two neighbours, at random.
 *
 * @param {Float32Array} values changed in place
 * @param {RoundingFormat} format
 * @param {number} key of the random bits
 */
function roundRandomly(values, format, key) {
  for (let j = 0; j < values.length; j++) {
    values[j] = toRandom(values[j], format, randomBitsAt(key, j));
  }
}

/**
 * Return the mean of gradients that SGD steps along; with a momentum of 0 the gradient itself.
 *
 * @param {Float32Array} gradient
 * @param {Memory} memory changed in place
 * @param {number} i the number of the parameter
 * @param {Method} method
 * @param {RoundingFormat} format
 */
function momentumMove(gradient, memory, i, method, format) {
  if (method.momentum === 0) return gradient;
  const before = memory.first[i];
  if (!before) {
    memory.first[i] = gradient.slice();
    return gradient;
  }
  const momentum = Math.fround(method.momentum);
  for (let j = 0; j < before.length; j++) {
    before[j] = toNearest(before[j] * momentum, format);
    before[j] = toNearest(before[j] + gradient[j], format);
  }
  return before;
}

/**
 * Return Adam's step: rate * mean / (sqrt(mean of squares) + epsilon), with both means corrected
 * for their start at 0.
 *
 * @param {Float32Array} gradient
 * @param {Memory} memory changed in place
 * @param {number} i the number of the parameter
 * @param {Method} method
 * @param {RoundingFormat} format
 */
function adamMove(gradient, memory, i, method, format) {
  const size = gradient.length;
  memory.first[i] ??= new Float32Array(size);
  memory.second[i] ??= new Float32Array(size);
  const mean = memory.first[i];
  const square = memory.second[i];
  const move = new Float32Array(size);
  const [decay, squareDecay] = DECAYS.map(Math.fround);
  const [newShare, newSquareShare] = DECAYS.map((one) => Math.fround(1 - one));
  const rate = Math.fround(method.rate / (1 - DECAYS[0] ** memory.steps));
  const correction = Math.fround(Math.sqrt(1 - DECAYS[1] ** memory.steps));
  // torch casts scalars to FP32.
  const epsilon = Math.fround(method.epsilon);
  for (let j = 0; j < size; j++) {
    const g = gradient[j];
    mean[j] = toNearest(mean[j] * decay, format);
    // Product and sum are one operation of torch, with one rounding. The sum in float64 is rounded
    // to odd, so that the rounding to the format gives the same result.
    mean[j] = toNearest(addOdd(newShare * g, mean[j]), format);
    square[j] = toNearest(square[j] * squareDecay, format);
    square[j] = toNearest(addOdd(Math.fround(newSquareShare * g) * g, square[j]), format);
    const root = toNearest(Math.sqrt(square[j]), format);
    const below = toNearest(toNearest(root / correction, format) + epsilon, format);
    move[j] = Math.fround(Math.fround(rate * mean[j]) / below);
  }
  return move;
}

// A network of dense layers: its forward pass, its loss, and its backward pass.
//
// Arithmetic: operands are rounded to their format. Products of matrices are added as in
// tensors.js. Everything else is computed in float64 and rounded once to the format of its result,
// the loss and its parts to FP32. So the page has the same bits on every machine whose exp, log and
// tanh differ by no more than the last bits of a float64.

import { formatNamed, fusedFp32, PLAYGROUND_FORMATS, roundAll, toNearest } from "./rounding.js";
import { columnSums, matrix, product, transposed } from "./tensors.js";

/** @import { Recipe } from "./recipe.js" */
/** @import { RoundingFormat } from "./rounding.js" */

/** @typedef {"tanh" | "relu"} Activation */

/**
 * The kind of a loss: the mean of the squared errors, their sum, or for classes the mean
 * cross-entropy.
 *
 * @typedef {"mean" | "sum" | "classes"} LossKind
 */

/**
 * The layers of a network, and its loss.
 *
 * @typedef {object} Shape
 * @property {number[]} sizes The number of units of each layer, from the inputs to the outputs.
 * @property {Activation} activation The activation of each layer but the last.
 * @property {LossKind} loss
 * @property {number} unit The factor by which the last layer's results are multiplied.
 */

/**
 * Numbers that are trained: weights [inputs, outputs] row by row, or a bias [outputs].
 *
 * @typedef {object} Parameter
 * @property {string} name
 * @property {number} layer From 0.
 * @property {Float32Array} values The values between steps: masters, or the model's weights.
 */

/** @typedef {{ weight: Float32Array, bias: Float32Array }} Operands The operands of a layer. */

/**
 * A forward pass.
 *
 * @typedef {object} Pass
 * @property {number} count The number of samples.
 * @property {Operands[]} operands The operands of each layer.
 * @property {Float32Array[]} states The inputs of each layer, and at the end the network's outputs.
 */

/**
 * The formats of a network's arithmetic.
 *
 * @typedef {object} Widths
 * @property {RoundingFormat} activations
 * @property {RoundingFormat} gradients
 * @property {boolean} narrow Whether sums have the format of their result, and not FP32.
 */

/**
 * Return a format by its name; FP32 for a name that is not known.
 *
 * @param {string} name
 */
export function knownFormat(name) {
  return formatNamed(name) ?? PLAYGROUND_FORMATS.FP32;
}

/**
 * Return the formats of a recipe.
 *
 * @param {Recipe} recipe
 * @returns {Widths}
 */
function widthsIn({ activations, gradients, accumulator }) {
  return {
    activations: knownFormat(activations),
    gradients: knownFormat(gradients),
    narrow: accumulator === "format",
  };
}

/**
 * Return a parameter as a layer uses it: rounded to the model's format, then to that of operands.
 *
 * @param {Float32Array} values
 * @param {Recipe} recipe
 */
function operandOf(values, recipe) {
  const model = roundAll(values.slice(), knownFormat(recipe.weights));
  return roundAll(model, knownFormat(recipe.activations));
}

/**
 * Send samples through a network.
 *
 * @param {Shape} shape
 * @param {Parameter[]} parameters
 * @param {Float32Array} inputs one sample after another
 * @param {Recipe} recipe
 * @returns {Pass}
 */
export function forward(shape, parameters, inputs, recipe) {
  const { activations, narrow } = widthsIn(recipe);
  const count = inputs.length / shape.sizes[0];
  const last = shape.sizes.length - 2;
  const operands = [];
  const states = [roundAll(inputs.slice(), activations)];
  for (let layer = 0; layer <= last; layer++) {
    const rows = shape.sizes[layer];
    const columns = shape.sizes[layer + 1];
    const weight = operandOf(parameters[2 * layer].values, recipe);
    const bias = operandOf(parameters[2 * layer + 1].values, recipe);
    const a = matrix(states[layer], count, rows, activations);
    const b = matrix(weight, rows, columns, activations);
    const out = product(a, b, bias, { result: activations, narrow });
    if (layer < last) {
      activate(out, shape.activation, activations);
    } else {
      multiplyAll(out, shape.unit, activations);
    }
    operands.push({ weight, bias });
    states.push(out);
  }
  return { count, operands, states };
}

/**
 * Multiply numbers by a factor.
 *
 * @param {Float32Array} values changed in place
 * @param {number} factor
 * @param {RoundingFormat} format of the results
 */
function multiplyAll(values, factor, format) {
  if (factor === 1) return;
  for (let i = 0; i < values.length; i++) values[i] = toNearest(values[i] * factor, format);
}

/**
 * Apply an activation to the results of a layer.
 *
 * @param {Float32Array} values changed in place
 * @param {Activation} activation
 * @param {RoundingFormat} format of the results
 */
function activate(values, activation, format) {
  for (let i = 0; i < values.length; i++) {
    if (activation === "tanh") {
      values[i] = toNearest(Math.tanh(values[i]), format);
    } else if (values[i] < 0) {
      values[i] = 0;
    }
  }
}

/**
 * Return the loss of a pass in FP32, and its derivative by each output, times a scale.
 *
 * @param {LossKind} kind
 * @param {Pass} pass
 * @param {Float32Array} targets values, or for each sample its class
 * @param {number} scale
 * @param {Recipe} recipe
 */
export function lossOf(kind, { states, count }, targets, scale, recipe) {
  const { gradients } = widthsIn(recipe);
  const out = states[states.length - 1];
  const isClasses = kind === "classes";
  const { total, slopes } = isClasses ? classLoss(out, targets, count) : squaredLoss(out, targets);
  // The number by which the total of the terms is divided.
  const divisors = { mean: out.length, sum: 1, classes: count };
  const divisor = divisors[kind];
  // The derivative of a square is twice its root.
  const factor = isClasses ? 1 : 2;
  multiplyAll(slopes, Math.fround((scale * factor) / divisor), gradients);
  return { loss: Math.fround(total / divisor), slopes };
}

/**
 * Return the sum of the squared errors, and half its derivative by each output.
 *
 * @param {Float32Array} out
 * @param {Float32Array} targets
 */
function squaredLoss(out, targets) {
  const slopes = new Float32Array(out.length);
  let total = 0;
  for (let i = 0; i < out.length; i++) {
    slopes[i] = out[i] - targets[i];
    total = fusedFp32(slopes[i], slopes[i], total);
  }
  return { total, slopes };
}

/**
 * Return the sum of the samples' cross-entropies, and its derivative by each output. The
 * cross-entropy is the log of the sum of exp of all outputs, less the output of the right class.
 * The largest output is subtracted first, so that exp does not overflow.
 *
 * @param {Float32Array} out
 * @param {Float32Array} targets
 * @param {number} count
 */
function classLoss(out, targets, count) {
  const classes = out.length / count;
  const slopes = new Float32Array(out.length);
  let total = 0;
  for (let i = 0; i < count; i++) {
    const row = out.subarray(i * classes, (i + 1) * classes);
    const largest = row.reduce((a, b) => Math.max(a, b));
    let sum = 0;
    for (let j = 0; j < classes; j++) {
      slopes[i * classes + j] = Math.exp(Math.fround(row[j] - largest));
      sum = Math.fround(sum + slopes[i * classes + j]);
    }
    const right = i * classes + targets[i];
    const below = Math.fround(row[targets[i]] - largest);
    total = Math.fround(total + Math.fround(Math.fround(Math.log(sum)) - below));
    for (let j = 0; j < classes; j++) slopes[i * classes + j] /= sum;
    slopes[right] -= 1;
  }
  return { total, slopes };
}

/**
 * Return the gradients of all parameters, in their order.
 *
 * @param {Shape} shape
 * @param {Pass} pass
 * @param {Float32Array} slopes the derivatives by the outputs; changed in place
 * @param {Recipe} recipe
 * @param {(layer: number, sums: Float32Array) => void} [look]
 *   called with the gradients of a layer's weights before they are rounded to their format
 */
export function backward(shape, { count, operands, states }, slopes, recipe, look) {
  const { activations, gradients, narrow } = widthsIn(recipe);
  const sum = { result: gradients, narrow };
  /** @type {Float32Array[]} */
  const all = [];
  multiplyAll(slopes, shape.unit, gradients);
  let above = slopes;
  for (let layer = operands.length - 1; layer >= 0; layer--) {
    const rows = shape.sizes[layer];
    const columns = shape.sizes[layer + 1];
    const slope = matrix(above, count, columns, gradients);
    const state = matrix(states[layer], count, rows, activations);
    const observed = { ...sum, look: (/** @type {Float32Array} */ sums) => look?.(layer, sums) };
    all[2 * layer] = product(transposed(state), slope, null, observed);
    all[2 * layer + 1] = columnSums(slope, sum);
    if (layer === 0) break;
    const weight = matrix(operands[layer].weight, rows, columns, activations);
    above = product(slope, transposed(weight), null, sum);
    deactivate(above, states[layer], shape.activation, gradients);
  }
  return all;
}

/**
 * Multiply slopes by the derivative of the activation.
 *
 * @param {Float32Array} slopes changed in place
 * @param {Float32Array} state the results of the activation
 * @param {Activation} activation
 * @param {RoundingFormat} format of the slopes
 */
function deactivate(slopes, state, activation, format) {
  for (let i = 0; i < slopes.length; i++) {
    if (activation === "tanh") {
      slopes[i] = toNearest(slopes[i] * (1 - state[i] * state[i]), format);
    } else if (!(state[i] > 0)) {
      // Every comparison with NaN is false, so the slope is 0 for a state of NaN, too.
      slopes[i] = 0;
    }
  }
}

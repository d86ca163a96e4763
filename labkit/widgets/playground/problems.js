// Problems to train on: their data, their network, and the settings of their optimizer.

import { digits } from "./digits.js";
import { fine_tuning } from "./fine_tuning.js";
import { randomBitsAt, streamKey } from "./rounding.js";

/** @import { Shape } from "./network.js" */
/** @import { Method } from "./recipe.js" */

/**
 * Data to train on, with a network and an optimizer.
 *
 * @typedef {object} Problem
 * @property {string} name A key of PROBLEMS.
 * @property {Shape} shape
 * @property {number} count The number of samples.
 * @property {number} batch The number of samples in a step, which are drawn at random; if it is
 *   `count`, a step has all samples in their order.
 * @property {Float32Array} inputs One sample after another.
 * @property {Float32Array} targets Values, or for each sample its class.
 * @property {number} lastUnit The factor of the last layer's initial weights.
 * @property {(seed: number) => Float32Array[]} [first] Weights and biases of a network that was
 *   trained before.
 * @property {Method} method The settings of the optimizer.
 */

// The points of both spirals together, and the turns of each spiral.
const POINTS = 256;
const TURNS = 1.25;
// The pixels along a side of the picture, and the frequencies of each coordinate (`wavesOf`).
const PIXELS = 32;
const WAVES = 4;
// The standard deviation of the brightness, and the unit of the network's output.
const DIM = 2 ** -14;
// The standard deviation of the small targets, the number of their samples, and the inputs of each.
export const SMALL = 5e-6;
const SAMPLES = 1000;
const FEATURES = 8;

/** @type {Method} */
const ADAM = { kind: "Adam", rate: 0.01, momentum: 0.9, epsilon: 1e-8 };
/** @type {Method} */
const SGD = { kind: "SGD", rate: 0.3, momentum: 0.9, epsilon: 1e-8 };

/**
 * Functions that return the problems, by name.
 *
 * @type {Record<string, () => Problem>}
 */
export const PROBLEMS = { spirals, picture, targets, digits, fine_tuning };

/** @type {Map<string, Problem>} */
const problemCache = new Map();

/**
 * Return a problem by its name. Each is made once.
 *
 * @param {string} name
 */
export function problemNamed(name) {
  const cached = problemCache.get(name);
  if (cached) return cached;
  const problem = PROBLEMS[name]();
  problemCache.set(name, problem);
  return problem;
}

/**
 * Return a uniform random number from 0 to below 1, the same on every machine.
 *
 * @param {number} key of the stream
 * @param {number} i the number of the element
 */
function uniform(key, i) {
  return randomBitsAt(key, i) / 2 ** 32;
}

/**
 * Return the problem: to tell the points of two spirals apart.
 *
 * @returns {Problem}
 */
function spirals() {
  const key = streamKey(1);
  const inputs = new Float32Array(2 * POINTS);
  const targets = new Float32Array(POINTS);
  for (let i = 0; i < POINTS; i++) {
    const share = Math.floor(i / 2) / (POINTS / 2);
    const radius = 0.1 + 0.85 * share;
    const angle = 2 * Math.PI * TURNS * share + Math.PI * (i % 2);
    inputs[2 * i] = radius * Math.cos(angle) + 0.06 * (uniform(key, 2 * i) - 0.5);
    inputs[2 * i + 1] = radius * Math.sin(angle) + 0.06 * (uniform(key, 2 * i + 1) - 0.5);
    targets[i] = i % 2;
  }
  return {
    name: "spirals",
    shape: { sizes: [2, 32, 32, 2], activation: "tanh", loss: "classes", unit: 1 },
    count: POINTS,
    batch: POINTS,
    inputs,
    targets,
    lastUnit: 1,
    method: ADAM,
  };
}

/**
 * Return the brightness of a drawn face at a place (labkit.train.data, `_face`).
 *
 * @param {number} x from -1 to 1
 * @param {number} y from -1 at the top to 1
 */
function faceAt(x, y) {
  const radius = Math.hypot(x, y);
  if (radius > 0.45 && radius < 0.62 && y > 0.1) return 1;
  for (const eye of [-0.35, 0.35]) {
    if (Math.hypot(x - eye, y + 0.3) < 0.16) return 1;
  }
  return radius < 0.85 ? 0.4 : 0;
}

/**
 * Return sines and cosines of a coordinate, at WAVES frequencies.
 *
 * @param {number} along from -1 to 1
 */
function wavesOf(along) {
  const angles = Array.from({ length: WAVES }, (_, k) => ((along * Math.PI) / 2) * 2 ** k);
  return [...angles.map(Math.sin), ...angles.map(Math.cos)];
}

/**
 * Return the network's inputs for a place of the picture.
 *
 * @param {number} x from -1 to 1
 * @param {number} y from -1 at the top to 1
 */
export function pixelInputs(x, y) {
  return [...wavesOf(x), ...wavesOf(y)];
}

/**
 * Return numbers moved to a mean of 0 and multiplied to a standard deviation.
 *
 * @param {readonly number[]} raw
 * @param {number} deviation
 */
function standardised(raw, deviation) {
  const mean = raw.reduce((a, b) => a + b, 0) / raw.length;
  const square = raw.reduce((sum, one) => sum + (one - mean) ** 2, 0) / raw.length;
  return Float32Array.from(raw, (one) => ((one - mean) / Math.sqrt(square)) * deviation);
}

/**
 * Return the problem: to paint a dark picture. The network computes the brightness of a pixel in
 * units of about 61 millionths. Its output is multiplied by this unit; by the chain rule, so are
 * all gradients before it.
 *
 * @returns {Problem}
 */
function picture() {
  const places = Array.from({ length: PIXELS }, (_, i) => (2 * i) / (PIXELS - 1) - 1);
  const inputs = places.flatMap((y) => places.flatMap((x) => pixelInputs(x, y)));
  const brightness = places.flatMap((y) => places.map((x) => faceAt(x, y)));
  return {
    name: "picture",
    shape: { sizes: [4 * WAVES, 48, 48, 1], activation: "tanh", loss: "sum", unit: DIM },
    count: PIXELS * PIXELS,
    batch: 128,
    inputs: Float32Array.from(inputs),
    targets: standardised(brightness, DIM),
    lastUnit: 1,
    method: { ...ADAM, rate: 0.004 },
  };
}

/**
 * Return the problem: targets of five millionths, a smooth function of eight numbers.
 *
 * @returns {Problem}
 */
function targets() {
  const key = streamKey(2);
  const inputs = new Float32Array(SAMPLES * FEATURES);
  // The sum of twelve uniform numbers, less 6, is nearly normal.
  for (let i = 0; i < inputs.length; i++) {
    for (let k = 0; k < 12; k++) inputs[i] += uniform(key, 12 * i + k) - 0.5;
  }
  const raw = Array.from({ length: SAMPLES }, (_, i) => {
    const [a, b, c, ...others] = inputs.subarray(FEATURES * i, FEATURES * (i + 1));
    return Math.sin(a) + (b * c) / 2 + Math.tanh(others.reduce((p, q) => p + q));
  });
  return {
    name: "targets",
    shape: { sizes: [FEATURES, 16, 16, 1], activation: "tanh", loss: "mean", unit: 1 },
    count: SAMPLES,
    batch: SAMPLES,
    inputs,
    targets: standardised(raw, SMALL),
    lastUnit: SMALL,
    method: SGD,
  };
}

// Recipes as values: the format of each part of a training, the scaling of the loss, and the
// weights that the optimizer steps.

import { formatNamed } from "./rounding.js";

/** @import { Config } from "../scaler_timeline/replay.js" */

/**
 * The formats of a training, and its loss scaling. Every field may change between two steps.
 *
 * @typedef {object} Recipe
 * @property {string} weights The name of the format of the model's weights.
 * @property {string} activations The format of a layer's operands and results.
 * @property {string} gradients The format of gradients in the backward pass.
 * @property {string} optimizer The format of gradients and state inside the optimizer's step.
 * @property {boolean} master Whether FP32 master weights are kept between steps.
 * @property {"nearest" | "stochastic"} rounding The rounding of a step's result to weights without
 *   masters.
 * @property {"FP32" | "format"} accumulator The accumulator of matrix products.
 * @property {"none" | "static" | "dynamic"} scaling
 * @property {number} log2_scale The exponent of a static scale, or of the initial dynamic scale.
 * @property {number} growth_interval Clean steps after which a dynamic scale doubles.
 */

/**
 * The settings of an optimizer.
 *
 * @typedef {object} Method
 * @property {"SGD" | "Adam"} kind
 * @property {number} rate The learning rate.
 * @property {number} momentum That of SGD; 0 for none.
 * @property {number} epsilon That of Adam.
 */

/** @type {Recipe} */
const FP32_RECIPE = {
  weights: "FP32",
  activations: "FP32",
  gradients: "FP32",
  optimizer: "FP32",
  master: true,
  rounding: "nearest",
  accumulator: "FP32",
  scaling: "none",
  log2_scale: 16,
  growth_interval: 2000,
};

/** @type {Recipe} */
const O2_RECIPE = {
  ...FP32_RECIPE,
  weights: "FP16",
  activations: "FP16",
  gradients: "FP16",
  scaling: "dynamic",
};

/** @type {Recipe} */
const BF16_RECIPE = {
  ...FP32_RECIPE,
  weights: "BF16",
  activations: "BF16",
  gradients: "BF16",
};

/**
 * The recipes of labkit.amp.RECIPES that the playground has, by their names there.
 *
 * @type {Record<string, Recipe>}
 */
export const RECIPE_PRESETS = {
  FP32: FP32_RECIPE,
  FP16: { ...O2_RECIPE, scaling: "none" },
  "FP16 static": { ...O2_RECIPE, scaling: "static", log2_scale: 10 },
  "FP16 static too high": { ...O2_RECIPE, scaling: "static", log2_scale: 26 },
  "FP16 dynamic": { ...O2_RECIPE, growth_interval: 25 },
  "FP16 no master": { ...O2_RECIPE, scaling: "static", log2_scale: 10, master: false },
  "FP16 stochastic": {
    ...O2_RECIPE,
    scaling: "static",
    log2_scale: 10,
    master: false,
    rounding: "stochastic",
  },
  O1: { ...O2_RECIPE, weights: "FP32" },
  O2: O2_RECIPE,
  O3: { ...O2_RECIPE, scaling: "none", optimizer: "FP16", master: false },
  BF16: BF16_RECIPE,
  "BF16 no master": { ...BF16_RECIPE, master: false },
  FP8: { ...O2_RECIPE, weights: "FP32", activations: "E4M3", gradients: "E5M2" },
};

/**
 * Return the fields of a recipe that differ from a preset's.
 *
 * @param {string} preset a key of RECIPE_PRESETS
 * @param {Record<string, unknown>} fields
 */
export function changesOf(preset, fields) {
  /** @type {Record<string, unknown>} */
  const own = { ...RECIPE_PRESETS[preset] };
  return Object.fromEntries(Object.entries(fields).filter(([name, value]) => value !== own[name]));
}

/** @type {(keyof Recipe)[]} */
const FORMAT_FIELDS = ["weights", "activations", "gradients", "optimizer"];

/** @type {Partial<Record<keyof Recipe, readonly unknown[]>>} */
const CHOICES = {
  master: [true, false],
  rounding: ["nearest", "stochastic"],
  accumulator: ["FP32", "format"],
  scaling: ["none", "static", "dynamic"],
};

export const LEAST_LOG2_SCALE = -10;
export const MOST_LOG2_SCALE = 30;

/** @type {Partial<Record<keyof Recipe, readonly [least: number, most: number]>>} */
const WHOLE_RANGES = {
  log2_scale: [LEAST_LOG2_SCALE, MOST_LOG2_SCALE],
  growth_interval: [1, 100000],
};

/**
 * Return a message about a value that a field of a recipe cannot have; "" if it can.
 *
 * @param {string} field
 * @param {unknown} value
 */
export function faultIn(field, value) {
  const name = /** @type {keyof Recipe} */ (field);
  const text = JSON.stringify(value);
  // An object has more properties than its own: constructor, for one.
  if (!Object.hasOwn(FP32_RECIPE, field)) return `${field}: there is no such part of a recipe`;
  if (FORMAT_FIELDS.includes(name)) {
    if (typeof value === "string" && formatNamed(value)) return "";
    return `${field}: expected FP32, FP16, BF16, E4M3, E5M2 or one such as e5m10, got ${text}`;
  }
  const choices = CHOICES[name];
  if (choices) {
    if (choices.includes(value)) return "";
    return `${field}: expected ${choices.join(" or ")}, got ${text}`;
  }
  const range = WHOLE_RANGES[name];
  if (!range) return `${field}: there is no such part of a recipe`;
  const [least, most] = range;
  const isWhole = typeof value === "number" && Number.isInteger(value);
  if (isWhole && value >= least && value <= most) return "";
  return `${field}: expected a whole number from ${least} to ${most}, got ${text}`;
}

/**
 * Return the settings of a recipe's loss scaler, with the fields of labkit.amp.ScalerConfig.
 *
 * @param {Recipe} recipe
 * @returns {Config}
 */
export function scalerConfig({ scaling, log2_scale, growth_interval }) {
  return {
    init_scale: scaling === "none" ? 1 : 2 ** log2_scale,
    growth_factor: 2,
    backoff_factor: 0.5,
    growth_interval,
    dynamic: scaling === "dynamic",
    // torch looks for inf only if the loss is scaled; labkit's engine always does, and so does the
    // playground.
    skip_on_inf: true,
    hysteresis: 1,
    consecutive_hysteresis: false,
    floor: 2 ** -126,
    cap: null,
    steps_at_floor: false,
    restart_on_inf: true,
  };
}

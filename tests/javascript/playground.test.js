// The playground's engine: rounding against exact/numbers.js, the sums, and what trainings do.

import assert from "node:assert/strict";
import test from "node:test";
import { derived, roundValue } from "../../labkit/widgets/exact/numbers.js";
import { PROBLEMS } from "../../labkit/widgets/playground/problems.js";
import { faultIn, RECIPE_PRESETS } from "../../labkit/widgets/playground/recipe.js";
import {
  addOdd,
  formatNamed,
  fusedFp32,
  PLAYGROUND_FORMATS,
  randomBitsAt,
  streamKey,
  toNearest,
  toRandom,
} from "../../labkit/widgets/playground/rounding.js";
import { matrix, product } from "../../labkit/widgets/playground/tensors.js";
import {
  newTraining,
  takeRecipe,
  trainStep,
  twinOf,
} from "../../labkit/widgets/playground/trainer.js";

/** @import { RoundingFormat } from "../../labkit/widgets/playground/rounding.js" */

const OWN = ["e5m10", "e2m1", "e3m4", "e8m1", "e8m23"];
const FORMATS = [...Object.keys(PLAYGROUND_FORMATS), ...OWN].map(knownFormat);
const DRAWS = 3000;

/** @param {string} name */
function knownFormat(name) {
  const found = formatNamed(name);
  assert(found, name);
  return found;
}

/** @param {RoundingFormat} format */
function exactFormat({ name, exponentBits, significandBits, beyond }) {
  return derived({
    name,
    exponent_bits: exponentBits,
    significand_bits: significandBits,
    specials: Number.isNaN(beyond) ? "FN" : "IEEE",
    signed: true,
    has_zero: true,
  });
}

/**
 * Numbers of all sizes around a format: random ones, values, ties, and their neighbours.
 *
 * @param {RoundingFormat} format
 */
function drawsAround(format) {
  const key = streamKey(7);
  const found = [0, -0, Infinity, -Infinity, NaN, format.max, 2 ** -1074, 1.7e308];
  const range = 2 ** format.exponentBits + 8;
  for (let i = 0; i < DRAWS; i++) {
    const part = 1 + randomBitsAt(key, 3 * i) / 2 ** 32;
    const exponent = Math.floor((randomBitsAt(key, 3 * i + 1) / 2 ** 32) * range) - range / 2;
    const sign = randomBitsAt(key, 3 * i + 2) & 1 ? 1 : -1;
    const x = sign * part * 2 ** exponent;
    const down = toNearest(x, format);
    const tie =
      down + (x > down ? 0.5 : -0.5) * format.units[1023 + Math.max(exponent, format.emin)];
    found.push(x, down, tie, tie * (1 + 2 ** -52), tie * (1 - 2 ** -52));
  }
  return found;
}

for (const format of FORMATS) {
  test(`${format.name}: rounds as exact arithmetic does`, () => {
    const exact = exactFormat(format);
    for (const x of drawsAround(format)) {
      assert(Object.is(toNearest(x, format), roundValue(x, exact)), `${x}`);
    }
  });
}

test("FP32 rounds as Math.fround does", () => {
  for (const x of drawsAround(PLAYGROUND_FORMATS.FP32)) {
    assert(Object.is(toNearest(x, PLAYGROUND_FORMATS.FP32), Math.fround(x)), `${x}`);
  }
});

test("random rounding never moves a value", () => {
  for (const format of FORMATS) {
    for (const x of drawsAround(format)) {
      const value = toNearest(x, format);
      for (const bits of [0, 2 ** 32 - 1]) {
        assert(Object.is(toRandom(value, format, bits), value), `${format.name} ${value} ${bits}`);
      }
    }
  }
});

test("random rounding goes up as often as the rest says", () => {
  const quarter = 1 + 2 ** -12;
  let up = 0;
  for (let i = 0; i < 1000; i++) {
    up += Number(toRandom(quarter, PLAYGROUND_FORMATS.FP16, randomBitsAt(3, i)) > 1);
  }
  assert(up > 200 && up < 300, `${up}`);
});

test("a sum rounded to odd breaks the tie that it was", () => {
  assert.equal(
    fusedFp32(1 + 2 ** -12, 1 + 2 ** -12, 2 ** -80),
    Math.fround(1 + 2 ** -11 + 2 ** -23),
  );
  assert.equal(addOdd(1 + 2 ** -24, 2 ** -90), 1 + 2 ** -24 + 2 ** -52);
  assert.equal(addOdd(1 + 2 ** -24, -(2 ** -90)), 1 + 2 ** -24 - 2 ** -52);
});

test("a sum of ones in FP16 stagnates at 2,048", () => {
  const { FP16 } = PLAYGROUND_FORMATS;
  const ones = new Float32Array(4096).fill(1);
  const row = matrix(ones, 1, 4096, FP16);
  const column = matrix(ones, 4096, 1, FP16);
  assert.equal(product(row, column, null, { result: FP16, narrow: true })[0], 2048);
  assert.equal(product(row, column, null, { result: FP16, narrow: false })[0], 4096);
});

/**
 * @param {string} problem
 * @param {string} preset
 */
function trainingOf(problem, preset) {
  return newTraining(PROBLEMS[problem](), RECIPE_PRESETS[preset], 0);
}

test("a training in FP32 has the losses of its twin", () => {
  const training = trainingOf("spirals", "FP32");
  const twin = twinOf(training);
  for (let i = 0; i < 5; i++) assert.equal(trainStep(training).loss, trainStep(twin).loss);
});

test("in FP16 the picture has no gradient, with a scale it has", () => {
  const bare = trainStep(trainingOf("picture", "FP16"));
  const scaled = trainStep(trainingOf("picture", "FP16 dynamic"));
  assert.equal(bare.spreads[0].zeros, bare.spreads[0].elements);
  assert.equal(scaled.spreads[0].zeros, 0);
});

test("a scale that is too high skips every step", () => {
  const training = trainingOf("spirals", "FP16 static too high");
  const before = training.parameters[0].values.slice();
  for (let i = 0; i < 3; i++) assert(trainStep(training).skipped);
  assert.deepEqual(training.parameters[0].values, before);
});

test("a skipped step names its culprit", () => {
  const report = trainStep(trainingOf("spirals", "FP16 static too high"));
  assert.equal(report.culprit, "layer 3 bias");
});

test("a knob holds from the next step on", () => {
  const training = trainingOf("picture", "FP16");
  for (let i = 0; i < 3; i++) trainStep(training);
  takeRecipe(training, { ...training.recipe, scaling: "static", log2_scale: 20 });
  const report = trainStep(training);
  assert.equal(report.scale, 2 ** 20);
  assert.equal(training.steps, 4);
});

test("without masters the weights are values of their format", () => {
  const training = trainingOf("spirals", "FP16 no master");
  trainStep(training);
  for (const { values } of training.parameters) {
    assert(values.every((x) => toNearest(x, PLAYGROUND_FORMATS.FP16) === x));
  }
});

test("each preset is a recipe", () => {
  for (const recipe of Object.values(RECIPE_PRESETS)) {
    for (const [field, value] of Object.entries(recipe)) assert.equal(faultIn(field, value), "");
  }
});

test("a value that a field of a recipe cannot have is named", () => {
  assert.match(faultIn("weights", "FP12"), /^weights: expected FP32, .*, got "FP12"$/);
  assert.match(faultIn("master", 1), /^master: expected .*, got 1$/);
  assert.match(faultIn("log2_scale", 1.5), /^log2_scale: expected a whole number .*, got 1.5$/);
  assert.match(faultIn("colour", "red"), /^colour: there is no such part of a recipe$/);
});

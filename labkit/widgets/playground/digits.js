// Digits as a problem to train on: which of ten digits a picture of 8 x 8 pixels shows.

import { DIGITS, TRAINED_DIGITS } from "./digits_data.js";

/** @import { Problem } from "./problems.js" */

// The pixels along one side of a digit.
export const DIGIT_SIDE = 8;
const DIGIT_CLASSES = 10;
const DIGIT_BATCH = 64;
// The largest brightness of a pixel.
const LEVELS = 16;

/**
 * Return digits as samples: pixels from 0 to 1, and classes.
 *
 * @param {readonly string[]} texts as in digits_data.js
 */
function samplesOf(texts) {
  const digits = texts.flatMap((text) => {
    return Array.from(text.slice(1), (level) => Number.parseInt(level, LEVELS + 1) / LEVELS);
  });
  const classes = texts.map((text) => Number(text[0]));
  return { inputs: Float32Array.from(digits), targets: Float32Array.from(classes) };
}

/** @type {ReturnType<typeof samplesOf> | null} */
let testSamples = null;

/** Return the digits that no network is trained on. They are computed once. */
export function testDigits() {
  testSamples ??= samplesOf(DIGITS.slice(TRAINED_DIGITS));
  return testSamples;
}

/**
 * Return the problem: to tell which digit a picture shows.
 *
 * @returns {Problem}
 */
export function digits() {
  return {
    name: "digits",
    shape: {
      sizes: [DIGIT_SIDE * DIGIT_SIDE, 32, 32, DIGIT_CLASSES],
      activation: "relu",
      loss: "classes",
      unit: 1,
    },
    count: TRAINED_DIGITS,
    batch: DIGIT_BATCH,
    ...samplesOf(DIGITS.slice(0, TRAINED_DIGITS)),
    lastUnit: 1,
    method: { kind: "SGD", rate: 0.1, momentum: 0.9, epsilon: 1e-8 },
  };
}

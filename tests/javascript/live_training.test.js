// Text about a step of a live training, which needs no browser.

import assert from "node:assert/strict";
import test from "node:test";
import { HOVER } from "../../labkit/widgets/live_training/plot.js";

/**
 * The text about the first step of a run at a scale.
 *
 * @param {number} scale
 */
function textAt(scale) {
  const row = { step: 1, loss: 0.5, scale, stepped: true, underflow: NaN, swallowed: NaN };
  const state = { recorded: "", branches: [{ name: "FP16" }] };
  const points = { fp32: [0.25], branches: [[row], []] };
  return HOVER.text(/** @type {any} */ (state), /** @type {any} */ (points), 1);
}

test("a scale that is a power of two has its exponent", () => {
  assert.equal(textAt(1024), "step 1: FP16 0.5 at scale 2^10 = 1,024; FP32 0.25");
});

test("another scale is written as a number alone", () => {
  assert.equal(textAt(1536), "step 1: FP16 0.5 at scale 1,536; FP32 0.25");
});

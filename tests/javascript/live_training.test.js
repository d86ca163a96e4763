// What a live training shows of its runs, without a browser: texts, and the losses in the picture.

import assert from "node:assert/strict";
import test from "node:test";
import { HOVER, lossesOnShow } from "../../labkit/widgets/live_training/plot.js";

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

test("the losses in the picture include those of ghosts", () => {
  const rows = (/** @type {number} */ loss) => [{ step: 1, loss }];
  const state = { recorded: "", branches: [{}], ghosts: [{}, {}] };
  const points = { fp32: [1], branches: [rows(2), []], previous: [3], ghosts: [rows(40)] };
  const losses = lossesOnShow(/** @type {any} */ (state), /** @type {any} */ (points));
  assert.deepEqual(losses, [[2], [40], [], [1], [3]]);
});

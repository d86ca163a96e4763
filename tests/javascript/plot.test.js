// Positions in a picture: axes of steps, labels, and levels of a panel.

import assert from "node:assert/strict";
import test from "node:test";
import {
  levelIn,
  niceStep,
  spreadLabels,
  stairs,
  stepAt,
  stepPlot,
} from "../../labkit/widgets/base/plot.js";
import { panels } from "../../labkit/widgets/live_training/plot.js";

const pen = /** @type {CanvasRenderingContext2D} */ ({});
const tint = /** @type {import("../../labkit/widgets/base/theme.js").Palette} */ ({});
const axis = stepPlot(pen, 504, tint, { total: 100 });

test("a nice step is 1, 2 or 5 times a power of ten", () => {
  assert.deepEqual(
    [0.3, 1, 1.1, 23, 60].map((rough) => niceStep(rough)),
    [0.5, 1, 2, 50, 100],
  );
});

test("the step under the pointer is the one drawn there", () => {
  for (const step of [1, 2, 50, 99, 100]) {
    assert.equal(stepAt(axis, axis.x(step), { total: 100 }), step);
  }
});

test("beside the axis there is no step", () => {
  assert.equal(stepAt(axis, axis.left - 5, { total: 100 }), null);
  assert.equal(stepAt(axis, axis.end + 5, { total: 100 }), null);
});

test("left of the first step of a later axis there is no step", () => {
  const range = { first: 200, total: 60 };
  const later = stepPlot(pen, 504, tint, range);
  assert.equal(stepAt(later, later.left, range), null);
  assert.equal(stepAt(later, later.x(201), range), 201);
});

test("a panel's lowest value is at its foot", () => {
  const y = levelIn({ top: 10, height: 80 }, [-4, 4]);
  assert.deepEqual([-4, 0, 4].map(y), [90, 50, 10]);
});

test("each step of stairs has its width", () => {
  const points = stairs(axis, [5, 6], (value) => value);
  assert.deepEqual(
    points.map(([, y]) => y),
    [5, 5, 6, 6],
  );
  assert.equal(points[1][0], points[2][0]);
});

test("labels that touch move apart by as little as they need", () => {
  assert.deepEqual(spreadLabels([50, 50], 10), [45, 55]);
  assert.deepEqual(spreadLabels([10, 50, 90], 10), [10, 50, 90]);
});

test("labels stay between the ends", () => {
  assert.deepEqual(spreadLabels([0, 1, 99], 10, 0, 100), [0, 10, 99]);
});

test("labels that an end moves push the others", () => {
  assert.deepEqual(spreadLabels([80, 100, 100], 10, 0, 100), [80, 90, 100]);
  assert.deepEqual(spreadLabels([85, 100, 100], 10, 0, 100), [80, 90, 100]);
});

test("panels are one under another with a gap", () => {
  const place = panels({ loss: 200, scale: 80, underflow: 60 }, { width: 1 });
  assert.equal(place.scale.top - (place.loss.top + place.loss.height), 38);
  assert.equal(place.bottom, (place.underflow?.top ?? 0) + 60);
  assert.equal(place.swallowed, undefined);
});

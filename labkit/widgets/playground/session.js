// A training and its twin that run in slices of time, so that the page answers between two slices.
//
// A worker would do 1.2 to 1.6 times as many steps a second (tests/benchmarks/bench_playground.py,
// two cores, Chromium). But it would need the text of all these modules a second time, since a page
// from file:// cannot load them by address, and a copy of the session in the page. Slices are fast
// enough, and work in every page.

import { outputsOf, trainStep, twinOf } from "./trainer.js";

/** @import { Report, Training } from "./trainer.js" */

// The length of a slice: half of the time between two frames of a screen with 60 Hz.
const SLICE_MS = 8;
// The number of samples of a portrait that are computed at a time.
const CHUNK = 64;
// A session ends after this many steps.
export const MOST_STEPS = 5000;

/**
 * The outputs of both networks for some samples, which are updated a part at a time.
 *
 * @typedef {object} Portrait
 * @property {Float32Array} inputs
 * @property {number} count The number of samples.
 * @property {Float32Array[]} outputs The outputs of the training, and those of the twin.
 * @property {number} next The index of the sample that is updated next.
 */

/**
 * A training beside its twin, with their steps so far.
 *
 * @typedef {object} Session
 * @property {Training} training
 * @property {Training} twin
 * @property {Report | null} last The training's latest step; null before the first.
 * @property {Report | null} lastTwin The twin's latest step; null before the first.
 * @property {number[]} losses
 * @property {number[]} twinLosses As long as `losses`, or shorter by 1.
 * @property {number[]} scales The log2 of the scales.
 * @property {number[]} skipped The steps that were skipped.
 * @property {number} skips The number of steps in a row that were skipped up to now.
 * @property {{ step: number, name: string } | null} broken The first parameter that held inf or
 *   NaN, and after which step.
 * @property {Portrait} portrait
 */

/**
 * Return a session before its first step.
 *
 * @param {Training} training that has done no steps
 * @param {Float32Array} inputs of the portrait
 * @returns {Session}
 */
export function newSession(training, inputs) {
  const twin = twinOf(training);
  twin.method = { ...training.method };
  const count = inputs.length / training.problem.shape.sizes[0];
  const outputs = [training, twin].map((one) => outputsOf(one, inputs));
  return {
    training,
    twin,
    last: null,
    lastTwin: null,
    losses: [],
    twinLosses: [],
    scales: [],
    skipped: [],
    skips: 0,
    broken: null,
    portrait: { inputs, count, outputs, next: 0 },
  };
}

/**
 * Do one step of both, unless they have done MOST_STEPS.
 *
 * @param {Session} session changed in place
 */
export function stepBoth(session) {
  if (session.twinLosses.length >= MOST_STEPS) return;
  halfStep(session);
  if (session.twinLosses.length < session.losses.length) halfStep(session);
}

/**
 * Do one step of the training, or of the twin if that is behind.
 *
 * @param {Session} session changed in place
 */
function halfStep(session) {
  if (session.twinLosses.length < session.losses.length) {
    session.lastTwin = trainStep(session.twin);
    session.twinLosses.push(session.lastTwin.loss);
    return;
  }
  const report = trainStep(session.training);
  session.last = report;
  session.losses.push(report.loss);
  session.scales.push(Math.log2(report.scale));
  session.skips = report.skipped ? session.skips + 1 : 0;
  if (report.skipped) session.skipped.push(session.losses.length);
  if (report.broken) session.broken ??= { step: session.losses.length, name: report.broken };
}

/**
 * Train for a slice of time.
 *
 * @param {Session} session changed in place
 * @param {number} most the largest number of steps in this slice
 * @param {number} [goal] the last step to do
 */
export function trainSlice(session, most, goal = MOST_STEPS) {
  const end = performance.now() + SLICE_MS;
  const last = Math.min(goal, session.twinLosses.length + most);
  while (session.twinLosses.length < last && performance.now() < end) halfStep(session);
}

/**
 * Update the next part of the portrait.
 *
 * @param {Session} session changed in place
 * @returns {boolean} whether it was the last part
 */
export function portraySome({ training, twin, portrait }) {
  const wide = training.problem.shape.sizes[0];
  const from = portrait.next;
  const to = Math.min(portrait.count, from + CHUNK);
  const some = portrait.inputs.subarray(from * wide, to * wide);
  for (const [i, one] of [training, twin].entries()) {
    const outputs = outputsOf(one, some);
    const outputsPerSample = outputs.length / (to - from);
    portrait.outputs[i].set(outputs, from * outputsPerSample);
  }
  portrait.next = to % portrait.count;
  return portrait.next === 0;
}

// The picture of runs beside FP32: loss, scale, underflow and swallowed updates over one axis of
// steps. A fork is dashed. No function keeps state.

import { floats } from "../base/model.js";
import { decimal, percent, superscript } from "../base/number_words.js";
import {
  inkArea,
  inkCross,
  inkDot,
  inkFrame,
  inkLine,
  inkLosses,
  inkNames,
  inkRing,
  inkSkips,
  inkSteps,
  inkText,
  levelIn,
  stairs,
  stepPlot,
} from "../base/plot.js";
import { faintly, formatColour } from "../base/theme.js";
import { rowsOf } from "../driven/store.js";
import { drawMap, mapRow, windowEdges } from "./map.js";

/** @import { CurveEnd, Panel, Point, StepPlot } from "../base/plot.js" */
/** @import { Hover, Scene } from "../driven/face.js" */
/** @import { DrivenState } from "../driven/store.js" */
/** @import { Gradients } from "./histogram.js" */
/** @import { RunTraits, Scaling, Sketch } from "./knobs.js" */
/** @import { Model } from "../base/model.js" */
/** @import { MapRow } from "./map.js" */
/** @import { Result } from "./results.js" */

/**
 * One step of a run. A share that was not measured is NaN, and so may be a loss.
 *
 * @typedef {object} RunRow
 * @property {number} step The number of the step, from 1.
 * @property {number} loss
 * @property {number} scale The loss scale, not as log2.
 * @property {boolean} stepped false: the step was skipped.
 * @property {number} underflow Share of the activation gradients, 0 to 1.
 * @property {number} swallowed Share of the weights with a gradient that did not move, 0 to 1.
 */

/**
 * All steps so far.
 *
 * @typedef {object} RunPoints
 * @property {number[]} fp32 Losses of the FP32 run.
 * @property {number[]} previous Losses of the previous run.
 * @property {number[]} recordedFp32 Losses of the recorded FP32 run.
 * @property {RunRow[]} recorded The recorded run.
 * @property {[run: RunRow[], fork: RunRow[]]} branches
 * @property {RunRow[][]} ghosts The steps that runs had done before they went back, in the order of
 *   `RunState.ghosts`.
 * @property {MapRow[]} map The steps that were measured.
 */

/** @typedef {{ step: number, label: string }} Mark A change of knobs, and its first step. */

/**
 * A run, or its fork.
 *
 * @typedef {object} Branch
 * @property {string} name
 * @property {string} format The format of the operands of its matrix products.
 * @property {number} origin The step after which it was forked; 0 for a run.
 * @property {Mark[]} marks
 * @property {string} metric "" before it is known.
 */

/**
 * The steps that a run had done before it went back.
 *
 * @typedef {object} Ghost
 * @property {number} origin The step to which it went back.
 * @property {string} label The settings of the run.
 * @property {string} format The format of the operands of its matrix products.
 * @property {string} metric "" before it is known.
 * @property {number} buffer The number of the buffer of its points.
 */

/**
 * The state of runs beside their points (`LiveTraining.state`). `scale` is that of the next step,
 * as log2; `fixed` has the reason for each knob that cannot be turned; `skipped` counts the skipped
 * steps of the run.
 *
 * @typedef {DrivenState & {
 *   active: number,
 *   knobs: { scaling: Scaling, log2_scale: number, masters: string, [knob: string]: Position },
 *   fixed: Record<string, string>,
 *   scale: number,
 *   rule: string,
 *   branches: Branch[],
 *   fork_change: string,
 *   metric_name: string,
 *   fp32_metric: string,
 *   skipped: number,
 *   shares: ("underflow" | "swallowed")[],
 *   ghosts: Ghost[],
 *   map: { buffer: number, log2_scales: number[] },
 *   result: Result | null,
 *   gradients: Gradients | null,
 * }} RunState
 */

/** @typedef {string | number | boolean} Position The position of a knob. */

/**
 * The panels of a picture, one under another.
 *
 * @typedef {object} Panels
 * @property {Panel} loss
 * @property {Panel} scale
 * @property {Panel} [underflow]
 * @property {Panel} [swallowed]
 * @property {Look} fp32 The style of FP32's curve.
 * @property {number} bottom The lower end, in pixels.
 * @property {number} height
 */

/** @typedef {{ width: number, alpha?: number }} Look The style of a line; the width in pixels. */

/**
 * A branch with its steps and the style of its line.
 *
 * @typedef {Branch & { rows: RunRow[], colour: string, dash: number[] }} Curve
 */

/**
 * A picture of runs on its axis.
 *
 * @typedef {StepPlot & {
 *   scene: Scene<RunState, RunPoints>,
 *   curves: Curve[],
 *   fp32: number[],
 *   place: Panels,
 * }} RunPlot
 */

// Lengths in pixels: the room for the names at the ends of the curves, the space between two panels
// and above the first one, and the width of the title of the losses.
export const RIGHT = 62;
const GAP = 38;
const HEAD = 26;
const LOSS_TITLE_ROOM = 210;
const DASH = [7, 5];
const DOTTED = [1.5, 4];
const SKETCH_LINE = { dash: [9, 6], alpha: 0.65 };
// The columns of a run's points: loss, scale, stepped, underflow, swallowed (`columns` in
// forked_run.py).
const COLUMNS = 5;

/**
 * Return panels one under another, by their heights in pixels.
 *
 * @param {{ loss: number, scale: number, underflow?: number, swallowed?: number }} heights
 * @param {Look} fp32
 * @returns {Panels}
 */
export function panels({ loss, scale, underflow = 0, swallowed = 0 }, fp32) {
  let top = HEAD;
  /** @param {number} height */
  const next = (height) => {
    const panel = { top, height };
    top += height + GAP;
    return panel;
  };
  const made = { loss: next(loss), scale: next(scale) };
  const zeros = underflow ? { underflow: next(underflow) } : {};
  const still = swallowed ? { swallowed: next(swallowed) } : {};
  return { ...made, ...zeros, ...still, fp32, bottom: top - GAP, height: top - 8 };
}

// --- points --------------------------------------------------------------------------------------

/**
 * Return the points of runs that have done no steps.
 *
 * @returns {RunPoints}
 */
function emptyRuns() {
  return {
    fp32: [],
    previous: [],
    recordedFp32: [],
    recorded: [],
    branches: [[], []],
    ghosts: [],
    map: [],
  };
}

/**
 * Append the new points of a frame.
 *
 * @param {RunPoints} points
 * @param {RunState} state
 * @param {DataView[]} buffers in the order of `ForkedRun.points`
 */
function takeRuns(points, state, buffers) {
  const losses = [points.fp32, points.previous, points.recordedFp32];
  for (const [i, curve] of losses.entries()) curve.push(...floats(buffers[i]));
  const origins = [0, ...state.branches.map(({ origin }) => origin)];
  const runs = [points.recorded, ...points.branches].slice(0, origins.length);
  for (const [i, rows] of runs.entries()) takeRows(rows, origins[i], buffers[3 + i]);
  for (const [i, { origin, buffer }] of state.ghosts.entries()) {
    points.ghosts[i] ??= [];
    takeRows(points.ghosts[i], origin, buffers[buffer]);
  }
  const columns = 1 + 2 * state.map.log2_scales.length;
  for (const row of rowsOf(buffers[state.map.buffer], columns)) points.map.push(mapRow(row));
}

/**
 * Append the steps in a buffer to those of a run.
 *
 * @param {RunRow[]} rows
 * @param {number} origin the step before the first of all its rows
 * @param {DataView} buffer
 */
export function takeRows(rows, origin, buffer) {
  for (const [loss, scale, stepped, underflow, swallowed] of rowsOf(buffer, COLUMNS)) {
    const step = origin + rows.length + 1;
    rows.push({ step, loss, scale, stepped: stepped > 0, underflow, swallowed });
  }
}

export const RUN_POINTS = { empty: emptyRuns, take: takeRuns };

/**
 * Return the runs in the picture: those on record until the learner's own runs begin.
 *
 * @param {RunState} state
 * @param {RunPoints} points
 */
function onShow(state, points) {
  if (state.recorded) return { fp32: points.recordedFp32, runs: [points.recorded] };
  return { fp32: points.fp32, runs: points.branches };
}

// --- the picture ---------------------------------------------------------------------------------

/**
 * Draw runs into panels.
 *
 * @param {Scene<RunState, RunPoints>} scene
 * @param {Panels} place
 * @param {number | null} step the one under the pointer
 */
export function drawRuns(scene, place, step) {
  const { pen, width, state, points } = scene;
  const { fp32, runs } = onShow(state, points);
  // On a page without a kernel no run will take the place of the recorded one.
  const faint = state.recorded && !scene.onPage;
  const tint = faint ? faintly(scene.tint) : scene.tint;
  const curves = state.branches.slice(0, runs.length).map((branch, i) => ({
    ...branch,
    rows: runs[i],
    colour: formatColour(branch.format, tint),
    dash: i ? DASH : [],
  }));
  const axis = stepPlot(pen, width, tint, { total: state.total, right: RIGHT });
  /** @type {RunPlot} */
  const plot = { ...axis, scene, curves, fp32, place };
  const y = drawLoss(plot);
  drawScale(plot);
  if (place.underflow) {
    const zeros = "Activation gradients: elements that are zero here and not in FP32";
    drawShare(plot, place.underflow, "underflow", zeros, tint.underflowed);
  }
  if (place.swallowed) {
    const still = "Updates swallowed: weights with a gradient that did not move";
    drawShare(plot, place.swallowed, "swallowed", still, tint.ink2);
  }
  inkSteps(plot, place.bottom);
  if (step) drawHover(plot, step, y);
  return { x: plot.x, top: place.loss.top + 2 };
}

/**
 * Draw a vertical line through all panels.
 *
 * @param {RunPlot} plot
 * @param {number} x
 * @param {string} colour
 * @param {{ dash?: number[], alpha?: number }} style
 */
function inkUpright(plot, x, colour, style) {
  const { loss, bottom } = plot.place;
  /** @type {Point[]} */
  const ends = [
    [x, loss.top],
    [x, bottom],
  ];
  inkLine(plot, ends, colour, 1, style);
}

/**
 * Draw the panel of losses: marks, sketch, earlier runs, FP32 and the branches, and their names.
 *
 * @param {RunPlot} plot
 * @returns {(loss: number) => number} the function from a loss to its y
 */
function drawLoss(plot) {
  const { scene, tint, curves, fp32, x } = plot;
  const { state, points } = scene;
  const sketch = sketchOf(scene);
  const all = [...lossesOnShow(state, points), sketch.map(([, loss]) => loss)];
  const y = inkLosses(plot, plot.place.loss, "Loss of each batch, log scale", all);
  /**
   * @param {readonly number[]} losses
   * @returns {Point[]}
   */
  const line = (losses) => losses.map((loss, i) => [x(i + 1), y(loss)]);
  drawMarks(plot);
  /** @type {Point[]} */
  const drawn = sketch.map(([step, loss]) => [x(step), y(loss)]);
  inkLine(plot, drawn, tint.ink2, 2, SKETCH_LINE);
  if (points.previous.length) drawPrevious(plot, line(points.previous));
  const ghosts = drawGhosts(plot, y);
  if (state.recorded && !scene.onPage) {
    const most = plot.end - plot.left - LOSS_TITLE_ROOM;
    inkText(plot, state.recorded, plot.end, plot.place.loss.top - 12, { align: "right", most });
  }
  const reached = state.recorded ? fp32.length : Math.max(curves[0].rows.length, 1);
  // FP32 is not trained again for a new run, so its losses after the run's step are known. Its line
  // reaches to the step after it, and its name is beside the run's step.
  if (fp32.length > reached + 1) inkLine(plot, line(fp32), tint.fp32, 1, { alpha: 0.3 });
  const { width, alpha } = plot.place.fp32;
  inkLine(plot, line(fp32.slice(0, reached + 1)), tint.fp32, width, { alpha });
  const ends = [{ name: "FP32", colour: tint.fp32, points: line(fp32.slice(0, reached)) }];
  for (const { name, rows, colour, dash, origin } of curves) {
    /** @type {Point[]} */
    const own = rows.map((row) => [x(row.step), y(row.loss)]);
    if (origin) own.unshift([x(origin), y(lossAt(curves[0], origin))]);
    inkLine(plot, own, colour, 2.25, { dash });
    ends.push({ name, colour, points: own });
  }
  if (drawn.length) ends.push({ name: "sketch", colour: tint.ink2, points: drawn });
  if (curves[1]) drawForkPoint(plot, y);
  nameGhosts(plot, ghosts);
  nameEnds(plot, ends);
  drawNonFinite(plot);
  return y;
}

/**
 * Return all losses in the picture, a list for each curve.
 *
 * @param {RunState} state
 * @param {RunPoints} points
 * @returns {number[][]}
 */
export function lossesOnShow(state, points) {
  const { fp32, runs } = onShow(state, points);
  const shown = [...runs.slice(0, state.branches.length), ...ghostsOnShow(state, points)];
  return [...shown.map((rows) => rows.map(({ loss }) => loss)), fp32, points.previous];
}

/**
 * Return the steps of each ghost.
 *
 * @param {RunState} state
 * @param {RunPoints} points
 * @returns {RunRow[][]}
 */
function ghostsOnShow(state, points) {
  return state.ghosts.map((_, i) => points.ghosts[i] ?? []);
}

/**
 * Return the learner's sketch of the loss; [] without one.
 *
 * @param {Scene<RunState, RunPoints>} scene
 * @returns {Sketch}
 */
function sketchOf({ model }) {
  const own = /** @type {Model<RunTraits>} */ (/** @type {unknown} */ (model));
  return own.get("sketched") ?? [];
}

/**
 * Return the loss of a run at a step; NaN before its first and after its last one.
 *
 * @param {Curve} curve
 * @param {number} step
 */
function lossAt(curve, step) {
  return curve.rows[step - 1]?.loss ?? NaN;
}

/**
 * Draw the previous run as a dotted line, and its name above the panel.
 *
 * @param {RunPlot} plot
 * @param {Point[]} points
 */
function drawPrevious(plot, points) {
  const { end, curves } = plot;
  const { top } = plot.place.loss;
  const { colour } = curves[0];
  inkLine(plot, points, colour, 1.25, { dash: DOTTED, alpha: 0.8 });
  const wide = inkText(plot, "the run before", end, top - 12, { align: "right" });
  /** @type {Point[]} */
  const sample = [
    [end - wide - 34, top - 16],
    [end - wide - 8, top - 16],
  ];
  inkLine(plot, sample, colour, 1.5, { dash: DOTTED });
}

const GHOST = { dash: DOTTED, alpha: 0.6 };
// The largest width of a ghost's settings, in pixels.
const GHOST_WORDS = 170;

/**
 * Draw ghosts as faint lines.
 *
 * @param {RunPlot} plot
 * @param {(loss: number) => number} y
 * @returns {{ label: string, end: Point }[]} the settings and the last finite point of each
 */
function drawGhosts(plot, y) {
  const { scene, tint, x } = plot;
  /** @type {{ label: string, end: Point }[]} */
  const ends = [];
  const { state, points: shown } = scene;
  for (const [i, rows] of ghostsOnShow(state, shown).entries()) {
    const { label, format } = state.ghosts[i];
    const colour = formatColour(format, tint);
    /** @type {Point[]} */
    const points = rows.map(({ step, loss }) => [x(step), y(loss)]);
    inkLine(plot, points, colour, 1.5, GHOST);
    const end = points.findLast(([, at]) => Number.isFinite(at));
    if (end) ends.push({ label, end });
  }
  return ends;
}

/**
 * Name ghosts by their settings, over the curves.
 *
 * @param {RunPlot} plot
 * @param {ReturnType<typeof drawGhosts>} ghosts
 */
function nameGhosts(plot, ghosts) {
  for (const { label, end } of ghosts) {
    // Losses fall, so the place above a curve's end, on its right, is mostly free.
    const right = plot.end - end[0] > GHOST_WORDS;
    const align = right ? "left" : "right";
    const x = right ? end[0] + 5 : end[0];
    inkText(plot, raised(label), x, end[1] - 7, { align, halo: true, most: GHOST_WORDS });
  }
}

/**
 * Mark the point at which the fork leaves the run.
 *
 * @param {RunPlot} plot
 * @param {(loss: number) => number} y
 */
function drawForkPoint(plot, y) {
  const [run, fork] = plot.curves;
  const at = plot.x(fork.origin);
  inkUpright(plot, at, plot.tint.ink2, { dash: [2, 3], alpha: 0.8 });
  const loss = y(lossAt(run, fork.origin));
  if (Number.isFinite(loss)) inkRing(plot, at, loss, fork.colour);
}

/**
 * Write the name of each curve at its last finite point.
 *
 * @param {RunPlot} plot
 * @param {{ name: string, colour: string, points: Point[] }[]} curves
 */
function nameEnds(plot, curves) {
  const { top, height } = plot.place.loss;
  /** @type {CurveEnd[]} */
  const ends = [];
  for (const { name, colour, points } of curves) {
    const end = points.findLast(([, y]) => Number.isFinite(y));
    if (end) ends.push({ name, fill: colour, x: end[0] + 7, y: end[1] });
  }
  inkNames(plot, ends, 14, top, top + height - 4);
}

/**
 * Draw a line at each stretch of losses that are not finite, with its first loss and step as text.
 *
 * @param {RunPlot} plot
 */
function drawNonFinite(plot) {
  const { top, height } = plot.place.loss;
  for (const [i, { name, rows }] of plot.curves.entries()) {
    const y = top + height - 12 - 18 * i;
    for (const [first, last] of nonFiniteStretches(rows)) {
      const x = plot.x(first.step);
      /** @type {Point[]} */
      const stretch = [
        [x, y],
        [plot.x(last.step), y],
      ];
      const text = `${name}: ${decimal(first.loss)} from step ${first.step}`;
      inkLine(plot, stretch, plot.tint.bad, 2);
      inkCross(plot, x, y, 5, plot.tint.bad);
      inkText(plot, text, x + 12, y - 4, { fill: plot.tint.bad, bold: true, halo: true });
    }
  }
}

/**
 * Return the first and the last row of each stretch of losses that are not finite.
 *
 * @param {readonly RunRow[]} rows
 * @returns {[first: RunRow, last: RunRow][]}
 */
function nonFiniteStretches(rows) {
  /** @type {[RunRow, RunRow][]} */
  const stretches = [];
  let inside = false;
  for (const row of rows) {
    const nonFinite = !Number.isFinite(row.loss);
    if (nonFinite && inside) {
      stretches[stretches.length - 1][1] = row;
    } else if (nonFinite) {
      stretches.push([row, row]);
    }
    inside = nonFinite;
  }
  return stretches;
}

/**
 * Draw the changes of knobs: for each a thin line through all panels, and its label in the first of
 * three rows that has room for it. A label without room is left out.
 *
 * @param {RunPlot} plot
 */
function drawMarks(plot) {
  const { pen, tint, x, end } = plot;
  const rowEnds = [-Infinity, -Infinity, -Infinity];
  for (const { step, label, upright } of marksOf(plot)) {
    const at = Math.round(x(step - 0.5)) + 0.5;
    if (upright) inkUpright(plot, at, tint.ink2, { alpha: 0.6 });
    pen.font = `${tint.size - 1}px ${tint.font}`;
    const text = raised(label);
    const wide = pen.measureText(text).width;
    const left = Math.max(plot.left + 4, Math.min(at + 5, end + RIGHT - wide - 4));
    const row = rowEnds.findIndex((rowEnd) => rowEnd + 12 < left);
    if (row < 0) continue;
    rowEnds[row] = left + wide;
    const y = plot.place.loss.top + 12 + 17 * row;
    inkText(plot, text, left, y, { fill: tint.ink, halo: true });
  }
}

/**
 * Return a text with the exponents of its powers of two as superscript characters.
 *
 * @param {string} text
 */
function raised(text) {
  return text.replace(/2\^(-?\d+)/g, (_, exponent) => `2${superscript(exponent)}`);
}

/**
 * Return all marks by step. That of a fork has no line, since `drawForkPoint` draws one.
 *
 * @param {RunPlot} plot
 */
function marksOf({ curves, scene }) {
  const marks = curves.flatMap((curve) => curve.marks.map((mark) => ({ ...mark, upright: true })));
  const fork = curves[1];
  if (fork) {
    const { fork_change: change } = scene.state;
    const label = change ? `fork: ${change}` : "fork";
    marks.unshift({ step: fork.origin + 1, label, upright: false });
  }
  return marks.sort((a, b) => a.step - b.step);
}

/**
 * Return the last step of the map that is drawn; 0 for no map. A page without a kernel draws that
 * of its recorded run as far as it was played.
 *
 * @param {Scene<RunState, RunPoints>} scene
 */
function mapUntil({ state, onPage }) {
  if (!state.recorded) return state.total;
  return onPage ? state.step || state.total : 0;
}

// The width of the title with the count of skipped steps beside it, in pixels.
const MAP_TITLE_ROOM = 380;
const MAP_TITLE = "Loss scale, in the window that is safe";

/**
 * Draw the panel of the scale: the map, the scales of all runs, and the skipped steps.
 *
 * @param {RunPlot} plot
 */
function drawScale(plot) {
  const { scene, tint, curves, x } = plot;
  const { state, wish } = scene;
  const panel = plot.place.scale;
  const next = wish ?? state.scale;
  const scales = curves.map(({ rows }) => rows.map(({ scale }) => Math.log2(scale)));
  const until = mapUntil(scene);
  const map = until ? scene.points.map : [];
  const mapped = state.map.log2_scales;
  const ghosts = ghostsOnShow(state, scene.points).map((rows) => ({
    first: rows[0]?.step ?? 1,
    exponents: rows.map(({ scale }) => Math.log2(scale)),
  }));
  const all = [...scales.flat(), ...ghosts.flatMap(({ exponents }) => exponents), next];
  const { y, ticks, range } = scaleAxis(panel, map.length ? [...all, ...mapped] : all);
  drawMap(plot, panel, map, mapped, range, until);
  const roomy = plot.end - plot.left > MAP_TITLE_ROOM;
  inkFrame(plot, panel, map.length && roomy ? MAP_TITLE : "Loss scale", ticks, y);
  const measured = map.filter(({ step }) => step <= until);
  for (const edge of windowEdges(plot, measured, mapped, y)) {
    inkLine(plot, edge, tint.ink2, 1, { dash: [3, 3] });
  }
  for (const { first, exponents } of ghosts) {
    const before = Array(first - 1).fill(NaN);
    inkLine(plot, stairs(plot, [...before, ...exponents], y), tint.ink2, 1.25, GHOST);
  }
  let skipped = 0;
  for (const [i, { rows, colour, dash, origin }] of curves.entries()) {
    const before = Array(origin).fill(NaN);
    inkLine(plot, stairs(plot, [...before, ...scales[i]], y), colour, 2.25, { dash });
    for (const row of rows) {
      if (row.stepped) continue;
      skipped += 1;
      inkCross(plot, x(row.step), y(Math.log2(row.scale)), 4, tint.overflowed);
    }
  }
  const { rows, origin, colour } = curves[state.active];
  const at = state.recorded ? 0 : origin + rows.length;
  if (at < plot.total && !scene.onPage) inkRing(plot, x(at + 1), y(next), colour);
  // No step has been done yet.
  if (all.length < 2) return;
  const words = skipped === 1 ? "1 skipped step" : `${skipped} skipped steps`;
  inkSkips(plot, panel, words, tint.overflowed);
}

/**
 * Return an axis of exponents that holds all given ones. Its range is from a multiple of 4 to
 * another; a label is at every fourth exponent if that leaves 18 pixels for each, else at every
 * eighth.
 *
 * @param {Panel} panel
 * @param {readonly number[]} exponents
 */
function scaleAxis(panel, exponents) {
  const low = Math.min(0, 4 * Math.floor(Math.min(0, ...exponents) / 4));
  const high = Math.max(16, 4 * Math.ceil((Math.max(0, ...exponents) + 1) / 4));
  const every = (4 * panel.height) / (high - low) >= 18 ? 4 : 8;
  /** @type {[number, number][]} */
  const ticks = [];
  for (let exponent = low; exponent <= high; exponent += every) ticks.push([exponent, exponent]);
  /** @type {[number, number]} */
  const range = [low, high];
  return { y: levelIn(panel, range), ticks, range };
}

/**
 * Draw the panel of a share from 0 to 1, which was measured at some steps.
 *
 * @param {RunPlot} plot
 * @param {Panel} panel
 * @param {"underflow" | "swallowed"} what
 * @param {string} title
 * @param {string} colour
 */
function drawShare(plot, panel, what, title, colour) {
  const { top, height } = panel;
  /** @param {number} share */
  const y = (share) => top + height * (1 - share);
  /** @type {[number, string][]} */
  const ticks = [
    [0, "0%"],
    [0.5, "50%"],
    [1, "100%"],
  ];
  inkFrame(plot, panel, title, ticks, y);
  /** @type {CurveEnd[]} */
  const ends = [];
  for (const { rows, dash } of plot.curves) {
    const measured = rows.filter((row) => !Number.isNaN(row[what]));
    if (!measured.length) continue;
    const last = measured[measured.length - 1];
    // A share stays until it is measured again.
    /** @type {Point[]} */
    const points = [];
    for (const [i, row] of measured.entries()) {
      if (i) points.push([plot.x(row.step), y(measured[i - 1][what])]);
      points.push([plot.x(row.step), y(row[what])]);
    }
    const end = plot.x(rows[rows.length - 1].step);
    points.push([end, y(last[what])]);
    if (plot.curves.length === 1) inkArea(plot, points, y(0), colour);
    inkLine(plot, points, colour, 2, { dash });
    for (const row of measured) inkDot(plot, plot.x(row.step), y(row[what]), 2.25, colour);
    ends.push({ name: percent(last[what]), fill: colour, x: end + 7, y: y(last[what]) });
  }
  if (ends[1]?.name === ends[0]?.name) ends.pop();
  inkNames(plot, ends, 13, top + 4, top + height - 4);
}

// --- under the pointer ---------------------------------------------------------------------------

/**
 * Draw a vertical line at the step under the pointer, and a dot on each run.
 *
 * @param {RunPlot} plot
 * @param {number} step
 * @param {(loss: number) => number} y
 */
function drawHover(plot, step, y) {
  inkUpright(plot, plot.x(step), plot.tint.ink, { alpha: 0.6 });
  for (const { rows, colour } of plot.curves) {
    const row = rows.find((one) => one.step === step);
    if (row && row.loss > 0 && Number.isFinite(row.loss)) {
      inkDot(plot, plot.x(step), y(row.loss), 3.5, colour);
    }
  }
}

/**
 * Return the text about a step of every run.
 *
 * @param {RunState} state
 * @param {RunPoints} points
 * @param {number} step
 */
function hoverText(state, points, step) {
  const { fp32, runs } = onShow(state, points);
  const parts = [];
  for (const [i, { name }] of state.branches.entries()) {
    const row = runs[i]?.find((one) => one.step === step);
    if (row) parts.push(`${name} ${stepWords(row)}`);
  }
  const beside = fp32[step - 1];
  if (beside !== undefined) parts.push(`FP32 ${decimal(beside)}`);
  return `${state.recorded ? "on record, " : ""}step ${step}: ${parts.join("; ")}`;
}

/**
 * Return the text about a step of one run.
 *
 * @param {RunRow} row
 */
function stepWords({ loss, scale, stepped, underflow }) {
  const skipped = stepped ? "" : ", skipped";
  const lost = Number.isNaN(underflow) ? "" : `, underflow ${percent(underflow)}`;
  const exponent = Math.log2(scale);
  // A scaler whose factors are not powers of two has other scales, too.
  const power = Number.isInteger(exponent) ? `2^${exponent} = ` : "";
  return `${decimal(loss)} at scale ${power}${decimal(scale)}${skipped}${lost}`;
}

/** @type {Hover<RunState, RunPoints>} */
export const HOVER = {
  right: RIGHT,
  steps(state, points) {
    const { fp32, runs } = onShow(state, points);
    return Math.max(fp32.length, runs[0].length);
  },
  text: hoverText,
};

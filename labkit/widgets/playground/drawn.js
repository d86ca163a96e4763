// The playground's pictures: the layers with their gradients, the losses, and the scale.

import { inkRich } from "../base/canvas.js";
import { percent, power } from "../base/number_words.js";
import {
  inkCross,
  inkFrame,
  inkLine,
  inkLosses,
  inkNames,
  inkSegment,
  inkSteps,
  inkText,
  levelIn,
  stairs,
  stepPlot,
} from "../base/plot.js";
import { FATES } from "../base/theme.js";
import {
  AXIS,
  areaBetween,
  drawBars,
  drawZones,
  fatePatterns,
  MEANING,
} from "../underflow/plot.js";
import { knownFormat } from "./network.js";
import { drawPortrait, portraitScore } from "./portraits.js";
import { LEAST_LOG2_SCALE, MOST_LOG2_SCALE } from "./recipe.js";
import { LOWEST } from "./trainer.js";

/** @import { Pen } from "../base/canvas.js" */
/** @import { Ink, Panel, Point } from "../base/plot.js" */
/** @import { Palette } from "../base/theme.js" */
/** @import { Ground, Picture, PreparedRow } from "../underflow/plot.js" */
/** @import { Windows } from "../underflow/view.js" */
/** @import { Session } from "./session.js" */
/** @import { Spread } from "./trainer.js" */

// Lengths in pixels: the room below the last layer for the handle of the scale and the axis, the
// room above each layer for its name, and half the size of the cross of a skipped step.
const AXIS_ROOM = 44;
const NAME_ROOM = 22;
const CROSS = 3;
// The least number of steps on the axis of steps.
const LEAST_STEPS = 100;
// The exponent at which the handle is at scale 1: that of FP16's smallest number. A step of the
// handle is as wide as a power of two, so the handle moves as this number does when it is scaled.
const HANDLE_AT_ONE = -24;

/**
 * Return the exponents at which a format's zones begin, as `windows` in
 * labkit/widgets/underflow/widget.py does.
 *
 * @param {string} name
 * @returns {Windows}
 */
function zonesOf(name) {
  const { significandBits, emin, max } = knownFormat(name);
  const emax = Math.floor(Math.log2(max));
  const survives_from = emin - significandBits - 1;
  const overflows_from = max + 2 ** (emax - significandBits - 1);
  return { format: name, survives_from, emin, emax, overflows_from };
}

/**
 * Return the gradients of a layer as a row of the underflow histogram.
 *
 * @param {Spread} spread
 * @returns {PreparedRow}
 */
function rowOf({ counts, zeros, nonFinite, elements }) {
  const total = counts.reduce((a, b) => a + b, 0);
  const peak = Math.max(...counts, 1);
  const left_out = { elements, zeros, non_finite: nonFinite, observed: null };
  return { name: "", lo: LOWEST, counts, ...left_out, total, peak };
}

/**
 * Draw each layer: its name, the zones of the gradients' format, and its gradients.
 *
 * @param {Ink} ink
 * @param {number} width
 * @param {number} height
 * @param {Session} session
 */
export function drawSpreads({ pen, tint }, width, height, session) {
  const { recipe, problem } = session.training;
  const area = areaBetween(4, width - 4);
  const limits = zonesOf(recipe.gradients);
  const picture = { pen, tint, area, limits, log2Scale: 0 };
  const { sizes } = problem.shape;
  const layers = sizes.length - 1;
  const tall = (height - AXIS_ROOM) / layers;
  const fills = fatePatterns(pen, tint);
  for (let layer = 0; layer < layers; layer++) {
    const top = layer * tall + NAME_ROOM;
    const bottom = (layer + 1) * tall - 4;
    drawZones(picture, top, bottom);
    const name = `Layer ${layer + 1}: ${sizes[layer]} \u2192 ${sizes[layer + 1]}`;
    inkText(picture, name, area.left, top - 7, { fill: tint.ink, bold: true });
    if (layer === 0) writeZones(picture, top + 14);
    const spread = session.last?.spreads[layer];
    if (!spread) {
      const words = "Gradients come here, small ones on the left";
      inkText(picture, words, (area.left + area.right) / 2, bottom - 14, { align: "center" });
      continue;
    }
    const ground = { bottom, height: bottom - top - 18 };
    drawBars(picture, rowOf(spread), fills, { ...ground, gap: 1 });
    drawTwin(picture, session, layer, ground);
    const lost = spread.nonFinite
      ? `inf or NaN: ${percent(spread.nonFinite / spread.elements)}`
      : `zeros: ${percent(spread.zeros / spread.elements)}`;
    const words = lost + twinZeros(session, layer);
    inkText(picture, words, area.right, top - 7, { fill: tint.ink, align: "right" });
  }
  drawExponents({ pen, tint }, area, height - AXIS_ROOM);
}

/**
 * Return the track of the scale's handle in the picture of the layers.
 *
 * @param {number} width of the picture
 * @returns {{ left: number, length: number, above: number }} in pixels of the picture; `above`: its
 *   distance from the lower end
 */
export function handleWay(width) {
  const area = areaBetween(4, width - 4);
  const from = area.x(HANDLE_AT_ONE + LEAST_LOG2_SCALE);
  const to = area.x(HANDLE_AT_ONE + MOST_LOG2_SCALE);
  return { left: from, length: to - from, above: AXIS_ROOM + 4 };
}

/**
 * Write the names of the zones that have room for them.
 *
 * @param {Picture} picture
 * @param {number} y
 */
function writeZones(picture, y) {
  const { area, limits, tint, pen } = picture;
  const edges = [AXIS.lo, limits.survives_from, limits.emin, limits.emax + 1, AXIS.hi];
  const inside = edges.map((edge) => Math.min(AXIS.hi, Math.max(AXIS.lo, edge)));
  for (const [i, fate] of FATES.entries()) {
    const from = area.x(inside[i]);
    const room = area.x(inside[i + 1]) - from;
    const { name, brief } = MEANING[fate];
    pen.font = `${tint.size - 1}px ${tint.font}`;
    const fits = pen.measureText(name).width < room - 6;
    const words = fits ? name : brief;
    if (pen.measureText(words).width > room) continue;
    inkText(picture, words, from + room / 2, y, { align: "center" });
  }
}

/**
 * Draw the outline of the twin's gradients, times the scale: the gradients without rounding.
 *
 * @param {Picture} picture
 * @param {Session} session
 * @param {number} layer
 * @param {Ground} ground
 */
function drawTwin(picture, { last, lastTwin }, layer, { bottom, height }) {
  const { area, tint } = picture;
  const spread = lastTwin?.spreads[layer];
  if (!spread || !last) return;
  const peak = Math.max(...spread.counts, 1);
  const shift = Math.round(Math.log2(last.scale));
  /** @type {Point[]} */
  const outline = [];
  for (const [i, count] of spread.counts.entries()) {
    const exponent = LOWEST + i + shift;
    if (exponent < AXIS.lo || exponent >= AXIS.hi) continue;
    const y = Math.round(bottom - (height * count) / peak) - 0.5;
    outline.push([area.x(exponent), y], [area.x(exponent + 1), y]);
  }
  inkLine(picture, outline, tint.ink, 1, { alpha: 0.75 });
}

/**
 * Return the end of a layer's text: the share of zeros in the twin; "" before its first step.
 *
 * @param {Session} session
 * @param {number} layer
 */
function twinZeros({ lastTwin }, layer) {
  const spread = lastTwin?.spreads[layer];
  return spread ? `; zeros in FP32: ${percent(spread.zeros / spread.elements)}` : "";
}

/**
 * Draw the axis of exponents below the layers.
 *
 * @param {Ink} ink
 * @param {ReturnType<typeof areaBetween>} area
 * @param {number} bottom
 */
function drawExponents(ink, area, bottom) {
  const { pen, tint } = ink;
  inkSegment(ink, [area.left, bottom - 3.5], [area.right, bottom - 3.5], tint.ink2, 1);
  pen.font = `${tint.size - 1}px ${tint.font}`;
  pen.fillStyle = tint.ink2;
  for (let e = AXIS.lo + 8; e < AXIS.hi; e += 8) {
    inkRich(pen, power(e), area.x(e), bottom + 26, "center");
  }
}

/**
 * Draw the losses of both trainings and, below them, the scale.
 *
 * @param {Ink} ink
 * @param {number} width
 * @param {number} height
 * @param {Session} session
 */
export function drawCourse({ pen, tint }, width, height, session) {
  const { losses, twinLosses, training } = session;
  const total = Math.max(LEAST_STEPS, losses.length);
  const plot = stepPlot(pen, width, tint, { total, right: 60 });
  const scaled = training.recipe.scaling !== "none";
  const lossHeight = scaled ? height - 150 : height - 56;
  const panel = { top: 26, height: lossHeight };
  const y = inkLosses(plot, panel, "Loss of a step", [losses, twinLosses]);
  /** @type {(values: readonly number[]) => Point[]} */
  const pointsOf = (values) => values.map((value, i) => [plot.x(i + 1), y(value)]);
  const own = pointsOf(losses);
  const twin = pointsOf(twinLosses);
  inkLine(plot, twin, tint.fp32, 4, { alpha: 0.35 });
  inkLine(plot, own, tint.fp16, 1.75);
  const ends = [
    { name: "FP32", fill: tint.fp32, points: twin },
    { name: "here", fill: tint.fp16, points: own },
  ].flatMap(({ name, fill, points }) => {
    const last = points.findLast((point) => Number.isFinite(point[1]));
    return last ? [{ name, fill, x: last[0] + 5, y: last[1] }] : [];
  });
  inkNames(plot, ends, 15, panel.top, panel.top + panel.height);
  if (scaled) drawScale(plot, { top: height - 94, height: 62 }, session);
  inkSteps(plot, height - 30);
}

/**
 * Draw the panel of the scale, with a cross at each skipped step.
 *
 * @param {ReturnType<typeof stepPlot>} plot
 * @param {Panel} panel
 * @param {Session} session
 */
function drawScale(plot, panel, { scales, skipped }) {
  const now = scales.at(-1) ?? 0;
  const low = Math.min(now, ...scales) - 2;
  const high = Math.max(now, ...scales) + 2;
  const y = levelIn(panel, [low, high]);
  const count = skipped.length.toLocaleString("en-US");
  const words = `Loss scale; skipped steps: ${count}`;
  inkFrame(plot, panel, words, [[now, Math.round(now)]], y);
  inkLine(plot, stairs(plot, scales, y), plot.tint.ink, 1.75);
  let end = -Infinity;
  for (const step of skipped) {
    const x = plot.x(step);
    // A cross that would lie on the one before it is left out.
    if (x < end + CROSS) continue;
    inkCross(plot, x, y(scales[step - 1]), CROSS, plot.tint.bad, 1.5);
    end = x;
  }
}

/**
 * Draw what both networks do, side by side.
 *
 * @param {Ink} ink
 * @param {number} width
 * @param {number} height
 * @param {Session} session
 */
export function drawPortraits({ pen, tint }, width, height, { training, portrait }) {
  const size = Math.min(height - 20, (width - 12) / 2);
  const lefts = [0, size + 12];
  for (const [i, name] of ["here", size < 150 ? "twin" : "FP32 twin"].entries()) {
    const title = name + portraitScore(training.problem, portrait.outputs[i]);
    inkText({ pen, tint }, title, lefts[i], 12, { fill: tint.ink, bold: true });
    const frame = { pen, tint, left: lefts[i], top: 18, size };
    drawPortrait(frame, training.problem, portrait.outputs[i]);
  }
}

// The map behind the loss scale: the share of gradients that underflows and overflows, for each
// scale and step.

import { levelIn, stairs } from "../base/plot.js";

/** @import { Panel, ScaleWindow, StepPlot } from "../base/plot.js" */
/** @import { Palette } from "../base/theme.js" */

/**
 * What each scale would have made of the gradients of a step.
 *
 * @typedef {object} MapRow
 * @property {number} step The step that was measured.
 * @property {number[]} lost The share that becomes zero, for each scale.
 * @property {number[]} overflowing The share that becomes inf, for each scale.
 */

// The largest lost share of a safe scale, as in `labkit.instrument.ScaleMap.safe`.
const TOLERATED = 0.01;
// The opacities of a pixel for a share of 0 and of 1.
const FAINTEST = 0.1;
const STRONGEST = 0.6;

/**
 * Return a row of the map from numbers of the kernel: the step, the share lost at each scale, then
 * the share that overflows at each scale.
 *
 * @param {Float32Array} row
 * @returns {MapRow}
 */
export function mapRow(row) {
  const scales = (row.length - 1) / 2;
  const [step, ...shares] = row;
  return { step, lost: shares.slice(0, scales), overflowing: shares.slice(scales) };
}

/**
 * Return the window of safe scales, as log2 for each step so far; NaN before the first step that
 * was measured.
 *
 * @param {readonly MapRow[]} rows
 * @param {readonly number[]} scales log2 of each
 * @param {number} total
 * @returns {ScaleWindow}
 */
export function safeWindow(rows, scales, total) {
  /** @type {number[]} */
  const top = [];
  /** @type {number[]} */
  const low = [];
  for (const [i, row] of rows.entries()) {
    const until = rows[i + 1]?.step ?? Math.min(total + 1, row.step + 1);
    const keeps = row.lost.findIndex((share) => share <= TOLERATED);
    const overflows = row.overflowing.findIndex((share) => share > 0);
    for (let step = row.step; step < until; step++) {
      low[step - 1] = keeps < 0 ? scales[scales.length - 1] : scales[keeps];
      top[step - 1] = overflows < 0 ? scales[scales.length - 1] + 1 : scales[overflows];
    }
  }
  return { top: Array.from(top, orNaN), low: Array.from(low, orNaN) };
}

/**
 * Return NaN for a place of an array that was never set.
 *
 * @param {number | undefined} value
 */
function orNaN(value) {
  return value ?? NaN;
}

/**
 * @typedef {object} MapImage The image of a map.
 * @property {OffscreenCanvas} canvas A pixel for each step and scale.
 * @property {number} rows How many rows of the map are drawn in it.
 * @property {string} key The colours and the number of steps that it was drawn for.
 */

/** @type {WeakMap<readonly MapRow[], MapImage>} */
const images = new WeakMap();

/**
 * Return the map as an image, a pixel for each step and scale. Only new rows are drawn.
 *
 * @param {readonly MapRow[]} rows
 * @param {readonly number[]} scales
 * @param {number} total
 * @param {Palette} tint
 */
function imageOf(rows, scales, total, tint) {
  const key = `${tint.underflowed} ${tint.overflowed} ${total}`;
  let image = images.get(rows);
  if (!image || image.key !== key) {
    image = { canvas: new OffscreenCanvas(total, scales.length), rows: 0, key };
    images.set(rows, image);
  }
  const pen = image.canvas.getContext("2d");
  if (!pen) return image.canvas;
  // The last row has the width of one step until the next one exists, so it is drawn once more.
  const from = Math.max(0, image.rows - 1);
  for (let i = from; i < rows.length; i++) {
    const { step, lost, overflowing } = rows[i];
    const wide = (rows[i + 1]?.step ?? step + 1) - step;
    for (let k = 0; k < scales.length; k++) {
      const y = scales.length - 1 - k;
      const share = Math.max(lost[k], overflowing[k]);
      if (overflowing[k] === 0 && lost[k] <= TOLERATED) continue;
      pen.globalAlpha = FAINTEST + (STRONGEST - FAINTEST) * share;
      pen.fillStyle = overflowing[k] > 0 ? tint.overflowed : tint.underflowed;
      pen.clearRect(step - 1, y, wide, 1);
      pen.fillRect(step - 1, y, wide, 1);
    }
  }
  image.rows = rows.length;
  return image.canvas;
}

/**
 * Draw the map into the panel of the scale.
 *
 * @param {StepPlot} plot
 * @param {Panel} panel
 * @param {readonly MapRow[]} rows
 * @param {readonly number[]} scales log2 of each, from the foot of the panel to its top
 * @param {readonly [low: number, high: number]} range of the panel
 * @param {number} until the last step that is shown
 */
export function drawMap(plot, panel, rows, scales, range, until) {
  if (!rows.length) return;
  const { pen, tint, total, x } = plot;
  const y = levelIn(panel, range);
  const image = imageOf(rows, scales, total, tint);
  const left = x(0.5);
  const top = y(scales[scales.length - 1] + 0.5);
  const bottom = y(scales[0] - 0.5);
  pen.save();
  pen.beginPath();
  pen.rect(plot.left, panel.top, x(until + 0.5) - plot.left, panel.height);
  pen.clip();
  pen.imageSmoothingEnabled = false;
  pen.drawImage(image, left, top, x(total + 0.5) - left, bottom - top);
  pen.restore();
}

/**
 * Return the edges of the window of safe scales as two lines, the upper one first.
 *
 * @param {StepPlot} plot
 * @param {readonly MapRow[]} rows
 * @param {readonly number[]} scales
 * @param {(log2Scale: number) => number} y
 */
export function windowEdges(plot, rows, scales, y) {
  const { top, low } = safeWindow(rows, scales, plot.total);
  return [stairs(plot, top.map(half), y), stairs(plot, low.map(half), y)];
}

/**
 * Return the exponent between a scale and the one below it, where the edge of its pixel is.
 *
 * @param {number} log2Scale
 */
function half(log2Scale) {
  return log2Scale - 0.5;
}

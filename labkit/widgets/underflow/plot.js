// Drawing of a histogram of exponents, shifted by the loss scale, in front of the ranges in which a
// format underflows, is subnormal, normal, or overflows. No function keeps state.

import { inkRich, pattern } from "../base/canvas.js";
import { decimal, percent, power } from "../base/number_words.js";
import { inkArrow, inkLine, inkSegment, inkText, niceStep } from "../base/plot.js";
import { FATES } from "../base/theme.js";

/** @import { Figure, Pen } from "../base/canvas.js" */
/** @import { Point } from "../base/plot.js" */
/** @import { Fate, Palette } from "../base/theme.js" */
/** @import { LayerRow, Windows } from "./view.js" */

/**
 * The counts of a layer, with their total and the largest one.
 *
 * @typedef {LayerRow & { total: number, peak: number }} PreparedRow
 */

/** @typedef {Record<Fate, number>} Shares The share of each fate, from 0 to 1. */

/**
 * The horizontal axis of exponents, in pixels.
 *
 * @typedef {object} Area
 * @property {number} left
 * @property {number} right
 * @property {number} binade The width of a power of two.
 * @property {(exponent: number) => number} x Return the left end of a power of two.
 */

/**
 * What all parts of a histogram are drawn with.
 *
 * @typedef {object} Picture
 * @property {Pen} pen
 * @property {Palette} tint
 * @property {Area} area
 * @property {Windows} limits
 * @property {number} log2Scale Between two whole numbers while the bars move.
 */

/**
 * Bars that fall out of the format.
 *
 * @typedef {object} Fall
 * @property {number[]} exponents Their exponents at scale 1.
 * @property {number} done The progress of the fall, from 0 to 1.
 */

/** @typedef {Record<Fate, string | CanvasPattern>} Fills The fill of the bars of each fate. */

/**
 * The y of the lower end of the bars, and the height of the highest one, in pixels.
 *
 * @typedef {{ bottom: number, height: number }} Ground
 */

// The height of a layer's row, in pixels like all lengths here.
export const ROW = 22;
// The exponents of the axis. Texts at its ends count the elements beyond them.
export const AXIS = { lo: -40, hi: 22 };
// If the space left of the axis is at least this wide, it has longer texts.
const ROOMY = 120;
// From top to bottom: the values at which zones begin, the names of the zones, the bars, and the
// axis with the handle of the scale.
const EDGE = 18;
const TOP = EDGE + 42;
export const BOTTOM = 34;
// Bars that leave the format fall by this much.
const FALL_HEIGHT = 80;
// Labels of the axis are farther apart if binades are narrower.
const NARROW_BINADE = 8;

/** @type {Record<Fate, { name: string, brief: string, meaning: string }>} */
export const MEANING = {
  underflowed: { name: "underflow", brief: "0", meaning: "to zero" },
  subnormal: { name: "subnormal", brief: "sub", meaning: "loses bits" },
  normal: { name: "normal", brief: "normal", meaning: "full precision" },
  overflowed: { name: "overflow", brief: "inf", meaning: "to inf" },
};

// --- shares, as by fate(shift(histogram, k), format) of labkit.instrument ------------------------

/**
 * Return the fate of numbers with an exponent.
 *
 * @param {number} exponent
 * @param {Windows} limits
 * @returns {Fate}
 */
export function fateOf(exponent, limits) {
  if (exponent < limits.survives_from) return "underflowed";
  if (exponent < limits.emin) return "subnormal";
  return exponent <= limits.emax ? "normal" : "overflowed";
}

/**
 * Return the fate of one number.
 *
 * @param {number} size its magnitude, above 0; NaN counts as overflow
 * @param {Windows} limits
 * @returns {Fate}
 */
export function fateOfNumber(size, limits) {
  // A tie, half the smallest subnormal number, is rounded to 0.
  if (size <= 2 ** limits.survives_from) return "underflowed";
  if (size < 2 ** limits.emin) return "subnormal";
  return size < limits.overflows_from ? "normal" : "overflowed";
}

/**
 * Return the share of each fate among the elements of a layer, at a scale.
 *
 * @param {PreparedRow} row
 * @param {number} log2Scale
 * @param {Windows} limits
 * @returns {Shares}
 */
export function fractions(row, log2Scale, limits) {
  const shares = { underflowed: 0, subnormal: 0, normal: 0, overflowed: 0 };
  for (const [i, count] of row.counts.entries()) {
    shares[fateOf(row.lo + i + Math.round(log2Scale), limits)] += count;
  }
  if (row.total > 0) {
    for (const fate of FATES) shares[fate] /= row.total;
  }
  return shares;
}

/**
 * Add the total and the largest count to the rows of layers.
 *
 * @param {readonly LayerRow[]} rows
 * @returns {PreparedRow[]}
 */
export function prepared(rows) {
  return rows.map((row) => {
    const total = row.counts.reduce((a, b) => a + b, 0);
    return { ...row, total, peak: Math.max(...row.counts, 1) };
  });
}

// --- places --------------------------------------------------------------------------------------

/**
 * Return the axis of exponents between two x.
 *
 * @param {number} left
 * @param {number} right
 * @returns {Area}
 */
export function areaBetween(left, right) {
  const binade = (right - left) / (AXIS.hi - AXIS.lo);
  return { left, right, binade, x: (exponent) => left + (exponent - AXIS.lo) * binade };
}

/**
 * Return the axis of exponents inside a figure's padding.
 *
 * @param {number} width in pixels of the picture
 * @param {Pick<Figure, "element" | "grown">} figure
 */
export function areaInside(width, { element, grown }) {
  const style = getComputedStyle(element);
  const left = parseFloat(style.paddingLeft) / grown;
  const right = width - parseFloat(style.paddingRight) / grown;
  return areaBetween(left, right);
}

/**
 * Return the exponent at which the handle is at scale 1: below the highest bar, but so far left
 * that it can reach the largest scale.
 *
 * @param {PreparedRow} row
 * @param {number} most the largest log2 of a scale
 */
export function anchorOf(row, most) {
  const highest = row.counts.includes(row.peak) ? row.lo + row.counts.indexOf(row.peak) : AXIS.lo;
  return Math.min(AXIS.hi - most, Math.max(AXIS.lo, highest)) + 0.5;
}

/**
 * Return the exponent on the axis that is nearest to an exponent.
 *
 * @param {number} exponent
 */
function clampToAxis(exponent) {
  return Math.min(AXIS.hi, Math.max(AXIS.lo, exponent));
}

/**
 * Return whether an exponent is on the axis.
 *
 * @param {number} exponent
 */
function onAxis(exponent) {
  return exponent >= AXIS.lo && exponent < AXIS.hi;
}

/**
 * Return the zones of a format that are on the axis, from left to right.
 *
 * @param {Windows} limits
 */
function zonesOnAxis(limits) {
  const { survives_from, emin, emax } = limits;
  const edges = [-Infinity, survives_from, emin, emax + 1, Infinity].map(clampToAxis);
  const zones = FATES.map((fate, i) => ({ fate, from: edges[i], to: edges[i + 1] }));
  return zones.filter(({ from, to }) => to > from);
}

// --- drawing -------------------------------------------------------------------------------------

/**
 * Draw the zones of the format as coloured areas with dashed borders.
 *
 * @param {Picture} picture
 * @param {number} top
 * @param {number} bottom
 */
export function drawZones(picture, top, bottom) {
  const { pen, tint, area } = picture;
  const zones = zonesOnAxis(picture.limits);
  for (const { fate, from, to } of zones) {
    pen.globalAlpha = fate === "normal" ? 0.09 : 0.14;
    pen.fillStyle = tint[fate];
    pen.fillRect(area.x(from), top, area.x(to) - area.x(from), bottom - top);
  }
  pen.globalAlpha = 1;
  for (const { from } of zones.slice(1)) {
    const x = Math.round(area.x(from)) + 0.5;
    inkSegment(picture, [x, top], [x, bottom], tint.ink2, 1, { dash: [3, 3], alpha: 0.6 });
  }
}

/**
 * Draw the bars of a layer.
 *
 * @param {Picture} picture
 * @param {PreparedRow} row
 * @param {Fills} fills
 * @param {Ground & { gap: number }} ground gap: the space between bars
 */
export function drawBars({ pen, tint, area, limits, log2Scale }, row, fills, ground) {
  const { bottom, height, gap } = ground;
  for (let i = 0; i < row.counts.length; i++) {
    const exponent = row.lo + i + log2Scale;
    if (!row.counts[i] || !onAxis(exponent)) continue;
    const tall = Math.max(1, (height * row.counts[i]) / row.peak);
    const x = area.x(exponent) + gap / 2;
    pen.fillStyle = fills[fateOf(Math.round(exponent), limits)];
    pen.fillRect(x, bottom - tall, area.binade - gap, tall);
    pen.strokeStyle = tint.ink;
    pen.lineWidth = 1;
    pen.globalAlpha = 0.3;
    pen.strokeRect(x + 0.5, bottom - tall + 0.5, area.binade - gap - 1, tall);
    pen.globalAlpha = 1;
  }
}

/**
 * Draw the bars that fall out of the format.
 *
 * @param {Picture} picture
 * @param {PreparedRow} row
 * @param {readonly Fall[]} falls
 * @param {Ground} ground
 */
function drawFalls({ pen, tint, area, limits, log2Scale }, row, falls, { bottom, height }) {
  for (const { exponents, done } of falls) {
    pen.globalAlpha = 1 - done;
    for (const exponent of exponents) {
      const count = row.counts[exponent - row.lo];
      // The row may have become another layer or step since the fall began.
      if (!count) continue;
      const scaled = exponent + log2Scale;
      const tall = Math.max(1, (height * count) / row.peak);
      const top = bottom - tall + FALL_HEIGHT * done ** 2;
      pen.fillStyle = scaled < limits.emin ? tint.underflowed : tint.overflowed;
      pen.fillRect(area.x(scaled) + 1, top, area.binade - 2, tall);
    }
  }
  pen.globalAlpha = 1;
}

/**
 * Draw the outline of the bars at scale 1.
 *
 * @param {Picture} picture
 * @param {PreparedRow} row
 * @param {Ground} ground
 */
function drawGhost(picture, row, { bottom, height }) {
  const { tint, area } = picture;
  /** @type {Point[]} */
  const outline = [[area.x(Math.max(row.lo, AXIS.lo)), bottom]];
  for (const [i, count] of row.counts.entries()) {
    const exponent = row.lo + i;
    if (!onAxis(exponent)) continue;
    const y = Math.round(bottom - (height * count) / row.peak) + 0.5;
    outline.push([area.x(exponent), y], [area.x(exponent + 1), y]);
  }
  outline.push([area.x(clampToAxis(row.lo + row.counts.length)), bottom]);
  inkLine(picture, outline, tint.ink2, 1, { alpha: 0.55 });
  const highest = row.lo + row.counts.indexOf(row.peak);
  drawShift(picture, highest, bottom - height - 6);
}

/**
 * Draw an arrow from the unscaled bars to the scaled ones, with the factor between them.
 *
 * @param {Picture} picture
 * @param {number} highest the exponent of the highest unscaled bar
 * @param {number} y
 */
function drawShift(picture, highest, y) {
  const { pen, tint, area, log2Scale } = picture;
  const from = area.x(clampToAxis(highest + 0.5));
  const to = area.x(clampToAxis(highest + log2Scale + 0.5));
  const words = `\u00d7 ${power(Math.round(log2Scale))}`;
  pen.font = `600 ${tint.size - 1}px ${tint.font}`;
  pen.fillStyle = tint.ink;
  const middle = (from + to) / 2;
  const textWidth = inkRich(pen, words, middle, y + 4, "center");
  // Without room for an arrow, outline and bars are close together and need none.
  const room = Math.abs(to - from) - 12;
  if (room <= textWidth) return;
  const side = Math.sign(to - from) * (textWidth / 2 + 5);
  inkSegment(picture, [from, y], [middle - side, y], tint.ink2, 1.25);
  inkArrow(picture, [middle + side, y], [to, y], tint.ink2, 1.25);
}

/**
 * Draw the axis of shares on the left.
 *
 * @param {Picture} picture
 * @param {PreparedRow} row
 * @param {Ground} ground
 */
function drawShares(picture, row, { bottom, height }) {
  const { tint, area } = picture;
  const right = area.left - 8;
  const top = row.total ? (100 * row.peak) / row.total : 1;
  const step = niceStep(top / 3);
  for (let share = 0; share <= top; share += step) {
    const y = Math.round(bottom - (height * share) / top) + 0.5;
    const words = `${Number(share.toPrecision(2))}%`;
    inkText(picture, words, right, y, { align: "right", base: "middle" });
    if (share) inkSegment(picture, [area.left, y], [area.right, y], tint.line2, 1);
  }
  if (area.left < ROOMY) return;
  inkText(picture, "share of", right, EDGE + 17, { align: "right" });
  inkText(picture, "non-zero ones", right, EDGE + 33, { align: "right" });
}

/**
 * Draw the axis of exponents.
 *
 * @param {Picture} picture
 * @param {number} bottom
 */
function drawAxis(picture, bottom) {
  const { pen, tint, area } = picture;
  const every = area.binade < NARROW_BINADE ? 16 : 8;
  pen.fillStyle = tint.ink2;
  inkSegment(picture, [area.left, bottom + 0.5], [area.right, bottom + 0.5], tint.ink2, 1);
  for (let e = AXIS.lo; e <= AXIS.hi; e += 4) {
    const x = Math.round(area.x(e)) + 0.5;
    const length = e % every === 0 ? 6 : 3;
    inkSegment(picture, [x, bottom], [x, bottom + length], tint.ink2, 1);
  }
  for (let e = AXIS.lo; e <= AXIS.hi; e++) {
    if (e % every === 0) inkRich(pen, power(e), area.x(e), bottom + 28, "center");
  }
}

/**
 * Write the names of the zones, and the share of the row that each of them loses.
 *
 * @param {Picture} picture
 * @param {PreparedRow} row
 */
function drawZoneNames({ pen, tint, area, limits, log2Scale }, row) {
  const zones = zonesOnAxis(limits);
  const shares = fractions(row, log2Scale, limits);
  pen.fillStyle = tint.ink2;
  for (const { fate, from } of zones.slice(1)) {
    const edge = fate === "overflowed" ? decimal(limits.overflows_from) : power(from);
    inkRich(pen, edge, area.x(from), EDGE - 5, "center");
  }
  for (const { fate, from, to } of zones) {
    const { name, brief, meaning } = MEANING[fate];
    const middle = (area.x(from) + area.x(to)) / 2;
    const room = area.x(to) - area.x(from);
    /** @param {string} text */
    const fits = (text) => pen.measureText(text).width < room - 4;
    pen.textAlign = "center";
    pen.font = `600 ${tint.size}px ${tint.font}`;
    pen.fillStyle = tint.ink;
    pen.fillText(fits(name) ? name : brief, middle, EDGE + 17);
    pen.font = `${tint.size - 1}px ${tint.font}`;
    pen.fillStyle = tint.ink2;
    const share = percent(shares[fate]);
    const lost = (fate === "underflowed" || fate === "overflowed") && shares[fate] > 0;
    const candidates = lost ? [`${share} ${meaning}`, share] : [meaning];
    pen.fillText(candidates.find(fits) ?? "", middle, EDGE + 33);
  }
}

/**
 * Write the shares of elements beyond both ends of the axis.
 *
 * @param {Picture} picture
 * @param {PreparedRow} row
 * @param {number} bottom
 */
function drawOutside(picture, row, bottom) {
  const { tint, area, log2Scale } = picture;
  let below = 0;
  let above = 0;
  for (const [i, count] of row.counts.entries()) {
    const exponent = row.lo + i + log2Scale;
    if (exponent < AXIS.lo) below += count;
    if (exponent >= AXIS.hi) above += count;
  }
  if (below) {
    const share = percent(below / row.total);
    const words = area.left < ROOMY ? `${share} \u25c2` : `${share} below \u25c2`;
    // Wide binades have a label of the axis here.
    const end = area.left - (area.binade < NARROW_BINADE ? 4 : 22);
    inkText(picture, words, end, bottom + 28, { fill: tint.ink, align: "right" });
  }
  if (above) {
    const words = `\u25b8 ${percent(above / row.total)}`;
    inkText(picture, words, area.right + 4, bottom + 28, { fill: tint.ink });
  }
}

// --- the whole picture, and one row for each layer -----------------------------------------------

/**
 * Draw the histogram of a layer with its axes and zones.
 *
 * @param {Picture} picture
 * @param {PreparedRow} row
 * @param {number} height
 * @param {readonly Fall[]} [falls]
 */
export function drawHistogram(picture, row, height, falls = []) {
  const { pen, tint } = picture;
  const bottom = height - BOTTOM;
  const ground = { bottom, height: bottom - TOP - 14 };
  pen.font = `${tint.size - 1}px ${tint.font}`;
  drawZones(picture, EDGE, bottom);
  drawShares(picture, row, ground);
  if (picture.log2Scale) drawGhost(picture, row, ground);
  drawBars(picture, row, fatePatterns(pen, tint), { ...ground, gap: 2 });
  drawFalls(picture, row, falls, ground);
  drawAxis(picture, bottom);
  drawOutside(picture, row, bottom);
  drawZoneNames(picture, row);
}

/**
 * Return the pattern of each fate. Patterns can be told apart without colours.
 *
 * @param {Pen} pen
 * @param {Palette} tint
 * @returns {Fills}
 */
export function fatePatterns(pen, tint) {
  return {
    underflowed: pattern(pen, "underflowed", tint),
    subnormal: pattern(pen, "subnormal", tint),
    normal: pattern(pen, "normal", tint),
    overflowed: pattern(pen, "overflowed", tint),
  };
}

/**
 * Draw small histograms of all layers, one below the other.
 *
 * @param {Picture} picture
 * @param {readonly PreparedRow[]} layers
 * @param {number} height
 */
export function drawLayers(picture, layers, height) {
  const { tint, area } = picture;
  drawZones(picture, 0, height);
  for (const [i, layer] of layers.entries()) {
    const bottom = ROW * (i + 1) - 3;
    drawBars(picture, layer, tint, { bottom, height: ROW - 6, gap: 1 });
    inkSegment(picture, [area.left, bottom + 0.5], [area.right, bottom + 0.5], tint.line, 1);
  }
}

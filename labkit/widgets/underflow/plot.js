// Drawing of a histogram of exponents: counts, shifted by the scale, before the windows of a format. No state lives here.

import { inkRich, pattern } from "../base/canvas.js";
import { decimal, percent, power } from "../base/number_words.js";
import { inkLine, inkText, niceStep } from "../base/plot.js";
import { FATES } from "../base/theme.js";

export const ROW = 22; // height of a layer's row
export const AXIS = { lo: -40, hi: 22 }; // exponents; what lies outside is told at the edges
const ROOMY = 120; // a column of names this wide has room for words beside the axis
const EDGE = 18; // room for the values at which windows begin
const TOP = EDGE + 42; // and under it for their names
export const BOTTOM = 34; // and below it for the axis, and the handle of the scale on it
export const MEANING = {
  underflowed: { name: "underflow", brief: "0", meaning: "to zero" },
  subnormal: { name: "subnormal", brief: "sub", meaning: "loses bits" },
  normal: { name: "normal", brief: "normal", meaning: "full precision" },
  overflowed: { name: "overflow", brief: "inf", meaning: "to inf" },
};

// --- fate(shift(histogram, k), format) of labkit.instrument ------------------------------------------------------------

export function fateOf(exponent, limits) {
  if (exponent < limits.survives_from) return "underflowed";
  if (exponent < limits.emin) return "subnormal";
  return exponent <= limits.emax ? "normal" : "overflowed";
}

export function fractions(row, log2Scale, limits) {
  const sums = { underflowed: 0, subnormal: 0, normal: 0, overflowed: 0 };
  row.counts.forEach((count, i) => (sums[fateOf(row.lo + i + log2Scale, limits)] += count));
  if (row.total > 0) for (const fate of FATES) sums[fate] /= row.total;
  return sums;
}

export function prepared(rows) {
  return rows.map((row) => {
    const total = row.counts.reduce((a, b) => a + b, 0);
    return { ...row, total, peak: Math.max(...row.counts, 1) };
  });
}

// --- drawing ----------------------------------------------------------------------------------------------------------

export function plot(width, { element, grown }) {
  const [left, numbers] = ["left", "right"].map(
    (side) => parseFloat(getComputedStyle(element)[`padding-${side}`]) / grown,
  );
  const right = width - numbers;
  const binade = (right - left) / (AXIS.hi - AXIS.lo);
  return { width, left, right, binade, x: (exponent) => left + (exponent - AXIS.lo) * binade };
}

// Where the handle stands at scale 1: under the highest bar, with which it moves; far enough left for the whole way.
export function anchorOf(row, most) {
  const highest = row.counts.includes(row.peak) ? row.lo + row.counts.indexOf(row.peak) : AXIS.lo;
  return Math.min(AXIS.hi - most, Math.max(AXIS.lo, highest)) + 0.5;
}

function clampToAxis(exponent) {
  return Math.min(AXIS.hi, Math.max(AXIS.lo, exponent));
}

function zones(limits) {
  const edges = [-Infinity, limits.survives_from, limits.emin, limits.emax + 1, Infinity].map(
    clampToAxis,
  );
  return FATES.map((fate, i) => ({ fate, from: edges[i], to: edges[i + 1] })).filter(
    (zone) => zone.to > zone.from,
  );
}

export function drawZones(pen, area, limits, palette, top, bottom) {
  for (const { fate, from, to } of zones(limits)) {
    pen.globalAlpha = fate === "normal" ? 0.09 : 0.14;
    pen.fillStyle = palette[fate];
    pen.fillRect(area.x(from), top, area.x(to) - area.x(from), bottom - top);
  }
  pen.globalAlpha = 1;
  for (const { from } of zones(limits).slice(1)) {
    const x = Math.round(area.x(from)) + 0.5;
    inkLine(
      { pen },
      [
        [x, top],
        [x, bottom],
      ],
      palette.ink2,
      1,
      { dash: [3, 3], alpha: 0.6 },
    );
  }
}

export function drawBars(pen, area, row, log2Scale, limits, fills, palette, bottom, height, gap) {
  for (let i = 0; i < row.counts.length; i++) {
    const exponent = row.lo + i + log2Scale;
    if (!row.counts[i] || exponent < AXIS.lo || exponent >= AXIS.hi) continue;
    const tall = Math.max(1, (height * row.counts[i]) / row.peak);
    const x = area.x(exponent) + gap / 2;
    pen.fillStyle = fills[fateOf(exponent, limits)];
    pen.fillRect(x, bottom - tall, area.binade - gap, tall);
    pen.strokeStyle = palette.ink;
    pen.lineWidth = 1;
    pen.globalAlpha = 0.3;
    pen.strokeRect(x + 0.5, bottom - tall + 0.5, area.binade - gap - 1, tall);
    pen.globalAlpha = 1;
  }
}

function drawGhost(pen, area, row, palette, bottom, height) {
  const stairs = row.counts.flatMap((count, i) => {
    if (row.lo + i < AXIS.lo || row.lo + i >= AXIS.hi) return [];
    const y = Math.round(bottom - (height * count) / row.peak) + 0.5;
    return [
      [area.x(row.lo + i), y],
      [area.x(row.lo + i + 1), y],
    ];
  });
  const ends = [Math.max(row.lo, AXIS.lo), clampToAxis(row.lo + row.counts.length)].map((e) => [
    area.x(e),
    bottom,
  ]);
  inkLine({ pen }, [ends[0], ...stairs, ends[1]], palette.ink2, 1, { alpha: 0.55 });
  const highest = row.lo + row.counts.indexOf(row.peak);
  if (highest - AXIS.lo > 3)
    inkText({ pen, tint: palette }, "unscaled", area.x(highest + 0.5), bottom - height - 5, {
      align: "center",
    });
}

function drawShares(pen, area, row, palette, bottom, height) {
  const top = row.total ? (100 * row.peak) / row.total : 1;
  const step = niceStep(top / 3);
  const said = (text, y, base) =>
    inkText({ pen, tint: palette }, text, area.left - 8, y, { align: "right", base });
  for (let share = 0; share <= top; share += step) {
    const y = Math.round(bottom - (height * share) / top) + 0.5;
    said(`${Number(share.toPrecision(2))}%`, y, "middle");
    if (share)
      inkLine(
        { pen },
        [
          [area.left, y],
          [area.right, y],
        ],
        palette.line2,
        1,
      );
  }
  if (area.left < ROOMY) return;
  said("share of", EDGE + 17);
  said("non-zero ones", EDGE + 33);
}

function drawAxis(pen, area, palette, bottom) {
  pen.fillStyle = palette.ink2;
  inkLine(
    { pen },
    [
      [area.left, bottom + 0.5],
      [area.right, bottom + 0.5],
    ],
    palette.ink2,
    1,
  );
  const every = area.binade < 8 ? 16 : 8;
  for (let e = AXIS.lo; e <= AXIS.hi; e += 4) {
    const x = Math.round(area.x(e)) + 0.5;
    inkLine(
      { pen },
      [
        [x, bottom],
        [x, bottom + (e % every === 0 ? 6 : 3)],
      ],
      palette.ink2,
      1,
    );
  }
  for (let e = AXIS.lo; e <= AXIS.hi; e += 1)
    if (e % every === 0) inkRich(pen, power(e), area.x(e), bottom + 28, "center");
}

function drawZoneNames(pen, area, limits, palette) {
  const { size } = palette;
  pen.fillStyle = palette.ink2;
  for (const { fate, from } of zones(limits).slice(1)) {
    inkRich(
      pen,
      fate === "overflowed" ? decimal(limits.overflows_from) : power(from),
      area.x(from),
      EDGE - 5,
      "center",
    );
  }
  for (const { fate, from, to } of zones(limits)) {
    const { name, brief, meaning } = MEANING[fate];
    const [middle, room] = [(area.x(from) + area.x(to)) / 2, area.x(to) - area.x(from)];
    const fits = (text) => pen.measureText(text).width < room - 4;
    pen.textAlign = "center";
    pen.font = `600 ${size}px ${palette.font}`;
    pen.fillStyle = palette.ink;
    pen.fillText(fits(name) ? name : brief, middle, EDGE + 17);
    pen.font = `${size - 1}px ${palette.font}`;
    pen.fillStyle = palette.ink2;
    if (fits(meaning)) pen.fillText(meaning, middle, EDGE + 33);
  }
}

function drawOutside(pen, area, row, log2Scale, palette, bottom) {
  let [below, above] = [0, 0];
  row.counts.forEach((count, i) => {
    if (row.lo + i + log2Scale < AXIS.lo) below += count;
    if (row.lo + i + log2Scale >= AXIS.hi) above += count;
  });
  const said = (text, x, align) =>
    inkText({ pen, tint: palette }, text, x, bottom + 28, { fill: palette.ink, align });
  if (below)
    said(
      `${percent(below / row.total)}${area.left < ROOMY ? "" : " below"} \u25c2`,
      area.left - 22,
      "right",
    );
  if (above) said(`\u25b8 ${percent(above / row.total)}`, area.right + 4, "left");
}

// --- the whole picture, and one row for each layer ----------------------------------------------------------------------

export function drawHistogram(pen, area, row, log2Scale, limits, palette, height) {
  const bottom = height - BOTTOM;
  const tall = bottom - TOP - 14;
  const fills = Object.fromEntries(FATES.map((fate) => [fate, pattern(pen, fate, palette)]));
  pen.font = `${palette.size - 1}px ${palette.font}`;
  drawZones(pen, area, limits, palette, EDGE, bottom);
  drawShares(pen, area, row, palette, bottom, tall);
  if (log2Scale) drawGhost(pen, area, row, palette, bottom, tall);
  drawBars(pen, area, row, log2Scale, limits, fills, palette, bottom, tall, 2);
  drawAxis(pen, area, palette, bottom);
  drawOutside(pen, area, row, log2Scale, palette, bottom);
  drawZoneNames(pen, area, limits, palette);
}

export function drawLayers(pen, area, layers, log2Scale, limits, palette, height) {
  drawZones(pen, area, limits, palette, 0, height);
  layers.forEach((one, i) => {
    const bottom = ROW * (i + 1) - 3;
    drawBars(pen, area, one, log2Scale, limits, palette, palette, bottom, ROW - 6, 1);
    inkLine(
      { pen },
      [
        [area.left, bottom + 0.5],
        [area.right, bottom + 0.5],
      ],
      palette.line,
      1,
    );
  });
}

// Drawing with a pen on axes: lines, words and frames that every figure of runs shares.
//
// Every function draws one thing and keeps nothing.

import { inkRich, pattern } from "./canvas.js";
import { decimal, power } from "./number_words.js";
import { wordColour } from "./theme.js";

/** @import { Pen } from "./canvas.js" */
/** @import { Fate, Palette } from "./theme.js" */

/** @typedef {readonly [x: number, y: number]} Point in pixels of the picture; y NaN: a gap */

/**
 * What text and lines need.
 *
 * @typedef {object} Ink
 * @property {Pen} pen
 * @property {Palette} tint The colours of the theme.
 */

/**
 * An axis of steps, first + 1 to first + total, from left to right.
 *
 * @typedef {object} StepAxis
 * @property {number} first
 * @property {number} total
 * @property {number} left The axis' ends, in pixels.
 * @property {number} end
 * @property {number} width Of the picture.
 * @property {(step: number) => number} x Where the middle of a step is.
 */

/** @typedef {Ink & StepAxis} StepPlot */

/** @typedef {{ top: number, height: number }} Panel in pixels */

// --- axes ----------------------------------------------------------------------------------------

const LOSS_DIGITS = [1, 1.5, 2, 3, 4, 5, 6, 8, 10];

/**
 * Round numbers between two ends: the fewer the longer the axis is.
 *
 * @param {number} low
 * @param {number} high
 */
function logTicks(low, high) {
  let digits = LOSS_DIGITS.slice(0, -1);
  if (high / low > 8) digits = [1, 2, 5];
  if (high / low > 500) digits = [1];
  const ticks = [];
  for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++) {
    for (const digit of digits) {
      const value = Number(`${digit}e${e}`);
      if (value >= low * 0.999 && value <= high * 1.001) ticks.push(value);
    }
  }
  return ticks;
}

/**
 * From the smallest to the largest loss, outwards to the next round number: the axis moves seldom,
 * and then visibly.
 *
 * @param {...readonly number[]} curves
 * @returns {[low: number, high: number]}
 */
export function lossRange(...curves) {
  let low = Infinity;
  let high = 0;
  for (const curve of curves) {
    for (const loss of curve) {
      if (!Number.isFinite(loss) || loss <= 0) continue;
      low = Math.min(low, loss);
      high = Math.max(high, loss);
    }
  }
  if (high === 0) return [0.01, 1];
  /** @param {number} x */
  const ladder = (x) => LOSS_DIGITS.map((m) => Number(`${m}e${Math.floor(Math.log10(x))}`));
  const below = ladder(low * 0.97).filter((value) => value <= low * 0.97);
  const above = ladder(high * 1.03).filter((value) => value >= high * 1.03);
  return [Math.max(...below), Math.min(...above)];
}

/**
 * The smallest of some digits times a power of ten that is not below `rough`.
 *
 * @param {number} rough
 * @param {readonly number[]} [digits] ends with 10, so that there is one
 */
export function niceStep(rough, digits = [1, 2, 5, 10]) {
  const unit = 10 ** Math.floor(Math.log10(rough));
  const steps = digits.map((digit) => digit * unit);
  return steps.find((step) => step >= rough) ?? 10 * unit;
}

/** @param {number} total */
function stepTicks(total) {
  const every = Math.max(1, niceStep(total / 5));
  return Array.from({ length: Math.floor(total / every) + 1 }, (_, i) => i * every);
}

/**
 * The place of an axis of steps in a picture.
 *
 * @typedef {object} StepRange
 * @property {number} total
 * @property {number} [first]
 * @property {number} [left] Room beside the axis, in pixels.
 * @property {number} [right]
 */

export const SIDE = 52; // room beside an axis of steps for its numbers, in pixels

/**
 * An axis of steps in a picture of a width.
 *
 * @param {Pen} pen
 * @param {number} width
 * @param {Palette} tint
 * @param {StepRange} range
 * @returns {StepPlot}
 */
export function stepPlot(pen, width, tint, { first = 0, total, left = SIDE, right = SIDE }) {
  const end = width - right;
  /** @param {number} step */
  const x = (step) => left + ((end - left) * (step - first)) / total;
  return { pen, tint, first, total, left, end, width, x };
}

/**
 * The step at x of such an axis in a picture, or null.
 *
 * @param {{ width: number }} picture
 * @param {number} x
 * @param {StepRange} range
 */
export function stepAt({ width }, x, { first = 0, total, left = SIDE, right = SIDE }) {
  const step = first + Math.round(((x - left) / (width - left - right)) * total);
  return x >= left && x <= width - right && step >= 1 ? step : null;
}

/**
 * Where a value lies in a panel, the lowest at its foot.
 *
 * @param {Panel} panel
 * @param {readonly number[]} range lowest and highest value
 * @returns {(value: number) => number}
 */
export function levelIn({ top, height }, [low, high]) {
  return (value) => top + (height * (high - value)) / (high - low);
}

/**
 * What stands for the width of a step, values[i] in step i + 1; NaN is a gap.
 *
 * @param {StepAxis} axis
 * @param {readonly number[]} values
 * @param {(value: number) => number} y
 */
export function stairs(axis, values, y) {
  /** @type {Point[]} */
  const points = [];
  const end = Math.min(values.length, axis.first + axis.total);
  for (let i = axis.first; i < end; i++) {
    points.push([Math.max(axis.left, axis.x(i + 0.5)), y(values[i])]);
    points.push([Math.min(axis.end, axis.x(i + 1.5)), y(values[i])]);
  }
  return points;
}

// --- ink -----------------------------------------------------------------------------------------

/**
 * How a text looks.
 *
 * @typedef {object} TextStyle
 * @property {string} [fill]
 * @property {CanvasTextAlign} [align]
 * @property {CanvasTextBaseline} [base]
 * @property {boolean} [bold]
 * @property {boolean} [halo] Whether the surface's colour is around it.
 * @property {number} [most] Where the text is wider, it ends before its last comma or colon.
 */

/**
 * Write a text in the theme's type.
 *
 * @param {Ink} ink
 * @param {string} whole
 * @param {number} x
 * @param {number} y
 * @param {TextStyle} [style]
 * @returns {number} its width
 */
export function inkText({ pen, tint }, whole, x, y, style = {}) {
  pen.font = `${style.bold ? "600 " : ""}${tint.size - 1}px ${tint.font}`;
  const words = shortened(pen, whole, style.most ?? Infinity);
  pen.textAlign = style.align ?? "left";
  pen.textBaseline = style.base ?? "alphabetic";
  if (style.halo) {
    pen.strokeStyle = tint.surface;
    pen.lineWidth = 4;
    pen.lineJoin = "round";
    pen.strokeText(words, x, y);
  }
  pen.fillStyle = wordColour(style.fill ?? tint.ink2, tint);
  pen.fillText(words, x, y);
  return pen.measureText(words).width;
}

/**
 * @param {Pen} pen
 * @param {string} whole
 * @param {number} most
 */
function shortened(pen, whole, most) {
  let words = whole;
  while (pen.measureText(words).width > most && /[,:] /.test(words)) {
    words = words.slice(0, Math.max(words.lastIndexOf(", "), words.lastIndexOf(": ")));
  }
  return words;
}

/**
 * Draw a line; where a point has no y it is interrupted.
 *
 * @param {Pick<Ink, "pen">} ink
 * @param {readonly Point[]} points
 * @param {string} colour
 * @param {number} width
 * @param {{ dash?: number[], alpha?: number }} [style]
 */
export function inkLine({ pen }, points, colour, width, { dash = [], alpha = 1 } = {}) {
  pen.strokeStyle = colour;
  pen.lineWidth = width;
  pen.globalAlpha = alpha;
  pen.lineCap = "round";
  pen.lineJoin = "round";
  pen.setLineDash(dash);
  pen.beginPath();
  let down = false;
  for (const [x, y] of points) {
    const here = Number.isFinite(y);
    if (here && down) pen.lineTo(x, y);
    else if (here) {
      pen.moveTo(x, y);
      pen.lineTo(x + 0.01, y); // a single step is a dot
    }
    down = here;
  }
  pen.stroke();
  pen.setLineDash([]);
  pen.globalAlpha = 1;
}

/**
 * Draw a straight line from one place to another.
 *
 * @param {Pick<Ink, "pen">} ink
 * @param {Point} from
 * @param {Point} to
 * @param {string} colour
 * @param {number} width
 * @param {{ dash?: number[], alpha?: number }} [style]
 */
export function inkSegment(ink, from, to, colour, width, style) {
  inkLine(ink, [from, to], colour, width, style);
}

/**
 * A segment with a head at its end.
 *
 * @param {Pick<Ink, "pen">} ink
 * @param {Point} from
 * @param {Point} to
 * @param {string} colour
 * @param {number} width
 */
export function inkArrow(ink, from, to, colour, width) {
  const angle = Math.atan2(to[1] - from[1], to[0] - from[0]);
  /** @type {(turn: number) => Point} */
  const barb = (turn) => [to[0] - 6 * Math.cos(angle + turn), to[1] - 6 * Math.sin(angle + turn)];
  inkSegment(ink, from, to, colour, width);
  inkLine(ink, [barb(0.5), to, barb(-0.5)], colour, width);
}

/**
 * Fill what lies between a line and its foot.
 *
 * @param {Pick<Ink, "pen">} ink
 * @param {readonly Point[]} points
 * @param {number} foot
 * @param {string} colour
 */
export function inkArea({ pen }, points, foot, colour) {
  const last = points[points.length - 1];
  pen.fillStyle = colour;
  pen.globalAlpha = 0.16;
  pen.beginPath();
  pen.moveTo(points[0][0], foot);
  for (const [x, y] of points) pen.lineTo(x, y);
  pen.lineTo(last[0], foot);
  pen.fill();
  pen.globalAlpha = 1;
}

/**
 * @param {Pick<Ink, "pen">} ink
 * @param {number} x
 * @param {number} y
 * @param {number} r
 * @param {string} colour
 * @param {number} [width]
 */
export function inkCross(ink, x, y, r, colour, width = 2) {
  /** @type {Point[][]} */
  const strokes = [
    [
      [x - r, y - r],
      [x + r, y + r],
    ],
    [
      [x + r, y - r],
      [x - r, y + r],
    ],
  ];
  for (const stroke of strokes) inkLine(ink, stroke, colour, width);
}

/**
 * @param {Pick<Ink, "pen">} ink
 * @param {number} x
 * @param {number} y
 * @param {number} r
 * @param {string} colour
 */
export function inkDot({ pen }, x, y, r, colour) {
  pen.fillStyle = colour;
  pen.beginPath();
  pen.arc(x, y, r, 0, 2 * Math.PI);
  pen.fill();
}

/**
 * A ring stands for what comes next.
 *
 * @param {Ink} ink
 * @param {number} x
 * @param {number} y
 * @param {string} colour
 */
export function inkRing({ pen, tint }, x, y, colour) {
  pen.beginPath();
  pen.arc(x, y, 4, 0, 2 * Math.PI);
  pen.fillStyle = tint.surface;
  pen.fill();
  pen.strokeStyle = colour;
  pen.lineWidth = 2;
  pen.stroke();
}

// --- panels --------------------------------------------------------------------------------------

/**
 * The frame of a panel: its title, and a line and a label for each tick.
 *
 * @param {StepPlot} plot
 * @param {Panel} panel
 * @param {string} title
 * @param {readonly (readonly [value: number, label: string | number])[]} ticks
 *   a number as a label is an exponent of 2
 * @param {(value: number) => number} y
 * @returns {number} the title's width
 */
export function inkFrame(plot, { top, height }, title, ticks, y) {
  const { pen, tint, left, end } = plot;
  for (const [value, label] of ticks) {
    const at = Math.round(y(value)) + 0.5;
    inkLevel(plot, at, tint.line2, 0.75);
    if (typeof label === "string") {
      inkText(plot, label, left - 8, at, { align: "right", base: "middle" });
    } else {
      pen.fillStyle = tint.ink2;
      pen.font = `${tint.size - 1}px ${tint.font}`;
      inkRich(pen, power(label), left - 8, at + 4, "right");
    }
  }
  inkLevel(plot, Math.round(top + height) + 0.5, tint.line, 1);
  const most = plot.width - left;
  return inkText(plot, title, left, top - 12, { fill: tint.ink, bold: true, halo: true, most });

  /**
   * @param {StepPlot} along
   * @param {number} at
   * @param {string} colour
   * @param {number} alpha
   */
  function inkLevel(along, at, colour, alpha) {
    /** @type {Point[]} */
    const ends = [
      [left, at],
      [end, at],
    ];
    inkLine(along, ends, colour, 1, { alpha });
  }
}

/**
 * Labels move as little as needed to stand apart, between two ends.
 *
 * @param {readonly number[]} ys
 * @param {number} apart
 * @param {number} [low]
 * @param {number} [high]
 * @returns {number[]} where each goes
 */
export function spreadLabels(ys, apart, low = -Infinity, high = Infinity) {
  const order = ys.map((_, i) => i).sort((i, j) => ys[i] - ys[j]);
  // Groups of labels that touch, as [middle, how many]: a new one joins its neighbour until it has
  // room.
  /** @type {[middle: number, count: number][]} */
  const groups = [];
  for (const i of order) {
    groups.push([ys[i], 1]);
    while (groups.length > 1) {
      const [[other, m], [middle, n]] = groups.slice(-2);
      if (middle - other >= (apart * (n + m)) / 2) break;
      groups.splice(-2, 2, [(middle * n + other * m) / (n + m), n + m]);
    }
  }
  const placed = groups.flatMap(([middle, n]) => {
    const half = (apart * (n - 1)) / 2;
    const inside = Math.min(high - half, Math.max(low + half, middle));
    return Array.from({ length: n }, (_, k) => inside - half + k * apart);
  });
  /** @type {number[]} */
  const found = [];
  for (const [k, i] of order.entries()) found[i] = placed[k];
  return found;
}

/** @typedef {{ name: string, fill: string, x: number, y: number }} CurveEnd */

/**
 * Names at the ends of curves, which stand apart.
 *
 * @param {Ink} ink
 * @param {readonly CurveEnd[]} ends
 * @param {number} apart
 * @param {number} [low]
 * @param {number} [high]
 */
export function inkNames(ink, ends, apart, low, high) {
  const wanted = ends.map(({ y }) => y);
  const ys = spreadLabels(wanted, apart, low, high);
  for (const [i, { name, fill, x }] of ends.entries()) {
    inkText(ink, name, x, ys[i], { fill, bold: true, base: "middle", halo: true });
  }
}

/**
 * The panel of losses: a logarithmic axis that has room for all of them.
 *
 * @param {StepPlot} plot
 * @param {Panel} panel
 * @param {string} title
 * @param {readonly (readonly number[])[]} curves
 * @returns {(loss: number) => number} where a loss lies
 */
export function inkLosses(plot, panel, title, curves) {
  const [low, high] = lossRange(...curves);
  /** @param {number} loss */
  const y = (loss) => {
    if (!Number.isFinite(loss)) return NaN;
    const share = Math.log(high / Math.max(loss, low)) / Math.log(high / low);
    return panel.top + panel.height * share;
  };
  /** @type {[number, string][]} */
  const ticks = logTicks(low, high).map((value) => [value, decimal(value)]);
  inkFrame(plot, panel, title, ticks, y);
  return y;
}

/**
 * What lies beyond an edge: overflow above it, underflow below it, as far as the panel goes.
 *
 * @param {StepPlot} plot
 * @param {Panel} panel
 * @param {readonly Point[]} edge
 * @param {Fate} fate
 */
export function inkZone(plot, { top, height }, edge, fate) {
  const { pen, tint, left, end } = plot;
  if (!edge.length) return;
  const far = fate === "overflowed" ? top : top + height;
  const last = edge[edge.length - 1];
  pen.save();
  pen.beginPath();
  pen.rect(left, top, end - left, height);
  pen.clip();
  pen.beginPath();
  pen.moveTo(edge[0][0], far);
  for (const [x, y] of edge) pen.lineTo(x, y);
  pen.lineTo(last[0], far);
  pen.globalAlpha = 0.34;
  pen.fillStyle = pattern(pen, fate, tint);
  pen.fill();
  inkLine(plot, edge, tint[fate], 1.5);
  pen.restore();
}

/**
 * The window of good scales, as log2 for each step.
 *
 * @typedef {object} ScaleWindow
 * @property {readonly number[]} top From where each step overflows.
 * @property {readonly number[]} low From where each step keeps its gradients.
 */

/**
 * @param {StepPlot} plot
 * @param {Panel} panel
 * @param {ScaleWindow} window
 * @param {(value: number) => number} y
 */
export function inkWindow(plot, panel, { top, low }, y) {
  inkZone(plot, panel, stairs(plot, top, y), "overflowed");
  inkZone(plot, panel, stairs(plot, low, y), "underflowed");
}

/**
 * @param {StepPlot} plot
 * @param {Panel} panel
 */
export function inkZoneNames(plot, { top, height }) {
  const { tint, left, end } = plot;
  /** @type {TextStyle} */
  const style = { fill: tint.ink, align: "right", halo: true, most: end - left - 16 };
  inkText(plot, "overflow: the step is skipped", end - 8, top + 17, style);
  const lost = "underflow: more than 1% of the gradients are lost";
  inkText(plot, lost, end - 8, top + height - 10, style);
}

/**
 * Above a panel, on the right: how many crosses there are in it.
 *
 * @param {StepPlot} plot
 * @param {Panel} panel
 * @param {string} words
 * @param {string} colour
 */
export function inkSkips(plot, { top }, words, colour) {
  const wide = inkText(plot, words, plot.end, top - 12, { align: "right" });
  inkCross(plot, plot.end - wide - 11, top - 16, 4, colour, 1.75);
}

/**
 * The axis of steps, under the lowest panel.
 *
 * @param {StepPlot} plot
 * @param {number} bottom
 */
export function inkSteps(plot, bottom) {
  const { tint, first, total, end } = plot;
  let free = end + 20; // further right where the last number is a long one
  for (const tick of stepTicks(total)) {
    const step = first + tick;
    const at = Math.round(plot.x(step)) + 0.5;
    /** @type {Point[]} */
    const mark = [
      [at, bottom],
      [at, bottom + 4],
    ];
    inkLine(plot, mark, tint.line, 1);
    const words = step.toLocaleString("en-US");
    const wide = inkText(plot, words, at, bottom + 9, { align: "center", base: "top" });
    free = Math.max(free, at + wide / 2 + 6);
  }
  inkText(plot, "step", free, bottom + 9, { base: "top" });
}

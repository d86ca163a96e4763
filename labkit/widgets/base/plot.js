// Axes, lines, texts and frames that all figures of trainings share. No function keeps state.

import { inkRich, pattern } from "./canvas.js";
import { decimal, power } from "./number_words.js";
import { wordColour } from "./theme.js";

/** @import { Pen } from "./canvas.js" */
/** @import { Fate, Palette } from "./theme.js" */

/** @typedef {readonly [x: number, y: number]} Point A point in pixels; a y of NaN is a gap. */

/**
 * What all drawing functions need.
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
 * @property {number} left The left end of the axis, in pixels.
 * @property {number} end The right end of the axis, in pixels.
 * @property {number} width The width of the picture.
 * @property {(step: number) => number} x Return the x of the middle of a step.
 */

/** @typedef {Ink & StepAxis} StepPlot */

/** @typedef {{ top: number, height: number }} Panel The place of a panel, in pixels. */

// --- axes ----------------------------------------------------------------------------------------

// The first digits of the round numbers at which an axis of losses may end, up to the next decade.
const LOSS_DIGITS = [1, 1.5, 2, 3, 4, 5, 6, 8, 10];

/**
 * Return round numbers between two ends; a longer axis has fewer per decade.
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
 * Return the range of an axis of losses, from round number to round number. So the axis moves
 * seldom while a training runs, and then visibly.
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
 * Return the smallest number that is at least `rough` and one of `digits` times a power of ten.
 *
 * @param {number} rough
 * @param {readonly number[]} [digits] ascending; the last is 10
 */
export function niceStep(rough, digits = [1, 2, 5, 10]) {
  const unit = 10 ** Math.floor(Math.log10(rough));
  const steps = digits.map((digit) => digit * unit);
  return steps.find((step) => step >= rough) ?? 10 * unit;
}

/**
 * Return about five round steps from 0 to `total`.
 *
 * @param {number} total
 */
function stepTicks(total) {
  const every = Math.max(1, niceStep(total / 5));
  return Array.from({ length: Math.floor(total / every) + 1 }, (_, i) => i * every);
}

/**
 * The steps of an axis, and the space beside it.
 *
 * @typedef {object} StepRange
 * @property {number} total The number of steps.
 * @property {number} [first] The step before the first one; 0 by default.
 * @property {number} [left] The space on the left of the axis, in pixels.
 * @property {number} [right] The space on the right of the axis, in pixels.
 */

// The space beside an axis of steps for the numbers of the other axis, in pixels.
export const SIDE = 52;

/**
 * Return an axis of steps in a picture of a given width.
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
 * Return the step at x of an axis of steps; null beside the axis.
 *
 * @param {{ width: number }} picture
 * @param {number} x
 * @param {StepRange} range
 */
export function stepAt({ width }, x, { first = 0, total, left = SIDE, right = SIDE }) {
  const step = first + Math.round(((x - left) / (width - left - right)) * total);
  return x >= left && x <= width - right && step > first ? step : null;
}

/**
 * Return the function from a value to its y in a panel; the lowest value is at the bottom.
 *
 * @param {Panel} panel
 * @param {readonly number[]} range lowest and highest value
 * @returns {(value: number) => number}
 */
export function levelIn({ top, height }, [low, high]) {
  return (value) => top + (height * (high - value)) / (high - low);
}

/**
 * Return the points of a line that is level during each step; values[i] belongs to step i + 1.
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

// --- lines and texts -----------------------------------------------------------------------------

/**
 * The style of a text.
 *
 * @typedef {object} TextStyle
 * @property {string} [fill]
 * @property {CanvasTextAlign} [align]
 * @property {CanvasTextBaseline} [base]
 * @property {boolean} [bold]
 * @property {boolean} [halo] Whether the text has an outline in the surface's colour.
 * @property {number} [most] The largest width; a wider text is cut at a comma or colon.
 */

/**
 * Write a text in the theme's font.
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
 * Cut a text at its last comma or colon until it fits, or has neither.
 *
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
 * Draw a line, with gaps at points whose y is NaN.
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
    const visible = Number.isFinite(y);
    if (visible && down) {
      pen.lineTo(x, y);
    } else if (visible) {
      pen.moveTo(x, y);
      // With round caps, this makes a dot of a point between two gaps.
      pen.lineTo(x + 0.01, y);
    }
    down = visible;
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

// The length of the two lines of an arrow head, in pixels.
const ARROW_HEAD = 6;

/**
 * Draw a straight line with an arrow head at its end.
 *
 * @param {Pick<Ink, "pen">} ink
 * @param {Point} from
 * @param {Point} to
 * @param {string} colour
 * @param {number} width
 */
export function inkArrow(ink, from, to, colour, width) {
  const [x, y] = to;
  const direction = Math.atan2(y - from[1], x - from[0]);
  /** @type {(angle: number) => Point} */
  const barb = (angle) => [x - ARROW_HEAD * Math.cos(angle), y - ARROW_HEAD * Math.sin(angle)];
  inkSegment(ink, from, to, colour, width);
  inkLine(ink, [barb(direction + 0.5), to, barb(direction - 0.5)], colour, width);
}

/**
 * Fill the area between a line and a horizontal line at `foot`.
 *
 * @param {Pick<Ink, "pen">} ink
 * @param {readonly Point[]} points at least one
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
 * Draw a diagonal cross.
 *
 * @param {Pick<Ink, "pen">} ink
 * @param {number} x
 * @param {number} y
 * @param {number} r half of its width, in pixels
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
 * Draw a filled circle.
 *
 * @param {Pick<Ink, "pen">} ink
 * @param {number} x
 * @param {number} y
 * @param {number} r the radius in pixels
 * @param {string} colour
 */
export function inkDot({ pen }, x, y, r, colour) {
  pen.fillStyle = colour;
  pen.beginPath();
  pen.arc(x, y, r, 0, 2 * Math.PI);
  pen.fill();
}

/**
 * Draw a ring, which marks the next point of a curve.
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
 * Draw the frame of a panel: its title, and a line and a label for each tick.
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
    // Lines of one pixel are sharp in the middle of a pixel.
    const tickY = Math.round(y(value)) + 0.5;
    inkSegment(plot, [left, tickY], [end, tickY], tint.line2, 1, { alpha: 0.75 });
    if (typeof label === "string") {
      inkText(plot, label, left - 8, tickY, { align: "right", base: "middle" });
    } else {
      pen.fillStyle = tint.ink2;
      pen.font = `${tint.size - 1}px ${tint.font}`;
      inkRich(pen, power(label), left - 8, tickY + 4, "right");
    }
  }
  const bottom = Math.round(top + height) + 0.5;
  inkSegment(plot, [left, bottom], [end, bottom], tint.line, 1);
  const most = plot.width - left;
  return inkText(plot, title, left, top - 12, { fill: tint.ink, bold: true, halo: true, most });
}

/**
 * Move labels as little as needed so that they do not overlap, between two ends.
 *
 * @param {readonly number[]} ys
 * @param {number} apart the least distance of two labels
 * @param {number} [low]
 * @param {number} [high]
 * @returns {number[]} the new y of each label
 */
export function spreadLabels(ys, apart, low = -Infinity, high = Infinity) {
  const order = ys.map((_, i) => i).sort((i, j) => ys[i] - ys[j]);
  /**
   * Return the middle of a group of labels between the ends.
   *
   * @param {number} middle the mean of the ys that the labels want
   * @param {number} count
   */
  const inside = (middle, count) => {
    const half = (apart * (count - 1)) / 2;
    return Math.min(high - half, Math.max(low + half, middle));
  };
  // Groups of labels that touch. From top to bottom, each label is a new group, which merges with
  // the group above it until the two, between the ends, no longer overlap.
  /** @type {[middle: number, count: number][]} */
  const groups = [];
  for (const i of order) {
    groups.push([ys[i], 1]);
    while (groups.length > 1) {
      const [[other, m], [middle, n]] = groups.slice(-2);
      if (inside(middle, n) - inside(other, m) >= (apart * (n + m)) / 2) break;
      groups.splice(-2, 2, [(middle * n + other * m) / (n + m), n + m]);
    }
  }
  const placed = groups.flatMap(([middle, n]) => {
    const first = inside(middle, n) - (apart * (n - 1)) / 2;
    return Array.from({ length: n }, (_, k) => first + k * apart);
  });
  /** @type {number[]} */
  const newYs = [];
  for (const [k, i] of order.entries()) newYs[i] = placed[k];
  return newYs;
}

/** @typedef {{ name: string, fill: string, x: number, y: number }} CurveEnd */

/**
 * Write names at the ends of curves so that they do not overlap.
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
 * Draw the panel of losses, whose logarithmic axis holds all curves.
 *
 * @param {StepPlot} plot
 * @param {Panel} panel
 * @param {string} title
 * @param {readonly (readonly number[])[]} curves
 * @returns {(loss: number) => number} the function from a loss to its y
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
 * Fill a panel beyond an edge: above it for overflow, below it for underflow.
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
  // An edge beyond the panel, such as one at infinity, is drawn just outside it.
  const drawn = edge.map(([x, y]) => {
    return /** @type {Point} */ ([x, Math.min(top + height + 4, Math.max(top - 4, y))]);
  });
  pen.save();
  pen.beginPath();
  pen.rect(left, top, end - left, height);
  pen.clip();
  pen.beginPath();
  pen.moveTo(drawn[0][0], far);
  for (const [x, y] of drawn) pen.lineTo(x, y);
  pen.lineTo(drawn[drawn.length - 1][0], far);
  pen.globalAlpha = 0.34;
  pen.fillStyle = pattern(pen, fate, tint);
  pen.fill();
  inkLine(plot, drawn, tint[fate], 1.5);
  pen.restore();
}

/**
 * The window of good scales, as log2 for each step.
 *
 * @typedef {object} ScaleWindow
 * @property {readonly number[]} top The least scale at which each step overflows.
 * @property {readonly number[]} low The least scale at which each step keeps its gradients.
 */

/**
 * Fill the zones of overflow and underflow on both sides of a window.
 *
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
 * Write what happens in the zones of overflow and underflow.
 *
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
 * Write the number of skipped steps above a panel, on the right, behind a cross.
 *
 * @param {StepPlot} plot
 * @param {Panel} panel
 * @param {string} words
 * @param {string} colour
 */
export function inkSkips(plot, { top }, words, colour) {
  const textWidth = inkText(plot, words, plot.end, top - 12, { align: "right" });
  inkCross(plot, plot.end - textWidth - 11, top - 16, 4, colour, 1.75);
}

/**
 * Draw the axis of steps below the lowest panel.
 *
 * @param {StepPlot} plot
 * @param {number} bottom
 */
export function inkSteps(plot, bottom) {
  const { tint, first, total, end } = plot;
  // The word "step" begins here, or farther right if the last number is long.
  let unitX = end + 20;
  for (const tick of stepTicks(total)) {
    const step = first + tick;
    const x = Math.round(plot.x(step)) + 0.5;
    inkSegment(plot, [x, bottom], [x, bottom + 4], tint.line, 1);
    const words = step.toLocaleString("en-US");
    const textWidth = inkText(plot, words, x, bottom + 9, { align: "center", base: "top" });
    unitX = Math.max(unitX, x + textWidth / 2 + 6);
  }
  inkText(plot, "step", unitX, bottom + 9, { base: "top" });
}

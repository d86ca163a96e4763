// Drawing with a pen on axes: lines, words and frames that every figure of runs shares.
//
// A `plot` is {pen, tint, left, end, total, x}: a canvas context, the colours of the theme, the ends of the axis of steps
// in pixels, how many steps there are, and where one lies. Every function draws one thing and keeps nothing.

import { inkRich, pattern } from "./canvas.js";
import { decimal, power } from "./number_words.js";

// --- axes ------------------------------------------------------------------------------------------------------------

const LOSS_DIGITS = [1, 1.5, 2, 3, 4, 5, 6, 8, 10];

// Round numbers between two ends: the fewer the longer the axis is.
function logTicks(low, high) {
  const ticks = [];
  const digits = high / low > 500 ? [1] : high / low > 8 ? [1, 2, 5] : LOSS_DIGITS.slice(0, -1);
  for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++) {
    for (const m of digits) {
      const value = Number(`${m}e${e}`);
      if (value >= low * 0.999 && value <= high * 1.001) ticks.push(value);
    }
  }
  return ticks;
}

// From the smallest to the largest loss, outwards to the next round number: the axis moves seldom, and then visibly.
function lossRange(...curves) {
  let [low, high] = [Infinity, 0];
  for (const curve of curves) {
    for (const loss of curve) {
      if (!Number.isFinite(loss) || loss <= 0) continue;
      low = Math.min(low, loss);
      high = Math.max(high, loss);
    }
  }
  if (high === 0) return [0.01, 1];
  const ladder = (x) => LOSS_DIGITS.map((m) => Number(`${m}e${Math.floor(Math.log10(x))}`));
  low = Math.max(...ladder(low * 0.97).filter((v) => v <= low * 0.97));
  high = Math.min(...ladder(high * 1.03).filter((v) => v >= high * 1.03));
  return [low, high];
}

// The smallest of 1, 2 and 5 times a power of ten that is not below `rough`.
export function niceStep(rough, digits = [1, 2, 5, 10]) {
  const unit = 10 ** Math.floor(Math.log10(rough));
  return digits.map((digit) => digit * unit).find((step) => step >= rough);
}

function stepTicks(total) {
  const every = Math.max(1, niceStep(total / 5));
  return Array.from({ length: Math.floor(total / every) + 1 }, (_, i) => i * every);
}

// Steps first + 1 to first + total, from left to right; a step's middle is at x(step).
export function stepPlot(pen, width, tint, { first = 0, total, left = 52, right = 52 }) {
  const end = width - right;
  return {
    pen,
    tint,
    first,
    total,
    left,
    end,
    width,
    x: (step) => left + ((end - left) * (step - first)) / total,
  };
}

// The step at x of such a plot in a picture, or null.
export function stepAt({ width }, x, { first = 0, total, left = 52, right = 52 }) {
  const step = first + Math.round(((x - left) / (width - left - right)) * total);
  return x >= left && x <= width - right && step >= 1 ? step : null;
}

export const levelIn =
  ({ top, height }, [low, high]) =>
  (e) =>
    top + (height * (high - e)) / (high - low);

// What stands for the width of a step, values[i] in step i + 1; NaN is a gap.
export function stairs(plot, values, y) {
  const points = [];
  for (let i = plot.first; i < Math.min(values.length, plot.first + plot.total); i++) {
    points.push(
      [Math.max(plot.left, plot.x(i + 0.5)), y(values[i])],
      [Math.min(plot.end, plot.x(i + 1.5)), y(values[i])],
    );
  }
  return points;
}

// --- ink ------------------------------------------------------------------------------------------------------------

// `most`: where the text is wider, it ends before its last comma or colon.
export function inkText(
  plot,
  whole,
  x,
  y,
  {
    fill = plot.tint.ink2,
    align = "left",
    base = "alphabetic",
    bold = false,
    halo = false,
    most = Infinity,
  } = {},
) {
  const { pen, tint } = plot;
  pen.font = `${bold ? "600 " : ""}${tint.size - 1}px ${tint.font}`;
  let words = whole;
  while (pen.measureText(words).width > most && /[,:] /.test(words))
    words = words.slice(0, Math.max(words.lastIndexOf(", "), words.lastIndexOf(": ")));
  pen.textAlign = align;
  pen.textBaseline = base;
  if (halo) {
    pen.strokeStyle = tint.surface;
    pen.lineWidth = 4;
    pen.lineJoin = "round";
    pen.strokeText(words, x, y);
  }
  pen.fillStyle = fill;
  pen.fillText(words, x, y);
  return pen.measureText(words).width;
}

export function inkLine(plot, points, colour, width, { dash = [], alpha = 1 } = {}) {
  const { pen } = plot;
  Object.assign(pen, {
    strokeStyle: colour,
    lineWidth: width,
    globalAlpha: alpha,
    lineCap: "round",
    lineJoin: "round",
  });
  pen.setLineDash(dash);
  pen.beginPath();
  let down = false;
  for (const [x, y] of points) {
    if (down && Number.isFinite(y)) pen.lineTo(x, y);
    else if (Number.isFinite(y)) {
      pen.moveTo(x, y);
      pen.lineTo(x + 0.01, y); // a single step is a dot
    }
    down = Number.isFinite(y);
  }
  pen.stroke();
  pen.setLineDash([]);
  pen.globalAlpha = 1;
}

// What lies between a line and its foot.
export function inkArea({ pen }, points, foot, colour) {
  Object.assign(pen, { fillStyle: colour, globalAlpha: 0.16 });
  pen.beginPath();
  pen.moveTo(points[0][0], foot);
  for (const point of points) pen.lineTo(...point);
  pen.lineTo(points.at(-1)[0], foot);
  pen.fill();
  pen.globalAlpha = 1;
}

export function inkCross(plot, x, y, r, colour, width = 2) {
  inkLine(
    plot,
    [
      [x - r, y - r],
      [x + r, y + r],
    ],
    colour,
    width,
  );
  inkLine(
    plot,
    [
      [x + r, y - r],
      [x - r, y + r],
    ],
    colour,
    width,
  );
}

export function inkDot({ pen }, x, y, r, colour) {
  pen.fillStyle = colour;
  pen.beginPath();
  pen.arc(x, y, r, 0, 2 * Math.PI);
  pen.fill();
}

export function inkFrame(plot, { top, height }, title, ticks, y) {
  const { tint, left, end } = plot;
  for (const [value, label] of ticks) {
    const at = Math.round(y(value)) + 0.5;
    inkLine(
      plot,
      [
        [left, at],
        [end, at],
      ],
      tint.line2,
      1,
      { alpha: 0.75 },
    );
    if (typeof label === "string")
      inkText(plot, label, left - 8, at, { align: "right", base: "middle" });
    else {
      Object.assign(plot.pen, { fillStyle: tint.ink2, font: `${tint.size - 1}px ${tint.font}` });
      inkRich(plot.pen, power(label), left - 8, at + 4, "right");
    }
  }
  const bottom = Math.round(top + height) + 0.5;
  inkLine(
    plot,
    [
      [left, bottom],
      [end, bottom],
    ],
    tint.line,
    1,
  );
  return inkText(plot, title, left, top - 12, {
    fill: tint.ink,
    bold: true,
    halo: true,
    most: plot.width - left,
  });
}

// Labels move as little as needed to stand apart, between two ends: the twin of `spread` in labkit/widgets/base/figures.py.
export function spreadLabels(ys, apart, low = -Infinity, high = Infinity) {
  const order = ys.map((_, i) => i).sort((i, j) => ys[i] - ys[j]);
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
  const found = [];
  order.forEach((i, k) => (found[i] = placed[k]));
  return found;
}

// Names at the ends of curves, {name, fill, x, y}, which stand apart.
export function inkNames(plot, ends, apart, low, high) {
  const ys = spreadLabels(
    ends.map(({ y }) => y),
    apart,
    low,
    high,
  );
  ends.forEach(({ name, fill, x }, i) =>
    inkText(plot, name, x, ys[i], { fill, bold: true, base: "middle", halo: true }),
  );
}

// The panel of losses: a logarithmic axis that has room for all of them. Returns where a loss lies.
export function inkLosses(plot, panel, title, curves) {
  const [low, high] = lossRange(...curves);
  const share = (loss) => Math.log(high / Math.max(loss, low)) / Math.log(high / low);
  const y = (loss) => (Number.isFinite(loss) ? panel.top + panel.height * share(loss) : NaN);
  inkFrame(
    plot,
    panel,
    title,
    logTicks(low, high).map((v) => [v, decimal(v)]),
    y,
  );
  return y;
}

// What comes next.
export function inkRing({ pen, tint }, x, y, colour) {
  pen.beginPath();
  pen.arc(x, y, 4, 0, 2 * Math.PI);
  pen.fillStyle = tint.surface;
  pen.fill();
  pen.strokeStyle = colour;
  pen.lineWidth = 2;
  pen.stroke();
}

// What lies beyond an edge: overflow above it, underflow below it, as far as the panel goes.
function inkZone(plot, { top, height }, edge, fate) {
  const { pen, tint, left, end } = plot;
  if (!edge.length) return;
  const far = fate === "overflowed" ? top : top + height;
  pen.save();
  pen.beginPath();
  pen.rect(left, top, end - left, height);
  pen.clip();
  pen.beginPath();
  pen.moveTo(edge[0][0], far);
  for (const [x, y] of edge) pen.lineTo(x, y);
  pen.lineTo(edge.at(-1)[0], far);
  pen.globalAlpha = 0.34;
  pen.fillStyle = pattern(pen, fate, tint);
  pen.fill();
  inkLine(plot, edge, tint[fate], 1.5);
  pen.restore();
}

// The window of good scales: from where each step overflows, and from where it keeps its gradients, as log2.
export function inkWindow(plot, panel, { top, low }, y) {
  inkZone(plot, panel, stairs(plot, top, y), "overflowed");
  inkZone(plot, panel, stairs(plot, low, y), "underflowed");
}

export function inkZoneNames(plot, { top, height }) {
  const style = {
    fill: plot.tint.ink,
    align: "right",
    halo: true,
    most: plot.end - plot.left - 16,
  };
  inkText(plot, "overflow: the step is skipped", plot.end - 8, top + 17, style);
  inkText(
    plot,
    "underflow: more than 1% of the gradients are lost",
    plot.end - 8,
    top + height - 10,
    style,
  );
}

// Above a panel, on the right: how many crosses there are in it.
export function inkSkips(plot, { top }, words, colour) {
  const wide = inkText(plot, words, plot.end, top - 12, { align: "right" });
  inkCross(plot, plot.end - wide - 11, top - 16, 4, colour, 1.75);
}

// The axis of steps, under the lowest panel; it begins at plot.first, or at 0.
export function inkSteps(plot, bottom) {
  const first = plot.first ?? 0;
  let free = plot.end + 20; // further right where the last number is a long one
  for (const step of stepTicks(plot.total).map((tick) => first + tick)) {
    const at = Math.round(plot.x(step)) + 0.5;
    inkLine(
      plot,
      [
        [at, bottom],
        [at, bottom + 4],
      ],
      plot.tint.line,
      1,
    );
    const wide = inkText(plot, step.toLocaleString("en-US"), at, bottom + 9, {
      align: "center",
      base: "top",
    });
    free = Math.max(free, at + wide / 2 + 6);
  }
  inkText(plot, "step", free, bottom + 9, { base: "top" });
}

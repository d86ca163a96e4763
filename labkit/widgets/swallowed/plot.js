// The picture of the swallowed updates: axes, curves, and a name at the end of each.

import { inkLine, inkText, niceStep } from "../base/plot.js";

export const AXES = { left: 62, bottom: 34, top: 16 };
export const LABEL_GAP = 17;
export const LEADER = 20; // from the end of a curve to its name
export const CURVES = [
  { name: "FP32", colour: "fp32", width: 4, dash: [] }, // the broad ones come first, so that others are seen on them
  { name: "FP16", colour: "fp16", width: 2.2, dash: [], casing: 0.6 },
  { name: "BF16", colour: "bf16", width: 7, dash: [] },
  { name: "FP16 + Kahan", colour: "fp16", width: 2, dash: [9, 4] },
  { name: "FP16 + stochastic", colour: "fp16", width: 2, dash: [2, 3] },
  { name: "FP16 + FP32 master", colour: "fp16", width: 2, dash: [11, 3, 2, 3] },
];

// --- axes and labels -------------------------------------------------------------------------------------------------

function roundTicks(low, high, most) {
  const step = niceStep((high - low) / most, [1, 2, 2.5, 5, 10]);
  const ticks = [];
  for (let i = Math.ceil(low / step); i * step <= high; i++) ticks.push(i * step);
  return { ticks, step };
}

function tickText(value, step) {
  let places = 0;
  while (places < 8 && Math.abs(step * 10 ** places - Math.round(step * 10 ** places)) > 1e-6)
    places += 1;
  return (places > 6 ? value.toExponential(1) : value.toFixed(places)).replace("-", "\u2212");
}

export function drawAxes(area) {
  const { pen, tint, left, right, bottom, steps } = area;
  const { ticks, step } = roundTicks(area.low, area.high, 5);
  for (const value of ticks) {
    const y = Math.round(area.y(value)) + 0.5;
    inkLine(
      area,
      [
        [left, y],
        [right, y],
      ],
      tint.line2,
      1,
    );
    inkText(area, tickText(value, step), left - 8, y + 4, { align: "right" });
  }
  inkLine(
    area,
    [
      [left, bottom + 0.5],
      [right, bottom + 0.5],
    ],
    tint.line,
    1,
  );
  const text = (value) => value.toLocaleString("en-US");
  const marks = roundTicks(0, steps, right - left < 320 ? 2 : 4).ticks;
  for (const value of marks)
    inkText(area, text(value), area.x(value), bottom + 18, { align: "center" });
  inkText(area, "updates", right + pen.measureText(text(steps)).width / 2 + 5, bottom + 18);
}

// Only where a curve bends: a thousand points on one line are drawn as one line.
function outline(area, values) {
  const path = new Path2D();
  const last = values.length - 1;
  const x = (i) => area.x((area.steps * i) / last);
  path.moveTo(x(0), area.y(values[0]));
  for (let i = 1; i < last; i++) {
    if (values[i + 1] - values[i] !== values[i] - values[i - 1])
      path.lineTo(x(i), area.y(values[i]));
  }
  path.lineTo(x(last), area.y(values[last]));
  return path;
}

export function drawCurve(area, values, style, faded) {
  const { pen, tint } = area;
  const path = outline(area, values);
  Object.assign(pen, { globalAlpha: faded ? 0.2 : 1, lineCap: "butt" });
  if (style.casing) {
    Object.assign(pen, { strokeStyle: tint.surface, lineWidth: style.width + 2 * style.casing });
    pen.stroke(path);
  }
  Object.assign(pen, { strokeStyle: tint[style.colour], lineWidth: style.width });
  pen.setLineDash(style.dash);
  pen.stroke(path);
  pen.setLineDash([]);
  pen.globalAlpha = 1;
}

export function drawLabel(area, style, end, y, words, faded) {
  const { pen, tint } = area;
  const [x, alpha] = [area.right + LEADER, faded ? 0.5 : 1];
  inkLine(
    area,
    [
      [area.right + 2, area.y(end)],
      [x - 4, y],
    ],
    tint[style.colour],
    1,
    { alpha },
  );
  pen.globalAlpha = alpha;
  const wide = inkText(area, style.name, x, y + 4, { fill: tint[style.colour], bold: true });
  if (area.roomy) inkText(area, words, x + wide + 7, y + 4);
  pen.globalAlpha = 1;
}

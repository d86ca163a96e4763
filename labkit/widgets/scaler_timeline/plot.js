// The picture of a scaler on a trace: the window between underflow and overflow, and the scale that wanders in it (replay.js).

import { power } from "../base/number_words.js";
import { inkCross, inkLine, stairs } from "../base/plot.js";
import { OVERFLOWS_FROM } from "./replay.js";

// From where each step overflows, and from where it keeps its gradients, as log2.
export function windowOf({ largest, keeps_from }) {
  return { top: largest.map((size) => Math.log2(OVERFLOWS_FROM / size)), low: keeps_from };
}

export function rangeOf(replays, least = [Infinity, -Infinity]) {
  let [low, high] = least;
  for (const { scale } of replays)
    for (const e of scale) [low, high] = [Math.min(low, e), Math.max(high, e)];
  return [low, high];
}

// A cross: skipped. A ring around it: skipped, and hysteresis kept the scale where it was.
export function drawScale(
  plot,
  replay,
  y,
  { colour = plot.tint.fp16, width = 2.25, crosses = 4, dash = [] } = {},
) {
  inkLine(plot, stairs(plot, replay.scale, y), colour, width, { dash });
  if (!crosses) return;
  for (let i = plot.first; i < Math.min(replay.scale.length, plot.first + plot.total); i++) {
    if (!replay.skipped[i]) continue;
    const [px, py] = [plot.x(i + 1), y(replay.scale[i])];
    if (px < plot.left || px > plot.end) continue;
    if (replay.skipped[i] > 1 && crosses > 4) drawHeld(plot, px, py);
    inkCross(plot, px, py, crosses, plot.tint.ink, 1.75);
  }
}

export function drawHeld({ pen, tint }, x, y) {
  pen.beginPath();
  pen.arc(x, y, 9, 0, 2 * Math.PI);
  pen.strokeStyle = tint.ink;
  pen.lineWidth = 1.5;
  pen.stroke();
}

export function scaleTicks([low, high]) {
  const every = [1, 2, 4, 8, 16].find((step) => (high - low) / step <= 6);
  const first = Math.ceil(low / every) * every;
  return Array.from({ length: Math.floor((high - first) / every) + 1 }, (_, i) => [
    first + i * every,
    first + i * every,
  ]);
}

export function stepText(replay, window, step) {
  const i = step - 1;
  const held = replay.skipped[i] > 1 ? ", and hysteresis keeps the scale" : "";
  const what = replay.skipped[i]
    ? `inf, skipped${held}`
    : replay.lossy[i]
      ? "loses gradients"
      : "clean";
  const edges = `overflow from 2^${window.top[i].toFixed(1)}, losses below 2^${window.low[i]}`;
  return `step ${step}: scale ${power(Number(replay.scale[i].toFixed(1)))}, ${what} (${edges})`;
}

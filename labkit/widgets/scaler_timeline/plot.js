// The picture of a scaler on a trace: the window between underflow and overflow, and the scale that wanders in it.
//
// A replay is {scale, tracker, skipped, lossy}: float32 columns as `packed` in trace.py has them, scale
// as its log2; a window is {top, low}: from where each step overflows, and from where it keeps its gradients, as log2.

const LEFT = 52;
const RIGHT = 52;

function replayOf(view) {
  const all = floats(view);
  const column = (i) => all.subarray((i * all.length) / 4, ((i + 1) * all.length) / 4);
  return { scale: column(0), tracker: column(1), skipped: column(2), lossy: column(3) };
}

function windowOf(view) {
  const all = floats(view);
  return { top: all.subarray(0, all.length / 2), low: all.subarray(all.length / 2) };
}

// Steps first + 1 to first + total, from left to right; a step's middle is at x(step).
function plotOf(pen, width, tint, { first = 0, total, left = LEFT, right = RIGHT }) {
  const end = width - right;
  return { pen, tint, first, total, left, end, x: (step) => left + ((end - left) * (step - first)) / total };
}

function rangeOf(replays, least = [Infinity, -Infinity]) {
  let [low, high] = least;
  for (const { scale } of replays) for (const e of scale) [low, high] = [Math.min(low, e), Math.max(high, e)];
  return [low, high];
}

const levelIn = ({ top, height }, [low, high]) => (e) => top + (height * (high - e)) / (high - low);

function stairs(plot, values, y) {
  const points = [];
  for (let i = plot.first; i < Math.min(values.length, plot.first + plot.total); i++) {
    points.push([Math.max(plot.left, plot.x(i + 0.5)), y(values[i])], [Math.min(plot.end, plot.x(i + 1.5)), y(values[i])]);
  }
  return points;
}

function drawWindow(plot, panel, window, y) {
  inkZone(plot, panel, stairs(plot, window.top, y), "overflowed");
  inkZone(plot, panel, stairs(plot, window.low, y), "underflowed");
}

// A cross: skipped. A ring around it: skipped, and hysteresis kept the scale where it was.
function drawScale(plot, replay, y, { colour = plot.tint.fp16, width = 2.25, crosses = 4, dash = [] } = {}) {
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

function drawHeld({ pen, tint }, x, y) {
  pen.beginPath();
  pen.arc(x, y, 9, 0, 2 * Math.PI);
  pen.strokeStyle = tint.ink;
  pen.lineWidth = 1.5;
  pen.stroke();
}

function scaleTicks([low, high]) {
  const every = [1, 2, 4, 8, 16].find((step) => (high - low) / step <= 6);
  const first = Math.ceil(low / every) * every;
  return Array.from({ length: Math.floor((high - first) / every) + 1 }, (_, i) => [first + i * every, first + i * every]);
}

function skipsIn({ skipped }) {
  const skips = skipped.reduce((sum, one) => sum + (one > 0), 0);
  return skips === 1 ? "1 skipped step" : `${skips} skipped steps`;
}

function powerText(e) {
  return Number.isInteger(e) ? power(e) : power(e.toFixed(1));
}

function stepText(replay, window, step) {
  const i = step - 1;
  const held = replay.skipped[i] > 1 ? ", and hysteresis keeps the scale" : "";
  const what = replay.skipped[i] ? `inf, skipped${held}` : replay.lossy[i] ? "loses gradients" : "clean";
  const edges = `overflow from 2^${window.top[i].toFixed(1)}, losses below 2^${window.low[i]}`;
  return `step ${step}: scale ${powerText(replay.scale[i])}, ${what} (${edges})`;
}

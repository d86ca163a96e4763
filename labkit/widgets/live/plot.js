// How a live training is drawn: loss, loss scale and underflow over one axis of steps, on a canvas.
//
// `plot` holds the pen, the colours of the theme and where a step lies; every function draws one thing and keeps nothing.

// --- drawing ---------------------------------------------------------------------------------------------------------

const LEFT = 52; // room for labels of the axes
const RIGHT = 52; // room for the names at the ends of the curves
const LOSS = { top: 28, height: 236 };
const SCALE = { top: LOSS.top + LOSS.height + 40, height: 84 };
const UNDERFLOW = { top: SCALE.top + SCALE.height + 40, height: 72 };
const BOTTOM = UNDERFLOW.top + UNDERFLOW.height;
const HEIGHT = BOTTOM + 30;

function makePlot(pen, width, store, tint) {
  const total = store.state.total;
  const end = width - RIGHT;
  const label = store.state.label;
  const own = { FP32: tint.fp32, BF16: tint.bf16 }[label] ?? tint.fp16;
  return { pen, store, tint, own, label, total, left: LEFT, end, x: (step) => LEFT + ((end - LEFT) * step) / total };
}

function drawLoss(plot) {
  const { store, tint, own, x } = plot;
  const { top, height } = LOSS;
  const ours = store.ours.map((row) => row.loss);
  const [low, high] = lossRange(ours, store.fp32, store.previous);
  const y = (loss) => (loss > 0 ? top + (height * Math.log(high / loss)) / Math.log(high / low) : NaN);
  inkFrame(plot, LOSS, "Loss of each batch, log scale", logTicks(low, high).map((v) => [v, decimal(v)]), y);
  drawMarks(plot);
  const curve = (losses, colour, width, look) => inkLine(plot, losses.map((loss, i) => [x(i + 1), y(loss)]), colour, width, look);
  const reached = Math.max(ours.length, 1);
  if (store.previous.length) curve(store.previous, own, 1.25, { dash: [1.5, 4], alpha: 0.8 });
  if (store.fp32.length > reached + 1) curve(store.fp32, tint.fp32, 1, { alpha: 0.3 }); // known from the run before
  curve(store.fp32.slice(0, store.fp32.length > reached + 1 ? reached : reached + 1), tint.fp32, 1.5);
  curve(ours, own, 2.25);
  nameCurves(plot, y, ours, store.fp32.slice(0, reached));
  drawNonFinite(plot, ours);
  return y;
}

function nameCurves(plot, y, ours, fp32) {
  const { store, tint, own, label, x, end } = plot;
  const usable = (loss) => Number.isFinite(loss) && loss > 0;
  const ends = [[fp32, "FP32", tint.fp32], [ours, label === "FP32" ? "yours" : label, own]]
    .map(([losses, name, fill]) => ({ name, fill, i: losses.findLastIndex(usable), losses }))
    .filter(({ i }) => i >= 0)
    .map((curve) => ({ ...curve, px: x(curve.i + 1) + 8, py: y(curve.losses[curve.i]) }));
  const [a, b] = ends;
  if (b && Math.abs(a.px - b.px) < 40 && Math.abs(a.py - b.py) < 15) {
    const middle = (a.py + b.py) / 2;
    const sign = a.py <= b.py ? -1 : 1;
    a.py = middle + sign * 7.5;
    b.py = middle - sign * 7.5;
  }
  if (b && ours.length > b.i + 1) b.py -= 13; // its loss is a number no more: do not cover what goes on
  for (const { name, fill, px, py } of ends) inkText(plot, name, px, py, { fill, bold: true, base: "middle", halo: true });
  if (!store.previous.length) return;
  const wide = inkText(plot, `${label}, the run before`, end, LOSS.top - 12, { align: "right" });
  inkLine(plot, [[end - wide - 34, LOSS.top - 16], [end - wide - 8, LOSS.top - 16]], own, 1.5, { dash: [1.5, 4] });
}

function drawNonFinite(plot, losses) {
  const { tint, x } = plot;
  const y = LOSS.top + 8;
  losses.forEach((loss, i) => {
    if (Number.isFinite(loss) || (i > 0 && !Number.isFinite(losses[i - 1]))) return;
    let last = i;
    while (last + 1 < losses.length && !Number.isFinite(losses[last + 1])) last++;
    inkLine(plot, [[x(i + 1), y], [x(last + 1), y]], tint.bad, 2);
    inkCross(plot, x(i + 1), y, 5, tint.bad);
    inkText(plot, `${decimal(loss)} from step ${i + 1}`, x(i + 1) + 10, y + 17, { fill: tint.bad, bold: true, halo: true });
  });
}

// What the learner changed: a thin line through all panels, and its name in one of three rows where there is room.
function drawMarks(plot) {
  const { pen, store, tint, x, end } = plot;
  const rows = [-Infinity, -Infinity, -Infinity];
  for (const mark of store.state.marks) {
    const at = Math.round(x(mark.step - 0.5)) + 0.5;
    inkLine(plot, [[at, LOSS.top], [at, BOTTOM]], tint.ink2, 1, { alpha: 0.7 });
    pen.font = `${tint.size - 1}px ${tint.font}`;
    const label = mark.label.replace(/2\^(-?\d+)/g, (_, e) => `2${raised(e)}`);
    const wide = pen.measureText(label).width;
    const left = Math.min(at + 5, end + RIGHT - wide - 4);
    const row = rows.findIndex((taken) => taken + 12 < left);
    if (row < 0) continue;
    rows[row] = left + wide;
    inkText(plot, label, left, LOSS.top + 13 + 17 * row, { fill: tint.ink, halo: true });
  }
}

const raised = (digits) => String(digits).replace(/[-\d]/g, (c) => (c === "-" ? "\u207b" : "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079"[c]));

function drawScale(plot) {
  const { store, tint, own, x, end } = plot;
  const { top, height } = SCALE;
  const exponents = store.ours.map((row) => Math.log2(row.scale));
  const next = store.wish ?? store.state.scale;
  const all = [...exponents, next];
  const low = Math.min(0, 4 * Math.floor(Math.min(...all) / 4));
  const high = Math.max(16, 4 * Math.ceil((Math.max(...all) + 1) / 4));
  const y = (exponent) => top + (height * (high - exponent)) / (high - low);
  const every = high - low > 16 ? 8 : 4;
  const ticks = Array.from({ length: Math.floor((high - low) / every) + 1 }, (_, i) => low + i * every);
  inkFrame(plot, SCALE, "Loss scale", ticks.map((e) => [e, e]), y);
  inkLine(plot, exponents.flatMap((e, i) => [[x(i + 0.5), y(e)], [x(i + 1.5), y(e)]]), own, 2.25);
  store.ours.forEach((row, i) => row.stepped || inkCross(plot, x(i + 1), y(exponents[i]), 4, tint.overflowed));
  if (store.ours.length < plot.total) inkRing(plot, x(store.ours.length + 1), y(next), own);
  if (!store.ours.length) return;
  const { skipped } = store.state;
  const wide = inkText(plot, skipped === 1 ? "1 skipped step" : `${skipped} skipped steps`, end, top - 12, { align: "right" });
  inkCross(plot, end - wide - 11, top - 16, 4, tint.overflowed);
}

function latestUnderflow(store) {
  return store.ours.findLast((row) => !Number.isNaN(row.underflow))?.underflow ?? NaN;
}

function drawUnderflow(plot) {
  const { pen, store, tint, label, x } = plot;
  const { top, height } = UNDERFLOW;
  const y = (share) => top + height * (1 - share);
  const title = `Activation gradients: elements that are zero in ${label} and not in FP32`;
  inkFrame(plot, UNDERFLOW, title, [[0, "0%"], [0.5, "50%"], [1, "100%"]], y);
  const points = [];
  const measured = [];
  store.ours.forEach((row, i) => Number.isNaN(row.underflow) || measured.push([x(i + 1), y(row.underflow)]));
  if (!measured.length) return;
  measured.forEach(([px, py], i) => points.push(...(i ? [[px, measured[i - 1][1]]] : []), [px, py]));
  points.push([x(store.ours.length), points.at(-1)[1]]); // what was measured stands until it is measured again
  pen.fillStyle = tint.underflowed;
  pen.globalAlpha = 0.16;
  pen.beginPath();
  pen.moveTo(points[0][0], y(0));
  for (const point of points) pen.lineTo(...point);
  pen.lineTo(points.at(-1)[0], y(0));
  pen.fill();
  pen.globalAlpha = 1;
  inkLine(plot, points, tint.underflowed, 2);
  for (const [px, py] of measured) inkDot(plot, px, py, 2.5, tint.underflowed);
  const at = Math.min(Math.max(points.at(-1)[1], top + 7), top + height - 9);
  const share = percent(latestUnderflow(store));
  pen.font = `600 ${tint.size - 1}px ${tint.font}`;
  const left = Math.min(points.at(-1)[0] + 8, plot.end + RIGHT - pen.measureText(share).width);
  inkText(plot, share, left, at, { fill: tint.underflowed, bold: true, base: "middle", halo: true });
}

function drawHover(plot, step, y) {
  if (!step) return;
  const { store, tint, own, x } = plot;
  inkLine(plot, [[x(step), LOSS.top], [x(step), BOTTOM]], tint.ink, 1, { alpha: 0.6 });
  for (const [loss, colour] of [[store.fp32[step - 1], tint.fp32], [store.ours[step - 1]?.loss, own]]) {
    if (Number.isFinite(loss) && loss > 0) inkDot(plot, x(step), y(loss), 3.5, colour);
  }
}

function hoverText(store, step) {
  const row = store.ours[step - 1];
  const fp32 = store.fp32[step - 1];
  const parts = [];
  if (row) parts.push(`${store.state.label} ${decimal(row.loss)}`);
  if (fp32 !== undefined) parts.push(`FP32 ${decimal(fp32)}`);
  if (row) parts.push(`scale 2^${Math.log2(row.scale)} = ${decimal(row.scale)}${row.stepped ? "" : ", skipped"}`);
  if (row && !Number.isNaN(row.underflow)) parts.push(`underflow ${percent(row.underflow)}`);
  return `step ${step}: ${parts.join(", ")}`;
}

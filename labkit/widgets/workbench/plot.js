// How a workbench is drawn: loss, scale, underflow and swallowed updates over one axis of steps; the fork is dashed.

const LEFT = 52;
const RIGHT = 62;
const LOSS = { top: 26, height: 214 };
const SCALE = { top: LOSS.top + LOSS.height + 36, height: 62 };
const UNDERFLOW = { top: SCALE.top + SCALE.height + 36, height: 50 };
const SWALLOWED = { top: UNDERFLOW.top + UNDERFLOW.height + 36, height: 50 };
const BOTTOM = SWALLOWED.top + SWALLOWED.height;
const HEIGHT = BOTTOM + 30;
const DASH = [7, 5];

function makePlot(pen, width, store, tint) {
  const { total, branches } = store.state;
  const end = width - RIGHT;
  const curves = branches.map((branch, i) => ({
    ...branch,
    rows: store.branches[i],
    colour: { FP32: tint.fp32, BF16: tint.bf16 }[branch.format] ?? tint.fp16,
    dash: i ? DASH : [],
  }));
  return { pen, store, tint, curves, total, left: LEFT, end, x: (step) => LEFT + ((end - LEFT) * step) / total };
}

function drawLoss(plot) {
  const { store, tint, curves, x } = plot;
  const { top, height } = LOSS;
  const [low, high] = lossRange(...curves.map((c) => c.rows.map((row) => row.loss)), store.fp32, store.previous);
  const y = (loss) => (loss > 0 ? top + (height * Math.log(high / loss)) / Math.log(high / low) : NaN);
  inkFrame(plot, LOSS, "Loss of each batch, log scale", logTicks(low, high).map((v) => [v, decimal(v)]), y);
  drawMarks(plot);
  if (store.previous.length) {
    inkLine(plot, store.previous.map((loss, i) => [x(i + 1), y(loss)]), curves[0].colour, 1.25, { dash: [1.5, 4], alpha: 0.8 });
    inkText(plot, "dotted: the run before", plot.end, LOSS.top - 12, { align: "right" });
  }
  const reached = Math.max(curves[0].rows.length, 1);
  const fp32 = (losses, look) => inkLine(plot, losses.map((loss, i) => [x(i + 1), y(loss)]), tint.fp32, look.width, look);
  if (store.fp32.length > reached + 1) fp32(store.fp32, { width: 1, alpha: 0.3 }); // known from the run before
  fp32(store.fp32.slice(0, reached + 1), { width: 5, alpha: 0.45 }); // broad: seen under a curve that covers it
  const ends = [{ name: "FP32", colour: tint.fp32, points: store.fp32.slice(0, reached).map((loss, i) => [x(i + 1), y(loss)]) }];
  for (const { name, rows, colour, dash, origin } of curves) {
    const points = rows.map((row) => [x(row.step), y(row.loss)]);
    const from = origin ? [[x(origin), y(store.branches[0][origin - 1]?.loss)]] : [];
    inkLine(plot, [...from, ...points], colour, 2.25, { dash });
    ends.push({ name, colour, points: [...from, ...points] });
  }
  if (curves[1]) drawForkPoint(plot, y);
  nameEnds(plot, ends);
  drawNonFinite(plot);
  return y;
}

function drawForkPoint(plot, y) {
  const [run, fork] = plot.curves;
  const at = plot.x(fork.origin);
  inkLine(plot, [[at, LOSS.top], [at, BOTTOM]], plot.tint.ink2, 1, { dash: [2, 3], alpha: 0.8 });
  const loss = y(run.rows[fork.origin - 1]?.loss);
  if (Number.isFinite(loss)) inkRing(plot, at, loss, fork.colour);
}

// Names at the ends of the curves, pushed apart where they would cover each other.
function nameEnds(plot, curves) {
  const ends = curves
    .map(({ name, colour, points }) => ({ name, colour, last: points.findLast(([, py]) => Number.isFinite(py)) }))
    .filter(({ last }) => last)
    .map(({ name, colour, last: [px, py] }) => ({ name, colour, px: px + 7, py }))
    .sort((a, b) => a.py - b.py);
  ends.forEach((end, i) => {
    for (const above of ends.slice(0, i)) if (Math.abs(end.px - above.px) < 70) end.py = Math.max(end.py, above.py + 14);
  });
  const over = Math.max(0, ...ends.map(({ py }) => py - (LOSS.top + LOSS.height - 4)));
  for (const { name, colour, px, py } of ends) inkText(plot, name, px, py - over, { fill: colour, bold: true, base: "middle", halo: true });
}

function drawNonFinite(plot) {
  plot.curves.forEach(({ name, rows }, i) => {
    const bad = rows.find((row) => !Number.isFinite(row.loss));
    if (!bad) return;
    const [px, py] = [plot.x(bad.step), LOSS.top + LOSS.height - 12 - 18 * i];
    inkLine(plot, [[px, py], [plot.x(rows.at(-1).step), py]], plot.tint.bad, 2);
    inkCross(plot, px, py, 5, plot.tint.bad);
    inkText(plot, `${name}: ${decimal(bad.loss)} from step ${bad.step}`, px + 12, py - 4, { fill: plot.tint.bad, bold: true, halo: true });
  });
}

// What was turned: a thin line through all panels and its name, in one of three rows where there is room.
function drawMarks(plot) {
  const { pen, store, tint, curves, x, end } = plot;
  const rows = [-Infinity, -Infinity, -Infinity];
  const fork = curves[1];
  const parted = fork ? [{ step: fork.origin + 1, label: `fork${store.state.parted ? `: ${store.state.parted}` : ""}` }] : [];
  const marks = [...parted, ...curves.flatMap((c) => c.marks)].sort((a, b) => a.step - b.step);
  for (const mark of marks) {
    const at = Math.round(x(mark.step - 0.5)) + 0.5;
    if (!parted.includes(mark)) inkLine(plot, [[at, LOSS.top], [at, BOTTOM]], tint.ink2, 1, { alpha: 0.6 });
    pen.font = `${tint.size - 1}px ${tint.font}`;
    const label = mark.label.replace(/2\^(-?\d+)/g, (_, e) => `2${raised(e)}`);
    const wide = pen.measureText(label).width;
    const left = Math.max(LEFT + 4, Math.min(at + 5, end + RIGHT - wide - 4));
    const row = rows.findIndex((taken) => taken + 12 < left);
    if (row < 0) continue;
    rows[row] = left + wide;
    inkText(plot, label, left, LOSS.top + 12 + 17 * row, { fill: tint.ink, halo: true });
  }
}

const raised = (digits) => String(digits).replace(/[-\d]/g, (c) => (c === "-" ? "\u207b" : "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079"[c]));

function drawScale(plot) {
  const { tint, curves, x, end } = plot;
  const { top, height } = SCALE;
  const all = curves.flatMap(({ rows }) => rows.map((row) => Math.log2(row.scale)));
  const low = Math.min(0, 4 * Math.floor(Math.min(0, ...all) / 4));
  const high = Math.max(16, 4 * Math.ceil(Math.max(0, ...all) / 4));
  const y = (exponent) => top + (height * (high - exponent)) / (high - low);
  const ticks = Array.from({ length: Math.floor((high - low) / 8) + 1 }, (_, i) => low + i * 8);
  inkFrame(plot, SCALE, "Loss scale", ticks.map((e) => [e, e]), y);
  let skipped = 0;
  for (const { rows, colour, dash } of curves) {
    inkLine(plot, rows.flatMap((r) => [[x(r.step - 0.5), y(Math.log2(r.scale))], [x(r.step + 0.5), y(Math.log2(r.scale))]]), colour, 2.25, { dash });
    for (const row of rows.filter((r) => !r.stepped)) {
      skipped += 1;
      inkCross(plot, x(row.step), y(Math.log2(row.scale)), 4, tint.overflowed);
    }
  }
  if (!all.length) return;
  const wide = inkText(plot, skipped === 1 ? "1 skipped step" : `${skipped} skipped steps`, end, top - 12, { align: "right" });
  inkCross(plot, end - wide - 11, top - 16, 4, tint.overflowed);
}

function drawShare(plot, panel, what, title, colour) {
  const { top, height } = panel;
  const y = (share) => top + height * (1 - share);
  inkFrame(plot, panel, title, [[0, "0%"], [0.5, "50%"], [1, "100%"]], y);
  const labels = [];
  for (const { rows, dash } of plot.curves) {
    const measured = rows.filter((row) => !Number.isNaN(row[what]));
    if (!measured.length) continue;
    const points = measured.flatMap((row, i) => [...(i ? [[plot.x(row.step), y(measured[i - 1][what])]] : []), [plot.x(row.step), y(row[what])]]);
    points.push([plot.x(rows.at(-1).step), points.at(-1)[1]]); // what was measured stands until it is measured again
    inkLine(plot, points, colour, 2, { dash });
    for (const row of measured) inkDot(plot, plot.x(row.step), y(row[what]), 2.25, colour);
    labels.push({ name: percent(measured.at(-1)[what]), px: points.at(-1)[0] + 7, py: points.at(-1)[1] });
  }
  if (labels[1]?.name === labels[0]?.name) labels.pop();
  for (const label of labels) label.py = Math.min(Math.max(label.py, top + 4), top + height - 4);
  if (labels[1] && Math.abs(labels[0].py - labels[1].py) < 13) labels[1].py = labels[0].py + (labels[0].py > top + height / 2 ? -13 : 13);
  for (const { name, px, py } of labels) inkText(plot, name, px, py, { fill: colour, bold: true, base: "middle", halo: true });
}

function drawShares(plot) {
  const { tint } = plot;
  drawShare(plot, UNDERFLOW, "underflow", "Activation gradients that underflow: zero here, not in FP32", tint.underflowed);
  drawShare(plot, SWALLOWED, "swallowed", "Updates swallowed: weights with a gradient that did not move", tint.ink2);
}

function drawHover(plot, step, y) {
  if (!step) return;
  inkLine(plot, [[plot.x(step), LOSS.top], [plot.x(step), BOTTOM]], plot.tint.ink, 1, { alpha: 0.6 });
  for (const { rows, colour } of plot.curves) {
    const row = rows.find((r) => r.step === step);
    if (row && row.loss > 0 && Number.isFinite(row.loss)) inkDot(plot, plot.x(step), y(row.loss), 3.5, colour);
  }
}

function hoverText(store, step) {
  const parts = store.state.branches.flatMap(({ name }, i) => {
    const row = store.branches[i].find((r) => r.step === step);
    return row ? [`${name} ${decimal(row.loss)} at scale 2^${Math.log2(row.scale)}${row.stepped ? "" : ", skipped"}`] : [];
  });
  const fp32 = store.fp32[step - 1];
  return `step ${step}: ${[...parts, ...(fp32 === undefined ? [] : [`FP32 ${decimal(fp32)}`])].join("; ")}`;
}

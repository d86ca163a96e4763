// How runs are drawn beside FP32: loss, scale, underflow and swallowed updates over one axis of steps; a fork is dashed.
//
// `plot` holds the pen, the colours of the theme and where a step lies; every function draws one thing and keeps nothing.

import { floats } from "../base/model.js";
import { decimal, percent, superscript } from "../base/number_words.js";
import {
  inkArea,
  inkCross,
  inkDot,
  inkFrame,
  inkLine,
  inkLosses,
  inkNames,
  inkRing,
  inkSkips,
  inkSteps,
  inkText,
  levelIn,
  stairs,
  stepPlot,
} from "../base/plot.js";
import { faintly, formatColour } from "../base/theme.js";
import { rowsOf } from "../driven/store.js";

const RIGHT = 62; // room for the names at the ends of the curves
const DASH = [7, 5];
const COLUMNS = 5; // loss, scale, stepped, underflow, swallowed: see `Bench.points`

// Panels one under another, by their heights, `swallowed` may be missing; and how FP32's curve looks.
export function panels({ loss, scale, underflow, swallowed }, fp32) {
  const made = {};
  let top = 26;
  for (const [name, height] of Object.entries({ loss, scale, underflow, swallowed })) {
    if (!height) continue;
    made[name] = { top, height };
    top += height + 38;
  }
  return { ...made, fp32, bottom: top - 38, height: top - 8 };
}

function emptyRuns() {
  return { fp32: [], previous: [], recordedFp32: [], recorded: [], branches: [[], []] };
}

function takeRuns(store, content, buffers) {
  [store.fp32, store.previous, store.recordedFp32].forEach((losses, i) =>
    losses.push(...floats(buffers[i])),
  );
  const origins = [0, ...content.branches.map(({ origin }) => origin)];
  [store.recorded, ...store.branches].slice(0, origins.length).forEach((rows, i) => {
    for (const [loss, scale, stepped, underflow, swallowed] of rowsOf(buffers[3 + i], COLUMNS)) {
      rows.push({
        step: origins[i] + rows.length + 1,
        loss,
        scale,
        stepped: stepped > 0,
        underflow,
        swallowed,
      });
    }
  });
}

export const RUN_POINTS = { empty: emptyRuns, take: takeRuns };

// What is in the picture: the learner's runs, or until they begin those on record.
const onShow = ({ state, recordedFp32, recorded, fp32, branches }) =>
  state.recorded ? { fp32: recordedFp32, runs: [recorded] } : { fp32, runs: branches };

export function drawRuns({ pen, width, store, tint: theme }, place, step) {
  const { total, branches, recorded } = store.state;
  const { fp32, runs } = onShow(store);
  const tint = recorded && !store.model.onPage ? faintly(theme) : theme; // on a page it is all there is
  const curves = branches.slice(0, runs.length).map((branch, i) => ({
    ...branch,
    rows: runs[i],
    colour: formatColour(branch.format, tint),
    dash: i ? DASH : [],
  }));
  const plot = {
    ...stepPlot(pen, width, tint, { total, right: RIGHT }),
    store,
    curves,
    fp32,
    place,
  };
  const y = drawLoss(plot);
  drawScale(plot);
  drawShare(
    plot,
    place.underflow,
    "underflow",
    "Activation gradients: elements that are zero here and not in FP32",
    tint.underflowed,
  );
  if (place.swallowed)
    drawShare(
      plot,
      place.swallowed,
      "swallowed",
      "Updates swallowed: weights with a gradient that did not move",
      tint.ink2,
    );
  inkSteps(plot, place.bottom);
  drawHover(plot, step, y);
  return { x: plot.x, top: place.loss.top + 2 };
}

function drawLoss(plot) {
  const { store, tint, curves, x } = plot;
  const { top } = plot.place.loss;
  const { recorded } = store.state;
  const all = [...curves.map((c) => c.rows.map((row) => row.loss)), plot.fp32, store.previous];
  const y = inkLosses(plot, plot.place.loss, "Loss of each batch, log scale", all);
  drawMarks(plot);
  if (store.previous.length) {
    inkLine(
      plot,
      store.previous.map((loss, i) => [x(i + 1), y(loss)]),
      curves[0].colour,
      1.25,
      { dash: [1.5, 4], alpha: 0.8 },
    );
    const wide = inkText(plot, "the run before", plot.end, top - 12, { align: "right" });
    inkLine(
      plot,
      [
        [plot.end - wide - 34, top - 16],
        [plot.end - wide - 8, top - 16],
      ],
      curves[0].colour,
      1.5,
      { dash: [1.5, 4] },
    );
  }
  if (recorded && !store.model.onPage)
    inkText(plot, recorded, plot.end, top - 12, { align: "right" });
  const reached = recorded ? plot.fp32.length : Math.max(curves[0].rows.length, 1);
  const fp32 = (losses, look) =>
    inkLine(
      plot,
      losses.map((loss, i) => [x(i + 1), y(loss)]),
      tint.fp32,
      look.width,
      look,
    );
  if (plot.fp32.length > reached + 1) fp32(plot.fp32, { width: 1, alpha: 0.3 }); // known from the run before
  fp32(plot.fp32.slice(0, reached + 1), plot.place.fp32);
  const ends = [
    {
      name: "FP32",
      colour: tint.fp32,
      points: plot.fp32.slice(0, reached).map((loss, i) => [x(i + 1), y(loss)]),
    },
  ];
  for (const { name, rows, colour, dash, origin } of curves) {
    const points = rows.map((row) => [x(row.step), y(row.loss)]);
    const from = origin ? [[x(origin), y(curves[0].rows[origin - 1]?.loss)]] : [];
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
  inkLine(
    plot,
    [
      [at, plot.place.loss.top],
      [at, plot.place.bottom],
    ],
    plot.tint.ink2,
    1,
    { dash: [2, 3], alpha: 0.8 },
  );
  const loss = y(run.rows[fork.origin - 1]?.loss);
  if (Number.isFinite(loss)) inkRing(plot, at, loss, fork.colour);
}

function nameEnds(plot, curves) {
  const { top, height } = plot.place.loss;
  const last = ({ name, colour, points }) => {
    const end = points.findLast(([, py]) => Number.isFinite(py));
    return end ? [{ name, fill: colour, x: end[0] + 7, y: end[1] }] : [];
  };
  inkNames(plot, curves.flatMap(last), 14, top, top + height - 4);
}

// Each stretch of losses that are no numbers, with its first step.
function drawNonFinite(plot) {
  plot.curves.forEach(({ name, rows }, i) => {
    const py = plot.place.loss.top + plot.place.loss.height - 12 - 18 * i;
    rows.forEach((row, k) => {
      if (Number.isFinite(row.loss) || (k > 0 && !Number.isFinite(rows[k - 1].loss))) return;
      const back = rows.findIndex((later, m) => m > k && Number.isFinite(later.loss));
      const px = plot.x(row.step);
      inkLine(
        plot,
        [
          [px, py],
          [plot.x(rows.at(back < 0 ? -1 : back - 1).step), py],
        ],
        plot.tint.bad,
        2,
      );
      inkCross(plot, px, py, 5, plot.tint.bad);
      inkText(plot, `${name}: ${decimal(row.loss)} from step ${row.step}`, px + 12, py - 4, {
        fill: plot.tint.bad,
        bold: true,
        halo: true,
      });
    });
  });
}

// What was turned: a thin line through all panels and its name, in one of three rows where there is room.
function drawMarks(plot) {
  const { pen, store, tint, curves, x, end } = plot;
  const rows = [-Infinity, -Infinity, -Infinity];
  const fork = curves[1];
  const forked = fork
    ? [
        {
          step: fork.origin + 1,
          label: `fork${store.state.fork_change ? `: ${store.state.fork_change}` : ""}`,
        },
      ]
    : [];
  const marks = [...forked, ...curves.flatMap((c) => c.marks)].sort((a, b) => a.step - b.step);
  for (const mark of marks) {
    const at = Math.round(x(mark.step - 0.5)) + 0.5;
    if (!forked.includes(mark))
      inkLine(
        plot,
        [
          [at, plot.place.loss.top],
          [at, plot.place.bottom],
        ],
        tint.ink2,
        1,
        { alpha: 0.6 },
      );
    pen.font = `${tint.size - 1}px ${tint.font}`;
    const label = mark.label.replace(/2\^(-?\d+)/g, (_, e) => `2${superscript(e)}`);
    const wide = pen.measureText(label).width;
    const left = Math.max(plot.left + 4, Math.min(at + 5, end + RIGHT - wide - 4));
    const row = rows.findIndex((taken) => taken + 12 < left);
    if (row < 0) continue;
    rows[row] = left + wide;
    inkText(plot, label, left, plot.place.loss.top + 12 + 17 * row, { fill: tint.ink, halo: true });
  }
}

function drawScale(plot) {
  const { store, tint, curves, x } = plot;
  const { height } = plot.place.scale;
  const next = store.wish ?? store.state.scale;
  const all = [...curves.flatMap(({ rows }) => rows.map((row) => Math.log2(row.scale))), next];
  const low = Math.min(0, 4 * Math.floor(Math.min(0, ...all) / 4));
  const high = Math.max(16, 4 * Math.ceil((Math.max(0, ...all) + 1) / 4));
  const y = levelIn(plot.place.scale, [low, high]);
  const every = (4 * height) / (high - low) >= 18 ? 4 : 8; // as close as labels can stand
  const ticks = Array.from(
    { length: Math.floor((high - low) / every) + 1 },
    (_, i) => low + i * every,
  );
  inkFrame(
    plot,
    plot.place.scale,
    "Loss scale",
    ticks.map((e) => [e, e]),
    y,
  );
  let skipped = 0;
  for (const { rows, colour, dash, origin } of curves) {
    inkLine(
      plot,
      stairs(plot, [...Array(origin).fill(NaN), ...rows.map((row) => Math.log2(row.scale))], y),
      colour,
      2.25,
      { dash },
    );
    for (const row of rows.filter((r) => !r.stepped)) {
      skipped += 1;
      inkCross(plot, x(row.step), y(Math.log2(row.scale)), 4, tint.overflowed);
    }
  }
  const { rows, origin, colour } = curves[store.state.active];
  const at = store.state.recorded ? 0 : origin + rows.length;
  if (at < plot.total) inkRing(plot, x(at + 1), y(next), colour);
  if (all.length < 2) return;
  inkSkips(
    plot,
    plot.place.scale,
    skipped === 1 ? "1 skipped step" : `${skipped} skipped steps`,
    tint.overflowed,
  );
}

function drawShare(plot, panel, what, title, colour) {
  const { top, height } = panel;
  const y = (share) => top + height * (1 - share);
  inkFrame(
    plot,
    panel,
    title,
    [
      [0, "0%"],
      [0.5, "50%"],
      [1, "100%"],
    ],
    y,
  );
  const labels = [];
  for (const { rows, dash } of plot.curves) {
    const measured = rows.filter((row) => !Number.isNaN(row[what]));
    if (!measured.length) continue;
    const points = measured.flatMap((row, i) => [
      ...(i ? [[plot.x(row.step), y(measured[i - 1][what])]] : []),
      [plot.x(row.step), y(row[what])],
    ]);
    points.push([plot.x(rows.at(-1).step), points.at(-1)[1]]); // what was measured stands until it is measured again
    if (plot.curves.length === 1) inkArea(plot, points, y(0), colour);
    inkLine(plot, points, colour, 2, { dash });
    for (const row of measured) inkDot(plot, plot.x(row.step), y(row[what]), 2.25, colour);
    labels.push({
      name: percent(measured.at(-1)[what]),
      fill: colour,
      x: points.at(-1)[0] + 7,
      y: points.at(-1)[1],
    });
  }
  if (labels[1]?.name === labels[0]?.name) labels.pop();
  inkNames(plot, labels, 13, top + 4, top + height - 4);
}

function drawHover(plot, step, y) {
  if (!step) return;
  inkLine(
    plot,
    [
      [plot.x(step), plot.place.loss.top],
      [plot.x(step), plot.place.bottom],
    ],
    plot.tint.ink,
    1,
    { alpha: 0.6 },
  );
  for (const { rows, colour } of plot.curves) {
    const row = rows.find((r) => r.step === step);
    if (row && row.loss > 0 && Number.isFinite(row.loss))
      inkDot(plot, plot.x(step), y(row.loss), 3.5, colour);
  }
}

function hoverText(store, step) {
  const { fp32, runs } = onShow(store);
  const parts = store.state.branches.flatMap(({ name }, i) => {
    const row = runs[i]?.find((r) => r.step === step);
    if (!row) return [];
    const lost = Number.isNaN(row.underflow) ? "" : `, underflow ${percent(row.underflow)}`;
    return [
      `${name} ${decimal(row.loss)} at scale 2^${Math.log2(row.scale)} = ${decimal(row.scale)}${row.stepped ? "" : ", skipped"}${lost}`,
    ];
  });
  const beside = fp32[step - 1] === undefined ? [] : [`FP32 ${decimal(fp32[step - 1])}`];
  return `${store.state.recorded ? "on record, " : ""}step ${step}: ${[...parts, ...beside].join("; ")}`;
}

export const HOVER = {
  right: RIGHT,
  steps(store) {
    const { fp32, runs } = onShow(store);
    return Math.max(fp32.length, runs[0].length);
  },
  text: hoverText,
};

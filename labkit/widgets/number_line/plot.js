// The picture of the number line: zones, marks (a band where they are too many), axis, and what x becomes.

import { inkRich } from "../base/canvas.js";
import { power } from "../base/number_words.js";
import { inkLine, niceStep } from "../base/plot.js";
import { EDGE, mirrored, stretches } from "./scale.js";

export const TOP = 62; // the marks stand between TOP
const LINE = 110; // and the line itself
export const TALL = 164;
export const CLOSEST = 4; // marks nearer than this many pixels are drawn as a band
const STEPS = [1, 2, 4, 8, 16, 32, 64, 128];

function zonesOf(format) {
  const { zero_to: zero, ends_from: end } = format;
  const first = format.has_zero ? 2 ** format.emin : 0; // where the normal numbers begin
  const last = end ?? Infinity;
  const up = [
    { fate: "subnormal", from: zero, to: first, names: ["subnormal", "sub"] },
    { fate: "normal", from: first, to: last, names: ["normal"] },
    {
      fate: "overflowed",
      from: last,
      to: Infinity,
      names: [format.beyond, format.beyond.slice(3, 6)],
    },
  ];
  const zeros = {
    fate: "underflowed",
    from: format.signed ? -zero : 0,
    to: zero,
    names: ["to 0", "0"],
  };
  return format.signed ? [...mirrored(up), zeros, ...up] : [zeros, ...up];
}

export function drawZones(pen, view, format, palette) {
  const edge = (v) => Math.min(view.width, Math.max(0, view.x(v)));
  for (const { fate, from, to, names } of zonesOf(format)) {
    const [a, b] = [edge(from), edge(to)];
    if (!(b - a > 0.5)) continue;
    pen.globalAlpha = fate === "normal" ? 0.12 : 0.2;
    pen.fillStyle = palette[fate];
    pen.fillRect(a, TOP, b - a, LINE - TOP);
    pen.globalAlpha = 1;
    pen.fillStyle = palette.ink2;
    pen.textAlign = "left";
    const name = names.find((one) => pen.measureText(one).width + 10 < b - a);
    if (name) pen.fillText(name, a + 5, TOP + 13);
  }
}

export function drawMarks(pen, view, format, log, palette) {
  const up = stretches(format, log);
  const parts = log || !format.signed ? up : [...mirrored(up), ...up];
  const [low, high] = [view.value(view.from), view.value(view.to)];
  let tightest = Infinity;
  pen.lineWidth = 1;
  pen.strokeStyle = pen.fillStyle = palette.ink;
  for (const { from, to, spacing } of parts) {
    if (to < low || from > high) continue;
    const [a, b] = [Math.max(from, low), Math.min(to, high)];
    const last = Math.max(a, b - spacing);
    const gap = log ? view.x(last + spacing) - view.x(last) : spacing / view.perPixel;
    tightest = Math.min(tightest, gap);
    if (gap >= CLOSEST) {
      pen.globalAlpha = 0.8;
      pen.beginPath();
      for (let k = Math.ceil(a / spacing); k * spacing <= b; k++) {
        if (k * spacing === (to > 0 ? to : from)) continue; // the far end is the next stretch's first
        const x = Math.round(view.x(k * spacing)) + 0.5;
        pen.moveTo(x, LINE - (Number.isInteger(Math.log2(Math.abs(k * spacing))) ? 34 : 24));
        pen.lineTo(x, LINE);
      }
      pen.stroke();
    } else {
      pen.globalAlpha = 0.32 + 0.43 * Math.min(1, Math.log2(CLOSEST / gap) / 14);
      pen.fillRect(
        view.x(a),
        LINE - 24,
        Math.max(0.6, view.x(b) - view.x(a) - (view.x(b) - view.x(a) > 12 ? 1 : 0)),
        24,
      );
    }
    pen.globalAlpha = 1;
  }
  return tightest;
}

export function drawCounts(pen, view, format, log, palette) {
  const up = stretches(format, log);
  pen.fillStyle = palette.ink2;
  for (const { from, to, spacing } of log || !format.signed ? up : [...mirrored(up), ...up]) {
    const [a, b] = [view.x(from), view.x(to)];
    const [left, right] = [Math.max(EDGE, a), Math.min(view.width - EDGE, b)];
    if (right - left < 70) continue;
    const count = Math.round((to - from) / spacing);
    const many = `${count.toLocaleString("en-US")} number${count === 1 ? "" : "s"}`;
    const apart = `, ${spacing >= 1 && spacing <= 1024 ? spacing : `2^${Math.log2(spacing)}`} apart`;
    inkRich(
      pen,
      right - left > 165 && count > 1 ? many + apart : many,
      (left + right) / 2,
      LINE + 46,
      "center",
    );
    pen.globalAlpha = 0.5;
    pen.fillRect(left + 3, LINE + 31, right - left - 6, 1);
    pen.globalAlpha = 1;
  }
}

export function drawAxis(pen, view, log, palette) {
  pen.fillStyle = pen.strokeStyle = palette.ink2;
  pen.fillRect(EDGE - 4, LINE, view.width - 2 * EDGE + 8, 1.5);
  if (log && view.to - view.from > 4) {
    const step = STEPS.find((octaves) => octaves / view.perPixel > 46) ?? 256;
    for (let e = Math.ceil(view.from / step) * step; e <= view.to; e += step) {
      pen.fillRect(view.x(2 ** e), LINE, 1, 5);
      inkRich(
        pen,
        power(e),
        Math.min(view.width - 14, Math.max(14, view.x(2 ** e))),
        LINE + 21,
        "center",
      );
    }
    return;
  }
  const [low, high] = [view.value(view.from), view.value(view.to)];
  const step = niceStep((high - low) / Math.max(2, Math.floor(view.width / 90)));
  const size = Math.max(Math.abs(low), Math.abs(high));
  const digits = Math.min(100, Math.max(0, -Math.floor(Math.log10(step) + 1e-9)));
  const text = (v) => {
    if (size >= 1e-4 && size < 1e7) return v.toFixed(digits);
    const places = Math.min(15, Math.max(0, Math.floor(Math.log10(size)) + digits));
    return v === 0
      ? "0"
      : v
          .toExponential(
            size < 1 ? places : Math.max(0, Math.min(15, Math.round(Math.log10(size / step)))),
          )
          .replace("e+", "e");
  };
  for (let k = Math.ceil(low / step); k * step <= high; k++) {
    const x = view.x(k * step);
    const label = text(k * step).replaceAll("-", "\u2212");
    const half = pen.measureText(label).width / 2;
    pen.fillRect(x, LINE, 1, 5);
    pen.textAlign = "center";
    pen.fillText(label, Math.min(view.width - half, Math.max(half, x)), LINE + 21);
  }
}

export function drawOutcome(pen, view, answer, x, palette, colour) {
  const clampX = (v) => Math.min(view.width, Math.max(0, v));
  if (answer.interval) {
    const { low, high } = answer.interval;
    const [a, b] = [
      low === null ? 0 : clampX(view.x(low)),
      high === null ? view.width : clampX(view.x(high)),
    ];
    pen.globalAlpha = 0.24;
    pen.fillStyle = colour;
    pen.fillRect(a, TOP - 8, Math.max(1, b - a), LINE - TOP + 8);
    pen.globalAlpha = 1;
    drawEnd(pen, view, low, answer.interval.low_in, colour, palette);
    drawEnd(pen, view, high, answer.interval.high_in, colour, palette);
  }
  const here = view.x(x);
  if (here >= 0 && here <= view.width)
    inkLine(
      { pen },
      [
        [here, 22],
        [here, LINE],
      ],
      palette.ink,
      1.5,
    );
  answer.values.forEach(({ at, text, odds }, i) => {
    const label = answer.values.length > 1 ? `${text}: ${odds}` : text;
    const outside = at === null || view.x(at) < 0 || view.x(at) > view.width;
    const target = at === null ? (x > 0 ? view.width - 2 : 2) : clampX(view.x(at));
    pen.fillStyle = pen.strokeStyle = colour;
    if (!outside) pen.fillRect(target - 1.5, TOP - 8, 3, LINE - TOP + 8);
    arrow(pen, clampX(here), target, 46);
    pen.font = `600 ${palette.size}px ${palette.font}`;
    const alone = answer.values.length === 1;
    const width = pen.measureText(label.replace("^", "")).width;
    const room = {
      left: Math.min(target, clampX(here)) - 6,
      right: view.width - Math.max(target, clampX(here)) - 6,
    };
    let side = (alone ? target < here : i === 0) ? "left" : "right";
    if (alone && room[side] < width) side = side === "left" ? "right" : "left"; // never across the stem of x
    const near =
      side === "left"
        ? Math.max(width + 2, alone ? room.left : target - 6)
        : Math.min(view.width - width - 2, alone ? view.width - room.right : target + 6);
    pen.fillStyle = palette.ink;
    inkRich(pen, label, near, TOP - 22, side === "left" ? "right" : "left");
    pen.font = `${palette.size - 1}px ${palette.font}`;
  });
}

function drawEnd(pen, view, value, included, colour, palette) {
  if (value === null || view.x(value) < 0 || view.x(value) > view.width) return;
  pen.beginPath();
  pen.arc(view.x(value), TOP - 8, 3.5, 0, 7);
  pen.fillStyle = included ? colour : palette.surface;
  pen.strokeStyle = colour;
  pen.lineWidth = 1.5;
  pen.fill();
  pen.stroke();
}

function arrow(pen, from, to, y) {
  if (Math.abs(to - from) < 9) return;
  const back = Math.sign(from - to);
  const [point, barb] = [to + back * 4, to + back * 9];
  inkLine(
    { pen },
    [
      [from, y],
      [point, y],
    ],
    pen.strokeStyle,
    1.5,
  );
  inkLine(
    { pen },
    [
      [barb, y - 4],
      [point, y],
      [barb, y + 4],
    ],
    pen.strokeStyle,
    1.5,
  );
}

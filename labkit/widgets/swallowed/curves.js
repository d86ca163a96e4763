import { binadeOf, exactly, firstDigits, listed, numberText } from "../exact/numbers.js";
import { CURVES } from "./plot.js";

const HALF = { p: 10, emin: -14, max: 65504 };
const BRAIN = { p: 7, emin: -126, max: (2 - 2 ** -7) * 2 ** 127 };
const WHOLE = 1.5 * 2 ** 52; // adding it rounds to whole numbers, half to even
const words64 = new Float64Array(1);
const fields64 = new Uint32Array(words64.buffer); // little-endian, as all that browsers run on

function spacingIn({ p, emin }, x) {
  words64[0] = x;
  return 2 ** (Math.max(((fields64[1] >>> 20) & 0x7ff) - 1023, emin) - p);
}

const limited = ({ max }, x) => (Math.abs(x) > max ? Math.sign(x) * Infinity : x);

function nearestIn(format, x) {
  if (!Number.isFinite(x)) return x;
  const spacing = spacingIn(format, x);
  return limited(format, (x / spacing + WHOLE - WHOLE) * spacing);
}

function byChance(x, random) {
  if (!Number.isFinite(x)) return x;
  const spacing = spacingIn(HALF, x);
  const whole = Math.trunc(x / spacing);
  const away = random < Math.floor(Math.abs(x / spacing - whole) * 2 ** 32);
  return limited(HALF, (whole + (away ? Math.sign(x) : 0)) * spacing);
}

// The weight before the first update and after each, for one way of rounding; next(weight, update, step) takes a step.
export function weights(weight, update, steps, round, next = (now, minus) => round(now - minus)) {
  const found = new Float64Array(steps + 1);
  const minus = round(update);
  found[0] = round(weight);
  for (let i = 1; i <= steps; i++) found[i] = next(found[i - 1], minus, i - 1);
  return found;
}

// All six curves, in the order of CURVES; `random` has 32 random bits for each step.
export function curvesOf(weight, update, steps, random) {
  const half = (x) => nearestIn(HALF, x);
  let lost = 0;
  const compensated = (total, minus) => {
    const corrected = half(-minus - lost); // W. Kahan: what a subtraction loses is kept and tried again
    const raised = half(total + corrected);
    lost = half(half(raised - total) - corrected);
    return raised;
  };
  const single = weights(weight, update, steps, Math.fround);
  return [
    single,
    weights(weight, update, steps, half),
    weights(weight, update, steps, (x) => nearestIn(BRAIN, x)),
    weights(weight, update, steps, half, compensated),
    weights(weight, update, steps, half, (now, minus, i) => byChance(now - minus, random[i])),
    single.map(half),
  ];
}

const movesIn = (curve) =>
  curve.reduce((sum, value, i) => sum + (i > 0 && value !== curve[i - 1]), 0);

// --- numbers and sentence -------------------------------------------------------------------------------------------------

function fourDigits(x) {
  if (!x || !Number.isFinite(x)) return numberText(x);
  const [digits, power] = firstDigits(exactly(Math.abs(x)), 4);
  return numberText(Math.sign(x) * Number(`${digits}e${power - 3}`));
}

// A few quarters times a power of two as such, and in decimal.
export function quarters(x) {
  const k = binadeOf(exactly(x));
  const times4 = (4 * x) / 2 ** k;
  if (!Number.isInteger(times4)) return fourDigits(x);
  return `${times4 === 4 ? "" : `${times4 / 4} × `}2^${k} = ${fourDigits(x)}`;
}

// The table: for each method its end value, what is missing, and in how many steps the weight moved.
export function curveRows(curves, exact) {
  return CURVES.map(({ name }, i) => {
    const end = curves[i].at(-1);
    return {
      name,
      end: fourDigits(end),
      off: (end > exact ? "+" : "") + fourDigits(end - exact),
      moved: movesIn(curves[i]).toLocaleString("en-US"),
    };
  });
}

// What may be missing, as a share of the way, besides one ulp of FP16: 0.02 of one that arrives, 0.1 of one that comes near.
function outcomeOf(curve, exact, way) {
  if (!movesIn(curve)) return "still";
  const end = curve.at(-1);
  const missing = Math.abs(end - exact) - spacingIn(HALF, Math.min(Math.abs(end), HALF.max));
  if (missing <= 0.1 * way) return missing <= 0.02 * way ? "arrive" : "near";
  return end > exact ? "short" : "far";
}

// Which methods arrive where the exact sum does, which never moved, and where the others end. The rule behind it is the
// learner's to find, so no word names it.
export function swallowedSentence(curves, weight, update, steps) {
  const exact = weight - steps * update;
  const found = { arrive: [], near: [], still: [], short: [], far: [] };
  CURVES.forEach(({ name }, i) =>
    found[outcomeOf(curves[i], exact, steps * update)].push([name, fourDigits(curves[i].at(-1))]),
  );
  const names = (kind) => listed(found[kind].map(([name]) => name));
  const said = [];
  if (found.arrive.length)
    said.push(`${names("arrive")} ${found.arrive.length === 1 ? "arrives" : "arrive"}`);
  said.push(...found.near.map(([name, end]) => `${name} comes near at ${end}`));
  if (found.still.length)
    said.push(`${names("still")} ${found.still.length === 1 ? "has" : "have"} not moved once`);
  for (const [kind, far] of [
    ["short", "too short a way"],
    ["far", "too far"],
  ])
    said.push(...found[kind].map(([name, end]) => `${name} ends at ${end}, ${far}`));
  const size = quarters(update).split(" = ")[0];
  const start = `${steps.toLocaleString("en-US")} updates of ${size} should take the weight from ${fourDigits(weight)} to ${fourDigits(exact)}`;
  return `${start}: ${said.join(", ")}.`;
}

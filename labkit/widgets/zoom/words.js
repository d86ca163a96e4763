// The sentence of the zoom: what the format makes of a layer, or of one gradient.

import { percent } from "../base/number_words.js";
import {
  classOf,
  decode,
  encode,
  exactly,
  fieldBits,
  roundValue,
  spaced,
} from "../exact/numbers.js";
import { sayFate } from "../underflow/layers.js";
import { DEEPEST } from "./distances.js";

// What FP16 makes of a gradient at a scale, and what twice the scale would change.
function gradientSentence(gradient, log2Scale, format) {
  if (gradient === 0) return "It is exactly zero already in FP32: no scale changes that.";
  const value = gradient * 2 ** log2Scale;
  const [code, twice] = [value, 2 * value].map((one) => encode(roundValue(one, format), format));
  const kind = classOf(code, format);
  const off = () => percent(Math.abs(decode(code, format) / value - 1));
  const now = {
    zero: "FP16 makes it 0: it is below 2^-25, half of the smallest number.",
    infinity: "FP16 makes it inf: it is 65520 or more.",
    subnormal: `FP16 holds it as a subnormal number, ${off()} off.`,
    normal: "FP16 holds it, in full precision.",
  }[kind];
  return `${now} ${doubledText(code, twice, kind, format)}`;
}

function doubledText(code, twice, kind, format) {
  const kindOfTwice = classOf(twice, format);
  if (kindOfTwice === "zero") return "Times two, it is 0 as well.";
  if (kindOfTwice === "infinity") return "Times two, it is inf.";
  if (kind === "zero")
    return `Times two, it is rounded up to ${spaced(exactly(Math.abs(decode(twice, format))))} and is not lost.`;
  if (kind === "subnormal")
    return "Times two, its significand bits move one place to the left, and one more bit of the gradient fits.";
  const [before, after] = [code, twice].map((one) => parseInt(fieldBits(one, format)[1], 2));
  return `Times two, only the exponent field moves, from ${before} to ${after}: the significand stays.`;
}

// layer[index, ...] of a cell of the table that is shown, as its tensor is indexed.
export function cellName(layer, shape, row, column) {
  const lead = [];
  let rest = row;
  for (const size of shape.slice(0, -1).reverse()) {
    lead.unshift(rest % size);
    rest = Math.floor(rest / size);
  }
  return `${layer}[${[...lead, column].join(", ")}]`;
}

export function zoomSentence({
  zoom,
  step,
  layer,
  name,
  gradient,
  log2Scale,
  shares,
  kind,
  cells,
  zeros,
  format,
}) {
  if (zoom === DEEPEST) {
    const scaled =
      log2Scale && gradient
        ? `, times 2^${log2Scale} ${spaced(exactly(gradient * 2 ** log2Scale))}`
        : "";
    return `${name} at step ${step} is ${spaced(exactly(gradient))}${scaled}. ${gradientSentence(gradient, log2Scale, format)}`;
  }
  const said = sayFate(shares, log2Scale, layer, kind, format.name);
  return zoom < DEEPEST - 1
    ? said
    : `${said} Of the ${cells.toLocaleString("en-US")} shown, ${percent(zeros)} are zero already in FP32.`;
}

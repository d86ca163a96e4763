// A loss scaler on a recorded training, as labkit.amp.decide has it, and what there is to say of it.
//
// A trace is {largest, keeps_from}, two numbers for each step; a config has the fields of labkit.amp.ScalerConfig, a cap of null
// being infinity. A replay is {scale, tracker, skipped, lossy}: the scale as its log2, skipped 2 where hysteresis held.

import { decimal, percent, power } from "../base/number_words.js";
import { counted } from "../exact/numbers.js";

export const OVERFLOWS_FROM = 65520; // rounds to infinity in FP16
const LARGEST_FP32 = (2 - 2 ** -23) * 2 ** 127;
export const KNOB_PLACES = {
  init_log2_scale: Array.from({ length: 33 }, (_, k) => k),
  growth_factor: [1.25, 1.5, 2, 3, 4, 8, 16],
  backoff_factor: [1 / 16, 1 / 8, 1 / 4, 1 / 3, 1 / 2, 3 / 4, 7 / 8],
  growth_interval: [1, 2, 3, 5, 8, 10, 15, 20, 25, 30, 40, 50, 75, 100, 150, 200, 500, 1000, 2000],
};

// The state after a step: {scale, clean, held}, `held` counting overflows at which hysteresis kept the scale.
function advance({ scale, clean, held }, skip, config) {
  if (!config.dynamic) return { scale, clean, held };
  if (skip) {
    const steps = config.restart_on_inf ? 0 : clean;
    if (held + 1 < config.hysteresis) return { scale, clean: steps, held: held + 1 };
    return {
      scale: Math.fround(Math.max(scale * config.backoff_factor, config.floor)),
      clean: steps,
      held,
    };
  }
  if (clean + 1 < config.growth_interval)
    return { scale, clean: clean + 1, held: config.consecutive_hysteresis ? 0 : held };
  const higher = Math.fround(Math.min(scale * config.growth_factor, config.cap ?? Infinity));
  return { scale: higher <= LARGEST_FP32 ? higher : scale, clean: 0, held: 0 };
}

export function replayOf(config, { largest, keeps_from }, steps = largest.length) {
  const found = { scale: [], tracker: [], skipped: [], lossy: [] };
  let state = { scale: config.init_scale, clean: 0, held: 0 };
  for (let i = 0; i < steps; i++) {
    const { scale, clean, held } = state;
    const passes = config.steps_at_floor && scale <= config.floor;
    const skip = scale * largest[i] >= OVERFLOWS_FROM && config.skip_on_inf && !passes;
    state = advance(state, skip, config);
    found.scale.push(Math.log2(scale));
    found.tracker.push(clean);
    found.skipped.push(!skip ? 0 : config.dynamic && state.held > held ? 2 : 1);
    found.lossy.push(Number(!skip && scale < 2 ** keeps_from[i]));
  }
  return found;
}

export const sum = (numbers) => numbers.reduce((total, one) => total + one, 0);
export const skipsOf = ({ skipped }) => sum(skipped.map(Math.sign));

// A scale of which the log2 is known.
function scaleText(e) {
  return Number.isInteger(e) ? power(e) : decimal(2 ** e).replaceAll(",", "");
}

function fromTo(scales, one, several) {
  const [low, high] = [Math.min(...scales), Math.max(...scales)];
  return low === high
    ? `${one} at ${scaleText(low)}`
    : `${several} between ${scaleText(low)} and ${scaleText(high)}`;
}

export function replaySentence(replay) {
  const [steps, skips] = [replay.scale.length, skipsOf(replay)];
  const lives = fromTo(replay.scale.slice(Math.floor(steps / 2)), "stays", "lives");
  const lossy = sum(replay.lossy) / steps;
  const loss = lossy ? `${percent(lossy)} of the steps run` : "no step runs";
  return `${skips || "None"} of ${steps} steps ${skips === 1 ? "is" : "are"} skipped; in the second half the scale ${lives}, and ${loss} at a scale that loses gradients.`;
}

// How a preset fared, and which of its rules made the difference.
export function presetSentence(name, config, replay) {
  const [steps, skips] = [replay.scale.length, skipsOf(replay)];
  const held = replay.skipped.filter((one) => one === 2).length;
  const which = skips === 0 ? "no step" : counted(skips, "step");
  let said = `${name}: ${which} of ${steps.toLocaleString("en-US")} ${skips > 1 ? "are" : "is"} skipped, and the scale ${fromTo(replay.scale, "stays", "moves")}.`;
  if (held) {
    const { hysteresis, consecutive_hysteresis: inARow } = config;
    said +=
      ` ${held} of the skips leave${held === 1 ? "s" : ""} the scale where it is: with hysteresis ${hysteresis}, it backs off from overflow ` +
      `number ${hysteresis} on, counted ${inARow ? "in a row" : "since it last grew"}.`;
  }
  return config.cap && 2 ** Math.max(...replay.scale) === config.cap && !skips
    ? `${said} Its cap keeps it below every overflow.`
    : said;
}

// A preset's knobs as the table shows them.
export function knobText({ init_scale, growth_interval, hysteresis, cap }) {
  const parts = [
    `from ${scaleText(Math.log2(init_scale))}`,
    `every ${growth_interval.toLocaleString("en-US")}`,
  ];
  if (hysteresis !== 1) parts.push(`hysteresis ${hysteresis}`);
  if (cap !== null && cap <= 2 ** 64) parts.push(`up to ${scaleText(Math.log2(cap))}`);
  return parts.join(", ");
}

export const placeText = (name, value) =>
  ({
    init_log2_scale: () => power(value),
    growth_interval: () => `${value.toLocaleString("en-US")} clean step${value > 1 ? "s" : ""}`,
  })[name]?.() ?? `× ${Number(value.toPrecision(3))}`;

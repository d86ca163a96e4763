// A loss scaler on a recorded training, by the rules of labkit.amp.decide, and the sentence about
// it.

import { decimal, percent, power } from "../base/number_words.js";
import { counted } from "../exact/numbers.js";

/**
 * A recorded training, two numbers for each step.
 *
 * @typedef {object} Trace
 * @property {number[]} largest The largest magnitude among the gradients.
 * @property {number[]} keeps_from The log2 of the scale from which on few of them underflow.
 */

/**
 * The fields of labkit.amp.ScalerConfig.
 *
 * @typedef {object} Config
 * @property {number} init_scale
 * @property {number} growth_factor
 * @property {number} backoff_factor
 * @property {number} growth_interval
 * @property {boolean} dynamic
 * @property {boolean} skip_on_inf
 * @property {number} hysteresis
 * @property {boolean} consecutive_hysteresis
 * @property {number} floor
 * @property {number | null} cap The largest scale; null is infinity.
 * @property {boolean} steps_at_floor
 * @property {boolean} restart_on_inf
 */

/**
 * What a scaler did in each step.
 *
 * @typedef {object} Replay
 * @property {number[]} scale The log2 of the scale.
 * @property {number[]} tracker Clean steps in a row.
 * @property {number[]} skipped 1; 2 where hysteresis kept the scale; 0 for no.
 * @property {number[]} lossy 1 where more than a few gradients underflowed.
 */

/**
 * @typedef {object} Scaler
 * @property {number} scale
 * @property {number} clean Clean steps in a row.
 * @property {number} held Overflows at which hysteresis kept the scale.
 */

/** @typedef {"init_log2_scale" | "growth_factor" | "backoff_factor" | "growth_interval"} Knob */

export const OVERFLOWS_FROM = 65520; // rounds to infinity in FP16
const LARGEST_FP32 = (2 - 2 ** -23) * 2 ** 127;

/** @type {Record<Knob, number[]>} */
export const KNOB_PLACES = {
  init_log2_scale: Array.from({ length: 33 }, (_, k) => k),
  growth_factor: [1.25, 1.5, 2, 3, 4, 8, 16],
  backoff_factor: [1 / 16, 1 / 8, 1 / 4, 1 / 3, 1 / 2, 3 / 4, 7 / 8],
  growth_interval: [1, 2, 3, 5, 8, 10, 15, 20, 25, 30, 40, 50, 75, 100, 150, 200, 500, 1000, 2000],
};

// --- a scaler, step by step ----------------------------------------------------------------------

/**
 * The scaler after a step.
 *
 * @param {Scaler} scaler
 * @param {boolean} skip
 * @param {Config} config
 * @returns {Scaler}
 */
export function advance(scaler, skip, config) {
  if (!config.dynamic) return scaler;
  return skip ? afterSkip(scaler, config) : afterStep(scaler, config);
}

/**
 * @param {Scaler} scaler
 * @param {Config} config
 * @returns {Scaler}
 */
function afterSkip({ scale, clean, held }, config) {
  const steps = config.restart_on_inf ? 0 : clean;
  if (held + 1 < config.hysteresis) return { scale, clean: steps, held: held + 1 };
  const lower = Math.fround(Math.max(scale * config.backoff_factor, config.floor));
  return { scale: lower, clean: steps, held };
}

/**
 * @param {Scaler} scaler
 * @param {Config} config
 * @returns {Scaler}
 */
function afterStep({ scale, clean, held }, config) {
  if (clean + 1 < config.growth_interval) {
    return { scale, clean: clean + 1, held: config.consecutive_hysteresis ? 0 : held };
  }
  const higher = Math.fround(Math.min(scale * config.growth_factor, config.cap ?? Infinity));
  return { scale: higher <= LARGEST_FP32 ? higher : scale, clean: 0, held: 0 };
}

/**
 * What a scaler does on a trace.
 *
 * @param {Config} config
 * @param {Trace} trace
 * @param {number} [steps]
 * @returns {Replay}
 */
export function replayOf(config, { largest, keeps_from }, steps = largest.length) {
  /** @type {Replay} */
  const found = { scale: [], tracker: [], skipped: [], lossy: [] };
  let scaler = { scale: config.init_scale, clean: 0, held: 0 };
  for (let i = 0; i < steps; i++) {
    const { scale, clean, held } = scaler;
    const passes = config.steps_at_floor && scale <= config.floor;
    const skip = scale * largest[i] >= OVERFLOWS_FROM && config.skip_on_inf && !passes;
    scaler = advance(scaler, skip, config);
    const keptScale = config.dynamic && scaler.held > held;
    found.scale.push(Math.log2(scale));
    found.tracker.push(clean);
    found.skipped.push(skip ? 1 + Number(keptScale) : 0);
    found.lossy.push(Number(!skip && scale < 2 ** keeps_from[i]));
  }
  return found;
}

/** @param {readonly number[]} numbers */
export function sum(numbers) {
  return numbers.reduce((total, one) => total + one, 0);
}

/**
 * How many steps were skipped.
 *
 * @param {Replay} replay
 */
export function skipsOf({ skipped }) {
  return sum(skipped.map(Math.sign));
}

// --- words ---------------------------------------------------------------------------------------

/** @param {number} e the log2 of a scale */
function powerText(e) {
  return Number.isInteger(e) ? power(e) : decimal(2 ** e).replaceAll(",", "");
}

/**
 * @param {readonly number[]} scales
 * @param {string} one the verb where it is one scale
 * @param {string} several
 */
function fromTo(scales, one, several) {
  const low = Math.min(...scales);
  const high = Math.max(...scales);
  if (low === high) return `${one} at ${powerText(low)}`;
  return `${several} between ${powerText(low)} and ${powerText(high)}`;
}

/**
 * How a scaler fared.
 *
 * @param {Replay} replay
 */
export function replaySentence(replay) {
  const steps = replay.scale.length;
  const skips = skipsOf(replay);
  const lives = fromTo(replay.scale.slice(Math.floor(steps / 2)), "stays", "lives");
  const lossy = sum(replay.lossy) / steps;
  const loss = lossy ? `${percent(lossy)} of the steps run` : "no step runs";
  const skipped = `${skips || "None"} of ${steps} steps ${skips === 1 ? "is" : "are"} skipped`;
  return (
    `${skipped}; in the second half the scale ${lives}, ` +
    `and ${loss} at a scale that loses gradients.`
  );
}

/**
 * How a preset fared, and which of its rules made the difference.
 *
 * @param {string} name
 * @param {Config} config
 * @param {Replay} replay
 */
export function presetSentence(name, config, replay) {
  const steps = replay.scale.length.toLocaleString("en-US");
  const skips = skipsOf(replay);
  const which = skips === 0 ? "no step" : counted(skips, "step");
  const are = skips > 1 ? "are" : "is";
  const moves = fromTo(replay.scale, "stays", "moves");
  const capped = config.cap !== null && 2 ** Math.max(...replay.scale) === config.cap;
  const skipped = `${name}: ${which} of ${steps} ${are} skipped, and the scale ${moves}.`;
  const cap = capped && !skips ? " Its cap keeps it below every overflow." : "";
  return `${skipped}${hysteresisText(config, replay)}${cap}`;
}

/**
 * @param {Config} config
 * @param {Replay} replay
 */
function hysteresisText({ hysteresis, consecutive_hysteresis: inARow }, replay) {
  const held = replay.skipped.filter((one) => one === 2).length;
  if (!held) return "";
  const leave = held === 1 ? "leaves" : "leave";
  return (
    ` ${held} of the skips ${leave} the scale where it is: with hysteresis ${hysteresis}, it ` +
    `backs off from overflow number ${hysteresis} on, ` +
    `counted ${inARow ? "in a row" : "since it last grew"}.`
  );
}

/**
 * A preset's knobs as the table shows them.
 *
 * @param {Config} config
 */
export function knobText({ init_scale, growth_interval, hysteresis, cap }) {
  const parts = [
    `from ${powerText(Math.log2(init_scale))}`,
    `every ${growth_interval.toLocaleString("en-US")}`,
  ];
  if (hysteresis !== 1) parts.push(`hysteresis ${hysteresis}`);
  if (cap !== null && cap <= 2 ** 64) parts.push(`up to ${powerText(Math.log2(cap))}`);
  return parts.join(", ");
}

/**
 * A place of a knob.
 *
 * @param {Knob} name
 * @param {number} value
 */
export function placeText(name, value) {
  if (name === "init_log2_scale") return power(value);
  if (name === "growth_interval") {
    return `${value.toLocaleString("en-US")} clean step${value > 1 ? "s" : ""}`;
  }
  return `× ${Number(value.toPrecision(3))}`;
}

// The replay of a loss scaler on a recorded training, by the rules of labkit.amp.decide, and the
// sentences about it.

import { decimal, percent, power } from "../base/number_words.js";
import { counted } from "../exact/numbers.js";

/**
 * A recorded training, two numbers for each step.
 *
 * @typedef {object} Trace
 * @property {number[]} largest The largest magnitude among the gradients.
 * @property {number[]} keeps_from The log2 of the least scale at which at most 1% of the activation
 *   gradients underflow.
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
 * What a scaler did, with a number for each step.
 *
 * @typedef {object} Replay
 * @property {number[]} scale The log2 of the scale.
 * @property {number[]} tracker The number of clean steps in a row before the step.
 * @property {number[]} skipped 0 for a step that was done, 1 for a skipped one, 2 for a skipped one
 *   at which hysteresis kept the scale.
 * @property {number[]} lossy 1 for a step that was done at a scale below that of `keeps_from`, else
 *   0.
 */

/**
 * The state of a scaler between two steps.
 *
 * @typedef {object} Scaler
 * @property {number} scale
 * @property {number} clean Clean steps in a row.
 * @property {number} held Overflows at which hysteresis kept the scale.
 */

/** @typedef {"init_log2_scale" | "growth_factor" | "backoff_factor" | "growth_interval"} Knob */

// The least number that FP16 rounds to infinity.
export const OVERFLOWS_FROM = 65520;
const LARGEST_FP32 = (2 - 2 ** -23) * 2 ** 127;

/**
 * The positions of the sliders.
 *
 * @type {Record<Knob, number[]>}
 */
export const KNOB_PLACES = {
  init_log2_scale: Array.from({ length: 33 }, (_, k) => k),
  growth_factor: [1.25, 1.5, 2, 3, 4, 8, 16],
  backoff_factor: [1 / 16, 1 / 8, 1 / 4, 1 / 3, 1 / 2, 3 / 4, 7 / 8],
  growth_interval: [1, 2, 3, 5, 8, 10, 15, 20, 25, 30, 40, 50, 75, 100, 150, 200, 500, 1000, 2000],
};

// --- a scaler, step by step ----------------------------------------------------------------------

/**
 * Return the scaler after a step.
 *
 * @param {Scaler} scaler
 * @param {boolean} skip whether the step was skipped
 * @param {Config} config
 * @returns {Scaler}
 */
export function advance(scaler, skip, config) {
  if (!config.dynamic) return scaler;
  return skip ? afterSkip(scaler, config) : afterStep(scaler, config);
}

/**
 * Return the scaler after a skipped step: it backs off, unless hysteresis keeps the scale.
 *
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
 * Return the scaler after a step that was done: it grows at the end of an interval, but as in torch
 * not beyond the largest FP32 number.
 *
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
 * Return what a scaler does on a trace.
 *
 * @param {Config} config
 * @param {Trace} trace
 * @param {number} [steps]
 * @returns {Replay}
 */
export function replayOf(config, { largest, keeps_from }, steps = largest.length) {
  /** @type {Replay} */
  const replay = { scale: [], tracker: [], skipped: [], lossy: [] };
  let scaler = { scale: config.init_scale, clean: 0, held: 0 };
  for (let i = 0; i < steps; i++) {
    const { scale, clean, held } = scaler;
    const passes = config.steps_at_floor && scale <= config.floor;
    const skip = scale * largest[i] >= OVERFLOWS_FROM && config.skip_on_inf && !passes;
    scaler = advance(scaler, skip, config);
    const keptScale = config.dynamic && scaler.held > held;
    replay.scale.push(Math.log2(scale));
    replay.tracker.push(clean);
    replay.skipped.push(skip ? 1 + Number(keptScale) : 0);
    replay.lossy.push(Number(!skip && scale < 2 ** keeps_from[i]));
  }
  return replay;
}

/**
 * Return the sum of numbers.
 *
 * @param {readonly number[]} numbers
 */
export function sum(numbers) {
  return numbers.reduce((total, one) => total + one, 0);
}

/**
 * Return how many steps were skipped.
 *
 * @param {Replay} replay
 */
export function skipsOf({ skipped }) {
  return sum(skipped.map(Math.sign));
}

// --- words ---------------------------------------------------------------------------------------

/**
 * Return a scale as text, as a power of two if it is one.
 *
 * @param {number} e the log2 of the scale
 */
function powerText(e) {
  return Number.isInteger(e) ? power(e) : decimal(2 ** e).replaceAll(",", "");
}

/**
 * Return the range of scales as text, such as "stays at 2^10" or "moves between 2^8 and 2^10".
 *
 * @param {readonly number[]} scales as log2
 * @param {string} one the verb for a single scale
 * @param {string} several the verb for several scales
 */
function fromTo(scales, one, several) {
  const low = Math.min(...scales);
  const high = Math.max(...scales);
  if (low === high) return `${one} at ${powerText(low)}`;
  return `${several} between ${powerText(low)} and ${powerText(high)}`;
}

/**
 * Return a sentence about the skipped steps, the scales and the lossy steps of a replay.
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
 * Return sentences about the replay of a preset, and about hysteresis or cap if they had an effect.
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
 * Return a sentence about the skips at which hysteresis kept the scale; "" without any.
 *
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
 * Return the settings of a preset as text for the table.
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
 * Return the text of a position of a knob.
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

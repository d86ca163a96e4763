// The choice of a router: the experts with the largest scores, exact and rounded to a format.
//
// The logits are random: a stream of bits for each token, turned into normally distributed numbers
// by a table of quantiles. widget.py computes the same numbers.

import { PLAYGROUND_FORMATS, randomBitsAt, streamKey, toNearest } from "../playground/rounding.js";

/**
 * The settings of the router.
 *
 * @typedef {object} RouterSettings
 * @property {number} experts The number of experts.
 * @property {number} chosen The number of experts for a token.
 * @property {number} spread The standard deviation of the logits.
 * @property {string} format The format that the scores, or the logits, are rounded to.
 * @property {string} rounded "scores" or "logits".
 */

/**
 * The choice of one token.
 *
 * @typedef {object} TokenChoice
 * @property {Float64Array} exact The exact score of each expert.
 * @property {Float64Array} rounded The rounded score of each expert.
 * @property {number[]} before The experts chosen by exact scores, the best first.
 * @property {number[]} after The experts chosen by rounded scores, the best first.
 * @property {number[]} leaving The experts chosen before, but not after.
 * @property {number[]} coming The experts chosen after, but not before.
 * @property {number[]} tied The experts with the same rounded score as the last one chosen after.
 */

// One more than the largest number of 32 random bits.
const WORD = 2 ** 32;

/**
 * Return the logits of a token, in FP32.
 *
 * @param {number} token
 * @param {RouterSettings} settings
 * @param {readonly number[]} quantiles those of the normal distribution, ascending
 */
export function tokenLogits(token, { experts, spread }, quantiles) {
  const key = streamKey(token);
  const logits = new Float64Array(experts);
  for (let i = 0; i < experts; i += 1) {
    const place = (randomBitsAt(key, i) / WORD) * (quantiles.length - 1);
    const below = Math.floor(place);
    const step = quantiles[below + 1] - quantiles[below];
    const normal = quantiles[below] + (place - below) * step;
    logits[i] = Math.fround(spread * normal);
  }
  return logits;
}

/**
 * Return the indices of the largest values, the largest first; of equal ones the lower index first.
 *
 * @param {ArrayLike<number>} values
 * @param {number} count
 */
export function largest(values, count) {
  /** @type {number[]} */
  const places = [];
  for (let i = 0; i < values.length; i += 1) {
    const full = places.length === count;
    if (full && values[i] <= values[places[count - 1]]) continue;
    // Insert i, and move smaller values back. An equal value that came earlier stays before it.
    let slot = full ? count - 1 : places.length;
    while (slot > 0 && values[places[slot - 1]] < values[i]) {
      places[slot] = places[slot - 1];
      slot -= 1;
    }
    places[slot] = i;
  }
  return places;
}

/** @param {number} logit */
function scoreOf(logit) {
  return Math.fround(1 / (1 + Math.exp(-logit)));
}

/**
 * Return the scores of a token, exact and rounded, and the experts that each choose.
 *
 * @param {number} token
 * @param {RouterSettings} settings
 * @param {readonly number[]} quantiles
 * @returns {TokenChoice}
 */
export function tokenChoice(token, settings, quantiles) {
  const format = PLAYGROUND_FORMATS[settings.format];
  const logits = tokenLogits(token, settings, quantiles);
  const exact = settings.rounded === "logits" ? logits : logits.map(scoreOf);
  const rounded = exact.map((value) => toNearest(value, format));
  const before = largest(exact, settings.chosen);
  const after = largest(rounded, settings.chosen);
  const last = rounded[after[after.length - 1]];
  return {
    exact,
    rounded,
    before,
    after,
    leaving: before.filter((expert) => !after.includes(expert)),
    coming: after.filter((expert) => !before.includes(expert)),
    tied: Array.from(rounded.keys()).filter((expert) => rounded[expert] === last),
  };
}

/**
 * Return, for each token, whether rounding changes its set of experts.
 *
 * @param {number} tokens
 * @param {RouterSettings} settings
 * @param {readonly number[]} quantiles
 */
export function changedTokens(tokens, settings, quantiles) {
  return Array.from({ length: tokens }, (_, token) => {
    return tokenChoice(token, settings, quantiles).leaving.length > 0;
  });
}

/**
 * Return the next token whose experts change, or the same token if none does.
 *
 * @param {boolean[]} changed
 * @param {number} token
 */
export function nextChanged(changed, token) {
  for (let step = 1; step <= changed.length; step += 1) {
    const next = (token + step) % changed.length;
    if (changed[next]) return next;
  }
  return token;
}

/**
 * Return the sentence about all tokens, and about one of them.
 *
 * @param {TokenChoice} choice
 * @param {number} token
 * @param {boolean[]} changed for each token, whether its experts change
 * @param {RouterSettings} settings
 */
export function routerSentence(choice, token, changed, settings) {
  const count = changed.filter(Boolean).length;
  const share = ((100 * count) / changed.length).toFixed(1);
  const what = `the ${settings.rounded} rounded to ${settings.format}`;
  const experts = settings.chosen === 1 ? "another expert" : "another set of experts";
  return (
    `With ${what}, ${count} of ${changed.length} tokens (${share}%) get ${experts}. ` +
    `Token ${token} ${tokenWords(choice)}`
  );
}

/** @param {TokenChoice} choice */
function tokenWords({ after, leaving, coming, tied }) {
  let tie = "";
  // If every expert with the last score was chosen, the numbers of the experts did not matter.
  if (tied.some((expert) => !after.includes(expert))) {
    tie = ` ${tied.length} experts have the score of the last place; the lower number wins.`;
  }
  if (leaving.length === 0) return `keeps its experts.${tie}`;
  return `loses ${named(leaving)} and gets ${named(coming)}.${tie}`;
}

/** @param {number[]} experts */
function named(experts) {
  const numbers = [...experts].sort((a, b) => a - b).join(", ");
  return experts.length === 1 ? `expert ${numbers}` : `experts ${numbers}`;
}

// The bytes that a training keeps for each weight between two steps.

import { knownFormat } from "./network.js";

/** @import { Method, Recipe } from "./recipe.js" */

const FP32_BYTES = 4;

/**
 * Return the bytes of a number.
 *
 * @param {string} format
 */
function bytesOf(format) {
  const { exponentBits, significandBits } = knownFormat(format);
  return (1 + exponentBits + significandBits) / 8;
}

/**
 * Return how many numbers an optimizer keeps for each weight.
 *
 * @param {Method} method
 */
function statesOf({ kind, momentum }) {
  if (kind === "Adam") return 2;
  return momentum === 0 ? 0 : 1;
}

/**
 * Return the bytes for each weight: of the model, the master copy, and the optimizer's state.
 *
 * @param {Recipe} recipe
 * @param {Method} method
 * @returns {{ model: number, master: number, state: number, total: number }}
 */
export function bytesPerWeight({ weights, master, optimizer }, method) {
  const model = bytesOf(weights);
  const copy = master && weights !== "FP32" ? FP32_BYTES : 0;
  const state = statesOf(method) * bytesOf(optimizer);
  return { model, master: copy, state, total: model + copy + state };
}

// The cells of a table of operations, which the ledger and the graph share.

import { h } from "../base/elements.js";

/**
 * Return the name of an operation.
 *
 * @param {string} text
 */
export function operationName(text) {
  return h("span", { class: "lg-op", text });
}

/** Return the empty cell for the format of an operation's result. */
export function givesCell() {
  return h("td", { class: "lg-gives" });
}

/**
 * Return the name of a format on its colour.
 *
 * @param {string} name
 */
export function filledChip(name) {
  return h("span", { class: "lk-chip lk-filled", data: { format: name }, text: name });
}

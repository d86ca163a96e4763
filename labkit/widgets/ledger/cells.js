// The cells of a table of operations, which the ledger and the graph share.

import { h } from "../base/elements.js";

/**
 * The name of an operation.
 *
 * @param {string} text
 */
export function operationName(text) {
  return h("span", { class: "lg-op", text });
}

/** The cell of what an operation gives. */
export function givesCell() {
  return h("td", { class: "lg-gives" });
}

/**
 * A format, filled with its colour.
 *
 * @param {string} name
 */
export function filledChip(name) {
  return h("span", { class: "lk-chip lk-filled", data: { format: name }, text: name });
}

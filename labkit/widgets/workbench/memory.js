// The bytes that recipes keep between steps, as bars on one scale.

import { h } from "../base/elements.js";

/**
 * The memory of a run.
 *
 * @typedef {object} MemoryRow
 * @property {string} name
 * @property {number[]} bytes The number of bytes of each category.
 * @property {string[]} texts The same as text.
 * @property {string} total The sum, as text.
 */

// The colours of what memory is kept for, in the order of the categories.
// Each has a contrast of 3 on the background of both themes.
const COLOURS = ["#3d97d3", "#8c8c8c", "#b58a1c", "#4f9f80"];

/** @param {readonly string[]} categories */
export function memoryBars(categories) {
  const element = h("div", { class: "wb-memory" });
  let drawn = "";
  return {
    element,
    /** @param {MemoryRow[]} rows */
    show(rows) {
      const key = JSON.stringify(rows);
      if (key === drawn) return;
      drawn = key;
      if (!rows.length) {
        element.replaceChildren();
        return;
      }
      const totals = rows.map(({ bytes }) => bytes.reduce((a, b) => a + b, 0));
      const most = Math.max(1, ...totals);
      const lines = rows.flatMap((row) => [
        h("span", { class: "wb-name", text: row.name }),
        bar(row, most, categories),
        h("span", { text: row.total }),
      ]);
      element.replaceChildren(legend(categories), h("div", { class: "wb-bars" }, ...lines));
    },
  };
}

/**
 * Return the letter in the parts of a category, so that colour is not their only difference.
 *
 * @param {string} category
 */
function letterOf(category) {
  return category[0].toUpperCase();
}

/** @param {readonly string[]} categories */
function legend(categories) {
  const keys = categories.map((name, i) => {
    const style = { background: COLOURS[i] };
    const sample = h("span", { data: { part: i }, style, text: letterOf(name) });
    return h("span", { class: "lk-row lk-tight wb-key" }, sample, name);
  });
  const title = h("span", { text: "Bytes kept between steps (no activations):" });
  return h("div", { class: "lk-row lk-quiet wb-legend" }, title, ...keys);
}

/**
 * Return the bar of a run: a group of parts that can be focused.
 *
 * @param {MemoryRow} row
 * @param {number} most the bytes of the longest bar
 * @param {readonly string[]} categories
 */
function bar(row, most, categories) {
  const parts = row.bytes.map((bytes, i) => {
    if (!bytes) return null;
    const style = { background: COLOURS[i], width: `${(100 * bytes) / most}%` };
    const about = { title: row.texts[i], "aria-label": row.texts[i], data: { part: i }, style };
    return h("span", { ...about, role: "img", tabindex: "0", text: letterOf(categories[i]) });
  });
  return h("div", { class: "wb-bar", role: "group", "aria-label": row.name }, ...parts);
}

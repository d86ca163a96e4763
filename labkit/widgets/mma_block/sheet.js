// The bits of a block (sum.js). Each bit has a kind: kept, filled in, cut off by alignment, or
// dropped by rounding.

import { h, rich } from "../base/elements.js";

/** @import { blockSheet, SheetRow } from "./sum.js" */

/** @type {Record<string, string>} */
const KINDS = { z: "zero", k: "kept", c: "cut", d: "cut", " ": "blank" };

/**
 * Return the bits of a row, with one element for each run of bits of the same kind.
 *
 * @param {SheetRow} row
 * @param {number} fallen the number of cut bits that were not cut in the last drawing; they are
 *   animated
 */
function bitRuns({ bits, kinds }, fallen) {
  const fragment = document.createDocumentFragment();
  let from = 0;
  while (from < bits.length) {
    const kind = kinds[from];
    let to = from + 1;
    while (to < bits.length && kinds[to] === kind) to += 1;
    const late = kind === "c" ? Math.min(fallen, to - from) : 0;
    const about = { class: "mm-falling", text: bits.slice(from, from + late) };
    const falling = late ? h("span", about) : "";
    fragment.append(
      h("span", { class: `mm-${KINDS[kind]}` }, falling, bits.slice(from + late, to)),
    );
    from = to;
  }
  return fragment;
}

/**
 * @param {SheetRow} row
 * @param {number} fallen
 */
function sheetLine(row, fallen) {
  const { name, role, value, sign, bits, kinds } = row;
  return h(
    "div",
    { class: `mm-line mm-row-${role}`, data: { name, bits, kinds } },
    h("span", { class: "mm-name", text: name }),
    h("span", { class: "lk-quiet mm-value" }, rich(value.replace(/^-/, "−"))),
    h("span", { class: "mm-sign", text: sign }),
    h("span", { class: "mm-bits" }, bitRuns(row, fallen)),
  );
}

/**
 * Return the number of bits of a row that alignment cuts off.
 *
 * @param {SheetRow} row
 */
function cutBits({ kinds }) {
  return kinds.split("c").length - 1;
}

/** @param {string} at */
function headWord(at) {
  return h("span", { class: `lk-quiet mm-power mm-${at}` });
}

/** Return the sheet: a line of labels, and a line for each row. */
export function makeSheet() {
  const first = headWord("first");
  const last = headWord("last");
  const keeps = headWord("keeps");
  const off = headWord("off");
  const words = h("span", { class: "mm-bits" }, first, keeps, last, off);
  const head = h("div", { class: "mm-line mm-head" }, h("span"), h("span"), h("span"), words);
  const lines = h("div", { class: "mm-lines" });
  const body = h("div", { class: "mm-body" }, head, lines);
  /** @type {Map<string, number>} the number of cut bits of each row in the last drawing, by name */
  let cut = new Map();
  off.textContent = "cut off";
  return {
    element: h("div", { class: "mm-sheet", "aria-hidden": "true" }, body),
    /**
     * @param {ReturnType<typeof blockSheet>} sheet
     * @param {string} format the name of the format of the result
     */
    draw(sheet, format) {
      const before = cut;
      lines.dataset.format = format;
      body.style.setProperty("--mm-columns", String(sheet.columns));
      body.style.setProperty("--mm-edge", String(sheet.edge));
      body.style.setProperty("--mm-lead", String(sheet.lead));
      first.replaceChildren(rich(sheet.first));
      last.replaceChildren(rich(sheet.last));
      keeps.textContent = sheet.keeps;
      cut = new Map(sheet.rows.map((row) => [row.name, cutBits(row)]));
      const drawn = sheet.rows.map((row) => {
        const behind = cutBits(row);
        return sheetLine(row, Math.max(0, behind - (before.get(row.name) ?? behind)));
      });
      lines.replaceChildren(...drawn);
    },
  };
}

// The bits of a number, field by field (`fieldsOf` in explored.js).

import { h, placeOf, required, rich } from "../base/elements.js";
import { superscript } from "../base/number_words.js";

/** @import { Bit, Field } from "./explored.js" */

/** @typedef {Map<number, HTMLButtonElement>} Cells by the place of their bit, 0 is the last one */

/**
 * The bits as buttons: one stop for Tab, arrow keys between them.
 *
 * @param {(bit: number) => void} onFlip
 */
export function bitRow(onFlip) {
  const element = h("div", { class: "be-bits", role: "group" });
  /** @type {Cells} */
  let cells = new Map();
  let shape = "";
  let current = 0;

  /** @param {number} bit */
  function goTo(bit) {
    current = Math.min(cells.size - 1, Math.max(0, bit));
    for (const [one, cell] of cells) cell.tabIndex = one === current ? 0 : -1;
  }

  element.addEventListener("click", (event) => {
    const cell = /** @type {HTMLElement | null} */ (placeOf(event).closest(".be-bit"));
    if (!cell) return;
    goTo(Number(cell.dataset.bit));
    cell.focus({ preventScroll: true });
    turnCell(cell, cell.getAttribute("aria-pressed") !== "true");
    onFlip(current);
  });
  element.addEventListener("keydown", (event) => {
    const to = placeAfter(event.key, current, cells.size);
    if (to === undefined) return;
    event.preventDefault();
    goTo(to);
    cells.get(current)?.focus();
  });

  /** @param {Field[]} fields */
  function build(fields) {
    cells = new Map();
    element.replaceChildren(...fields.map((field) => fieldBlock(field, cells)));
    element.style.setProperty("--be-count", String(cells.size));
    element.classList.toggle("be-many", cells.size > 20);
    goTo(current);
  }

  return {
    element,
    /**
     * @param {string} format
     * @param {Field[]} fields
     */
    set(format, fields) {
      const next = format + fields.map((field) => field.letter + field.bits.length).join(" ");
      if (next !== shape) build(fields);
      shape = next;
      const keys = "arrow keys go from bit to bit, Space turns one over";
      const label = `The ${cells.size} bits of this ${format} code; ${keys}`;
      element.setAttribute("aria-label", label);
      for (const field of fields) showField(element, field, cells);
    },
  };
}

/**
 * Where a key goes from a bit; undefined for a key that means nothing here.
 *
 * @param {string} key
 * @param {number} current
 * @param {number} count
 */
function placeAfter(key, current, count) {
  /** @type {Record<string, number>} */
  const places = { ArrowLeft: current + 1, ArrowRight: current - 1, Home: count - 1, End: 0 };
  return places[key];
}

/**
 * @param {HTMLElement} within
 * @param {Field} field
 * @param {Cells} cells
 */
function showField(within, field, cells) {
  for (const { bit, on } of field.bits) {
    const cell = cells.get(bit);
    if (cell) turnCell(cell, on);
  }
  const says = required(within, `[data-field="${field.letter}"] .be-says`);
  says.replaceChildren(rich(field.says));
}

/**
 * @param {HTMLElement} cell
 * @param {boolean} on
 */
function turnCell(cell, on) {
  cell.setAttribute("aria-pressed", String(on));
  required(cell, "b").textContent = on ? "1" : "0";
  // It begins with what is seen, for those who speak to it.
  cell.setAttribute("aria-label", `${on ? 1 : 0}: ${cell.title}`);
}

/**
 * The cells of a field, its name above them and its meaning below.
 *
 * @param {Field} field
 * @param {Cells} cells where its cells are noted
 */
function fieldBlock(field, cells) {
  const row = h("div", { class: "be-cells" });
  for (const bit of field.bits) {
    const cell = bitCell(field, bit);
    cells.set(bit.bit, cell);
    row.append(cell);
  }
  const letter = h("b", { text: field.letter });
  const name = h("div", { class: "be-name" }, letter, h("span", { text: ` ${field.name}` }));
  const says = h("div", { class: "be-says lk-quiet" });
  return h("div", { class: "be-field", data: { field: field.letter } }, name, row, says);
}

/**
 * @param {Field} field
 * @param {Bit} bit
 */
function bitCell(field, { bit, weight }) {
  const adds = field.letter === "S" ? "minus when on" : `weight ${weight}`;
  const shown = weight.replace(/\^(-?\d+)/, (_, exponent) => superscript(exponent));
  return h(
    "button",
    {
      type: "button",
      class: "be-bit",
      data: { bit, weight: shown },
      title: `${field.name}, bit ${bit}, ${adds}`,
      "aria-pressed": "false",
    },
    h("b", { text: "0" }),
  );
}

// The bits of a number, field by field (`fieldsOf` in explored.js).

import { h, placeOf, required, rich } from "../base/elements.js";
import { superscript } from "../base/number_words.js";

/** @import { Bit, Field } from "./explored.js" */

/** @typedef {Map<number, HTMLButtonElement>} Cells index of a bit (0 is the last) -> its button */

/**
 * Return the row of the bits as buttons. Tab stops at one of them, and arrow keys move the focus
 * from bit to bit.
 *
 * @param {((bit: number) => void) | null} onFlip called with the index of a clicked bit; null if
 *   the bits are only shown
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
    if (onFlip === null) return;
    turnCell(cell, cell.getAttribute("aria-pressed") !== "true");
    onFlip(current);
  });
  element.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
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
    if (onFlip === null) {
      for (const cell of cells.values()) cell.setAttribute("aria-disabled", "true");
    }
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
      const arrows = "arrow keys go from bit to bit";
      const keys = onFlip === null ? arrows : `${arrows}, Space turns one over`;
      const label = `The ${cells.size} bits of this ${format} code; ${keys}`;
      element.setAttribute("aria-label", label);
      for (const field of fields) showField(element, field, cells);
    },
  };
}

/**
 * Return the index of the bit to which a key moves the focus; undefined for other keys. The index
 * may lie one beyond the ends.
 *
 * @param {string} key
 * @param {number} current the index of the bit with the focus
 * @param {number} count the number of bits
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
  // The label begins with the visible digit, so that voice control finds the button by it.
  cell.setAttribute("aria-label", `${on ? 1 : 0}: ${cell.title}`);
}

/**
 * Return the cells of a field, with its name above them and its meaning below.
 *
 * @param {Field} field
 * @param {Cells} cells the cells of this field are added to it
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

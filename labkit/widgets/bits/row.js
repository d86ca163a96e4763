// The bits of a number, field by field (`fieldsOf` in explored.js).

import { h, rich } from "../base/elements.js";
import { superscript } from "../base/number_words.js";

// --- the bits: one stop for Tab, arrow keys between them ----------------------------------------------------------------

export function bitRow(onFlip) {
  const element = h("div", { class: "be-bits", role: "group" });
  let [cells, shape, current] = [new Map(), "", null];

  function goTo(bit) {
    current = Math.min(cells.size - 1, Math.max(0, bit));
    for (const [one, cell] of cells) cell.tabIndex = one === current ? 0 : -1;
  }

  element.addEventListener("click", (event) => {
    const cell = event.target.closest(".be-bit");
    if (!cell) return;
    goTo(Number(cell.dataset.bit));
    cell.focus({ preventScroll: true });
    turn(cell, cell.getAttribute("aria-pressed") !== "true");
    onFlip(current);
  });
  element.addEventListener("keydown", (event) => {
    const to = { ArrowLeft: current + 1, ArrowRight: current - 1, Home: cells.size - 1, End: 0 }[
      event.key
    ];
    if (to === undefined) return;
    event.preventDefault();
    goTo(to);
    cells.get(current).focus();
  });

  function build(fields) {
    cells = new Map();
    element.replaceChildren(...fields.map((field) => fieldBlock(field, cells)));
    element.style.setProperty("--be-count", cells.size);
    element.classList.toggle("be-many", cells.size > 20);
    goTo(current ?? 0);
  }

  return {
    element,
    set(format, fields) {
      const next = format + fields.map((field) => field.letter + field.bits.length).join(" ");
      if (next !== shape) build(fields);
      shape = next;
      element.setAttribute(
        "aria-label",
        `The ${cells.size} bits of this ${format} code; arrow keys go from bit to bit, Space turns one over`,
      );
      for (const field of fields) {
        for (const { bit, on } of field.bits) turn(cells.get(bit), on);
        element
          .querySelector(`[data-field="${field.letter}"] .be-says`)
          .replaceChildren(rich(field.says));
      }
    },
  };
}

function turn(cell, on) {
  cell.setAttribute("aria-pressed", String(on));
  cell.querySelector("b").textContent = on ? "1" : "0";
  cell.setAttribute("aria-label", `${on ? 1 : 0}: ${cell.title}`); // begins with what is seen, for those who speak to it
}

function fieldBlock(field, cells) {
  const row = h("div", { class: "be-cells" });
  for (const { bit, weight } of field.bits) {
    const label = `${field.name}, bit ${bit}, ${field.letter === "S" ? "minus when on" : `weight ${weight}`}`;
    const shown = String(weight).replace(/\^(-?\d+)/, (_, exponent) => superscript(exponent));
    const cell = h(
      "button",
      {
        type: "button",
        class: "be-bit",
        data: { bit, weight: shown },
        title: label,
        "aria-pressed": "false",
      },
      h("b", { text: "0" }),
    );
    cells.set(bit, cell);
    row.append(cell);
  }
  const name = h(
    "div",
    { class: "be-name" },
    h("b", { text: field.letter }),
    h("span", { text: ` ${field.name}` }),
  );
  return h(
    "div",
    { class: "be-field", data: { field: field.letter } },
    name,
    row,
    h("div", { class: "be-says lk-quiet" }),
  );
}

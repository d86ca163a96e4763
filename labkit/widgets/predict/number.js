// A number, typed or slid on a logarithmic line. Once the truth is known, the line shows both and what lies between.

import { slider } from "../base/controls.js";
import { h, rich } from "../base/elements.js";
import { decimal } from "../base/number_words.js";

const STEPS = 20; // of the slider, in a power of ten

// What a person types: 24, 24 %, 1e-3, 1,000, 2^-10. NaN where it is none.
function typedNumber(text, unit) {
  const plain = text
    .trim()
    .replace(unit.trim(), "")
    .trim()
    .replace(/,(?=\d{3}\b)/g, "");
  const raised = plain.match(/^(\d+)\^(-?\d+)$/);
  return raised ? raised[1] ** raised[2] : plain === "" ? NaN : Number(plain);
}

export function numberAsked({ model, life, picked, pick }) {
  const { low, high, unit } = model.get("ruler");
  const [from, to] = [Math.log10(low), Math.log10(high)];
  const at = (value) => (100 * (Math.log10(value) - from)) / (to - from);
  const onLine = (step) => Number((low * 10 ** (step / STEPS)).toPrecision(2));
  const last = Math.round(STEPS * (to - from));
  const words = (value) => `${decimal(value)}${unit}`;
  const short = unit.length > 1 ? decimal : words; // the field has the unit beside it; marks stand close
  const range = `from ${words(low)} to ${words(high)}`;

  const field = h("input", {
    type: "text",
    class: "lk-guess",
    "aria-label": `Your number${unit && `, in ${unit}`}, ${range}`,
  });
  field.setAttribute("autocomplete", "off");
  const said = h("span", { class: "lk-error", role: "alert" });
  const line = slider({
    label: `Your number on a logarithmic line ${range}`,
    min: 0,
    max: last,
    page: STEPS,
    value: last / 2,
    labelled: false,
    text: (step) => words(Math.min(high, onLine(step))),
    onInput: (step) => take(Math.min(high, onLine(step)), field),
  });
  const marks = h("div", { class: "lk-marks", "aria-hidden": "true" });

  function take(value, other) {
    const fits = value >= low && value <= high;
    const empty = field.value.trim() === "" && other === line;
    said.textContent = fits || empty ? "" : `Write a number ${range}.`;
    field.setAttribute("aria-invalid", String(!fits && !empty));
    pick(fits ? String(value) : "");
    if (!fits) return;
    if (other === field) field.value = decimal(value);
    else line.set(Math.round(STEPS * (Math.log10(value) - from)));
  }
  life.listen(field, "input", () => take(typedNumber(field.value, unit), line));
  if (picked) {
    field.value = decimal(Number(picked));
    line.set(Math.round(STEPS * (Math.log10(Number(picked)) - from)));
  }

  const mark = (value, kind, text) =>
    h(
      "span",
      {
        class: "lk-mark",
        data: { kind },
        style: { "--lk-at": `${Math.min(100, Math.max(0, at(value)))}` },
      },
      rich(text),
    );
  function draw(done) {
    const decades = Array.from(
      { length: Math.floor(to + 1e-9) - Math.ceil(from - 1e-9) + 1 },
      (_, i) => Math.ceil(from - 1e-9) + i,
    );
    const every = Math.ceil(decades.length / 8);
    const ticks = decades
      .filter((k) => (k - decades[0]) % every === 0)
      .map((k) => [Number(`1e${k}`), "tick"]);
    const [guess, truth] = [Number(model.get("choice")), model.get("truth")];
    const known =
      done && truth > 0
        ? [
            [guess, "guess", `you: ${words(guess)}`],
            [truth, "truth", `it: ${words(Number(truth.toPrecision(3)))}`],
          ]
        : [];
    const ends = known
      .map(([value]) => Math.min(100, Math.max(0, at(value))))
      .sort((a, b) => a - b);
    const between = known.length
      ? h("span", {
          class: "lk-between",
          style: { "--lk-at": `${ends[0]}`, "--lk-to": `${ends[1]}` },
        })
      : null;
    marks.replaceChildren(
      ...ticks.map(([value, kind]) => mark(value, kind, short(value))),
      ...(between ? [between] : []),
      ...known.map((one) => mark(...one)),
    );
    marks.dataset.known = String(known.length > 0);
  }

  return {
    element: h(
      "div",
      { class: "lk-number-asked" },
      h("div", { class: "lk-row" }, field, h("span", { text: unit.trim() }), said),
      line.element,
      marks,
    ),
    show(done) {
      field.disabled = done;
      line.enable(!done);
      line.element.hidden = done && model.get("truth") > 0;
      draw(done);
    },
  };
}

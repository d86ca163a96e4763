// Numbers in blocks (blocks.js) as bars: one is dragged, and what all become stands beside it.

import { button, segmented, sentence, toggle, traitChoice } from "../base/controls.js";
import { h, rich } from "../base/elements.js";
import { put, watch } from "../base/model.js";
import { decimal } from "../base/number_words.js";
import { view } from "../base/root.js";
import { derived, neighbour, roundValue } from "../exact/numbers.js";
import {
  arithmeticText,
  asNumber,
  blockFormat,
  fateOfNumber,
  largestOf,
  roundRow,
  rowSentence,
  scaleText,
} from "./blocks.js";
import { makePicture } from "./picture.js";

const REACH = 256; // the axis is linear up to its end divided by this, and then has as much room for each power of two

// Where the hand stops: multiples of 1/32 up to 1/4, then 8 numbers in each power of two; 16 is the end of the axis.
const STOPS = derived({
  name: "stops",
  exponent_bits: 3,
  significand_bits: 3,
  specials: "NONE",
  signed: true,
  has_zero: true,
});

function axisOf(top) {
  const least = top / REACH;
  return {
    top,
    at: (x) =>
      Math.max(
        -1,
        Math.min(1, (Math.sign(x) * Math.log2(1 + Math.abs(x) / least)) / Math.log2(1 + REACH)),
      ),
    value: (at) => Math.sign(at) * least * (2 ** (Math.abs(at) * Math.log2(1 + REACH)) - 1),
    ticks: [-1, -1 / 4, -1 / 16, -1 / 64, 0, 1 / 64, 1 / 16, 1 / 4, 1].map((share) => share * top),
    stop: (x) => Math.max(-top, Math.min(top, (roundValue((16 * x) / top, STOPS) * top) / 16)),
    next(x, direction) {
      const near = roundValue((16 * x) / top, STOPS);
      const beyond = ((near * top) / 16 - x) * direction > 0;
      return Math.max(
        -top,
        Math.min(top, ((beyond ? near : (neighbour(near, STOPS, direction) ?? near)) * top) / 16),
      );
    },
  };
}

// Bars and marks of as many numbers.
function makeBars(count, axis) {
  const bars = Array.from({ length: count }, (_, i) => {
    const [bar, mark] = [h("span", { class: "bs-bar" }), h("span", { class: "bs-mark" })];
    const element = h(
      "div",
      { class: "bs-number", data: { i } },
      bar,
      mark,
      h("span", { class: "bs-note" }),
    );
    return { element, bar, mark };
  });
  const heads = h("div", { class: "bs-heads" });
  const ticks = axis.ticks.map((x) =>
    h(
      "span",
      { class: "bs-tick", style: { bottom: `${50 + 50 * axis.at(x)}%` } },
      h("span", { class: "lk-quiet", text: decimal(x).replace("-", "\u2212") }),
    ),
  );
  const columns = h("div", { class: "bs-columns" }, ...bars.map(({ element }) => element));
  const element = h(
    "div",
    { class: "bs-bars" },
    heads,
    h("div", { class: "bs-field" }, ...ticks, columns),
  );
  const put = (span, x) => span.style.setProperty("bottom", `${50 + 50 * axis.at(x)}%`);
  return {
    element,
    columns,
    items: bars.map((one) => one.element),
    draw(row, numbers, becomes, fates) {
      heads.replaceChildren(
        ...row.scales.map((x) =>
          h(
            "div",
            { class: "bs-head", style: { flex: row.format.size } },
            h(
              "span",
              {},
              `${row.scales.length > 1 ? "block of" : "one block of"} ${row.format.size}, scale `,
              h("b", {}, rich(scaleText(x, row.format))),
            ),
          ),
        ),
      );
      bars.forEach(({ element, bar, mark }, i) => {
        element.dataset.fate = fates[i];
        element.classList.toggle("bs-first", i > 0 && i % row.format.size === 0);
        put(bar, Math.min(0, numbers[i]));
        bar.style.height = `${50 * Math.abs(axis.at(numbers[i]))}%`;
        put(mark, becomes[i]);
        element.lastChild.textContent = { zero: "0", cut: "max", kept: "" }[fates[i]];
        element.dataset.down = String(numbers[i] < 0);
      });
    },
  };
}

function legend() {
  const entry = (fate, text) =>
    h("span", { class: "bs-key" }, h("span", { class: "bs-swatch", data: { fate } }), text);
  return h(
    "div",
    { class: "lk-row lk-quiet bs-legend" },
    entry("kept", "a number"),
    entry("mark", "what it becomes"),
    entry("zero", "becomes 0"),
    entry("cut", "cut to the largest"),
    "Drag a bar, or press Up and Down; Left and Right choose another.",
  );
}

// Mouse and keys on the bars.
function hands(bars, life, { select, look, move, to }) {
  let held = null;
  bars.items.forEach((item, i) => {
    life.listen(item, "pointerenter", () => held === null && look(i));
    life.listen(item, "pointerleave", () => held === null && look(null));
    life.listen(item, "focus", () => select(i));
    life.listen(item, "pointerdown", (event) => {
      event.preventDefault();
      held = { y: event.clientY, moved: false };
      item.setPointerCapture(event.pointerId);
      item.focus({ preventScroll: true });
    });
    life.listen(item, "pointermove", (event) => {
      if (!held) return;
      held.moved ||= Math.abs(event.clientY - held.y) > 3;
      if (!held.moved) return;
      item.dataset.held = "true";
      const box = bars.columns.getBoundingClientRect();
      to(i, 1 - (2 * (event.clientY - box.top)) / box.height);
    });
    for (const type of ["pointerup", "pointercancel"]) {
      life.listen(item, type, () => {
        held = null;
        delete item.dataset.held;
      });
    }
    life.listen(item, "keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const steps = {
        ArrowUp: 1,
        ArrowDown: -1,
        PageUp: 8,
        PageDown: -8,
        Home: -Infinity,
        End: Infinity,
      }[event.key];
      const aside = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!steps && !aside) return;
      event.preventDefault();
      if (steps) move(i, steps);
      else bars.items[i + aside]?.focus({ preventScroll: true });
    });
  });
}

export default view(
  { label: "Numbers in blocks that share a scale", kind: "blocks", alone: true },
  (root, model, life) => {
    const { formats: rows, rotation, random, top, picture: pixels } = model.get("_choices");
    const formats = new Map(rows.map((row) => [row.name, blockFormat(row)]));
    const [axis, start] = [axisOf(top), model.get("values")];
    let [row, pointed] = [null, null];

    const format = traitChoice(model, "format", "Format", [...formats.keys()]);
    const reset = button({ label: "Reset", onPress: () => put(model, { values: start }) });
    const ways = [
      {
        value: "down",
        label: "down",
        title: "as OCP's standard has it: the largest number may be cut",
      },
      { value: "up", label: "up", title: "as NVIDIA's recipe has it: no number is cut" },
    ];
    const way = segmented({
      label: "Scale rounded",
      options: ways,
      value: "down",
      onChange: (to) => put(model, { scale_up: to === "up" }),
    });
    const chance = toggle({
      label: "Stochastic rounding",
      value: false,
      onChange: (on) => put(model, { stochastic: on }),
    });
    const again = button({
      label: "Round again",
      title: "by chance, with other random numbers",
      onPress: () => put(model, { draw: (model.get("draw") + 1) % random.length }),
    });
    const turn = toggle({
      label: "Hadamard rotation",
      value: false,
      onChange: (on) => put(model, { rotated: on }),
    });
    const tensor = h("div", { class: "lk-quiet bs-tensor" });
    const bars = makeBars(start.length, axis);
    const turnedBars = makeBars(start.length, axis);
    const second = h(
      "div",
      { class: "bs-second", "aria-hidden": "true" },
      h("div", {
        class: "lk-quiet",
        text: "Rotated: these are rounded. Above are the same numbers, rotated back.",
      }),
      turnedBars.element,
    );
    const words = sentence(model);
    const detail = sentence();
    detail.element.classList.add("bs-detail");
    const picture = makePicture(pixels, random);
    root.append(
      h("div", { class: "lk-title", text: `${start.length} numbers in blocks that share a scale` }),
      h("div", { class: "lk-row" }, format.element, way.element, turn.element, chance.element),
      h(
        "div",
        { class: "lk-row bs-about" },
        tensor,
        h("div", { class: "lk-row" }, again.element, reset.element),
      ),
      bars.element,
      second,
      legend(),
      words.element,
      detail.element,
      picture.element,
    );
    bars.items.forEach((item, i) => {
      const fixed = {
        role: "slider",
        "aria-label": `x[${i}]`,
        "aria-orientation": "vertical",
        "aria-valuemin": -top,
        "aria-valuemax": top,
      };
      for (const [name, value] of Object.entries(fixed)) item.setAttribute(name, value);
    });

    function change(i, value) {
      if (value === model.get("values")[i]) return;
      put(model, { values: model.get("values").with(i, value) });
      follow();
    }

    function move(i, steps) {
      if (!Number.isFinite(steps)) return change(i, Math.sign(steps) * top);
      let value = model.get("values")[i];
      for (let k = 0; k < Math.abs(steps); k += 1) value = axis.next(value, Math.sign(steps));
      change(i, value);
    }

    function look(i) {
      pointed = i;
      detail.say(arithmeticText(row, pointed ?? model.get("selected")));
    }

    function follow() {
      const [up, stochastic, isTurned] = ["scale_up", "stochastic", "rotated"].map((name) =>
        model.get(name),
      );
      const chosen = formats.get(model.get("format"));
      const options = {
        up,
        random: stochastic ? random[model.get("draw")] : null,
        matrix: isTurned ? rotation : null,
      };
      row = roundRow(model.get("values"), chosen, options);
      picture.draw(chosen, options, model.get("draw"));
      const fates = row.given.map((_, i) => fateOfNumber(row, i));
      format.set(chosen.name);
      way.set(up ? "up" : "down");
      way.enable(!chosen.tensor_top);
      chance.set(stochastic);
      again.enable(stochastic);
      turn.set(isTurned);
      root.dataset.turned = String(isTurned);
      second.hidden = !isTurned;
      bars.draw(
        row,
        row.given,
        row.values,
        isTurned ? row.values.map((x, i) => (row.given[i] && !x ? "zero" : "kept")) : fates,
      );
      turnedBars.draw(row, row.numbers, row.stored, fates);
      bars.items.forEach((item, i) => {
        const here = i === model.get("selected");
        item.tabIndex = here ? 0 : -1;
        item.classList.toggle("bs-selected", here);
        item.setAttribute("aria-valuenow", row.given[i]);
        item.setAttribute(
          "aria-valuetext",
          `${asNumber(row.given[i])}, becomes ${asNumber(row.values[i])}`,
        );
      });
      tensor.replaceChildren(...tensorWords(row));
      words.say(rowSentence(row));
      look(pointed);
    }

    hands(bars, life, {
      select: (i) => i !== model.get("selected") && put(model, { selected: i }),
      look,
      move,
      to: (i, at) => change(i, axis.stop(axis.value(at))),
    });
    watch(
      life,
      model,
      ["values", "format", "scale_up", "stochastic", "draw", "rotated", "selected"],
      follow,
    );
    follow();
  },
);

function tensorWords({ format, numbers, tensorScale }) {
  if (!format.tensor_top)
    return [
      `Scales are powers of two (${format.scale.name}); elements are ${format.element.name}, at most ${format.element.max}.`,
    ];
  const from = tensorScale === 1 ? "" : ` = ${format.tensor_top} / ${asNumber(largestOf(numbers))}`;
  return [
    `Scales are ${format.scale.name}, elements ${format.element.name}. The whole tensor has a scale too, in FP32: `,
    h("b", { text: asNumber(tensorScale) }),
    `${from}.`,
  ];
}

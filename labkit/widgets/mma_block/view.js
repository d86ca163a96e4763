// One block of a Tensor Core's sum (sum.js): each bit has its kind: kept, filled in, cut off by alignment, dropped by rounding.

import { segmented, sentence, slider, traitChoice } from "../base/controls.js";
import { h, rich } from "../base/elements.js";
import { put, watch } from "../base/model.js";
import { power } from "../base/number_words.js";
import { view } from "../base/root.js";
import { derived } from "../exact/numbers.js";
import { blockSentence, blockSheet, blocksOf, exactSum, shownNumber, shownValue } from "./sum.js";

const KINDS = { z: "zero", k: "kept", c: "cut", d: "cut", " ": "blank" };

// Runs of one kind become one element: a row of 40 bits is a handful of them. The first `fallen` bits behind the edge have just
// come over it.
function bitRun(row, fallen) {
  const fragment = document.createDocumentFragment();
  for (let from = 0; from < row.bits.length; ) {
    let to = from + 1;
    while (to < row.bits.length && row.kinds[to] === row.kinds[from]) to += 1;
    const late = row.kinds[from] === "c" ? Math.min(fallen, to - from) : 0;
    const falling = late
      ? h("span", { class: "mm-falling", text: row.bits.slice(from, from + late) })
      : "";
    fragment.append(
      h(
        "span",
        { class: `mm-${KINDS[row.kinds[from]]}` },
        falling,
        row.bits.slice(from + late, to),
      ),
    );
    from = to;
  }
  return fragment;
}

function makeSheet() {
  const power = (at) => h("span", { class: `lk-quiet mm-power mm-${at}` });
  const [first, last, keeps, off] = [power("first"), power("last"), power("keeps"), power("off")];
  off.textContent = "cut off";
  const head = h(
    "div",
    { class: "mm-line mm-head" },
    h("span"),
    h("span"),
    h("span"),
    h("span", { class: "mm-bits" }, first, keeps, last, off),
  );
  const lines = h("div", { class: "mm-lines" });
  const body = h("div", { class: "mm-body" }, head, lines);
  let cut = null; // how many bits of each row lay behind the edge
  return {
    element: h("div", { class: "mm-sheet", "aria-hidden": "true" }, body),
    draw(view, format) {
      lines.dataset.format = format;
      body.style.setProperty("--mm-columns", view.columns);
      body.style.setProperty("--mm-edge", view.edge);
      body.style.setProperty("--mm-lead", view.lead);
      first.replaceChildren(rich(view.first));
      last.replaceChildren(rich(view.last));
      keeps.textContent = view.keeps;
      const before = cut ?? {};
      cut = Object.fromEntries(
        view.rows.map(({ name, kinds }) => [name, kinds.split("c").length - 1]),
      );
      lines.replaceChildren(
        ...view.rows.map((row) =>
          h(
            "div",
            {
              class: `mm-line mm-row-${row.role}`,
              data: { name: row.name, bits: row.bits, kinds: row.kinds },
            },
            h("span", { class: "mm-name", text: row.name }),
            h("span", { class: "lk-quiet mm-value" }, rich(row.value.replace(/^-/, "−"))),
            h("span", { class: "mm-sign", text: row.sign }),
            h(
              "span",
              { class: "mm-bits" },
              bitRun(row, Math.max(0, cut[row.name] - (before[row.name] ?? cut[row.name]))),
            ),
          ),
        ),
      );
    },
  };
}

// What each GPU ends with stands under its name.
function generations(names, onChange) {
  const control = segmented({ label: "Tensor Core of", options: names, value: names[0], onChange });
  control.element.classList.add("mm-gpus");
  const ends = [...control.element.querySelectorAll(".lk-segment > span")].map((label) => {
    const end = h("span", { class: "mm-end" });
    label.append(end);
    return end;
  });
  return {
    element: control.element,
    set(name, found, exact) {
      control.set(name);
      names.forEach((gpu, i) => {
        const text = shownValue(found[gpu]);
        ends[i].replaceChildren(rich(text.replace(/^-/, "−")));
        ends[i].dataset.exact = String(text === exact);
      });
    },
  };
}

export default view(
  { label: "One block of a Tensor Core's sum", kind: "mma", alone: true },
  (root, model, life) => {
    const { presets, specs, formats } = model.get("_choices");
    const [operands, ...results] = formats.map(derived);
    const presetOf = (name) => presets.find((one) => one.name === name);
    let [knob, knobOf, block, blockCount, putting] = [null, "", null, 0, false];

    const choose = (changes) => {
      putting = true; // traits change one after the other, and mean something together only
      put(model, changes);
      putting = false;
      follow();
    };
    const begin = (name) =>
      choose({ preset: name, knob: presetOf(name).start, result: presetOf(name).result });
    const preset = segmented({
      label: "Add",
      options: presets.map(({ name }) => name),
      value: model.get("preset"),
      onChange: begin,
    });
    const result = traitChoice(
      model,
      "result",
      "C and D in",
      results.map(({ name }) => name),
    );
    const gpu = generations(
      specs.map(({ name }) => name),
      (name) => put(model, { gpu: name }),
    );
    const knobPlace = h("div", { class: "mm-knob" });
    const blockPlace = h("div", { class: "lk-row mm-blocks" });
    const exact = h("span", { class: "lk-quiet" });
    const paper = makeSheet();
    const words = sentence(model);
    root.append(
      h("div", { class: "lk-title", text: "One element of D = A·B + C, inside a Tensor Core" }),
      h("div", { class: "lk-row" }, preset.element, result.element),
      h("div", { class: "lk-row" }, knobPlace, exact),
      gpu.element,
      words.element,
      blockPlace,
      paper.element,
    );

    function follow() {
      if (putting) return;
      const chosen = presetOf(model.get("preset"));
      const terms = chosen.terms[model.get("knob")];
      if (!terms) return; // the knob of another preset: its own is on the way
      const out = results.find(({ name }) => name === model.get("result"));
      const all = Object.fromEntries(
        specs.map((spec) => [spec.name, blocksOf(terms, spec, operands, out)]),
      );
      const blocks = all[model.get("gpu")];
      const index = Math.min(model.get("block"), blocks.length - 1);
      if (index !== model.get("block")) put(model, { block: index });
      const found = Object.fromEntries(specs.map(({ name }) => [name, all[name].at(-1).result]));
      const sum = exactSum(terms);
      root.dataset.result = out.name;
      preset.set(chosen.name);
      result.set(out.name);
      gpu.set(model.get("gpu"), found, shownNumber(sum));
      followKnob(chosen);
      followBlocks(blocks, index);
      exact.replaceChildren("exact sum: ", rich(shownNumber(sum)));
      paper.draw(blockSheet(blocks[index], index * blocks[0].spec.block_length), out.name);
      words.say(blockSentence(blocks, index, sum, found));
    }

    function followKnob({ name, knob: label, low, high, power: isPower }) {
      if (name !== knobOf) {
        knobOf = name;
        const text = (value) => (isPower ? power(value) : String(value));
        knob = slider({
          label,
          min: low,
          max: high,
          page: 4,
          value: model.get("knob"),
          text,
          onInput: (value) => put(model, { knob: value }),
        });
        knobPlace.replaceChildren(knob.element);
      }
      knob.set(model.get("knob"));
    }

    function followBlocks(blocks, index) {
      if (blockCount !== blocks.length) {
        blockCount = blocks.length;
        const options = blocks.map((_, i) => ({ value: String(i), label: String(i + 1) }));
        block = segmented({
          label: "Block",
          options,
          value: String(index),
          onChange: (i) => put(model, { block: Number(i) }),
        });
        blockPlace.replaceChildren(block.element, h("span", { class: "lk-quiet" }));
      }
      block.set(String(index));
      const more = blockCount > 1 ? "; each takes the last one's D as its C" : "";
      blockPlace.lastChild.textContent = `${blocks[0].spec.block_length} products in a block${more}`;
    }

    watch(life, model, ["preset", "gpu", "knob", "result", "block"], follow);
    follow();
  },
);

// One block of a Tensor Core's sum: rows of bits, one column for each power of two. Python computes every bit and lays it
// out; here rows are drawn, and each bit has its kind: kept, filled in, cut off by alignment, dropped by rounding.

const KINDS = { z: "zero", k: "kept", c: "cut", d: "cut", " ": "blank" };

// Runs of one kind become one element: a row of 40 bits is a handful of them.
function bitRun(row) {
  const fragment = document.createDocumentFragment();
  for (let from = 0; from < row.bits.length; ) {
    let to = from + 1;
    while (to < row.bits.length && row.kinds[to] === row.kinds[from]) to += 1;
    fragment.append(h("span", { class: `mm-${KINDS[row.kinds[from]]}`, text: row.bits.slice(from, to) }));
    from = to;
  }
  return fragment;
}

function makeSheet() {
  const power = (at) => h("span", { class: `lk-quiet mm-power mm-${at}` });
  const [first, last, keeps, cut] = [power("first"), power("last"), power("keeps"), power("off")];
  cut.textContent = "cut off";
  const head = h("div", { class: "mm-line mm-head" }, h("span"), h("span"), h("span"), h("span", { class: "mm-bits" }, first, keeps, last, cut));
  const lines = h("div", { class: "mm-lines" });
  const body = h("div", { class: "mm-body" }, head, lines);
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
      lines.replaceChildren(
        ...view.rows.map((row) =>
          h(
            "div",
            { class: `mm-line mm-row-${row.role}`, data: { name: row.name, bits: row.bits, kinds: row.kinds } },
            h("span", { class: "mm-name", text: row.name }),
            h("span", { class: "lk-quiet mm-value" }, rich(row.value.replace(/^-/, "−"))),
            h("span", { class: "mm-sign", text: row.sign }),
            h("span", { class: "mm-bits" }, bitRun(row)),
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
        ends[i].replaceChildren(rich(found[gpu].replace(/^-/, "−")));
        ends[i].dataset.exact = String(found[gpu] === exact);
      });
    },
  };
}

export default view({ label: "One block of a Tensor Core's sum", kind: "mma" }, (root, model, life) => {
  const { presets, gpus, results } = model.get("_choices");
  const preset = traitChoice(model, "preset", "Add", presets);
  const result = traitChoice(model, "result", "C and D in", results);
  const gpu = generations(gpus, (name) => put(model, { gpu: name }));
  const knobPlace = h("div", { class: "mm-knob" });
  const blockPlace = h("div", { class: "lk-row mm-blocks" });
  const exact = h("span", { class: "lk-quiet" });
  const paper = makeSheet();
  const words = sentence();
  root.append(
    h("div", { class: "lk-title", text: "One element of D = A·B + C, inside a Tensor Core" }),
    h("div", { class: "lk-row" }, preset.element, result.element),
    h("div", { class: "lk-row" }, knobPlace, exact),
    gpu.element,
    words.element,
    blockPlace,
    paper.element,
  );

  let knob = null;
  let knobOf = "";
  let block = null;
  let blocks = 0;
  let told = "";

  function follow() {
    const view = model.get("_view");
    if (!view.rows) return;
    root.dataset.result = model.get("result");
    preset.set(model.get("preset"));
    result.set(model.get("result"));
    gpu.set(model.get("gpu"), view.found, view.exact);
    followKnob(view);
    followBlocks(view);
    exact.replaceChildren("exact sum: ", rich(view.exact));
    paper.draw(view, model.get("result"));
    words.say(model.get("sentence"));
  }

  function followKnob({ knob: range, told: now }) {
    told = now;
    const key = `${model.get("preset")} ${range.low} ${range.high}`;
    if (key !== knobOf) {
      knobOf = key;
      knob = slider({
        label: range.label,
        min: range.low,
        max: range.high,
        page: 4,
        value: model.get("knob"),
        text: (value) => (value === model.get("knob") ? told : told.replace(/-?\d+$/, String(value))),
        onInput: (value) => put(model, { knob: value }),
      });
      knobPlace.replaceChildren(knob.element);
    }
    knob.set(model.get("knob"));
  }

  function followBlocks(view) {
    if (blocks !== view.blocks) {
      blocks = view.blocks;
      const options = Array.from({ length: blocks }, (_, i) => ({ value: String(i), label: String(i + 1) }));
      block = segmented({ label: "Block", options, value: String(model.get("block")), onChange: (i) => put(model, { block: Number(i) }) });
      blockPlace.replaceChildren(block.element, h("span", { class: "lk-quiet" }));
    }
    block.set(String(model.get("block")));
    blockPlace.lastChild.textContent = `${view.length}${blocks > 1 ? "; each takes the last one's D as its C" : ""}`;
  }

  watch(life, model, ["_view", "sentence"], follow);
  follow();
});

// The bit explorer: a bit flipped, a text typed, a step or a format makes a new state (explored.js), and everything follows it.

import { button, choice, newName, fact, headed, sentence } from "../base/controls.js";
import { h, rich } from "../base/elements.js";
import { put, watch } from "../base/model.js";
import { view } from "../base/root.js";
import { derived, hexCode, widthsOf } from "../exact/numbers.js";
import { afterTyping, explore, exploredView, inFormat, stepped, withCode } from "./explored.js";
import { bitRow } from "./row.js";

const HINT =
  "Click a bit, or type a number: a decimal 0.1, a code 0x3c00, a hex-float 0x1.8p-3, a power 2^-24 or a fraction 1/3";

function pieces(line) {
  return line.map(([text, field, raised]) =>
    h(raised ? "sup" : "span", { class: field && "be-piece", data: { field: field ?? "" }, text }),
  );
}

function inputRow(formats, become) {
  const id = newName("be");
  const box = h("input", {
    id,
    class: "be-box",
    type: "text",
    spellcheck: "false",
    autocomplete: "off",
    "aria-describedby": `${id}-hint`,
  });
  const before = button({
    label: "\u25c2 previous",
    onPress: () => become((now) => stepped(now, -1)),
  });
  const after = button({ label: "next \u25b8", onPress: () => become((now) => stepped(now, 1)) });
  const format = choice({
    label: "Format",
    onChange: (name) => become((now) => inFormat(now, formats.get(name))),
  });
  const bitCounts = (format) => `${format.name}  (${widthsOf(format).join(" + ")} bits)`;
  const hint = h("p", { class: "be-hint lk-quiet", id: `${id}-hint`, role: "status" });
  box.addEventListener("input", () => become((now) => afterTyping(now, box.value)));
  box.addEventListener("keydown", (event) => {
    const direction = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    if (!direction) return;
    event.preventDefault();
    become((now) => stepped(now, direction));
  });
  const number = h(
    "div",
    { class: "lk-row lk-tight be-number" },
    h("label", { for: id, text: "Number" }),
    box,
  );
  const steps = h(
    "div",
    { class: "lk-row lk-tight", role: "group", "aria-label": "Representable neighbours" },
    before.element,
    after.element,
  );
  return {
    element: h(
      "div",
      { class: "be-top" },
      h("div", { class: "lk-row" }, number, steps, format.element),
      hint,
    ),
    set(view) {
      if (box.value !== view.text) box.value = view.text;
      const { name } = view.format;
      format.show(
        [...formats.values()].map((one) => [one.name, bitCounts(one)]),
        name,
      );
      for (const [one, next, word] of [
        [before, view.before, "smaller"],
        [after, view.after, "larger"],
      ]) {
        one.element.setAttribute("aria-disabled", String(next === null)); // stays in the tab order: focus is not lost
        one.element.title =
          next === null
            ? `${name} has no ${word} value`
            : `the next ${word} ${name} number, ${next}`;
      }
      box.setAttribute("aria-invalid", String(view.problem !== ""));
      hint.classList.toggle("lk-error", view.problem !== "");
      hint.replaceChildren(
        ...(view.problem ? [h("b", { text: "\u2717 " }), rich(view.problem)] : [rich(HINT)]),
      );
    },
  };
}

// --- the same number in several formats ---------------------------------------------------------------------------------

function comparison() {
  const caption = h("caption", { class: "lk-quiet", text: "The same number in other formats" });
  const { element, body } = headed(
    "be-table",
    ["format", "bits", "holds", "error", "relative", "in ulps"],
    caption,
  );
  const cell = (name, ...children) => h("td", { class: `be-${name}` }, ...children);
  return {
    element,
    set(view) {
      body.replaceChildren(
        ...view.rows.map((row) => {
          const bits = row.bits.map(([field, text]) =>
            h("span", { class: "be-strip", data: { field }, text }),
          );
          const head = h("th", { scope: "row", data: { format: row.format }, text: row.format });
          const value = cell("holds", rich(row.value));
          value.title = row.full;
          const rest = ["error", "relative", "ulps"].map((name) => cell(name, rich(row[name])));
          return h(
            "tr",
            {
              class: row.format === view.format.name ? "be-this" : null,
              data: { row: row.format },
            },
            head,
            cell("strips", ...bits),
            value,
            ...rest,
          );
        }),
      );
    },
  };
}

export default view({ label: "Bit explorer", kind: "bits", alone: true }, (root, model, life) => {
  const formats = new Map(model.get("_formats").map((row) => [row.name, derived(row)]));
  let [state, putting] = [null, false];

  const top = inputRow(formats, become);
  const bits = bitRow((bit) =>
    become(({ format, code }) => withCode(format, code ^ (1n << BigInt(bit)))),
  );
  const value = h("output", { class: "be-value", "aria-live": "off" });
  const about = h("div", { class: "lk-quiet" });
  const holds = h("div", { class: "lk-quiet" });
  const formula = h("div", { class: "be-formula", role: "img" });
  const facts = h("div", { class: "lk-row lk-facts", role: "list", "aria-label": "Facts" });
  const words = sentence(model);
  const table = comparison();
  for (const one of [bits.element, facts, words.element, table.element])
    one.classList.add("lk-answer");
  root.append(
    top.element,
    bits.element,
    h(
      "div",
      { class: "lk-row be-reading lk-answer" },
      h("div", { class: "be-result" }, holds, value, about),
      formula,
    ),
    facts,
    words.element,
    table.element,
  );

  function become(change) {
    state = change(state);
    const { format, code, text, problem } = state;
    putting = true; // traits change one after the other, and mean something together only
    if (!problem) put(model, { format: format.name, code: `0x${code.toString(16)}`, text });
    putting = false;
    show();
  }

  // The traits may have been set by code, too.
  function follow() {
    if (putting) return;
    const format = formats.get(model.get("format"));
    const [code, text] = [BigInt(model.get("code")), model.get("text")];
    if (
      state &&
      !state.problem &&
      state.format === format &&
      state.code === code &&
      state.text === text
    )
      return;
    const read = explore(text, format);
    state = read.code === code ? read : { ...withCode(format, code), text };
    show();
  }

  function show() {
    const view = exploredView(
      state,
      model.get("_compare").map((name) => formats.get(name)),
    );
    const { name } = view.format;
    top.set(view);
    bits.set(name, view.fields);
    holds.textContent = `${name} holds`;
    value.textContent = view.valueText;
    value.classList.toggle("be-long", view.valueText.length > 30);
    about.replaceChildren(rich(view.about));
    formula.replaceChildren(
      ...view.formula.map((line, i) =>
        h("div", {}, i ? "= " : h("span", { class: "be-blank", text: "= " }), ...pieces(line)),
      ),
    );
    formula.setAttribute(
      "aria-label",
      view.formula
        .map((line) => line.map(([text, , up]) => (up ? `^${text}` : text)).join(""))
        .join(" = "),
    );
    facts.replaceChildren(...view.facts.map(([label, text]) => fact(label, rich(text))));
    words.say(view.sentence);
    table.set(view);
    root.dataset.code = hexCode(view.code, view.format);
  }

  watch(life, model, ["format", "code", "text"], follow);
  watch(life, model, ["_formats"], () =>
    model
      .get("_formats")
      .forEach((row) => formats.has(row.name) || formats.set(row.name, derived(row))),
  );
  follow();
});

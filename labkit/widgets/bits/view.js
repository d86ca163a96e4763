// The bit explorer. Python sends everything that is shown (labkit/widgets/bits/explored.py) and is told what was done: a bit
// flipped, a text typed, a step, a format. Nothing is computed here; a clicked bit turns over at once and the rest follows.

const HINT = "a decimal 0.1, a code 0x3c00, a hex-float 0x1.8p-3, a power 2^-24 or a fraction 1/3";
const LATE = 200; // ms without an answer after which the page says that it waits

function pieces(line) {
  return line.map(([text, field, raised]) => h(raised ? "sup" : "span", { class: field && `be-piece`, data: { field }, text }));
}

// Every message has a number, and the answer repeats it: what a slow kernel says of an earlier one is not shown.
function conversation(model, root, life) {
  const me = Math.random().toString(36).slice(2);
  let [sent, late] = [0, null];
  life.add(() => clearTimeout(late));
  return {
    tell(action, what) {
      sent += 1;
      model.send({ do: action, with: what, from: [me, sent] });
      clearTimeout(late);
      late = setTimeout(() => root.setAttribute("aria-busy", "true"), LATE);
    },
    isCurrent(answered) {
      if (sent && answered?.[0] === me && answered[1] < sent) return false;
      clearTimeout(late);
      root.removeAttribute("aria-busy");
      return true;
    },
  };
}

function inputRow(model, talk) {
  const id = `be-${++controls}`;
  const box = h("input", { id, class: "be-box", type: "text", spellcheck: "false", autocomplete: "off", "aria-describedby": `${id}-hint` });
  const before = button({ label: "\u25c2 previous", onPress: () => talk.tell("step", -1) });
  const after = button({ label: "next \u25b8", onPress: () => talk.tell("step", 1) });
  const format = choice({ label: "Format", onChange: (name) => talk.tell("format", name) });
  const offered = model.get("_formats").map(({ name, about }) => [name, `${name}  (${about})`]);
  const hint = h("p", { class: "be-hint lk-quiet", id: `${id}-hint`, role: "status" });
  box.addEventListener("input", () => talk.tell("type", box.value));
  box.addEventListener("keydown", (event) => {
    const direction = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    if (!direction) return;
    event.preventDefault();
    talk.tell("step", direction);
  });
  const number = h("div", { class: "lk-row lk-tight be-number" }, h("label", { for: id, text: "Number" }), box);
  const steps = h("div", { class: "lk-row lk-tight", role: "group", "aria-label": "Representable neighbours" }, before.element, after.element);
  return {
    element: h("div", { class: "be-top" }, h("div", { class: "lk-row" }, number, steps, format.element), hint),
    set(view) {
      if (box.value !== view.text) box.value = view.text;
      if (!offered.some(([name]) => name === view.format)) offered.push([view.format, view.format]);
      format.show(offered, view.format);
      for (const [one, there, word] of [[before, view.before, "smaller"], [after, view.after, "larger"]]) {
        one.element.setAttribute("aria-disabled", String(there === null)); // stays in the tab order: focus is not lost
        one.element.title = there === null ? `${view.format} has no ${word} value` : `the next ${word} ${view.format} number, ${there}`;
      }
      box.setAttribute("aria-invalid", String(view.problem !== ""));
      hint.classList.toggle("lk-error", view.problem !== "");
      hint.replaceChildren(...(view.problem ? [h("b", { text: "\u2717 " }), rich(view.problem)] : [rich(HINT)]));
    },
  };
}

// --- the same number in several formats ---------------------------------------------------------------------------------

function comparison() {
  const body = h("tbody");
  const heads = ["format", "bits", "holds", "error", "relative", "in ulps"].map((text) => h("th", { scope: "col", text }));
  const caption = h("caption", { class: "lk-quiet", text: "The same number in other formats" });
  const element = h("table", { class: "lk-table be-table" }, caption, h("thead", {}, h("tr", {}, ...heads)), body);
  const cell = (name, ...children) => h("td", { class: `be-${name}` }, ...children);
  return {
    element,
    set(view) {
      body.replaceChildren(
        ...view.rows.map((row) => {
          const bits = row.bits.map(([field, text]) => h("span", { class: "be-strip", data: { field }, text }));
          const head = h("th", { scope: "row", data: { format: row.format }, text: row.format });
          const value = cell("holds", rich(row.value));
          value.title = row.full ?? "";
          const rest = ["error", "relative", "ulps"].map((name) => cell(name, rich(row[name])));
          return h("tr", { class: row.format === view.format ? "be-this" : null, data: { row: row.format } }, head, cell("strips", ...bits), value, ...rest);
        }),
      );
    },
  };
}

export default view({ label: "Bit explorer", kind: "bits" }, (root, model, life) => {
  const talk = conversation(model, root, life);

  const top = inputRow(model, talk);
  const bits = bitRow((bit) => talk.tell("flip", bit));
  const value = h("output", { class: "be-value", "aria-live": "off" });
  const about = h("div", { class: "lk-quiet" });
  const holds = h("div", { class: "lk-quiet" });
  const formula = h("div", { class: "be-formula", role: "img" });
  const facts = h("div", { class: "lk-row lk-facts", role: "list", "aria-label": "Facts" });
  const words = sentence();
  const table = comparison();
  for (const one of [bits.element, facts, words.element, table.element]) one.classList.add("lk-answer");
  root.append(
    top.element,
    bits.element,
    h("div", { class: "lk-row be-reading lk-answer" }, h("div", { class: "be-result" }, holds, value, about), formula),
    facts,
    words.element,
    table.element,
  );

  function show() {
    const view = model.get("_view");
    if (!talk.isCurrent(view.answered)) return; // an answer to an earlier question: a newer one is under way
    top.set(view);
    bits.set(view);
    holds.textContent = `${view.format} holds`;
    value.textContent = view.value;
    value.classList.toggle("be-long", view.value.length > 30);
    about.replaceChildren(rich(view.about));
    formula.replaceChildren(...view.formula.map((line, i) => h("div", {}, i ? "= " : h("span", { class: "be-blank", text: "= " }), ...pieces(line))));
    formula.setAttribute("aria-label", view.formula.map((line) => line.map(([text, , up]) => (up ? `^${text}` : text)).join("")).join(" = "));
    facts.replaceChildren(...view.facts.map(([name, text]) => fact(name, rich(text))));
    words.say(view.sentence);
    table.set(view);
    root.dataset.code = view.facts[1][1];
  }

  watch(life, model, ["_view"], show);
  show();
});

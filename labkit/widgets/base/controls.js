// Controls: native inputs, so that the keyboard and screen readers know them, with labels, large enough to hit.

import { h, rich } from "./elements.js";
import { put } from "./model.js";

// Every widget runs a copy of this file, and radio buttons of one name are one group in the whole page.
const copyOfThisFile = crypto.getRandomValues(new Uint32Array(1))[0].toString(36);
let names = 0;

// A name or an id that nothing else in the page has.
export function newName(kind) {
  names += 1;
  return `${kind}-${copyOfThisFile}-${names}`;
}

export function slider({
  label,
  min,
  max,
  step = 1,
  page = 5,
  value,
  text = String,
  onInput,
  labelled = true,
}) {
  const id = newName("lk-slider");
  const input = h("input", {
    type: "range",
    id,
    min,
    max,
    step,
    "aria-label": labelled ? null : label,
  });
  const output = h("output", { for: id });
  const parts = labelled
    ? [h("label", { class: "lk-slider-label", for: id, text: label }), input, output]
    : [input];
  const self = {
    element: h("div", { class: "lk-slider" }, ...parts),
    input,
    output,
    get value() {
      return Number(input.value);
    },
    set(next) {
      input.value = next;
      const words = text(self.value);
      input.setAttribute("aria-valuetext", words);
      input.style.setProperty("--lk-filled", `${(100 * (self.value - min)) / (input.max - min)}%`);
      output.replaceChildren(rich(words));
    },
    limit(most) {
      input.max = most;
      const places = Array.from(
        { length: Math.floor((most - min) / step) + 1 },
        (_, i) => text(min + i * step).length,
      );
      output.style.minWidth = `${Math.max(...places)}ch`; // room for the longest: the track keeps its length
    },
    enable(on) {
      input.disabled = !on;
    },
  };
  const change = (next) => {
    self.set(next);
    onInput(self.value);
  };
  input.addEventListener("input", () => change(self.value));
  input.addEventListener("keydown", (event) => {
    const jump = { PageUp: page, PageDown: -page }[event.key];
    if (jump === undefined) return; // the browser does arrows, Home and End
    event.preventDefault();
    change(Math.min(input.max, Math.max(min, self.value + jump)));
  });
  self.limit(max);
  self.set(value);
  return self;
}

// The index of the place that is nearest to a value, for sliders over a list of places.
export function nearest(places, value, measure = (x) => x) {
  const far = places.map((place) => Math.abs(measure(place) - measure(value)));
  return far.indexOf(Math.min(...far));
}

export function button({ label, title, kind, onPress }) {
  const element = h("button", {
    type: "button",
    class: "lk-button",
    title,
    text: label,
    data: kind ? { kind } : {},
  });
  element.addEventListener("click", onPress);
  return {
    element,
    // Disabled, it would drop the focus, and with it the next key: another control takes it.
    enable(on, instead) {
      if (!on && element === document.activeElement)
        instead?.element.focus({ preventScroll: true });
      element.disabled = !on;
    },
    setLabel(next) {
      element.textContent = next;
    },
  };
}

// A button that plays: `advance()` is called at once and then every `pace` ms, until it returns false.
export function player({ title, pace, advance, life }) {
  let timer = 0;
  const control = button({
    label: "Play",
    title,
    kind: "primary",
    onPress: () => (timer ? self.stop() : start()),
  });
  const self = {
    element: control.element,
    get playing() {
      return timer > 0;
    },
    stop() {
      clearInterval(timer);
      timer = 0;
      control.setLabel("Play");
    },
  };
  const tick = () => advance() || self.stop();
  function start() {
    control.setLabel("Pause");
    timer = setInterval(tick, pace);
    tick();
  }
  life.add(self.stop);
  return self;
}

// A trait that is walked through from 0 to `last()`, by hand or playing; from the end, playing begins anew.
export function walker(model, name, last, { title, pace, life }) {
  const now = () => model.get(name);
  const go = (to) => put(model, { [name]: Math.max(0, Math.min(last(), to)) });
  const advance = () => {
    go(now() === last() ? 0 : now() + 1);
    return now() < last();
  };
  const play = player({ title, pace, advance, life });
  return { play, now, move: (to) => (play.stop(), go(to)) };
}

export function segmented({ label, options, value, onChange, labelled = true }) {
  const name = newName("lk-segments");
  const inputs = new Map();
  const segments = options.map((given) => {
    const option = typeof given === "string" ? { value: given, label: given } : given;
    const input = h("input", { type: "radio", name, value: option.value });
    input.addEventListener("change", () => onChange(option.value));
    inputs.set(option.value, input);
    return h(
      "label",
      { class: "lk-segment lk-cover", title: option.title },
      input,
      h("span", { text: option.label }),
    );
  });
  const element = h(
    "fieldset",
    { class: "lk-segmented", role: "radiogroup", "aria-label": label },
    labelled ? h("span", { "aria-hidden": "true", text: label }) : null,
    h("span", { class: "lk-segments" }, ...segments),
  );
  const self = {
    element,
    get value() {
      return [...inputs.keys()].find((key) => inputs.get(key).checked);
    },
    set(next) {
      const input = inputs.get(next);
      if (input) input.checked = true;
    },
    enable(on) {
      element.disabled = !on;
    },
  };
  self.set(value);
  return self;
}

export function traitChoice(model, name, label, options, more = {}) {
  return segmented({
    label,
    options,
    value: model.get(name),
    onChange: (value) => put(model, { [name]: value }),
    ...more,
  });
}

// One of a few texts, one below the other; `fix(value)` shows the choice that stays.
export function radioList({ options, value, onPick, label = "Choices" }) {
  const name = newName("lk-list");
  const inputs = options.map((option) => {
    const input = h("input", { type: "radio", name, value: option });
    input.checked = option === value;
    input.addEventListener("change", () => onPick(option));
    return input;
  });
  const labels = inputs.map((input) =>
    h("label", { class: "lk-choice" }, input, h("span", {}, rich(input.value))),
  );
  return {
    element: h("div", { class: "lk-choices", role: "radiogroup", "aria-label": label }, ...labels),
    fix(choice) {
      for (const [i, input] of inputs.entries()) {
        input.disabled = true;
        labels[i].dataset.picked = String(input.value === choice);
      }
    },
  };
}

// Enter in `element` presses a button, where it can be pressed.
export function onEnter(element, { element: target }, life) {
  life.listen(element, "keydown", (event) => {
    const bare =
      event.key === "Enter" && !(event.shiftKey || event.ctrlKey || event.metaKey || event.altKey);
    if (bare && !event.isComposing && !target.disabled) target.click();
  });
}

// One of several, in a list that opens; `show(options, value, none)` takes [value, text] pairs, and what stands there for none.
export function choice({ label, onChange }) {
  const id = newName("lk-choice");
  const select = h("select", { id });
  select.addEventListener("change", () => onChange(select.value));
  return {
    element: h("span", { class: "lk-row lk-tight" }, h("label", { for: id, text: label }), select),
    show(options, value, none) {
      const wanted = value ? options : [["", none], ...options];
      if (select.dataset.options !== JSON.stringify(wanted)) {
        select.dataset.options = JSON.stringify(wanted);
        select.replaceChildren(
          ...wanted.map(([name, text]) => h("option", { value: name, text, disabled: !name })),
        );
      }
      select.value = value;
    },
  };
}

export function toggle({ label, value, onChange }) {
  const input = h("input", { type: "checkbox", role: "switch" });
  input.addEventListener("change", () => onChange(input.checked));
  const self = {
    element: h("label", { class: "lk-switch" }, input, h("span", { text: label })),
    get value() {
      return input.checked;
    },
    set(next) {
      input.checked = next;
    },
    enable(on) {
      input.disabled = !on;
    },
  };
  self.set(value);
  return self;
}

// A table with a heading above each column; what else belongs before its body is given.
export function headed(kind, names, ...first) {
  const heads = names.map((text) => h("th", { scope: "col", text }));
  const body = h("tbody");
  return {
    element: h(
      "table",
      { class: `lk-table ${kind}` },
      ...first,
      h("thead", {}, h("tr", {}, ...heads)),
      body,
    ),
    body,
    heads,
  };
}

// One of the facts about a number, in a row `lk-facts`.
export function fact(name, shown) {
  return h(
    "div",
    { role: "listitem" },
    h("div", { class: "lk-quiet", text: name }),
    h("div", { class: "lk-fact", data: { fact: name } }, shown),
  );
}

// Shown at once, read out (politely) when it has been still for a moment; where `news` differs from the text, only when that
// has changed: a training is no news at each step. Where a model is given, its trait `sentence` follows, for code to read.
export function sentence(model = null) {
  const shown = h("span", { "aria-hidden": "true" });
  const spoken = h("span", { class: "lk-hidden", "aria-live": "polite", role: "status" });
  const element = h("p", { class: "lk-sentence" }, shown, spoken);
  let [said, told, pause] = [];
  return {
    element,
    say(text, news = text) {
      if (text !== said) shown.replaceChildren(rich(text));
      said = element.dataset.text = text;
      if (model && model.get("sentence") !== text) put(model, { sentence: text });
      if (news === told) return;
      told = news;
      clearTimeout(pause); // a screen reader hears where the hand stopped, not every step of the way
      pause = setTimeout(() => (spoken.textContent = said), 400);
    },
  };
}

// A title belongs to the mouse alone. Here the keyboard's focus and a finger read it too; screen readers know it anyway.
export function showTitles(root, life) {
  const note = h("div", { class: "lk-tip lk-note", hidden: true, "aria-hidden": "true" });
  root.append(note);
  const show = (target) => {
    const about = target?.closest("[title]");
    note.hidden = !about?.title || !root.contains(about);
    if (note.hidden) return;
    note.replaceChildren(rich(about.title));
    const [box, all] = [about.getBoundingClientRect(), root.getBoundingClientRect()];
    const left = Math.max(0, Math.min(box.left - all.left, all.width - note.offsetWidth));
    note.style.transform = `translate(${Math.round(left)}px, ${Math.round(box.bottom - all.top + 6)}px)`;
  };
  life.listen(root, "focusin", ({ target }) =>
    show(target.matches(":focus-visible") ? target : null),
  );
  life.listen(root, "focusout", () => show(null));
  life.listen(root, "pointerup", ({ pointerType, target }) =>
    show(pointerType === "mouse" ? null : target),
  );
}

// Controls: native inputs, so that the keyboard and screen readers know them, with labels, large
// enough to hit.

import { h, placeOf, rich } from "./elements.js";
import { put } from "./model.js";

/** @import { Child } from "./elements.js" */
/** @import { Life } from "./lifetime.js" */
/** @import { Holder, Model } from "./model.js" */

// Every widget runs a copy of this file, and radio buttons of one name are one group in the whole
// page.
const copyOfThisFile = crypto.getRandomValues(new Uint32Array(1))[0].toString(36);
let names = 0;

/**
 * A name or an id that nothing else in the page has.
 *
 * @param {string} kind
 */
export function newName(kind) {
  names += 1;
  return `${kind}-${copyOfThisFile}-${names}`;
}

// --- sliders -------------------------------------------------------------------------------------

/**
 * @typedef {object} Slider
 * @property {HTMLElement} element
 * @property {HTMLInputElement} input
 * @property {HTMLOutputElement} output
 * @property {number} value
 * @property {(next: number) => void} set
 * @property {(most: number) => void} limit Set the largest value.
 * @property {(on: boolean) => void} enable
 */

/**
 * @param {object} given
 * @param {string} given.label
 * @param {number} given.min
 * @param {number} given.max
 * @param {number} [given.step]
 * @param {number} [given.page] how far Page Up goes
 * @param {number} given.value
 * @param {(value: number) => string} [given.text] what stands beside it
 * @param {(value: number) => void} given.onInput
 * @param {boolean} [given.labelled] false: screen readers alone are told the label
 * @returns {Slider}
 */
export function slider(given) {
  const { label, min, max, step = 1, page = 5, value, onInput, labelled = true } = given;
  const text = given.text ?? String;
  const id = newName("lk-slider");
  const spoken = labelled ? null : label;
  const input = h("input", { type: "range", id, min, max, step, "aria-label": spoken });
  const output = h("output", { for: id });
  const parts = labelled
    ? [h("label", { class: "lk-slider-label", for: id, text: label }), input, output]
    : [input];
  /** @type {Slider} */
  const self = {
    element: h("div", { class: "lk-slider" }, ...parts),
    input,
    output,
    get value() {
      return Number(input.value);
    },
    set(next) {
      input.value = String(next);
      const words = text(self.value);
      const filled = (100 * (self.value - min)) / (Number(input.max) - min);
      input.setAttribute("aria-valuetext", words);
      input.style.setProperty("--lk-filled", `${filled}%`);
      output.replaceChildren(rich(words));
    },
    limit(most) {
      input.max = String(most);
      const places = Math.floor((most - min) / step) + 1;
      const lengths = Array.from({ length: places }, (_, i) => text(min + i * step).length);
      // Room for the longest text: the track keeps its length.
      output.style.minWidth = `${Math.max(...lengths)}ch`;
    },
    enable(on) {
      input.disabled = !on;
    },
  };

  /** @param {number} next */
  function change(next) {
    self.set(next);
    onInput(self.value);
  }
  /** @type {Record<string, number>} */
  const jumps = { PageUp: page, PageDown: -page }; // the browser does arrows, Home and End
  input.addEventListener("input", () => change(self.value));
  input.addEventListener("keydown", (event) => {
    const jump = jumps[event.key];
    if (jump === undefined) return;
    event.preventDefault();
    change(Math.min(Number(input.max), Math.max(min, self.value + jump)));
  });
  self.limit(max);
  self.set(value);
  return self;
}

/**
 * The index of the place that is nearest to a value, for sliders over a list of places.
 *
 * @template Place
 * @param {readonly Place[]} places
 * @param {Place} value
 * @param {(place: Place) => number} [measure]
 */
export function nearest(places, value, measure = Number) {
  const far = places.map((place) => Math.abs(measure(place) - measure(value)));
  return far.indexOf(Math.min(...far));
}

// --- buttons -------------------------------------------------------------------------------------

/**
 * @typedef {object} Button
 * @property {HTMLButtonElement} element
 * @property {(on: boolean, instead?: { element: HTMLElement }) => void} enable
 *   Where a button that has the focus goes off, `instead` takes it.
 * @property {(label: string) => void} setLabel
 */

/**
 * @param {object} given
 * @param {string} given.label
 * @param {string} [given.title]
 * @param {string} [given.kind] "primary", or none
 * @param {() => void} given.onPress
 * @returns {Button}
 */
export function button({ label, title, kind, onPress }) {
  const data = kind ? { kind } : {};
  const element = h("button", { type: "button", class: "lk-button", title, text: label, data });
  element.addEventListener("click", () => onPress());
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

/**
 * @typedef {object} Player
 * @property {HTMLButtonElement} element
 * @property {boolean} playing
 * @property {() => void} start
 * @property {() => void} stop
 */

/**
 * A button that plays: `advance()` is called at once and then every `pace` ms, until it returns
 * false.
 *
 * @param {object} given
 * @param {string} given.title
 * @param {number} given.pace in ms
 * @param {() => boolean} given.advance
 * @param {Life} given.life
 * @returns {Player}
 */
export function player({ title, pace, advance, life }) {
  let timer = 0;
  const press = () => (timer ? stop() : start());
  const control = button({ label: "Play", title, kind: "primary", onPress: press });

  function tick() {
    if (!advance()) stop();
  }
  function start() {
    control.setLabel("Pause");
    timer = window.setInterval(tick, pace);
    tick();
  }
  function stop() {
    clearInterval(timer);
    timer = 0;
    control.setLabel("Play");
  }

  life.add(stop);
  return {
    element: control.element,
    get playing() {
      return timer > 0;
    },
    start,
    stop,
  };
}

/**
 * A trait that is walked through from 0 to `last()`, by hand or playing; from the end, playing
 * begins again at 0.
 *
 * @template {string} Name
 * @param {Holder<Name, number>} model
 * @param {Name} name
 * @param {() => number} last
 * @param {{ title: string, pace: number, life: Life }} given
 */
export function walker(model, name, last, given) {
  const now = () => Number(model.get(name));

  /** @param {number} to */
  function go(to) {
    const at = Math.max(0, Math.min(last(), to));
    model.set(name, at);
    model.save_changes();
  }
  function advance() {
    go(now() === last() ? 0 : now() + 1);
    return now() < last();
  }
  const play = player({ ...given, advance });
  /** @param {number} to */
  function move(to) {
    play.stop();
    go(to);
  }
  return { play, now, move };
}

// --- choices -------------------------------------------------------------------------------------

/**
 * @template {string | number} Value
 * @typedef {{ value: Value, label: string, title?: string }} Option
 */

/**
 * @template {string | number} Value
 * @typedef {object} Segmented
 * @property {HTMLFieldSetElement} element
 * @property {Value | undefined} value
 * @property {(next: Value) => void} set
 * @property {(on: boolean) => void} enable
 */

/**
 * One of a few, side by side.
 *
 * @template {string | number} Value
 * @param {object} given
 * @param {string} given.label
 * @param {readonly (Value | Option<Value>)[]} given.options
 * @param {Value} given.value
 * @param {(value: Value) => void} given.onChange
 * @param {boolean} [given.labelled] false: screen readers alone are told the label
 * @returns {Segmented<Value>}
 */
export function segmented({ label, options, value, onChange, labelled = true }) {
  const name = newName("lk-segments");
  /** @type {Map<Value, HTMLInputElement>} */
  const inputs = new Map();
  const segments = options.map((given) => {
    const option = typeof given === "object" ? given : { value: given, label: String(given) };
    const input = h("input", { type: "radio", name, value: option.value });
    input.addEventListener("change", () => onChange(option.value));
    inputs.set(option.value, input);
    const text = h("span", { text: option.label });
    return h("label", { class: "lk-segment lk-cover", title: option.title }, input, text);
  });
  const element = h(
    "fieldset",
    { class: "lk-segmented", role: "radiogroup", "aria-label": label },
    labelled ? h("span", { "aria-hidden": "true", text: label }) : null,
    h("span", { class: "lk-segments" }, ...segments),
  );
  /** @type {Segmented<Value>} */
  const self = {
    element,
    get value() {
      return [...inputs.keys()].find((key) => inputs.get(key)?.checked);
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

/**
 * A trait that is one of a few.
 *
 * @template {object} Traits
 * @template {keyof Traits & string} Name
 * @param {Model<Traits>} model
 * @param {Name} name
 * @param {string} label
 * @param {readonly (Traits[Name] & string | Option<Traits[Name] & string>)[]} options
 * @param {{ labelled?: boolean, onChange?: (value: Traits[Name]) => void }} [more]
 */
export function traitChoice(model, name, label, options, more = {}) {
  const value = /** @type {Traits[Name] & string} */ (model.get(name));
  /** @param {Traits[Name] & string} chosen */
  const onChange = (chosen) => put(model, /** @type {Partial<Traits>} */ ({ [name]: chosen }));
  return segmented({ label, options, value, onChange, ...more });
}

/**
 * One of a few texts, one below the other. `fix` shows the choice that stays, and which one is
 * right.
 *
 * @param {object} given
 * @param {readonly string[]} given.options
 * @param {string} given.value
 * @param {(option: string) => void} given.onPick
 * @param {string} [given.label]
 */
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
    /**
     * @param {string} choice
     * @param {string} right "" while nobody has said it
     */
    fix(choice, right) {
      for (const [i, input] of inputs.entries()) {
        input.disabled = true;
        labels[i].dataset.picked = String(input.value === choice);
        if (input.value !== right || labels[i].dataset.right) continue;
        labels[i].dataset.right = "true";
        labels[i].append(h("span", { class: "lk-right", text: "\u2713 right" }));
      }
    },
  };
}

/**
 * Enter in `element` presses a button, where it can be pressed.
 *
 * @param {HTMLElement} element
 * @param {Button} pressed
 * @param {Life} life
 */
export function onEnter(element, pressed, life) {
  life.listen(element, "keydown", (event) => {
    const modified = event.shiftKey || event.ctrlKey || event.metaKey || event.altKey;
    if (event.key !== "Enter" || modified || event.isComposing) return;
    if (!pressed.element.disabled) pressed.element.click();
  });
}

/**
 * One of several, in a list that opens.
 *
 * @param {object} given
 * @param {string} given.label
 * @param {(value: string) => void} given.onChange
 */
export function choice({ label, onChange }) {
  const id = newName("lk-choice");
  const select = h("select", { id });
  select.addEventListener("change", () => onChange(select.value));
  return {
    element: h("span", { class: "lk-row lk-tight" }, h("label", { for: id, text: label }), select),
    /**
     * @param {readonly (readonly [value: string, text: string])[]} options
     * @param {string} value "" for none
     * @param {string} [none] what stands there for none
     */
    show(options, value, none = "") {
      const wanted = value ? options : [["", none], ...options];
      const written = JSON.stringify(wanted);
      if (select.dataset.options !== written) {
        select.dataset.options = written;
        const made = wanted.map(([name, text]) =>
          h("option", { value: name, text, disabled: !name }),
        );
        select.replaceChildren(...made);
      }
      select.value = value;
    },
  };
}

/**
 * @typedef {object} Toggle
 * @property {HTMLElement} element
 * @property {boolean} value
 * @property {(next: boolean) => void} set
 * @property {(on: boolean) => void} enable
 */

/**
 * @param {object} given
 * @param {string} given.label
 * @param {boolean} given.value
 * @param {(on: boolean) => void} given.onChange
 * @returns {Toggle}
 */
export function toggle({ label, value, onChange }) {
  const input = h("input", { type: "checkbox", role: "switch" });
  input.addEventListener("change", () => onChange(input.checked));
  /** @type {Toggle} */
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

// --- words ---------------------------------------------------------------------------------------

/**
 * A table with a heading above each column; what else belongs before its body is given.
 *
 * @param {string} kind
 * @param {readonly string[]} names
 * @param {...Child} first
 */
export function headed(kind, names, ...first) {
  const heads = names.map((text) => h("th", { scope: "col", text }));
  const body = h("tbody");
  const head = h("thead", {}, h("tr", {}, ...heads));
  return { element: h("table", { class: `lk-table ${kind}` }, ...first, head, body), body, heads };
}

/**
 * One of the facts about a number, in a row `lk-facts`.
 *
 * @param {string} name
 * @param {Child} shown
 */
export function fact(name, shown) {
  const heading = h("div", { class: "lk-quiet", text: name });
  const value = h("div", { class: "lk-fact", data: { fact: name } }, shown);
  return h("div", { role: "listitem" }, heading, value);
}

const STILL_MS = 400; // a screen reader hears where the hand stopped, not every step of the way

/**
 * A sentence that is shown at once, and read out (politely) when it has been still for a moment;
 * where `news` differs from the text, only when that has changed: a training is no news at each
 * step. Where a model is given, its trait `sentence` follows, for code to read.
 *
 * @param {Holder<"sentence", string> | null} [model]
 */
export function sentence(model = null) {
  const shown = h("span", { "aria-hidden": "true" });
  const spoken = h("span", { class: "lk-hidden", "aria-live": "polite", role: "status" });
  const element = h("p", { class: "lk-sentence" }, shown, spoken);
  /** @type {string | undefined} */
  let said;
  /** @type {string | undefined} */
  let told;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let pause;
  return {
    element,
    /**
     * @param {string} text
     * @param {string} [news]
     */
    say(text, news = text) {
      if (text !== said) shown.replaceChildren(rich(text));
      said = text;
      element.dataset.text = text;
      if (model && model.get("sentence") !== text) {
        model.set("sentence", text);
        model.save_changes();
      }
      if (news === told) return;
      told = news;
      clearTimeout(pause);
      pause = setTimeout(() => {
        spoken.textContent = said ?? "";
      }, STILL_MS);
    },
  };
}

/**
 * A title belongs to the mouse alone. Here the keyboard's focus and a finger read it too; screen
 * readers know it anyway.
 *
 * @param {HTMLElement} root
 * @param {Life} life
 */
export function showTitles(root, life) {
  const note = h("div", { class: "lk-tip lk-note", hidden: true, "aria-hidden": "true" });
  root.append(note);

  /** @param {HTMLElement | null} target */
  function show(target) {
    const about = /** @type {HTMLElement | null | undefined} */ (target?.closest("[title]"));
    note.hidden = !about?.title || !root.contains(about);
    if (note.hidden || !about) return;
    note.replaceChildren(rich(about.title));
    const box = about.getBoundingClientRect();
    const all = root.getBoundingClientRect();
    const left = Math.max(0, Math.min(box.left - all.left, all.width - note.offsetWidth));
    const top = box.bottom - all.top + 6;
    note.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
  }
  life.listen(root, "focusin", (event) => {
    const focused = placeOf(event);
    show(focused.matches(":focus-visible") ? focused : null);
  });
  life.listen(root, "focusout", () => show(null));
  life.listen(root, "pointerup", (event) => {
    show(event.pointerType === "mouse" ? null : placeOf(event));
  });
}

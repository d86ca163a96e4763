// Controls with labels. They are native inputs, which the keyboard and screen readers support.

import { h, placeOf, rich } from "./elements.js";
import { put } from "./model.js";

/** @import { Child } from "./elements.js" */
/** @import { Life } from "./lifetime.js" */
/** @import { Holder, Model } from "./model.js" */

// Every widget runs a copy of this file, but radio buttons with the same name are one group in the
// whole page. A random part of the names keeps the copies apart.
const copyId = crypto.getRandomValues(new Uint32Array(1))[0].toString(36);
let nameCount = 0;

/**
 * Return a name or an id that is unique in the page.
 *
 * @param {string} kind
 */
export function newName(kind) {
  nameCount += 1;
  return `${kind}-${copyId}-${nameCount}`;
}

// --- sliders -------------------------------------------------------------------------------------

/**
 * A slider with a label on its left and its value as text on its right.
 *
 * @typedef {object} Slider
 * @property {HTMLElement} element
 * @property {HTMLInputElement} input
 * @property {HTMLOutputElement} output
 * @property {number} value
 * @property {(next: number) => void} set Set the value; `onInput` is not called.
 * @property {(most: number) => void} limit Set the largest value.
 * @property {(on: boolean) => void} enable
 */

/**
 * Return a slider.
 *
 * @param {object} options
 * @param {string} options.label
 * @param {number} options.min
 * @param {number} options.max
 * @param {number} [options.step]
 * @param {number} [options.page] the change by Page Up and Page Down
 * @param {number} options.value
 * @param {(value: number) => string} [options.text] the text beside the slider
 * @param {(value: number) => void} options.onInput
 * @param {boolean} [options.labelled] false: the label is for screen readers only
 * @returns {Slider}
 */
export function slider(options) {
  const { label, min, max, step = 1, page = 5, value, onInput, labelled = true } = options;
  const text = options.text ?? String;
  const id = newName("lk-slider");
  const spoken = labelled ? null : label;
  const input = h("input", { type: "range", id, min, max, step, "aria-label": spoken });
  const output = h("output", { for: id });
  const element = h("div", { class: "lk-slider" }, input);
  if (labelled) {
    element.prepend(h("label", { class: "lk-slider-label", for: id, text: label }));
    element.append(output);
  }
  /** @type {Slider} */
  const self = {
    element,
    input,
    output,
    get value() {
      return Number(input.value);
    },
    set(next) {
      input.value = String(next);
      const words = text(self.value);
      // A slider of one position has no length.
      const length = Number(input.max) - min || 1;
      const filled = (100 * (self.value - min)) / length;
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
  // The browser handles the arrow keys, Home and End.
  /** @type {Record<string, number>} */
  const jumps = { PageUp: page, PageDown: -page };
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
 * Return the index of the place nearest to a value, for sliders over a list of places.
 *
 * @template Place
 * @param {readonly Place[]} places
 * @param {Place} value
 * @param {(place: Place) => number} [measure]
 */
export function nearest(places, value, measure = Number) {
  const distances = places.map((place) => Math.abs(measure(place) - measure(value)));
  return distances.indexOf(Math.min(...distances));
}

// --- buttons -------------------------------------------------------------------------------------

/**
 * @typedef {object} Button
 * @property {HTMLButtonElement} element
 * @property {(on: boolean, instead?: { element: HTMLElement }) => void} enable
 *   If a button with the focus is disabled, `instead` takes the focus.
 * @property {(label: string) => void} setLabel
 */

/**
 * Return a button with a text.
 *
 * @param {object} options
 * @param {string} options.label
 * @param {string} [options.title]
 * @param {string} [options.kind] "primary", or none
 * @param {() => void} options.onPress
 * @returns {Button}
 */
export function button({ label, title, kind, onPress }) {
  const data = kind ? { kind } : {};
  const element = h("button", { type: "button", class: "lk-button", title, text: label, data });
  element.addEventListener("click", () => onPress());
  return {
    element,
    enable(on, instead) {
      // A disabled button loses the focus, and the next key would go nowhere.
      if (!on && element === document.activeElement) {
        instead?.element.focus({ preventScroll: true });
      }
      element.disabled = !on;
    },
    setLabel(next) {
      element.textContent = next;
    },
  };
}

/**
 * A button that starts and pauses an animation.
 *
 * @typedef {object} Player
 * @property {HTMLButtonElement} element
 * @property {boolean} playing
 * @property {() => void} start Does nothing while it plays.
 * @property {() => void} stop
 */

/**
 * Return a button that plays: it calls `advance()` at once and then every `pace` ms, until this
 * returns false.
 *
 * @param {object} options
 * @param {string} options.title
 * @param {number} options.pace in ms
 * @param {() => boolean} options.advance shows the next state; false if that is the last one
 * @param {Life} options.life
 * @returns {Player}
 */
export function player({ title, pace, advance, life }) {
  let timer = 0;
  const control = button({ label: "Play", title, kind: "primary", onPress });

  function onPress() {
    if (timer) {
      stop();
    } else {
      start();
    }
  }
  function tick() {
    if (!advance()) stop();
  }
  function start() {
    if (timer) return;
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
 * Step a trait through 0 to `last()`, by hand or by playing. Playing from the end begins at 0.
 *
 * @template {string} Name
 * @param {Holder<Name, number>} model
 * @param {Name} name
 * @param {() => number} last
 * @param {{ title: string, pace: number, life: Life }} options of the player; `pace` is in ms
 */
export function walker(model, name, last, options) {
  const now = () => Number(model.get(name));

  /** @param {number} to */
  function go(to) {
    model.set(name, Math.max(0, Math.min(last(), to)));
    model.save_changes();
  }
  function advance() {
    go(now() === last() ? 0 : now() + 1);
    return now() < last();
  }
  const play = player({ ...options, advance });
  /** @param {number} to */
  function move(to) {
    play.stop();
    go(to);
  }
  return { play, now, move };
}

// --- choices -------------------------------------------------------------------------------------

/**
 * One of the values to choose from, with the text that is shown for it.
 *
 * @template {string | number} Value
 * @typedef {{ value: Value, label: string, title?: string }} Option
 */

/**
 * A choice of one option, with all options side by side.
 *
 * @template {string | number} Value
 * @typedef {object} Segmented
 * @property {HTMLFieldSetElement} element
 * @property {Value | undefined} value
 * @property {(next: Value) => void} set
 * @property {(on: boolean) => void} enable
 */

/**
 * Return a choice of one option, with all options side by side.
 *
 * @template {string | number} Value
 * @param {object} settings
 * @param {string} settings.label
 * @param {readonly (Value | Option<Value>)[]} settings.options
 * @param {Value} settings.value
 * @param {(value: Value) => void} settings.onChange
 * @param {boolean} [settings.labelled] false: the label is for screen readers only
 * @returns {Segmented<Value>}
 */
export function segmented({ label, options, value, onChange, labelled = true }) {
  const name = newName("lk-segments");
  /** @type {Map<Value, HTMLInputElement>} */
  const inputs = new Map();
  const segments = options.map((item) => {
    const option = typeof item === "object" ? item : { value: item, label: String(item) };
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
 * Return a choice of one option for a trait, with all options side by side.
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
 * Return a choice of one text, with all texts one below the other.
 *
 * @param {object} settings
 * @param {readonly string[]} settings.options
 * @param {string} settings.value
 * @param {(option: string) => void} settings.onPick
 * @param {string} [settings.label]
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
     * End the choice: show what was chosen, and the right text.
     *
     * @param {string} choice
     * @param {string} right "" if it is not known yet
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
 * Let Enter in `element` press a button, unless the button is disabled.
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
 * Return a choice of one option in a drop-down list.
 *
 * @param {object} settings
 * @param {string} settings.label
 * @param {(value: string) => void} settings.onChange
 */
export function choice({ label, onChange }) {
  const id = newName("lk-choice");
  const select = h("select", { id });
  select.addEventListener("change", () => onChange(select.value));
  return {
    element: h("span", { class: "lk-row lk-tight" }, h("label", { for: id, text: label }), select),
    /**
     * Show a list of options with one of them chosen.
     *
     * @param {readonly (readonly [value: string, text: string])[]} options
     * @param {string} value "" if none is chosen
     * @param {string} [none] the text that is shown if none is chosen
     */
    show(options, value, none = "") {
      const wanted = value ? options : [["", none], ...options];
      const serialized = JSON.stringify(wanted);
      // Replacing equal options would close an open list.
      if (select.dataset.options !== serialized) {
        select.dataset.options = serialized;
        const elements = wanted.map(([name, text]) =>
          h("option", { value: name, text, disabled: !name }),
        );
        select.replaceChildren(...elements);
      }
      select.value = value;
    },
  };
}

/**
 * A switch with a label.
 *
 * @typedef {object} Toggle
 * @property {HTMLElement} element
 * @property {boolean} value Whether the switch is on.
 * @property {(next: boolean) => void} set
 * @property {(on: boolean) => void} enable
 * @property {(text: string) => void} name Sets the text beside the switch.
 */

/**
 * Return a switch.
 *
 * @param {object} options
 * @param {string} options.label
 * @param {boolean} options.value
 * @param {(on: boolean) => void} options.onChange
 * @returns {Toggle}
 */
export function toggle({ label, value, onChange }) {
  const input = h("input", { type: "checkbox", role: "switch" });
  const words = h("span", { text: label });
  input.addEventListener("change", () => onChange(input.checked));
  /** @type {Toggle} */
  const self = {
    element: h("label", { class: "lk-switch" }, input, words),
    get value() {
      return input.checked;
    },
    set(next) {
      input.checked = next;
    },
    enable(on) {
      input.disabled = !on;
    },
    name(text) {
      words.textContent = text;
    },
  };
  self.set(value);
  return self;
}

// --- words ---------------------------------------------------------------------------------------

/**
 * Return a table with a heading above each column.
 *
 * @param {string} kind
 * @param {readonly string[]} names
 * @param {...Child} first children of the table before its head, a caption for example
 */
export function headed(kind, names, ...first) {
  const heads = names.map((text) => h("th", { scope: "col", text }));
  const body = h("tbody");
  const head = h("thead", {}, h("tr", {}, ...heads));
  return { element: h("table", { class: `lk-table ${kind}` }, ...first, head, body), body, heads };
}

/**
 * Return a fact about a number, for a row of class `lk-facts`.
 *
 * @param {string} name
 * @param {Child} shown
 */
export function fact(name, shown) {
  const heading = h("div", { class: "lk-quiet", text: name });
  const value = h("div", { class: "lk-fact", data: { fact: name } }, shown);
  return h("div", { role: "listitem" }, heading, value);
}

// The time without a change after which a sentence is read out: while a slider moves, a screen
// reader waits for the last sentence.
const STILL_MS = 400;

/**
 * Return a sentence that is shown at once, and read out when it has not changed for a moment.
 *
 * `say(text, news)` reads the text out only if `news` has changed. So a training that changes its
 * text at every step is read out only at its events. With a model, the trait `sentence` holds the
 * text for Python code.
 *
 * @param {Holder<"sentence", string> | null} [model]
 */
export function sentence(model = null) {
  const shown = h("span", { "aria-hidden": "true" });
  const spoken = h("span", { class: "lk-hidden", "aria-live": "polite", role: "status" });
  const element = h("p", { class: "lk-sentence" }, shown, spoken);
  /** @type {string | undefined} */
  let lastText;
  /** @type {string | undefined} */
  let lastNews;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let pause;
  return {
    element,
    /**
     * Show a text, and read it out if `news` has changed.
     *
     * @param {string} text
     * @param {string} [news] by default the text
     */
    say(text, news = text) {
      if (text !== lastText) shown.replaceChildren(rich(text));
      lastText = text;
      element.dataset.text = text;
      if (model && model.get("sentence") !== text) {
        model.set("sentence", text);
        model.save_changes();
      }
      if (news === lastNews) return;
      lastNews = news;
      clearTimeout(pause);
      pause = setTimeout(() => {
        spoken.textContent = lastText ?? "";
      }, STILL_MS);
    },
  };
}

/**
 * Show the `title` of an element also on keyboard focus and touch. Browsers show it only to a
 * mouse; screen readers read it in any case.
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

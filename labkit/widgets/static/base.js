// Shared behaviour of every labkit widget. Python puts this file before the widget's own (labkit/widgets/assets.py), so
// everything here is in scope there; nothing is exported, loaded from elsewhere or built.
//
//   scope()                        collects what has to be undone: add(undo), listen(target, type, handler), dispose()
//   h(tag, properties, ...children)   makes an element. Keys: class, text, data: {..}, style: {..}, on: {click: ..}, else attributes
//   mount(el, {label, kind, scope})   makes the root: labelled group, theme, and no key pressed in it reaches JupyterLab
//   onTheme(scope, handler, root)  calls handler() after each change of theme and, where a root is given, when it is first
//                                  laid out: before that it has no colours. Call it before the first figure() is made
//   colours(root)                  {ink, ink2, line, line2, surface, surface2, accent, font, size, underflowed, subnormal,
//                                  normal, overflowed, fp32, fp16, bf16, fp8, good, bad} as the theme has them now
//   slider({label, min, max, step, page, value, text, onInput, labelled})   {element, input, output, value, set(v), enable(b)}
//                                  arrows move by step, PageUp/PageDown by page, Home/End to the ends; text(v) is what is
//                                  shown and read out; labelled: false leaves label and value out of sight
//   button({label, title, kind, onPress})             {element, enable(b), setLabel(text)}      kind: "primary" or none
//   segmented({label, options: [{value, label, title}], value, onChange, labelled})   {element, value, set(v), enable(b)}
//   toggle({label, value, onChange})                  {element, value, set(v), enable(b)}       a switch
//   sentence()                     {element, say(text)}: shown at once, read out (polite) when it has been still for a moment
//   figure({scope, label, height, draw})   {element, canvas, width, height, redraw(), drawNow(), drawTimes}; draw(context,
//                                  width, height) in CSS pixels, sharp at any devicePixelRatio, again at every new width;
//                                  height is a number of CSS pixels or width => number; drawTimes: the last 1,000 in ms
//   tip(figure)                    {element, show(x, y, text), hide()}: a small label that stays inside the figure
//   rich(text)                     document fragment in which 2^-24 has a raised exponent
//   powerLabel(context, exponent, x, y, align)        draws 2 with a raised exponent on a canvas, y is the baseline
//   pattern(context, fate, colours)                   fill for "underflowed", "subnormal", "normal", "overflowed": colour
//                                  and hatching, so colour is never the only sign; patternImage(fate, colours) for CSS
//   decimal(x) 5.96e-8   percent(share) 0.14%   power(exponent) "2^-24"   reducedMotion() true or false
//   FATES                          the four names, in the order of magnitude

const FATES = ["underflowed", "subnormal", "normal", "overflowed"];

// --- lifetime and elements ------------------------------------------------------------------------------------------

function scope() {
  const undo = [];
  return {
    add(step) {
      undo.push(step);
    },
    listen(target, type, handler, options) {
      target.addEventListener(type, handler, options);
      undo.push(() => target.removeEventListener(type, handler, options));
    },
    dispose() {
      while (undo.length) undo.pop()();
    },
  };
}

function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "class") element.className = value;
    else if (key === "text") element.textContent = value;
    else if (key === "data") Object.assign(element.dataset, value);
    else if (key === "style") for (const [name, v] of Object.entries(value)) element.style.setProperty(name, v);
    else if (key === "on") for (const [type, handler] of Object.entries(value)) element.addEventListener(type, handler);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function mount(el, { label, kind, scope: owner }) {
  // Lumino looks for the attribute, other hosts for the event; both keep `d d` from deleting the cell.
  const root = h("section", {
    class: `labkit labkit-${kind}`,
    role: "group",
    "aria-label": label,
    tabindex: "-1",
    "data-lm-suppress-shortcuts": "true",
  });
  for (const type of ["keydown", "keypress", "keyup"]) {
    owner.listen(root, type, (event) => event.stopPropagation());
  }
  // JupyterLab would give the focus to the cell when something is pressed that cannot have it.
  owner.listen(root, "pointerdown", (event) => {
    if (!event.target.closest("input, button, select, summary, a, [tabindex]:not(section)")) {
      event.preventDefault();
      root.focus({ preventScroll: true });
    }
  });
  owner.listen(root, "mousedown", (event) => event.stopPropagation());
  el.replaceChildren(root);
  owner.add(() => root.remove());
  return root;
}

// --- theme ----------------------------------------------------------------------------------------------------------

function onTheme(owner, handler, root = null) {
  const laidOut = new ResizeObserver(() => {
    laidOut.disconnect();
    handler();
  });
  if (root) laidOut.observe(root);
  let late;
  const changed = () => {
    handler();
    clearTimeout(late);
    late = setTimeout(handler, 250); // the style sheet of the new theme may come after the attribute
  };
  const observer = new MutationObserver(changed);
  const attributes = { attributes: true, attributeFilter: ["data-jp-theme-light", "data-jp-theme-name", "class"] };
  observer.observe(document.body, attributes);
  owner.add(() => {
    observer.disconnect();
    laidOut.disconnect();
    clearTimeout(late);
  });
}

function colours(root) {
  const style = getComputedStyle(root);
  const read = (name) => style.getPropertyValue(`--lk-${name}`).trim();
  const names = ["line", "surface", "accent", ...FATES, "fp32", "fp16", "bf16", "fp8", "good", "bad", "ink"];
  const found = Object.fromEntries(names.map((name) => [name, read(name)]));
  return {
    ...found,
    ink2: read("ink-2"),
    line2: read("line-2"),
    surface2: read("surface-2"),
    font: style.fontFamily,
    size: parseFloat(style.fontSize) || 13,
  };
}

function reducedMotion() {
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}

// --- numbers as a person reads them -----------------------------------------------------------------------------------

function power(exponent) {
  return `2^${exponent}`;
}

function decimal(x) {
  if (!Number.isFinite(x)) return Number.isNaN(x) ? "NaN" : x > 0 ? "inf" : "-inf";
  const size = Math.abs(x);
  if (x === 0) return "0";
  if (Number.isInteger(x) && size < 1e7) return x.toLocaleString("en-US");
  if (size >= 1e-3 && size < 1e6) return String(Number(x.toPrecision(3)));
  const [digits, exponent] = x.toExponential(2).split("e");
  return `${Number(digits)}e${Number(exponent)}`;
}

// The twin of `percent` in labkit/widgets/underflow_words.py; a browser test holds them together.
function percent(share) {
  const p = 100 * share;
  if (p === 0) return "0%";
  if (p < 0.01) return "<0.01%";
  if (p < 1) return `${p.toFixed(2)}%`;
  if (p < 9.95) return `${p.toFixed(1)}%`;
  if (p < 99) return `${p.toFixed(0)}%`;
  if (p < 99.9) return `${p.toFixed(1)}%`;
  return p < 100 ? ">99.9%" : "100%";
}

function rich(text) {
  const fragment = document.createDocumentFragment();
  let end = 0;
  for (const match of text.matchAll(/(\d)\^(-?\d+)/g)) {
    fragment.append(text.slice(end, match.index), match[1], h("sup", { text: match[2].replace("-", "\u2212") }));
    end = match.index + match[0].length;
  }
  fragment.append(text.slice(end));
  return fragment;
}

// --- controls -------------------------------------------------------------------------------------------------------

let controls = 0;

function slider({ label, min, max, step = 1, page = 5, value, text = String, onInput, labelled = true }) {
  const id = `lk-slider-${++controls}`;
  const input = h("input", { type: "range", id, min, max, step, "aria-label": labelled ? null : label });
  const output = h("output", { for: id });
  const parts = labelled ? [h("label", { class: "lk-slider-label", for: id, text: label }), input, output] : [input];
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
      input.style.setProperty("--lk-filled", `${(100 * (self.value - min)) / (max - min)}%`);
      output.replaceChildren(rich(words));
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
    change(Math.min(max, Math.max(min, self.value + jump)));
  });
  self.set(value);
  return self;
}

function button({ label, title, kind, onPress }) {
  const element = h("button", { type: "button", class: "lk-button", title, text: label, data: kind ? { kind } : {} });
  element.addEventListener("click", onPress);
  return {
    element,
    enable(on) {
      element.disabled = !on;
    },
    setLabel(next) {
      element.textContent = next;
    },
  };
}

function segmented({ label, options, value, onChange, labelled = true }) {
  const name = `lk-segments-${++controls}`;
  const inputs = new Map();
  const segments = options.map((option) => {
    const input = h("input", { type: "radio", name, value: option.value });
    input.addEventListener("change", () => onChange(option.value));
    inputs.set(option.value, input);
    return h("label", { class: "lk-segment", title: option.title }, input, h("span", { text: option.label }));
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
      return options.find((option) => inputs.get(option.value).checked)?.value;
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

function toggle({ label, value, onChange }) {
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

function sentence() {
  const shown = h("span", { "aria-hidden": "true" });
  const spoken = h("span", { class: "lk-hidden", "aria-live": "polite", role: "status" });
  const element = h("p", { class: "lk-sentence" }, shown, spoken);
  let said;
  let pause;
  return {
    element,
    say(text) {
      if (text === said) return;
      said = text;
      element.dataset.text = text;
      shown.replaceChildren(rich(text));
      clearTimeout(pause); // a screen reader hears where the hand stopped, not every step of the way
      pause = setTimeout(() => (spoken.textContent = text), 400);
    },
  };
}

// --- canvas ---------------------------------------------------------------------------------------------------------

function figure({ scope: owner, label, height, draw }) {
  const canvas = h("canvas", { role: "img", "aria-label": label });
  const element = h("div", { class: "lk-figure" }, canvas);
  const context = canvas.getContext("2d");
  let frame = 0;
  const self = {
    element,
    canvas,
    width: 0,
    height: 0,
    drawTimes: [],
    redraw() {
      frame ||= requestAnimationFrame(self.drawNow);
    },
    drawNow() {
      cancelAnimationFrame(frame);
      frame = 0;
      if (!self.width) return;
      const start = performance.now();
      const ratio = window.devicePixelRatio || 1;
      const [w, ht] = [Math.round(self.width * ratio), Math.round(self.height * ratio)];
      if (canvas.width !== w || canvas.height !== ht) [canvas.width, canvas.height] = [w, ht];
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.clearRect(0, 0, self.width, self.height);
      draw(context, self.width, self.height);
      self.drawTimes.push(performance.now() - start);
      if (self.drawTimes.length > 1000) self.drawTimes.shift();
    },
  };
  const measure = () => {
    self.width = element.clientWidth;
    self.height = typeof height === "function" ? height(self.width) : height;
    element.style.height = `${self.height}px`;
    self.drawNow();
  };
  const observer = new ResizeObserver(measure);
  observer.observe(element);
  canvas.labkitFigure = self; // so that a test can read the draw times
  owner.add(() => {
    observer.disconnect();
    cancelAnimationFrame(frame);
  });
  return self;
}

function tip(owner) {
  const element = h("div", { class: "lk-tip", hidden: true, "aria-hidden": "true" });
  owner.element.append(element);
  return {
    element,
    show(x, y, text) {
      element.replaceChildren(rich(text));
      element.hidden = false;
      const left = Math.max(0, Math.min(x - element.offsetWidth / 2, owner.width - element.offsetWidth));
      const top = Math.max(0, y - element.offsetHeight - 8);
      element.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
    },
    hide() {
      element.hidden = true;
    },
  };
}

function powerLabel(context, exponent, x, y, align = "center") {
  const font = context.font;
  const size = parseFloat(font.match(/([\d.]+)px/)[1]);
  const small = font.replace(/[\d.]+px/, `${(size * 0.75).toFixed(1)}px`);
  const digits = String(exponent).replace("-", "\u2212");
  const base = context.measureText("2").width;
  context.font = small;
  const total = base + context.measureText(digits).width;
  const left = align === "center" ? x - total / 2 : align === "right" ? x - total : x;
  context.textAlign = "left";
  context.fillText(digits, left + base, y - size * 0.38);
  context.font = font;
  context.fillText("2", left, y);
}

const patternCache = new Map();

function patternImage(fate, palette) {
  const ratio = window.devicePixelRatio || 1;
  const key = `${fate} ${palette[fate]} ${ratio}`;
  if (!patternCache.has(key)) {
    const size = 8;
    const tile = h("canvas");
    tile.width = tile.height = size * ratio;
    const pen = tile.getContext("2d");
    pen.scale(ratio, ratio);
    pen.fillStyle = palette[fate];
    pen.fillRect(0, 0, size, size);
    pen.strokeStyle = pen.fillStyle = fate === "underflowed" ? "rgb(255 255 255 / 55%)" : "rgb(0 0 0 / 38%)";
    pen.lineWidth = 1.3;
    pen.beginPath();
    if (fate === "underflowed" || fate === "overflowed") {
      for (const offset of [-size, 0, size]) pen.moveTo(offset, size), pen.lineTo(offset + size, 0);
    }
    if (fate === "overflowed") {
      for (const offset of [-size, 0, size]) pen.moveTo(offset, 0), pen.lineTo(offset + size, size);
    }
    pen.stroke();
    if (fate === "subnormal") {
      for (const [x, y] of [[2, 2], [6, 6]]) pen.fillRect(x - 0.8, y - 0.8, 1.6, 1.6);
    }
    patternCache.set(key, { tile, ratio, url: tile.toDataURL() });
  }
  return patternCache.get(key);
}

function pattern(context, fate, palette) {
  if (fate === "normal") return palette.normal;
  const { tile, ratio } = patternImage(fate, palette);
  const fill = context.createPattern(tile, "repeat");
  fill.setTransform(new DOMMatrix().scale(1 / ratio));
  return fill;
}

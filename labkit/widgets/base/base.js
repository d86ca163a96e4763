// The root of every widget: elements, lifetime, theme, and numbers as a person reads them.

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

// `alone`: the widget answers in the page, and needs no kernel; or a function of the model that says so.
function view({ label, kind, alone = false }, fill) {
  const answers = (model) => (typeof alone === "function" ? alone(model) : alone);
  return {
    answers,
    render({ model, el, live }) {
      const owner = scope();
      const words = typeof label === "function" ? label(model) : label;
      const root = mount(el, { label: words, kind, scope: owner, model });
      fill(root, model, owner, live);
      if (live === false) sayItWasSaved(root, answers(model));
      return () => owner.dispose();
    },
  };
}

function mount(el, { label, kind, scope: owner, model }) {
  // Lumino looks for the attribute, other hosts for the event (keys.js); both keep `d d` from deleting the cell.
  const root = h("section", {
    class: `labkit labkit-${kind}`,
    role: "group",
    "aria-label": label,
    tabindex: "-1",
    "data-lm-suppress-shortcuts": "true",
  });
  keepKeys(root, owner);
  keepFocus(root, owner);
  watchKernel(root, owner, model);
  showTitles(root, owner);
  guide(root, owner, model);
  // JupyterLab would give the focus to the cell when something is pressed that cannot have it.
  owner.listen(root, "pointerdown", (event) => {
    if (!event.target.closest("input, button, select, summary, a, [tabindex]:not(section)")) {
      event.preventDefault();
      root.focus({ preventScroll: true });
    }
  });
  owner.listen(root, "mousedown", (event) => event.stopPropagation());
  el.classList.add("labkit-room");
  el.replaceChildren(root);
  owner.add(() => root.remove());
  return root;
}

// --- theme ----------------------------------------------------------------------------------------------------------

const INKS = ["ink", "ink-2", "line", "line-2", "surface", "surface-2", "accent", ...FATES, "fp32", "fp16", "bf16", "fp8", "good", "bad"];

function colours(root, owner, changed) {
  const palette = { size: TYPE };
  const read = () => {
    const style = getComputedStyle(root);
    for (const name of INKS) palette[name.replace("-", "")] = style.getPropertyValue(`--lk-${name}`).trim();
    palette.font = style.fontFamily;
  };
  const again = () => {
    read();
    changed();
  };
  const laidOut = new ResizeObserver(() => {
    laidOut.disconnect();
    again();
  });
  let late;
  // The style sheet of a theme may come after its attribute, and after widgets that were saved with the notebook.
  const settle = () => {
    clearTimeout(late);
    late = setTimeout(() => {
      again();
      if (!palette.ink) settle();
    }, 250);
  };
  const observer = new MutationObserver(() => {
    again();
    settle();
  });
  laidOut.observe(root);
  observer.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "data-jp-theme-name", "class"] });
  owner.add(() => {
    observer.disconnect();
    laidOut.disconnect();
    clearTimeout(late);
  });
  read();
  if (!palette.ink) settle();
  return palette;
}

const formatColour = (name, palette) => palette[{ FP32: "fp32", TF32: "fp32", FP16: "fp16", BF16: "bf16" }[name] ?? "fp8"];

// The same colours for what is only shown: a run on record, until one of the learner's own begins.
const DRAWN = [...FATES, "fp32", "fp16", "bf16", "fp8", "bad"];
const faintly = (palette) => ({ ...palette, ...Object.fromEntries(DRAWN.map((name) => [name, `color-mix(in srgb, ${palette[name]} 55%, transparent)`])) });

function reducedMotion() {
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}

// What a buffer of a message or a trait holds, as float32.
function floats(view) {
  if (!view || !view.byteLength) return new Float32Array(0);
  const bytes = new Uint8Array(view.buffer ?? view, view.byteOffset ?? 0, view.byteLength);
  return new Float32Array(bytes.slice().buffer); // a copy: in the message they may not lie on a multiple of 4
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

// The twin of `percent` in labkit/widgets/base/number_words.py; a browser test holds them together.
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

function superscript(digits) {
  const raised = "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079";
  return String(digits).replace(/[-\d]/g, (c) => (c === "-" ? "\u207b" : raised[c]));
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

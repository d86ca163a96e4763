// Shared behaviour of every labkit widget: this file and the others of its folder. Python puts them before the widget's own (labkit/widgets/base/widget.py), so everything is in scope there; nothing is exported,
// loaded or built.
//
//   scope()                        collects what has to be undone: add(undo), listen(target, type, handler), dispose()
//   h(tag, properties, ...children)   makes an element. Keys: class, text, data: {..}, style: {..}, on: {click: ..}, else attributes
//   view({label, kind}, fill)      what view.js exports: makes a root, calls fill(root, model, scope), and ends the scope with the
//                                  picture; label may be label(model)
//   mount(el, {label, kind, scope, model})   makes the root: labelled group, theme, keepKeys, keepFocus, watchKernel, showTitles, guide
//   keepKeys(root, scope)          keys stay inside but for those that run a cell or save, and Esc, which gives the cell the
//                                  focus; whoever closes something with Esc calls preventDefault(), and the focus stays
//   keepFocus(root, scope)         a control that is hidden, disabled or removed leaves its focus to the root
//   showTitles(root, scope)        what a mouse reads as a tooltip (title) is shown at the keyboard's focus and under a finger too
//   pointed(scope, figure, look)   look({x, y, held}), or null, for mouse, finger and arrow keys
//   watchKernel(root, scope, model)   when the kernel is gone, what is in the root goes still and a sentence names the cure
//   guide(root, scope, model)      shows the steps of the widget's tour, where it has one; Esc closes it first
//   watch(scope, model, traits, handler)   calls handler() after each change of one of the traits
//   listen(scope, model, handler)  calls handler(content, buffers) for each message of the kernel's
//   put(model, {trait: value, ..})  sets traits, and tells the kernel
//   makeAtlas(scope, model, root, {ask, take})   {find(key), rest()}: asks the kernel ahead when the hand rests; take(known,
//                                  content, buffers) puts what is answered ("ahead") into a Map
//   whenUnseen(scope, act)         calls act() when the last picture of the widget has left the page
//   colours(root, scope, changed)  {ink, ink2, line, line2, surface, surface2, accent, font, size, underflowed, subnormal,
//                                  normal, overflowed, fp32, fp16, bf16, fp8, good, bad} as the theme has them; changed() is
//                                  called after each change of theme, and when the root is first laid out: before that it has
//                                  no colours. Call it before the first figure() is made
//   formatColour(name, colours)    that of a number format
//   slider({label, min, max, step, page, value, text, onInput, labelled})   {element, input, output, value, set(v), limit(max), enable(b)}
//                                  arrows move by step, PageUp/PageDown by page, Home/End to the ends; text(v) is what is
//                                  shown and read out; labelled: false leaves label and value out of sight
//   button({label, title, kind, onPress})             {element, enable(b), setLabel(text)}      kind: "primary" or none
//   player({title, pace, advance, scope})             {element, playing, stop()}: a button that calls advance() every `pace` ms
//                                  until it returns false, or until it is pressed again
//   segmented({label, options, value, onChange, labelled})   {element, value, set(v), enable(b)}; an option is a name, or
//                                  {value, label, title}
//   traitChoice(model, trait, label, options, {labelled, onChange})   the same over a trait
//   choice({label, onChange})      {element, show(options, value, none)}: a list that opens, of [value, text] pairs; "" is none
//   toggle({label, value, onChange})                  {element, value, set(v), enable(b)}       a switch
//   fact(name, shown)              one of the facts about a number, in a row `lk-facts`
//   sentence()                     {element, say(text, news)}: shown at once, read out (polite) when it has been still for a
//                                  moment; where `news` is given, only when that has changed: a training is no news at each step
//   figure({scope, label, height, draw})   {element, canvas, width, height, grown, at(event), redraw(), drawNow(), drawTimes};
//                                  draw(context, width, height) in pixels of 1/13 of the type's size, of which at(event) is
//                                  {x, y, held}; sharp at any devicePixelRatio, again at every new width; height is a number or
//                                  width => number; drawTimes: the last 1,000 in ms
//   tip(figure)                    {element, show(x, y, text), hide()}: a small label that stays inside the figure
//   hovering(scope, figure, at)    a tip while the pointer is over it: at({x, y, held}) is [x, y, text], or null; at(null): it left
//   rich(text)                     document fragment in which 2^-24 has a raised exponent
//   powerLabel(context, exponent, x, y, align)        draws 2 with a raised exponent on a canvas, y is the baseline
//   pattern(context, fate, colours)                   fill for "underflowed", "subnormal", "normal", "overflowed": colour
//                                  and hatching, so colour is never the only sign; patternImage(fate, colours) for CSS
//   inkLine(plot, points, colour, width, {dash, alpha}), inkText(plot, words, x, y, {fill, align, base, bold, halo}),
//   inkCross(plot, x, y, r, colour), inkDot(plot, x, y, r, colour), inkRing(plot, x, y, colour),
//   inkArea(plot, points, foot, colour), inkFrame(plot, {top, height}, title, ticks, y), inkZone(plot, {top, height}, edge, fate), inkZoneNames(plot, {top, height}),
//   inkNames(plot, ends, apart, low, high), inkLosses(plot, {top, height}, title, curves), inkSkips(plot, {top}, words, colour), inkSteps(plot, bottom)
//                                  figures of runs; plot.js says what plot is
//   spreadLabels(ys, apart, low, high)                heights of labels that stand apart
//   logTicks(low, high) lossRange(...curves) stepTicks(total) niceStep(rough)   round numbers for axes
//   floats(view)                   the float32 numbers of a buffer that the kernel sent
//   decimal(x) 5.96e-8   percent(share) 0.14%   power(exponent) "2^-24"   superscript(-24) "⁻²⁴"   reducedMotion() true or false
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

function view({ label, kind }, fill) {
  return {
    render({ model, el }) {
      const owner = scope();
      const words = typeof label === "function" ? label(model) : label;
      fill(mount(el, { label: words, kind, scope: owner, model }), model, owner);
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
  const observer = new MutationObserver(() => {
    again();
    clearTimeout(late);
    late = setTimeout(again, 250); // the style sheet of the new theme may come after the attribute
  });
  laidOut.observe(root);
  observer.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "data-jp-theme-name", "class"] });
  owner.add(() => {
    observer.disconnect();
    laidOut.disconnect();
    clearTimeout(late);
  });
  read();
  return palette;
}

const formatColour = (name, palette) => palette[{ FP32: "fp32", FP16: "fp16", BF16: "bf16" }[name] ?? "fp8"];

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

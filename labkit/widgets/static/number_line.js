// The number line. Where the numbers of a format lie follows from five facts that Python sends (`_axis`), so zooming and
// dragging need no kernel. What a number becomes is asked of Python (`rounded`) and drawn when the answer is here.

const EDGE = 10; // CSS pixels left and right of the line
const TOP = 62; // the marks stand between TOP
const LINE = 110; // and the line itself
const TALL = 164;
const CLOSEST = 4; // marks nearer than this many pixels are drawn as a band
const STEPS = [1, 2, 4, 8, 16, 32, 64, 128];
const KEYS = "arrow keys move along, plus and minus zoom, Home shows everything";

// --- where the numbers lie ----------------------------------------------------------------------------------------------

// Stretches of equal spacing, from zero up: the subnormals, then binade after binade. `power` is the exponent of the start.
function stretches(format, log) {
  const { emin, emax, significand_bits: p, max } = format;
  const found = [];
  if (format.has_zero && !log) found.push({ from: 0, to: 2 ** emin, spacing: 2 ** (emin - p), subnormal: true });
  if (format.has_zero && log) {
    for (let e = emin - p; e < emin; e++) found.push({ from: 2 ** e, to: 2 ** (e + 1), spacing: 2 ** (emin - p), subnormal: true });
  }
  for (let e = emin; e <= emax; e++) found.push({ from: 2 ** e, to: Math.min(2 * 2 ** e, max + 2 ** (e - p)), spacing: 2 ** (e - p) });
  return found;
}

function mirrored(parts) {
  return parts.map((part) => ({ ...part, from: -part.to, to: -part.from })).reverse();
}

function spacingAt(value, format) {
  const e = Math.floor(Math.log2(Math.abs(value)));
  return 2 ** (Math.min(format.emax, Math.max(format.emin, e)) - format.significand_bits);
}

function wholeOf(format, log) {
  const least = 2 ** (format.emin - (format.has_zero ? format.significand_bits : 0));
  if (log) return [least / 8, format.max * 4];
  return [format.signed ? -1.15 * format.max : -0.1 * format.max, 1.15 * format.max];
}

// --- the window: u is the value itself, or its base-2 logarithm -----------------------------------------------------------

function lens(low, high, log, width) {
  const u = log ? Math.log2 : (value) => value;
  const value = log ? (place) => 2 ** place : (place) => place;
  const [from, to] = [u(low), u(high)];
  const across = width - 2 * EDGE;
  return {
    from,
    to,
    value,
    u,
    width,
    perPixel: (to - from) / across,
    x: (v) => (log && v <= 0 ? -1e6 : EDGE + ((u(v) - from) / (to - from)) * across),
    at: (x) => value(from + ((x - EDGE) / across) * (to - from)),
  };
}

function inside([from, to], format, log) {
  const u = log ? Math.log2 : (value) => value;
  const [first, last] = wholeOf(format, log).map(u);
  const middle = (from + to) / 2;
  const least = log ? 2 ** -format.significand_bits / 2 : spacingAt(middle || 2 ** format.emin, format) / 2;
  const span = Math.min(last - first, Math.max(least, to - from));
  const start = Math.min(last - span, Math.max(first, middle - span / 2));
  return [start, start + span];
}

// As few digits as a pixel can tell: what a hand sets is a short number.
function tidy(value, view, log) {
  if (log) return Number(value.toPrecision(Math.min(17, Math.max(2, Math.ceil(-Math.log10(view.perPixel * 0.7))))));
  const digits = -Math.floor(Math.log10(view.perPixel));
  if (digits >= 0) return Number(value.toFixed(Math.min(100, digits))) || 0;
  return Math.round(value / 10 ** -digits) * 10 ** -digits || 0;
}

// --- drawing --------------------------------------------------------------------------------------------------------------

function drawRich(pen, text, x, y, align) {
  const font = pen.font;
  const small = font.replace(/([\d.]+)px/, (_, size) => `${(size * 0.75).toFixed(1)}px`);
  const runs = text.split(/(?<=\d)\^(-?\d+)/).map((run, i) => ({ run: i % 2 ? run.replace("-", "\u2212") : run, up: i % 2 === 1 }));
  const use = (up) => (pen.font = up ? small : font);
  const total = runs.reduce((sum, { run, up }) => (use(up), sum + pen.measureText(run).width), 0);
  let left = align === "center" ? x - total / 2 : align === "right" ? x - total : x;
  pen.textAlign = "left";
  for (const { run, up } of runs) {
    use(up);
    pen.fillText(run, left, up ? y - 4 : y);
    left += pen.measureText(run).width;
  }
  pen.font = font;
  return total;
}

function zonesOf(format) {
  const { zero_to: zero, ends_from: end } = format;
  const first = format.has_zero ? 2 ** format.emin : 0; // where the normal numbers begin
  const last = end ?? Infinity;
  const up = [
    { fate: "subnormal", from: zero, to: first, names: ["subnormal", "sub"] },
    { fate: "normal", from: first, to: last, names: ["normal"] },
    { fate: "overflowed", from: last, to: Infinity, names: [format.beyond, format.beyond.slice(3, 6)] },
  ];
  const zeros = { fate: "underflowed", from: format.signed ? -zero : 0, to: zero, names: ["to 0", "0"] };
  return format.signed ? [...mirrored(up), zeros, ...up] : [zeros, ...up];
}

function drawZones(pen, view, format, palette) {
  const edge = (v) => Math.min(view.width, Math.max(0, view.x(v)));
  for (const { fate, from, to, names } of zonesOf(format)) {
    const [a, b] = [edge(from), edge(to)];
    if (!(b - a > 0.5)) continue;
    pen.globalAlpha = fate === "normal" ? 0.12 : 0.2;
    pen.fillStyle = palette[fate];
    pen.fillRect(a, TOP, b - a, LINE - TOP);
    pen.globalAlpha = 1;
    pen.fillStyle = palette.ink2;
    pen.textAlign = "left";
    const name = names.find((one) => pen.measureText(one).width + 10 < b - a);
    if (name) pen.fillText(name, a + 5, TOP + 13);
  }
}

function drawMarks(pen, view, format, log, palette) {
  const up = stretches(format, log);
  const parts = log || !format.signed ? up : [...mirrored(up), ...up];
  const [low, high] = [view.value(view.from), view.value(view.to)];
  let tightest = Infinity;
  pen.lineWidth = 1;
  pen.strokeStyle = pen.fillStyle = palette.ink;
  for (const { from, to, spacing } of parts) {
    if (to < low || from > high) continue;
    const [a, b] = [Math.max(from, low), Math.min(to, high)];
    const last = Math.max(a, b - spacing);
    const gap = log ? view.x(last + spacing) - view.x(last) : spacing / view.perPixel;
    tightest = Math.min(tightest, gap);
    if (gap >= CLOSEST) {
      pen.globalAlpha = 0.8;
      pen.beginPath();
      for (let k = Math.ceil(a / spacing); k * spacing <= b; k++) {
        if (k * spacing === (to > 0 ? to : from)) continue; // the far end is the next stretch's first
        const x = Math.round(view.x(k * spacing)) + 0.5;
        pen.moveTo(x, LINE - (Number.isInteger(Math.log2(Math.abs(k * spacing))) ? 34 : 24));
        pen.lineTo(x, LINE);
      }
      pen.stroke();
    } else {
      pen.globalAlpha = 0.32 + 0.43 * Math.min(1, Math.log2(CLOSEST / gap) / 14);
      pen.fillRect(view.x(a), LINE - 24, Math.max(0.6, view.x(b) - view.x(a) - (view.x(b) - view.x(a) > 12 ? 1 : 0)), 24);
    }
    pen.globalAlpha = 1;
  }
  return tightest;
}

function drawCounts(pen, view, format, log, palette) {
  const up = stretches(format, log);
  pen.fillStyle = palette.ink2;
  for (const { from, to, spacing } of log || !format.signed ? up : [...mirrored(up), ...up]) {
    const [a, b] = [view.x(from), view.x(to)];
    const [left, right] = [Math.max(EDGE, a), Math.min(view.width - EDGE, b)];
    if (right - left < 70) continue;
    const count = Math.round((to - from) / spacing);
    const many = `${count.toLocaleString("en-US")} number${count === 1 ? "" : "s"}`;
    const apart = `, ${spacing >= 1 && spacing <= 1024 ? spacing : `2^${Math.log2(spacing)}`} apart`;
    drawRich(pen, right - left > 165 && count > 1 ? many + apart : many, (left + right) / 2, LINE + 46, "center");
    pen.globalAlpha = 0.5;
    pen.fillRect(left + 3, LINE + 31, right - left - 6, 1);
    pen.globalAlpha = 1;
  }
}

function drawAxis(pen, view, log, palette) {
  pen.fillStyle = pen.strokeStyle = palette.ink2;
  pen.fillRect(EDGE - 4, LINE, view.width - 2 * EDGE + 8, 1.5);
  if (log && view.to - view.from > 4) {
    const step = STEPS.find((octaves) => octaves / view.perPixel > 46) ?? 256;
    for (let e = Math.ceil(view.from / step) * step; e <= view.to; e += step) {
      pen.fillRect(view.x(2 ** e), LINE, 1, 5);
      powerLabel(pen, e, Math.min(view.width - 14, Math.max(14, view.x(2 ** e))), LINE + 21);
    }
    return;
  }
  const [low, high] = [view.value(view.from), view.value(view.to)];
  const rough = (high - low) / Math.max(2, Math.floor(view.width / 120));
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * unit).find((one) => one >= rough);
  const size = Math.max(Math.abs(low), Math.abs(high));
  const digits = Math.min(100, Math.max(0, -Math.floor(Math.log10(step) + 1e-9)));
  const text = (v) => {
    if (size >= 1e-4 && size < 1e7) return v.toFixed(digits);
    const places = Math.min(15, Math.max(0, Math.floor(Math.log10(size)) + digits));
    return v === 0 ? "0" : v.toExponential(size < 1 ? places : Math.max(0, Math.min(15, Math.round(Math.log10(size / step))))).replace("e+", "e");
  };
  for (let k = Math.ceil(low / step); k * step <= high; k++) {
    const x = view.x(k * step);
    const label = text(k * step).replaceAll("-", "\u2212");
    const half = pen.measureText(label).width / 2;
    pen.fillRect(x, LINE, 1, 5);
    pen.textAlign = "center";
    pen.fillText(label, Math.min(view.width - half, Math.max(half, x)), LINE + 21);
  }
}

function drawOutcome(pen, view, answer, x, palette, colour) {
  const clampX = (v) => Math.min(view.width, Math.max(0, v));
  if (answer.interval) {
    const { low, high } = answer.interval;
    const [a, b] = [low === null ? 0 : clampX(view.x(low)), high === null ? view.width : clampX(view.x(high))];
    pen.globalAlpha = 0.24;
    pen.fillStyle = colour;
    pen.fillRect(a, TOP - 8, Math.max(1, b - a), LINE - TOP + 8);
    pen.globalAlpha = 1;
    drawEnd(pen, view, low, answer.interval.low_in, colour, palette);
    drawEnd(pen, view, high, answer.interval.high_in, colour, palette);
  }
  const here = view.x(x);
  pen.strokeStyle = palette.ink;
  pen.lineWidth = 1.5;
  if (here >= 0 && here <= view.width) {
    pen.beginPath();
    pen.moveTo(here, 22);
    pen.lineTo(here, LINE);
    pen.stroke();
  }
  answer.values.forEach(({ at, text, odds }, i) => {
    const label = answer.values.length > 1 ? `${text}: ${odds}` : text;
    const outside = at === null || view.x(at) < 0 || view.x(at) > view.width;
    const target = at === null ? (x > 0 ? view.width - 2 : 2) : clampX(view.x(at));
    pen.fillStyle = pen.strokeStyle = colour;
    if (!outside) pen.fillRect(target - 1.5, TOP - 8, 3, LINE - TOP + 8);
    arrow(pen, clampX(here), target, 46);
    pen.font = `600 ${palette.size}px ${palette.font}`;
    const alone = answer.values.length === 1;
    const leftward = alone ? target < here : i === 0;
    const width = pen.measureText(label.replace("^", "")).width;
    let edge = leftward ? target - 6 : target + 6;
    if (leftward && edge - width < 0) edge = width + 2;
    if (!leftward && edge + width > view.width) edge = view.width - width - 2;
    pen.fillStyle = palette.ink;
    drawRich(pen, label, edge, TOP - 22, leftward ? "right" : "left");
    pen.font = `${palette.size - 1}px ${palette.font}`;
  });
}

function drawEnd(pen, view, value, included, colour, palette) {
  if (value === null || view.x(value) < 0 || view.x(value) > view.width) return;
  pen.beginPath();
  pen.arc(view.x(value), TOP - 8, 3.5, 0, 7);
  pen.fillStyle = included ? colour : palette.surface;
  pen.strokeStyle = colour;
  pen.lineWidth = 1.5;
  pen.fill();
  pen.stroke();
}

function arrow(pen, from, to, y) {
  if (Math.abs(to - from) < 9) return;
  const back = Math.sign(from - to);
  pen.lineWidth = 1.5;
  pen.beginPath();
  pen.moveTo(from, y);
  pen.lineTo(to + back * 4, y);
  pen.moveTo(to + back * 9, y - 4);
  pen.lineTo(to + back * 4, y);
  pen.lineTo(to + back * 9, y + 4);
  pen.stroke();
}

// --- the widget -----------------------------------------------------------------------------------------------------------

function render({ model, el }) {
  const life = scope();
  const root = mount(el, { label: "Number line", kind: "number-line", scope: life });
  let palette = colours(root);
  onTheme(life, () => ((palette = colours(root)), line.redraw()), root);
  let x = model.get("x");
  const isLog = () => model.get("scale") === "log";
  const view = () => lens(...model.get("window"), isLog(), line.width);

  const top = controlsRow(model, { zoom: (factor) => zoom(factor), look, rescale, type: (text) => tell({ text }) });
  const line = figure({ scope: life, label: "", height: TALL, draw });
  line.canvas.setAttribute("role", "application");
  line.canvas.setAttribute("aria-roledescription", "number line");
  line.canvas.tabIndex = 0;
  line.element.classList.add("nl-line");
  const hover = tip(line);
  const handle = h("div", { class: "nl-handle", role: "slider", tabindex: "0", "aria-label": "The number x" });
  line.element.append(handle);
  const table = modes((rounding) => tell({ rounding }));
  const words = sentence();
  root.append(top.element, line.element, table.element, words.element);

  function tell(changes) {
    for (const [name, next] of Object.entries(changes)) model.set(name, next);
    model.save_changes();
  }

  function draw(pen) {
    const now = view();
    const format = model.get("_axis");
    const answer = model.get("rounded");
    const colour = { FP32: palette.fp32, FP16: palette.fp16, BF16: palette.bf16 }[format.name] ?? palette.fp8;
    pen.font = `${palette.size - 1}px ${palette.font}`;
    drawZones(pen, now, format, palette);
    const tightest = drawMarks(pen, now, format, isLog(), palette);
    drawAxis(pen, now, isLog(), palette);
    drawCounts(pen, now, format, isLog(), palette);
    drawOutcome(pen, now, answer, x, palette, colour);
    placeHandle(now);
    root.dataset.dense = String(tightest < CLOSEST);
  }

  function placeHandle(now) {
    const place = now.x(x);
    const off = place < 0 ? "left" : place > now.width ? "right" : "";
    const text = String(x).replaceAll("-", "\u2212").replace("+", "");
    handle.textContent = off === "left" ? `\u25c2 ${text}` : off === "right" ? `${text} \u25b8` : text;
    const half = handle.offsetWidth / 2;
    handle.style.transform = `translateX(${Math.round(Math.min(now.width - 2 * half, Math.max(0, place - half)))}px)`;
  }

  function show() {
    const answer = model.get("rounded");
    x = model.get("x");
    top.set(model, x);
    table.set(answer);
    words.say(answer.sentence);
    const values = answer.values.map(({ text }) => text).join(" or ");
    handle.setAttribute("aria-valuetext", `${x}, becomes ${values}`);
    const limits = { "aria-valuenow": x, "aria-valuemin": model.get("window")[0], "aria-valuemax": model.get("window")[1] };
    for (const [name, value] of Object.entries(limits)) handle.setAttribute(name, value);
    line.canvas.setAttribute("aria-label", `The numbers of ${model.get("format")}; ${KEYS}`);
    root.dataset.x = String(answer.x);
    root.dataset.window = model.get("window").join(" ");
    line.redraw();
  }

  function moveTo(value) {
    const [low, high] = model.get("window");
    const next = tidy(value, view(), isLog());
    if (!Number.isFinite(next) || next === x) return;
    tell({ x: next, text: String(next).replace("+", "") });
    if (next < low || next > high) pan(view().u(next) - (view().from + view().to) / 2);
    show();
  }

  function step(amount) {
    const now = view();
    const there = now.value(now.u(x) + amount * now.perPixel);
    moveTo(isLog() && x <= 0 ? model.get("window")[0] : there);
  }

  function look(place) {
    const format = model.get("_axis");
    const [log, gap] = [isLog(), spacingAt(x || 2 ** format.emin, format)];
    const least = 2 ** (format.emin - format.significand_bits);
    const windows = {
      everything: wholeOf(format, log),
      subnormals: log ? [least / 4, 2 ** (format.emin + 2)] : [-1.5 * 2 ** format.emin, 1.5 * 2 ** format.emin],
      x: log ? [Math.max(x - 6 * gap, x / 16), x + 6 * gap] : [x - 6 * gap, x + 6 * gap],
    };
    frame(windows[place].map(view().u));
  }

  function frame(ends) {
    const log = isLog();
    const [from, to] = inside(ends, model.get("_axis"), log);
    tell({ window: log ? [2 ** from, 2 ** to] : [from, to] });
    show();
  }

  function zoom(factor, place) {
    const now = view();
    const seen = x >= now.value(now.from) && x <= now.value(now.to);
    const centre = place ?? (seen ? now.u(x) : (now.from + now.to) / 2);
    frame([centre - (centre - now.from) * factor, centre + (now.to - centre) * factor]);
  }

  function pan(by) {
    const now = view();
    frame([now.from + by, now.to + by]);
  }

  function rescale(scale) {
    const format = model.get("_axis");
    const [low, high] = model.get("window");
    const whole = wholeOf(format, scale === "log");
    const all = high > format.max; // who saw everything wants to see everything
    tell({ scale, window: all ? whole : scale === "log" && low <= 0 ? [Math.min(high / 64, whole[0] * 8), high] : [low, high] });
    show();
  }

  for (const name of ["x", "window", "scale", "rounded", "_axis", "text", "problem", "format", "_formats"]) {
    model.on(`change:${name}`, show);
    life.add(() => model.off(`change:${name}`, show));
  }
  pointing(line, handle, life, { view, moveTo, pan, zoom, frame });
  keyboard(line, handle, life, { step, zoom, look, pan: (pixels) => pan(pixels * view().perPixel) });
  hovering(line, hover, life, (place) => nearby(view().at(place), model.get("_axis"), isLog()));
  show();
  return () => life.dispose();
}

function nearby(value, format, log) {
  const size = Math.abs(value);
  const part = stretches(format, log).find(({ from, to }) => size >= from && size < to);
  if (!part || (value < 0 && !format.signed)) return null;
  const minus = value < 0 ? "\u2212" : "";
  const name = (v) => (v === 0 ? "0" : Number.isInteger(Math.log2(v)) ? `${minus}2^${Math.log2(v)} = ${minus}${decimal(v)}` : minus + decimal(v));
  const count = Math.round((part.to - part.from) / part.spacing);
  const kind = part.subnormal ? "subnormal " : "";
  return `${name(part.from)} to ${name(part.to)}: ${count.toLocaleString("en-US")} ${kind}numbers, 2^${Math.log2(part.spacing)} apart`;
}

function controlsRow(model, act) {
  const id = `nl-${++controls}`;
  const box = h("input", { id, class: "nl-box", type: "text", spellcheck: "false", autocomplete: "off", "aria-describedby": `${id}-problem` });
  const select = h("select", { class: "nl-select", "aria-label": "Format" });
  const scale = segmented({
    label: "Scale",
    labelled: false,
    options: [
      { value: "log", label: "log", title: "positive numbers, by powers of two" },
      { value: "linear", label: "linear" },
    ],
    value: model.get("scale"),
    onChange: act.rescale,
  });
  const make = (label, title, onPress) => button({ label, title, onPress }).element;
  const zooms = h(
    "div",
    { class: "nl-zoom", role: "group", "aria-label": "What is seen" },
    make("\u2212", "zoom out (minus key)", () => act.zoom(2)),
    make("+", "zoom in (plus key)", () => act.zoom(0.5)),
    make("everything", "all numbers of the format (Home)", () => act.look("everything")),
    make("subnormals", "where the exponent field is 0", () => act.look("subnormals")),
    make("around x", "close enough to see single numbers", () => act.look("x")),
  );
  const problem = h("p", { class: "nl-problem", id: `${id}-problem`, role: "status" });
  box.addEventListener("input", () => act.type(box.value));
  select.addEventListener("change", () => {
    model.set("format", select.value);
    model.save_changes();
  });
  const number = h("div", { class: "nl-number" }, h("label", { for: id, text: "x" }), box);
  const format = h("label", { class: "nl-format" }, h("span", { text: "Format" }), select);
  return {
    element: h("div", {}, h("div", { class: "nl-row" }, number, format, scale.element, zooms), problem),
    set() {
      const names = model.get("_formats");
      if (select.options.length !== names.length) select.replaceChildren(...names.map((name) => h("option", { value: name, text: name })));
      select.value = model.get("format");
      scale.set(model.get("scale"));
      if (box.value !== model.get("text")) box.value = model.get("text");
      const wrong = model.get("problem");
      box.setAttribute("aria-invalid", String(wrong !== ""));
      problem.replaceChildren(rich(wrong && `\u2717 ${wrong}`));
    },
  };
}

function modes(onChoose) {
  const name = `nl-modes-${++controls}`;
  const parts = new Map();
  const element = h("fieldset", { class: "nl-modes", role: "radiogroup", "aria-label": "Rounding whose interval is shaded" });
  const heads = ["x is rounded", "and becomes", "error or odds"].map((text) => h("span", { text }));
  element.append(h("div", { class: "nl-mode nl-heads lk-quiet", "aria-hidden": "true" }, ...heads));
  return {
    element,
    set(answer) {
      for (const row of answer.rows) {
        if (!parts.has(row.mode)) {
          const input = h("input", { type: "radio", name, value: row.mode });
          const [value, error] = [h("b", { class: "nl-value" }), h("span", { class: "nl-error" })];
          input.addEventListener("change", () => onChoose(row.mode));
          element.append(h("label", { class: "nl-mode" }, h("span", {}, input, row.name), value, error));
          parts.set(row.mode, { input, value, error });
        }
        const { input, value, error } = parts.get(row.mode);
        input.checked = row.mode === answer.rounding;
        value.replaceChildren(rich(row.value.replaceAll("-", "\u2212").replaceAll("^\u2212", "^-")));
        error.textContent = row.error.replaceAll("-", "\u2212");
      }
    },
  };
}

// --- hands --------------------------------------------------------------------------------------------------------------

function pointing(line, handle, life, { view, moveTo, pan, zoom, frame }) {
  let held = null;
  const place = (event) => event.clientX - line.element.getBoundingClientRect().left;
  const grab = (event, what) => {
    held = { what, start: place(event), moved: false, view: view() };
    event.currentTarget.setPointerCapture(event.pointerId);
    event.preventDefault();
    (what === "x" ? handle : line.canvas).focus({ preventScroll: true });
  };
  const near = (event) => Math.abs(place(event) - view().x(Number(handle.getAttribute("aria-valuenow")))) < 8;
  life.listen(handle, "pointerdown", (event) => grab(event, "x"));
  life.listen(line.canvas, "pointerdown", (event) => grab(event, near(event) ? "x" : "line"));
  for (const target of [handle, line.canvas]) {
    life.listen(target, "pointermove", (event) => {
      if (!held) return;
      const by = place(event) - held.start;
      held.moved ||= Math.abs(by) > 3;
      if (!held.moved) return;
      if (held.what === "x") moveTo(view().at(Math.min(line.width - EDGE, Math.max(EDGE, place(event)))));
      else frame([held.view.from - by * held.view.perPixel, held.view.to - by * held.view.perPixel]);
    });
    life.listen(target, "pointerup", (event) => {
      if (held?.what === "line" && !held.moved) moveTo(view().at(place(event)));
      held = null;
    });
    life.listen(target, "pointercancel", () => (held = null));
  }
  const turned = (event) => {
    const ours = line.element.contains(document.activeElement) || event.ctrlKey || event.metaKey;
    if (!ours) return; // a page that is scrolled past keeps scrolling
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(event.deltaX * view().perPixel);
    else zoom(2 ** (Math.sign(event.deltaY) * Math.min(1, Math.abs(event.deltaY) / 200)), view().u(view().at(place(event))));
  };
  life.listen(line.element, "wheel", turned, { passive: false });
}

function keyboard(line, handle, life, { step, zoom, look, pan }) {
  const shared = { "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), Home: () => look("everything") };
  const keys = {
    line: { ArrowLeft: () => pan(-60), ArrowRight: () => pan(60), ...shared },
    x: {
      ArrowLeft: (far) => step(-far),
      ArrowDown: (far) => step(-far),
      ArrowRight: (far) => step(far),
      ArrowUp: (far) => step(far),
      PageUp: () => step(50),
      PageDown: () => step(-50),
      ...shared,
    },
  };
  const press = (set) => (event) => {
    const act = event.ctrlKey || event.metaKey || event.altKey ? null : set[event.key];
    if (!act) return;
    event.preventDefault();
    act(event.shiftKey ? 25 : 4);
  };
  life.listen(line.canvas, "keydown", press(keys.line));
  life.listen(handle, "keydown", press(keys.x));
}

function hovering(line, label, life, at) {
  life.listen(line.canvas, "pointermove", (event) => {
    const found = event.buttons || event.offsetY < TOP - 10 ? null : at(event.offsetX);
    if (found) label.show(event.offsetX, event.offsetY - 20, found);
    else label.hide();
  });
  life.listen(line.canvas, "pointerleave", () => label.hide());
}

export default { render };

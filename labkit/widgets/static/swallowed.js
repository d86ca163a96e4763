// Swallowed updates: two sliders, six curves. The kernel calculates, the browser draws what arrives.

const AXES = { left: 62, bottom: 34, top: 16 };
const LABEL_GAP = 17;
const LEADER = 20; // from the end of a curve to its name
const CURVES = [
  { name: "FP32", colour: "fp32", width: 4, dash: [] }, // the broad ones come first, so that others are seen on them
  { name: "FP16", colour: "fp16", width: 2.2, dash: [] },
  { name: "BF16", colour: "bf16", width: 6, dash: [] },
  { name: "FP16 + Kahan", colour: "fp16", width: 2, dash: [9, 4] },
  { name: "FP16 + stochastic", colour: "fp16", width: 2, dash: [2, 3] },
  { name: "FP16 + FP32 master", colour: "fp16", width: 2, dash: [11, 3, 2, 3] },
];

function curvesIn(view, steps) {
  const bytes = new Uint8Array(view.buffer ?? view, view.byteOffset ?? 0, view.byteLength);
  const all = new Float32Array(bytes.slice().buffer); // a copy: in the message they may not lie on a multiple of 4
  return CURVES.map((_, i) => all.subarray(i * (steps + 1), (i + 1) * (steps + 1)));
}

// --- axes and labels -------------------------------------------------------------------------------------------------

function roundTicks(low, high, most) {
  const rough = (high - low) / most;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = unit * [1, 2, 2.5, 5, 10].find((factor) => factor * unit >= rough);
  const ticks = [];
  for (let i = Math.ceil(low / step); i * step <= high; i++) ticks.push(i * step);
  return { ticks, step };
}

function tickText(value, step) {
  const places = Math.max(0, Math.ceil(-Math.log10(step) - 1e-9) + (String(step).includes("25") ? 1 : 0));
  return (places > 7 ? value.toExponential(1) : value.toFixed(places)).replace("-", "\u2212");
}

// The twin of `spread` in labkit/widgets/swallowed_figure.py: labels move as little as needed to stand apart.
function spreadLabels(ys, apart, low, high) {
  const order = ys.map((_, i) => i).sort((i, j) => ys[i] - ys[j]);
  const groups = [];
  for (const i of order) {
    groups.push([ys[i], 1]);
    while (groups.length > 1) {
      const [[other, m], [middle, n]] = groups.slice(-2);
      if (middle - other >= (apart * (n + m)) / 2) break;
      groups.splice(-2, 2, [(middle * n + other * m) / (n + m), n + m]);
    }
  }
  const placed = groups.flatMap(([middle, n]) => {
    const half = (apart * (n - 1)) / 2;
    const inside = Math.min(high - half, Math.max(low + half, middle));
    return Array.from({ length: n }, (_, k) => inside - half + k * apart);
  });
  const found = [];
  order.forEach((i, k) => (found[i] = placed[k]));
  return found;
}

function drawAxes(pen, area, palette, steps) {
  pen.font = `${palette.size - 1}px ${palette.font}`;
  pen.lineWidth = 1;
  const { ticks, step } = roundTicks(area.low, area.high, 5);
  for (const value of ticks) {
    const y = Math.round(area.y(value)) + 0.5;
    pen.strokeStyle = palette.line2;
    pen.beginPath();
    pen.moveTo(area.left, y);
    pen.lineTo(area.right, y);
    pen.stroke();
    pen.fillStyle = palette.ink2;
    pen.textAlign = "right";
    pen.fillText(tickText(value, step), area.left - 8, y + 4);
  }
  pen.strokeStyle = palette.line;
  pen.beginPath();
  pen.moveTo(area.left, area.bottom + 0.5);
  pen.lineTo(area.right, area.bottom + 0.5);
  pen.stroke();
  const marks = roundTicks(0, steps, area.right - area.left < 320 ? 2 : 4).ticks;
  pen.fillStyle = palette.ink2;
  for (const value of marks) {
    pen.textAlign = "center";
    pen.fillText(value.toLocaleString("en-US"), area.x(value), area.bottom + 18);
  }
  const half = pen.measureText(steps.toLocaleString("en-US")).width / 2;
  pen.textAlign = "left";
  pen.fillText("updates", area.right + half + 5, area.bottom + 18);
}

function drawRoad(pen, area, palette, weight, exact, steps) {
  pen.strokeStyle = palette.line2;
  pen.lineWidth = 9;
  pen.lineCap = "round";
  pen.beginPath();
  pen.moveTo(area.x(0), area.y(weight));
  pen.lineTo(area.x(steps), area.y(exact));
  pen.stroke();
  pen.lineCap = "butt";
}

function drawCurve(pen, area, values, style, palette, faded) {
  pen.globalAlpha = faded ? 0.2 : 1;
  pen.strokeStyle = palette[style.colour];
  pen.lineWidth = style.width;
  pen.setLineDash(style.dash);
  pen.beginPath();
  for (let i = 0; i < values.length; i++) pen.lineTo(area.x(i), area.y(values[i]));
  pen.stroke();
  pen.setLineDash([]);
  pen.globalAlpha = 1;
}

function drawLabel(pen, area, style, end, y, words, palette, faded) {
  const x = area.right + LEADER;
  pen.globalAlpha = faded ? 0.5 : 1;
  pen.strokeStyle = palette[style.colour];
  pen.lineWidth = 1;
  pen.beginPath();
  pen.moveTo(area.right + 2, area.y(end));
  pen.lineTo(x - 4, y);
  pen.stroke();
  pen.fillStyle = palette[style.colour];
  pen.textAlign = "left";
  pen.font = `600 ${palette.size - 1}px ${palette.font}`;
  pen.fillText(style.name, x, y + 4);
  const wide = pen.measureText(style.name).width;
  pen.font = `${palette.size - 1}px ${palette.font}`;
  pen.fillStyle = palette.ink2;
  if (area.roomy) pen.fillText(words, x + wide + 7, y + 4);
  pen.globalAlpha = 1;
}

// --- the table ------------------------------------------------------------------------------------------------------

function curveTable(onHighlight) {
  const body = h("tbody");
  const cells = new Map();
  for (const style of CURVES) {
    const dashes = style.dash.length ? style.dash.join(" ") : "none";
    const line = h("span", { class: "sw-line", "aria-hidden": "true" });
    line.innerHTML = `<svg width="36" height="12"><line x2="36" y1="6" y2="6" stroke="var(--lk-${style.colour})" stroke-width="${style.width}" stroke-dasharray="${dashes}"/></svg>`;
    const name = h("button", { type: "button", class: "sw-name", title: "show this curve alone", "aria-pressed": "false" }, line, style.name);
    name.addEventListener("click", () => onHighlight(style.name));
    const row = h("tr", { data: { curve: style.name } }, h("th", { scope: "row" }, name));
    const found = Object.fromEntries(["end", "off", "moved"].map((key) => [key, h("td", { data: { key } })]));
    row.append(...Object.values(found));
    body.append(row);
    cells.set(style.name, { ...found, name, row });
  }
  const moved = h("th", { scope: "col", text: "steps that moved it" });
  const heads = ["end value", "off the exact sum"].map((text) => h("th", { scope: "col", text }));
  const head = h("tr", {}, h("th", { scope: "col", text: "weight in" }), ...heads, moved);
  return {
    element: h("table", { class: "sw-table" }, h("thead", {}, head), body),
    set(rows, highlight) {
      for (const { name, ...values } of rows) {
        const cell = cells.get(name);
        for (const [key, text] of Object.entries(values)) cell[key].replaceChildren(rich(text));
        cell.name.setAttribute("aria-pressed", String(name === highlight));
        cell.row.classList.toggle("sw-faded", Boolean(highlight) && name !== highlight);
      }
    },
  };
}

// --- the widget -----------------------------------------------------------------------------------------------------

function nearest(places, value) {
  const far = (place) => Math.abs(Math.log2(place / value));
  return places.reduce((best, place, i) => (far(place) < far(places[best]) ? i : best), 0);
}

function render({ model, el }) {
  const life = scope();
  const root = mount(el, { label: "Swallowed updates", kind: "swallowed", scope: life });
  const places = model.get("_places");
  let palette = colours(root);
  let curves = [];
  let asked = null; // what was last asked of the kernel, and when: {name, value, at}

  const send = (name, value) => {
    asked = { name, value, at: performance.now() };
    model.set(name, value);
    model.save_changes();
  };
  const control = (name, label, values, texts) =>
    slider({
      label,
      min: 0,
      max: values.length - 1,
      page: 4, // a binade
      value: nearest(values, model.get(name)),
      text: (i) => texts[i],
      onInput: (i) => send(name, values[i]),
    });
  const weight = control("weight", "weight w", places.weights, places.weights_texts);
  const update = control("update", "update lr·g", places.updates, places.updates_texts);
  const sliders = h("div", { class: "sw-sliders" }, weight.element, update.element);

  const picture = figure({
    scope: life,
    label: "The weight after each update, for six methods; the table and the sentence below say where they end",
    height: (width) => Math.round(Math.min(330, Math.max(250, width * 0.36))),
    draw,
  });
  picture.element.classList.add("sw-picture");
  const words = sentence();
  const table = curveTable((name) => {
    model.set("highlight", model.get("highlight") === name ? "" : name);
    model.save_changes();
    show();
  });
  const title = h("span", { class: "lk-title" });
  const legend = h("span", { class: "lk-quiet sw-legend" }, h("span", { class: "sw-road" }), "exact; press a name in the table to see its curve alone");
  root.append(h("div", { class: "sw-head" }, title, legend), sliders, picture.element, words.element, table.element);

  function areaOf(pen, width, height) {
    const now = model.get("_now");
    const roomy = width > 600;
    let [low, high] = [Math.min(now.weight, now.exact), Math.max(now.weight, now.exact)];
    for (const values of curves) {
      for (const value of values) [low, high] = [Math.min(low, value), Math.max(high, value)];
    }
    const pad = 0.04 * (high - low);
    [low, high] = [low - pad, high + pad];
    pen.font = `600 ${palette.size - 1}px ${palette.font}`;
    const names = Math.max(...CURVES.map(({ name }) => pen.measureText(name).width)) + (roomy ? 64 : 2);
    const [left, right] = [AXES.left, width - names - LEADER];
    const [top, bottom] = [AXES.top, height - AXES.bottom];
    return {
      low, high, left, right, top, bottom, roomy,
      x: (i) => left + ((right - left) * i) / now.steps,
      y: (value) => bottom - ((bottom - top) * (value - low)) / (high - low),
    };
  }

  function draw(pen, width, height) {
    if (!curves.length) return;
    const now = model.get("_now");
    const highlight = model.get("highlight");
    const area = areaOf(pen, width, height);
    const faded = CURVES.map(({ name }) => Boolean(highlight) && name !== highlight);
    drawAxes(pen, area, palette, now.steps);
    drawRoad(pen, area, palette, now.weight, now.exact, now.steps);
    const broadestFirst = CURVES.map((_, i) => i).sort((i, j) => CURVES[j].width - CURVES[i].width);
    for (const i of broadestFirst) drawCurve(pen, area, curves[i], CURVES[i], palette, faded[i]);
    const ends = curves.map((values) => values[values.length - 1]);
    const ys = spreadLabels(ends.map(area.y), LABEL_GAP, area.top, area.bottom - 4);
    CURVES.forEach((style, i) => drawLabel(pen, area, style, ends[i], ys[i], now.rows[i].end, palette, faded[i]));
    measure(now);
  }

  function measure(now) {
    if (!asked || now[asked.name] !== asked.value) return;
    root.dataset.latency = (performance.now() - asked.at).toFixed(1); // ms from the hand to the picture
    asked = null;
  }

  function show() {
    const now = model.get("_now");
    title.textContent = `w \u2190 w \u2212 lr·g, ${now.steps.toLocaleString("en-US")} times`;
    for (const [name, one, values] of [["weight", weight, places.weights], ["update", update, places.updates]]) {
      const wanted = asked?.name === name ? asked.value : now[name];
      one.set(nearest(values, wanted));
      if (asked?.name !== name) one.output.replaceChildren(rich(now[`${name}_text`]));
    }
    words.say(model.get("sentence"));
    table.set(now.rows, model.get("highlight"));
    picture.redraw();
  }

  function arrived() {
    curves = curvesIn(model.get("_buffer"), model.get("_now").steps);
    show();
  }

  for (const [name, handler] of [["_now", arrived], ["highlight", show]]) {
    model.on(`change:${name}`, handler);
    life.add(() => model.off(`change:${name}`, handler));
  }
  onTheme(life, () => {
    palette = colours(root);
    picture.redraw();
  }, root);
  arrived();
  return () => life.dispose();
}

export default { render };

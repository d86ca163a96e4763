// The underflow histogram. Python sends the counts of every layer, the windows of the format, and the sentence for every
// position of the slider (labkit/widgets/underflow_words.py); here they are shifted, summed and drawn.

const AXIS = { lo: -40, hi: 22 }; // exponents; what lies outside is told at the edges
const MAX_LOG2_SCALE = 30;
const THUMB = 20; // width of the slider's thumb, as in base.css
const ROW = 22; // height of a layer's row
const ROOMY = 120; // a column of names this wide has room for words beside the axis
const EDGE = 18; // room for the values at which windows begin
const TOP = EDGE + 42; // and under it for their names
const BOTTOM = 26; // and below it for the axis
const MEANING = {
  underflowed: { name: "underflow", brief: "to 0", meaning: "becomes 0" },
  subnormal: { name: "subnormal", brief: "sub", meaning: "loses bits" },
  normal: { name: "normal", brief: "normal", meaning: "full precision" },
  overflowed: { name: "overflow", brief: "inf", meaning: "becomes inf" },
};

// --- what Python's fate(shift(histogram, k), format) says, once more --------------------------------------------------

function fateOf(exponent, limits) {
  if (exponent < limits.survives_from) return "underflowed";
  if (exponent < limits.emin) return "subnormal";
  return exponent <= limits.emax ? "normal" : "overflowed";
}

function fractions(row, log2Scale, limits) {
  const sums = { underflowed: 0, subnormal: 0, normal: 0, overflowed: 0 };
  row.counts.forEach((count, i) => (sums[fateOf(row.lo + i + log2Scale, limits)] += count));
  if (row.total > 0) for (const fate of FATES) sums[fate] /= row.total;
  return sums;
}

function prepared(rows) {
  return rows.map((row) => {
    const total = row.counts.reduce((a, b) => a + b, 0);
    return { ...row, total, peak: Math.max(...row.counts, 1) };
  });
}

// --- drawing ----------------------------------------------------------------------------------------------------------

function plot(width, element) {
  const style = getComputedStyle(element);
  const left = parseFloat(style.getPropertyValue("--uf-names"));
  const right = width - parseFloat(style.getPropertyValue("--uf-numbers"));
  const binade = (right - left) / (AXIS.hi - AXIS.lo);
  return { width, left, right, binade, x: (exponent) => left + (exponent - AXIS.lo) * binade };
}

function clampToAxis(exponent) {
  return Math.min(AXIS.hi, Math.max(AXIS.lo, exponent));
}

function zones(limits) {
  const edges = [-Infinity, limits.survives_from, limits.emin, limits.emax + 1, Infinity].map(clampToAxis);
  return FATES.map((fate, i) => ({ fate, from: edges[i], to: edges[i + 1] })).filter((zone) => zone.to > zone.from);
}

function drawZones(pen, area, limits, palette, top, bottom) {
  for (const { fate, from, to } of zones(limits)) {
    pen.globalAlpha = fate === "normal" ? 0.09 : 0.14;
    pen.fillStyle = palette[fate];
    pen.fillRect(area.x(from), top, area.x(to) - area.x(from), bottom - top);
  }
  pen.globalAlpha = 1;
  pen.strokeStyle = palette.ink2;
  pen.lineWidth = 1;
  pen.setLineDash([3, 3]);
  pen.beginPath();
  for (const { from } of zones(limits).slice(1)) {
    const x = Math.round(area.x(from)) + 0.5;
    pen.moveTo(x, top);
    pen.lineTo(x, bottom);
  }
  pen.globalAlpha = 0.6;
  pen.stroke();
  pen.globalAlpha = 1;
  pen.setLineDash([]);
}

function drawBars(pen, area, row, log2Scale, limits, fills, palette, bottom, height, gap) {
  for (let i = 0; i < row.counts.length; i++) {
    const exponent = row.lo + i + log2Scale;
    if (!row.counts[i] || exponent < AXIS.lo || exponent >= AXIS.hi) continue;
    const tall = Math.max(1, (height * row.counts[i]) / row.peak);
    const x = area.x(exponent) + gap / 2;
    pen.fillStyle = fills[fateOf(exponent, limits)];
    pen.fillRect(x, bottom - tall, area.binade - gap, tall);
    if (gap > 1) {
      pen.strokeStyle = palette.ink;
      pen.globalAlpha = 0.3;
      pen.strokeRect(x + 0.5, bottom - tall + 0.5, area.binade - gap - 1, tall);
      pen.globalAlpha = 1;
    }
  }
}

function drawGhost(pen, area, row, palette, bottom, height) {
  pen.beginPath();
  pen.moveTo(area.x(Math.max(row.lo, AXIS.lo)), bottom);
  row.counts.forEach((count, i) => {
    if (row.lo + i < AXIS.lo || row.lo + i >= AXIS.hi) return;
    const y = Math.round(bottom - (height * count) / row.peak) + 0.5;
    pen.lineTo(area.x(row.lo + i), y);
    pen.lineTo(area.x(row.lo + i + 1), y);
  });
  pen.lineTo(area.x(clampToAxis(row.lo + row.counts.length)), bottom);
  pen.strokeStyle = palette.ink2;
  pen.globalAlpha = 0.55;
  pen.lineWidth = 1;
  pen.stroke();
  pen.globalAlpha = 1;
  const highest = row.lo + row.counts.indexOf(row.peak);
  pen.textAlign = "right";
  pen.fillStyle = palette.ink2;
  if (highest - AXIS.lo > 6) pen.fillText("unscaled", area.x(highest) - 6, bottom - height + 10);
}

function niceStep(top) {
  const rough = top / 3;
  const unit = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((m) => m * unit).find((step) => step >= rough);
}

function drawShares(pen, area, row, palette, bottom, height) {
  const top = row.total ? (100 * row.peak) / row.total : 1;
  const step = niceStep(top);
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  for (let share = 0; share <= top; share += step) {
    const y = Math.round(bottom - (height * share) / top) + 0.5;
    pen.fillStyle = palette.ink2;
    pen.fillText(`${Number(share.toPrecision(2))}%`, area.left - 8, y);
    if (!share) continue;
    pen.strokeStyle = palette.line2;
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(area.left, y);
    pen.lineTo(area.right, y);
    pen.stroke();
  }
  pen.textBaseline = "alphabetic";
  pen.fillStyle = palette.ink2;
  if (area.left < ROOMY) return;
  pen.fillText("share of", area.left - 8, EDGE + 17);
  pen.fillText("non-zero ones", area.left - 8, EDGE + 33);
}

function drawAxis(pen, area, palette, bottom) {
  pen.strokeStyle = palette.ink2;
  pen.fillStyle = palette.ink2;
  pen.lineWidth = 1;
  pen.beginPath();
  pen.moveTo(area.left, bottom + 0.5);
  pen.lineTo(area.right, bottom + 0.5);
  const every = area.binade < 8 ? 16 : 8;
  for (let e = AXIS.lo; e <= AXIS.hi; e += 4) {
    const x = Math.round(area.x(e)) + 0.5;
    pen.moveTo(x, bottom);
    pen.lineTo(x, bottom + (e % every === 0 ? 6 : 3));
  }
  pen.stroke();
  for (let e = AXIS.lo; e <= AXIS.hi; e += 1) if (e % every === 0) powerLabel(pen, e, area.x(e), bottom + 20);
}

function drawZoneNames(pen, area, limits, palette) {
  const size = palette.size;
  for (const { fate, from } of zones(limits).slice(1)) {
    pen.fillStyle = palette.ink2;
    pen.textAlign = "center";
    if (fate !== "overflowed") powerLabel(pen, from, area.x(from), EDGE - 5);
    else pen.fillText(decimal(limits.overflows_from), area.x(from), EDGE - 5);
  }
  for (const { fate, from, to } of zones(limits)) {
    const { name, brief, meaning } = MEANING[fate];
    const [middle, room] = [(area.x(from) + area.x(to)) / 2, area.x(to) - area.x(from)];
    const fits = (text) => pen.measureText(text).width < room - 4;
    pen.textAlign = "center";
    pen.font = `600 ${size}px ${palette.font}`;
    pen.fillStyle = palette.ink;
    pen.fillText(fits(name) ? name : brief, middle, EDGE + 17);
    pen.font = `${size - 1}px ${palette.font}`;
    pen.fillStyle = palette.ink2;
    if (fits(meaning)) pen.fillText(meaning, middle, EDGE + 33);
  }
}

function drawOutside(pen, area, row, log2Scale, palette, bottom) {
  let [below, above] = [0, 0];
  row.counts.forEach((count, i) => {
    if (row.lo + i + log2Scale < AXIS.lo) below += count;
    if (row.lo + i + log2Scale >= AXIS.hi) above += count;
  });
  pen.fillStyle = palette.ink;
  pen.textAlign = "right";
  if (below) pen.fillText(`${percent(below / row.total)}${area.left < ROOMY ? "" : " below"} \u25c2`, area.left - 22, bottom + 20);
  pen.textAlign = "left";
  if (above) pen.fillText(`\u25b8 ${percent(above / row.total)}`, area.right + 4, bottom + 20);
}

// --- the widget -------------------------------------------------------------------------------------------------------

function render({ model, el }) {
  const life = scope();
  const about = model.get("_about");
  const limits = model.get("_windows");
  const layers = prepared(model.get("_rows"));
  const kind = about.kind[0].toUpperCase() + about.kind.slice(1);
  const root = mount(el, { label: `${kind} and the loss scale`, kind: "underflow", scope: life });
  let palette = colours(root);
  const repaint = () => {
    palette = colours(root);
    show();
  };
  onTheme(life, repaint, root);
  let row = layers.find((one) => one.name === model.get("layer")) ?? layers[0];
  let log2Scale = model.get("log2_scale");

  const chosen = h("span", { class: "lk-quiet" });
  const head = h("div", { class: "uf-head" }, h("span", { class: "lk-title", text: `${kind}, step ${about.step}` }), chosen);

  const scale = slider({
    label: "Loss scale",
    min: 0,
    max: MAX_LOG2_SCALE,
    value: log2Scale,
    labelled: false,
    text: (k) => `2^${k} = ${decimal(2 ** k)}`,
    onInput: (k) => choose({ log2_scale: k }),
  });
  const value = h("output", { class: "uf-value", for: scale.input.id });
  const scaleRow = h(
    "div",
    { class: "uf-scale" },
    h("label", { for: scale.input.id, text: "Loss scale" }),
    scale.element,
    value,
  );

  const main = figure({
    scope: life,
    label: `How many ${about.kind} lie in each power of two; the numbers and the sentence below say the same`,
    height: (width) => Math.round(Math.min(300, Math.max(230, width * 0.3))),
    draw: drawMain,
  });
  main.element.classList.add("uf-main");
  const hover = tip(main);
  const bar = fateBar();
  const observed = observedBar(layers, about.observed_log2_scale);
  const words = sentence();
  const strips = figure({ scope: life, label: "", height: ROW * layers.length, draw: drawStrips });
  strips.canvas.setAttribute("aria-hidden", "true");
  const list = layerList(layers, (name) => choose({ layer: name }), strips.element);
  const note = h("p", { class: "lk-quiet uf-note" });
  root.append(head, scaleRow, main.element, bar.element, words.element, list.element, note);
  bar.element.append(observed.element);

  let measured = null;
  function areaOf(width) {
    if (measured?.width !== width) {
      measured = plot(width, main.element);
      root.style.setProperty("--uf-track", `${measured.binade * MAX_LOG2_SCALE + THUMB}px`);
    }
    return measured;
  }

  function drawMain(pen, width, height) {
    const area = areaOf(width);
    const bottom = height - BOTTOM;
    const tall = bottom - TOP - 8;
    const fills = Object.fromEntries(FATES.map((fate) => [fate, pattern(pen, fate, palette)]));
    pen.font = `${palette.size - 1}px ${palette.font}`;
    drawZones(pen, area, limits, palette, EDGE, bottom);
    drawShares(pen, area, row, palette, bottom, tall);
    if (log2Scale) drawGhost(pen, area, row, palette, bottom, tall);
    drawBars(pen, area, row, log2Scale, limits, fills, palette, bottom, tall, 2);
    drawAxis(pen, area, palette, bottom);
    drawOutside(pen, area, row, log2Scale, palette, bottom);
    drawZoneNames(pen, area, limits, palette);
  }

  function drawStrips(pen, width, height) {
    const area = areaOf(width);
    drawZones(pen, area, limits, palette, 0, height);
    layers.forEach((one, i) => {
      const bottom = ROW * (i + 1) - 3;
      drawBars(pen, area, one, log2Scale, limits, palette, palette, bottom, ROW - 6, 0.5);
      pen.strokeStyle = palette.line;
      pen.lineWidth = 1;
      pen.beginPath();
      pen.moveTo(area.left, bottom + 0.5);
      pen.lineTo(area.right, bottom + 0.5);
      pen.stroke();
    });
  }

  function show() {
    const shares = fractions(row, log2Scale, limits);
    scale.set(log2Scale);
    value.replaceChildren(rich(`2^${log2Scale}`), h("span", { class: "lk-quiet", text: ` = ${decimal(2 ** log2Scale)}` }));
    chosen.textContent = row.name === layers[0].name ? row.name : `layer ${row.name}`;
    bar.set(shares, palette);
    observed.set(row);
    list.set(row.name, layers.map((one) => fractions(one, log2Scale, limits)));
    words.say(row.sentences[log2Scale]);
    note.textContent = row.note;
    main.redraw();
    strips.redraw();
  }

  function choose(change) {
    for (const [name, next] of Object.entries(change)) model.set(name, next);
    model.save_changes();
    follow();
  }

  function follow() {
    const name = model.get("layer");
    log2Scale = model.get("log2_scale");
    row = layers.find((one) => one.name === name) ?? row;
    show();
  }

  for (const name of ["change:log2_scale", "change:layer"]) {
    model.on(name, follow);
    life.add(() => model.off(name, follow));
  }
  dragging(main, () => areaOf(main.width).binade, () => log2Scale, (k) => choose({ log2_scale: k }), scale, life);
  hovering(main, hover, life, (x) => {
    const area = areaOf(main.width);
    const e = Math.floor((x - area.left) / area.binade) + AXIS.lo;
    if (e < AXIS.lo || e >= AXIS.hi) return null;
    const count = row.counts[e - log2Scale - row.lo] ?? 0;
    const much = `${percent(row.total ? count / row.total : 0)} (${count.toLocaleString("en-US")})`;
    const text = `2^${e} = ${decimal(2 ** e)} to 2^${e + 1}: ${much}, ${MEANING[fateOf(e, limits)].name}`;
    return { x: area.x(e + 0.5), text };
  });
  show();
  return () => life.dispose();
}

function fateBar() {
  const parts = new Map();
  const bar = h("div", { class: "uf-bar", "aria-hidden": "true" });
  const legend = h("div", { class: "uf-legend" });
  for (const fate of FATES) {
    const segment = h("span");
    const swatch = h("span", { class: "uf-swatch" });
    const share = h("span", { class: "uf-share", data: { fate } });
    bar.append(segment);
    legend.append(h("div", {}, swatch, h("span", { text: fate }), share));
    parts.set(fate, { segment, swatch, share });
  }
  return {
    element: h("div", { class: "uf-fates" }, bar, legend),
    set(shares, palette) {
      for (const [fate, { segment, swatch, share }] of parts) {
        const image = fate === "normal" ? palette.normal : `url(${patternImage(fate, palette).url})`;
        for (const one of [segment, swatch]) one.style.background = image;
        for (const one of [segment, swatch]) one.style.backgroundSize = "8px 8px";
        segment.style.width = `${100 * shares[fate]}%`;
        segment.classList.toggle("some", shares[fate] > 0);
        share.textContent = percent(shares[fate]);
        share.dataset.share = shares[fate];
      }
    },
  };
}

function observedBar(layers, log2Scale) {
  const fill = h("span");
  const words = h("div", { class: "lk-quiet" });
  const element = h("div", { class: "uf-observed" }, h("div", { class: "uf-observed-track" }, fill), words);
  element.hidden = layers[0].observed === null;
  return {
    element,
    set(row) {
      if (row.observed === null) return;
      fill.style.width = `${100 * row.observed}%`;
      const share = h("b", { text: percent(row.observed) });
      words.replaceChildren(rich(`zeros counted inside the FP16 pass at scale 2^${log2Scale}: `), share, " of all elements");
    },
  };
}

function layerList(layers, onChoose, picture) {
  const name = `uf-layers-${++controls}`;
  const parts = new Map();
  const rows = h("div", { class: "uf-rows" }, picture);
  for (const layer of layers) {
    const input = h("input", { type: "radio", name, value: layer.name });
    const title = h("span", { class: "uf-name", text: layer.name, title: layer.name });
    const zero = h("span", { class: "uf-lost" });
    const infinite = h("span", { class: "uf-lost" });
    input.addEventListener("change", () => onChoose(layer.name));
    parts.set(layer.name, { input, zero, infinite });
    rows.append(h("label", { class: "uf-layer" }, input, title, h("span"), zero, infinite));
  }
  const headings = ["layer", "", "to zero", "to inf"].map((text) => h("span", { text }));
  const head = h("div", { class: "uf-layers-head", "aria-hidden": "true" }, ...headings);
  return {
    element: h("fieldset", { class: "uf-layers", role: "radiogroup", "aria-label": "Layer" }, head, rows),
    set(chosen, shares) {
      layers.forEach((layer, i) => {
        const { input, zero, infinite } = parts.get(layer.name);
        const { underflowed, overflowed } = shares[i];
        input.checked = layer.name === chosen;
        zero.textContent = percent(underflowed);
        infinite.textContent = overflowed ? percent(overflowed) : "\u2013";
        input.setAttribute("aria-label", `${layer.name}: ${percent(underflowed)} to zero, ${percent(overflowed)} to infinity`);
      });
    },
  };
}

function dragging(main, binade, now, set, scale, life) {
  let start = null;
  life.listen(main.canvas, "pointerdown", (event) => {
    start = { x: event.clientX, scale: now() };
    main.canvas.setPointerCapture(event.pointerId);
    event.preventDefault();
    scale.input.focus({ preventScroll: true }); // from here on the arrow keys go on
  });
  life.listen(main.canvas, "pointermove", (event) => {
    if (!start) return;
    const moved = Math.round((event.clientX - start.x) / binade());
    const next = Math.min(MAX_LOG2_SCALE, Math.max(0, start.scale + moved));
    if (next !== now()) set(next);
  });
  for (const type of ["pointerup", "pointercancel"]) life.listen(main.canvas, type, () => (start = null));
}

function hovering(main, label, life, at) {
  life.listen(main.canvas, "pointermove", (event) => {
    const found = event.buttons ? null : at(event.offsetX);
    if (found) label.show(found.x, event.offsetY, found.text);
    else label.hide();
  });
  life.listen(main.canvas, "pointerleave", () => label.hide());
}

export default { render };

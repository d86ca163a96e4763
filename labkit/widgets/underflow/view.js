// The underflow histogram: the counts of every layer are shifted, summed, drawn (plot.js) and described (layers.js).

import { figure, hovering, patternImage } from "../base/canvas.js";
import { sentence, slider } from "../base/controls.js";
import { h, rich } from "../base/elements.js";
import { put, watch } from "../base/model.js";
import { decimal, percent } from "../base/number_words.js";
import { view } from "../base/root.js";
import { FATES, colours } from "../base/theme.js";
import { layerList, noteOf, sayFate } from "./layers.js";
import {
  AXIS,
  BOTTOM,
  MEANING,
  ROW,
  anchorOf,
  drawHistogram,
  drawLayers,
  fateOf,
  fractions,
  plot,
  prepared,
} from "./plot.js";

const THUMB = 20; // width of the slider's thumb, as in controls.css

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
        const image =
          fate === "normal" ? palette.normal : `url(${patternImage(fate, palette).url})`;
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
  const element = h(
    "div",
    { class: "uf-observed" },
    h("div", { class: "uf-observed-track" }, fill),
    words,
  );
  element.hidden = layers[0].observed === null;
  return {
    element,
    set(row) {
      if (row.observed === null) return;
      fill.style.width = `${100 * row.observed}%`;
      const share = h("b", { text: percent(row.observed) });
      words.replaceChildren(
        rich(`zeros counted inside the FP16 pass at scale 2^${log2Scale}: `),
        share,
        " of all elements",
      );
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
    const next = Math.min(Number(scale.input.max), Math.max(0, start.scale + moved));
    if (next !== now()) set(next);
  });
  for (const type of ["pointerup", "pointercancel"])
    life.listen(main.canvas, type, () => (start = null));
}

const kindOf = (model) => model.get("_about").kind.replace(/^./, (first) => first.toUpperCase());

export default view(
  { label: (model) => `${kindOf(model)} and the loss scale`, kind: "underflow", alone: true },
  (root, model, life) => {
    const about = model.get("_about");
    const limits = model.get("_windows");
    const layers = prepared(model.get("_rows"));
    const palette = colours(root, life, () => show());
    let row = layers.find((one) => one.name === model.get("layer")) ?? layers[0];
    let log2Scale = model.get("log2_scale");

    const chosen = h("span", { class: "lk-quiet" });
    const head = h(
      "div",
      { class: "lk-head" },
      h("span", { class: "lk-title", text: `${kindOf(model)}, step ${about.step}` }),
      chosen,
    );

    const scale = slider({
      label: "Loss scale",
      min: 0,
      max: about.max_log2_scale,
      value: log2Scale,
      labelled: false,
      text: (k) => `2^${k} = ${decimal(2 ** k)}`,
      onInput: (k) => choose({ log2_scale: k }),
    });
    const value = h("output", { class: "uf-value", for: scale.input.id });
    const scaleRow = h(
      "div",
      { class: "lk-row uf-scale" },
      h("label", { for: scale.input.id, text: "Loss scale" }),
      value,
      h("span", {
        class: "lk-quiet",
        text: "drag the handle under the bars, or press the arrow keys",
      }),
    );

    const main = figure({
      life,
      label: `How many ${about.kind} lie in each power of two; the numbers below and the sentence above say the same`,
      height: (width) => Math.round(Math.min(270, Math.max(230, width * 0.22))),
      draw: drawMain,
    });
    main.element.classList.add("uf-main", "lk-drag");
    scale.element.classList.add("uf-handle");
    main.element.prepend(scale.element);
    const bar = fateBar();
    const observed = observedBar(layers, about.observed_log2_scale);
    const words = sentence(model);
    const strips = figure({ life, label: "", height: ROW * layers.length, draw: drawStrips });
    strips.canvas.setAttribute("aria-hidden", "true");
    const list = layerList(layers, (name) => choose({ layer: name }), strips.element);
    const note = h("p", { class: "lk-quiet uf-note" });
    root.append(head, scaleRow, words.element, main.element, bar.element, list.element, note);
    bar.element.append(observed.element);

    let measured = null;
    function areaOf(width) {
      if (measured?.width !== width) {
        measured = plot(width, main);
        root.style.setProperty(
          "--uf-track",
          `${measured.binade * about.max_log2_scale * main.grown + THUMB}px`,
        );
      }
      return measured;
    }

    function drawMain(pen, width, height) {
      const area = areaOf(width);
      root.style.setProperty(
        "--uf-at",
        `${area.x(anchorOf(row, about.max_log2_scale)) * main.grown - THUMB / 2}px`,
      );
      root.style.setProperty("--uf-axis", `${BOTTOM * main.grown}px`);
      drawHistogram(pen, area, row, log2Scale, limits, palette, height);
    }

    function drawStrips(pen, width, height) {
      const area = areaOf(width);
      drawLayers(pen, area, layers, log2Scale, limits, palette, height);
    }

    function show() {
      const shares = fractions(row, log2Scale, limits);
      scale.set(log2Scale);
      value.replaceChildren(
        rich(`2^${log2Scale}`),
        h("span", { class: "lk-quiet", text: ` = ${decimal(2 ** log2Scale)}` }),
      );
      chosen.textContent = row.name === layers[0].name ? row.name : `layer ${row.name}`;
      bar.set(shares, palette);
      observed.set(row);
      list.set(
        row.name,
        layers.map((one) => fractions(one, log2Scale, limits)),
      );
      words.say(
        sayFate(shares, log2Scale, row === layers[0] ? null : row.name, about.kind, limits.format),
      );
      note.textContent = noteOf(
        row,
        row === layers[0] ? null : row.name,
        row === layers[0]
          ? layers
              .filter((one) => one.elements && one.zeros === one.elements)
              .map((one) => one.name)
          : [],
      );
      main.redraw();
      strips.redraw();
    }

    function choose(change) {
      put(model, change);
      follow();
    }

    function follow() {
      const name = model.get("layer");
      log2Scale = model.get("log2_scale");
      row = layers.find((one) => one.name === name) ?? row;
      show();
    }

    watch(life, model, ["log2_scale", "layer"], follow);
    dragging(
      main,
      () => areaOf(main.width).binade * main.grown,
      () => log2Scale,
      (k) => choose({ log2_scale: k }),
      scale,
      life,
    );
    hovering(life, main, (at) => {
      if (!at || at.held) return null;
      const area = areaOf(main.width);
      const e = Math.floor((at.x - area.left) / area.binade) + AXIS.lo;
      if (e < AXIS.lo || e >= AXIS.hi) return null;
      const count = row.counts[e - log2Scale - row.lo] ?? 0;
      const much = `${percent(row.total ? count / row.total : 0)} (${count.toLocaleString("en-US")})`;
      const text = `2^${e} = ${decimal(2 ** e)} to 2^${e + 1}: ${much}, ${MEANING[fateOf(e, limits)].name}`;
      return [area.x(e + 0.5), at.y, text];
    });
    show();
  },
);

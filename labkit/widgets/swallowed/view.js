// The swallowed updates: two sliders and six curves (curves.js).

import { figure } from "../base/canvas.js";
import { headed, nearest, sentence, slider } from "../base/controls.js";
import { h, rich } from "../base/elements.js";
import { floats, put, watch } from "../base/model.js";
import { inkSegment, spreadLabels } from "../base/plot.js";
import { view } from "../base/root.js";
import { colours } from "../base/theme.js";
import { curveRows, curvesOf, endOfCurve, quarters, swallowedSentence } from "./curves.js";
import {
  AXES,
  CURVES,
  drawAxes,
  drawCurve,
  drawLabel,
  LABEL_GAP,
  LEADER,
  TICK_GAP,
  weightTicks,
} from "./plot.js";

/** @import { Pen } from "../base/canvas.js" */
/** @import { Slider } from "../base/controls.js" */
/** @import { Life } from "../base/lifetime.js" */
/** @import { Model } from "../base/model.js" */
/** @import { Palette } from "../base/theme.js" */
/** @import { Curve, CurveRow } from "./curves.js" */
/** @import { CurveArea, CurveStyle } from "./plot.js" */

/**
 * @typedef {object} Traits
 * @property {number} weight
 * @property {number} update
 * @property {string} highlight The name of one curve, or "".
 * @property {string} sentence
 * @property {Places} _places
 * @property {DataView} _random uint32, for stochastic rounding at each step.
 */

/** @typedef {{ weights: number[], updates: number[], steps: number }} Places of the sliders */

/**
 * What is shown: the curves of a weight and an update.
 *
 * @typedef {object} Shown
 * @property {number} weight
 * @property {number} update
 * @property {number} steps
 * @property {number} exact The last value of the exact sum.
 * @property {Curve[]} curves
 * @property {CurveRow[]} rows
 */

/**
 * @param {Model<Traits>} model
 * @param {Uint32Array} random
 * @returns {Shown}
 */
function shownOf(model, random) {
  const weight = model.get("weight");
  const update = model.get("update");
  const { steps } = model.get("_places");
  const exact = weight - steps * update;
  const curves = curvesOf(weight, update, steps, random);
  return { weight, update, steps, exact, curves, rows: curveRows(curves, exact) };
}

/**
 * Return the lowest and the highest finite weight; they differ, since an update is above 0.
 *
 * @param {Shown} shown
 * @returns {[low: number, high: number]}
 */
function finiteRange({ weight, exact, curves }) {
  let low = Math.min(weight, exact);
  let high = Math.max(weight, exact);
  for (const curve of curves) {
    for (const value of curve) {
      if (!Number.isFinite(value)) continue;
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
  }
  return [low, high];
}

// --- the table -----------------------------------------------------------------------------------

const COLUMNS = ["weight in", "alone", "end value", "off the exact sum", "steps that moved it"];
// The width of a small curve in pixels, and the largest number of its points.
const SMALL_WIDTH = 112;
const MOST_POINTS = 110;

/** @param {(name: string) => void} onHighlight */
function curveTable(onHighlight) {
  const { element, body } = headed("sw-table", COLUMNS);
  const rows = CURVES.map((style) => curveRow(style, onHighlight));
  body.append(...rows.map((row) => row.element));
  return {
    element,
    /**
     * @param {Shown} shown
     * @param {string} highlight
     */
    set(shown, highlight) {
      const { exact, curves } = shown;
      const [low, high] = finiteRange(shown);
      for (const [i, row] of rows.entries()) {
        row.draw(curves[i], exact, low, high);
        row.set(shown.rows[i], highlight);
      }
    },
  };
}

/**
 * @param {CurveStyle} style
 * @param {(name: string) => void} onHighlight
 */
function curveRow(style, onHighlight) {
  const { name, colour } = style;
  const about = { title: "show this curve alone", "aria-pressed": "false" };
  const press = h("button", { type: "button", class: "sw-name", ...about }, sampleOf(style), name);
  const alone = h("td", { class: "sw-alone", "aria-hidden": "true" });
  const end = h("td", { data: { key: "end" } });
  const off = h("td", { data: { key: "off" } });
  const moved = h("td", { data: { key: "moved" } });
  const head = h("th", { scope: "row" }, press);
  const element = h("tr", { data: { curve: name } }, head, alone, end, off, moved);
  press.addEventListener("click", () => onHighlight(name));
  return {
    element,
    /**
     * Draw the curve alone, on a broad line from the first weight to the exact sum.
     *
     * @param {Curve} curve
     * @param {number} exact
     * @param {number} low the lowest weight of all curves
     * @param {number} high
     */
    draw(curve, exact, low, high) {
      /** @param {number} value an infinite one is drawn at the edge */
      function y(value) {
        const inside = Math.min(high, Math.max(low, value));
        return (22 - (20 * (inside - low)) / (high - low)).toFixed(1);
      }
      const every = Math.ceil(curve.length / MOST_POINTS);
      const values = Array.from(curve).filter((_, step) => step % every === 0);
      const between = SMALL_WIDTH / (values.length - 1);
      const points = values
        .map((value, i) => `${(i * between).toFixed(1)},${y(value)}`)
        .filter((_, i) => !Number.isNaN(values[i]))
        .join(" ");
      const ends = `x1="0" y1="${y(curve[0])}" x2="${SMALL_WIDTH}" y2="${y(exact)}"`;
      const size = `width="${SMALL_WIDTH}" height="24"`;
      alone.innerHTML =
        `<svg ${size}><line ${ends} stroke="var(--lk-line)" stroke-width="4"/>` +
        `<polyline points="${points}" fill="none" stroke="var(--lk-${colour})" ` +
        'stroke-width="1.8"/></svg>';
    },
    /**
     * @param {CurveRow} row
     * @param {string} highlight
     */
    set(row, highlight) {
      end.replaceChildren(rich(row.end));
      off.replaceChildren(rich(row.off));
      moved.replaceChildren(rich(row.moved));
      press.setAttribute("aria-pressed", String(name === highlight));
      element.classList.toggle("sw-faded", highlight !== "" && name !== highlight);
    },
  };
}

/**
 * Return a short line in the style of a curve.
 *
 * @param {CurveStyle} style
 */
function sampleOf({ colour, width, dash }) {
  const sample = h("span", { class: "sw-line", "aria-hidden": "true" });
  sample.innerHTML =
    '<svg width="36" height="12"><line x2="36" y1="6" y2="6" ' +
    `stroke="var(--lk-${colour})" stroke-width="${width}" ` +
    `stroke-dasharray="${dash.length ? dash.join(" ") : "none"}"/></svg>`;
  return sample;
}

// --- the picture ---------------------------------------------------------------------------------

/**
 * Return the area of the curves in a picture.
 *
 * @param {Shown} shown
 * @param {Pen} pen
 * @param {Palette} tint
 * @param {number} width
 * @param {number} height
 * @returns {CurveArea}
 */
function areaOf(shown, pen, tint, width, height) {
  const { steps } = shown;
  const roomy = width > 600;
  const [least, most] = finiteRange(shown);
  const pad = 0.04 * (most - least);
  const low = least - pad;
  const high = most + pad;
  pen.font = `600 ${tint.size - 1}px ${tint.font}`;
  const longest = Math.max(...CURVES.map(({ name }) => pen.measureText(name).width));
  pen.font = `${tint.size - 1}px ${tint.font}`;
  const ticks = weightTicks(low, high).map(([, text]) => pen.measureText(text).width);
  const left = Math.max(AXES.left, TICK_GAP + Math.max(...ticks));
  const { top } = AXES;
  const right = width - (longest + (roomy ? 64 : 2)) - LEADER;
  const bottom = height - AXES.bottom;
  return {
    pen,
    tint,
    low,
    high,
    left,
    right,
    top,
    bottom,
    roomy,
    steps,
    x: (step) => left + ((right - left) * step) / steps,
    y(value) {
      // An infinite weight is drawn at the edge.
      const inside = Math.min(high, Math.max(low, value));
      return bottom - ((bottom - top) * (inside - low)) / (high - low);
    },
  };
}

/**
 * @param {CurveArea} area
 * @param {Shown} shown
 * @param {string} highlight
 */
function drawCurves(area, { weight, exact, steps, curves, rows }, highlight) {
  /** @param {number} i */
  const faded = (i) => highlight !== "" && CURVES[i].name !== highlight;
  const order = CURVES.map((_, i) => i).sort((i, j) => CURVES[j].width - CURVES[i].width);
  const ends = curves.map(endOfCurve);
  const { x, y, tint } = area;
  // Kahan's sum ends in NaN after an overflow; it has no place for its name.
  const named = CURVES.map((_, i) => i).filter((i) => !Number.isNaN(ends[i]));
  const heights = named.map((i) => y(ends[i]));
  const ys = spreadLabels(heights, LABEL_GAP, area.top, area.bottom - 4);
  drawAxes(area);
  inkSegment(area, [x(0), y(weight)], [x(steps), y(exact)], tint.line2, 9);
  for (const i of order) drawCurve(area, curves[i], CURVES[i], faded(i));
  for (const [k, i] of named.entries()) {
    drawLabel(area, CURVES[i], ends[i], ys[k], rows[i].end, faded(i));
  }
}

// --- the widget ----------------------------------------------------------------------------------

/**
 * Return a slider for a trait, whose positions are those of a list of numbers.
 *
 * @param {Model<Traits>} model
 * @param {"weight" | "update"} name
 * @param {string} label
 * @param {readonly number[]} places
 */
function placeSlider(model, name, label, places) {
  return slider({
    label,
    min: 0,
    max: places.length - 1,
    // Four positions are a binade.
    page: 4,
    value: nearest(places, model.get(name), Math.log2),
    text: (i) => quarters(places[i]),
    onInput: (i) => put(model, { [name]: places[i] }),
  });
}

/**
 * Show a value, which Python code may have set between two positions of the slider.
 *
 * @param {Slider} control
 * @param {readonly number[]} places
 * @param {number} value
 */
function setPlace(control, places, value) {
  control.set(nearest(places, value, Math.log2));
  control.output.replaceChildren(rich(quarters(value)));
}

/**
 * @param {HTMLElement} root
 * @param {Model<Traits>} model
 * @param {Life} life
 */
function fillSwallowed(root, model, life) {
  const { weights, updates, steps } = model.get("_places");
  // `floats` copies the bytes to a buffer of their own, which is read as whole numbers here.
  const random = new Uint32Array(floats(model.get("_random")).buffer);
  const tint = colours(root, life, () => picture.redraw());
  let shown = shownOf(model, random);

  const weight = placeSlider(model, "weight", "weight w", weights);
  const update = placeSlider(model, "update", "update lr·g", updates);
  const sliders = h("div", { class: "sw-sliders" }, weight.element, update.element);
  const picture = figure({
    life,
    label:
      "The weight after each update, for six methods; " +
      "the table and the sentence below say where they end",
    height: (width) => Math.round(Math.min(330, Math.max(250, width * 0.36))),
    draw(pen, width, height) {
      const area = areaOf(shown, pen, tint, width, height);
      drawCurves(area, shown, model.get("highlight"));
    },
  });
  picture.element.classList.add("sw-picture");
  const words = sentence(model);
  const table = curveTable((name) => {
    put(model, { highlight: model.get("highlight") === name ? "" : name });
  });
  const times = steps === 1 ? "once" : `${steps.toLocaleString("en-US")} times`;
  const text = `w \u2190 w \u2212 lr·g, ${times}`;
  const title = h("span", { class: "lk-title", text });
  const hint = "exact; press a name in the table to see its curve alone";
  const legend = h("span", { class: "lk-quiet" }, h("span", { class: "sw-road" }), hint);
  const head = h("div", { class: "lk-head" }, title, legend);
  root.append(head, sliders, picture.element, words.element, table.element);

  function show() {
    setPlace(weight, weights, shown.weight);
    setPlace(update, updates, shown.update);
    words.say(swallowedSentence(shown.curves, shown.weight, shown.update, steps));
    table.set(shown, model.get("highlight"));
  }

  watch(life, model, ["weight", "update"], () => {
    shown = shownOf(model, random);
    // Not with the next animation frame, so that the picture follows the slider without delay.
    picture.drawNow();
    show();
  });
  watch(life, model, ["highlight"], () => {
    table.set(shown, model.get("highlight"));
    picture.redraw();
  });
  show();
}

export default view({ label: "Swallowed updates", kind: "swallowed", alone: true }, fillSwallowed);

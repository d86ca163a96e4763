// Swallowed updates: two sliders, six curves (curves.js).

import { figure } from "../base/canvas.js";
import { headed, nearest, sentence, slider } from "../base/controls.js";
import { h, rich } from "../base/elements.js";
import { floats, put, watch } from "../base/model.js";
import { inkLine, spreadLabels } from "../base/plot.js";
import { view } from "../base/root.js";
import { colours } from "../base/theme.js";
import { curveRows, curvesOf, quarters, swallowedSentence } from "./curves.js";
import { AXES, CURVES, LABEL_GAP, LEADER, drawAxes, drawCurve, drawLabel } from "./plot.js";

// --- the table ------------------------------------------------------------------------------------------------------

function curveTable(onHighlight) {
  const { element, body } = headed("sw-table", [
    "weight in",
    "alone",
    "end value",
    "off the exact sum",
    "steps that moved it",
  ]);
  const cells = new Map();
  for (const style of CURVES) {
    const dashes = style.dash.length ? style.dash.join(" ") : "none";
    const line = h("span", { class: "sw-line", "aria-hidden": "true" });
    line.innerHTML = `<svg width="36" height="12"><line x2="36" y1="6" y2="6" stroke="var(--lk-${style.colour})" stroke-width="${style.width}" stroke-dasharray="${dashes}"/></svg>`;
    const name = h(
      "button",
      { type: "button", class: "sw-name", title: "show this curve alone", "aria-pressed": "false" },
      line,
      style.name,
    );
    name.addEventListener("click", () => onHighlight(style.name));
    const row = h("tr", { data: { curve: style.name } }, h("th", { scope: "row" }, name));
    const found = Object.fromEntries(
      ["end", "off", "moved"].map((key) => [key, h("td", { data: { key } })]),
    );
    const alone = h("td", { class: "sw-alone", "aria-hidden": "true" });
    row.append(alone, ...Object.values(found));
    body.append(row);
    cells.set(style.name, { ...found, name, row, alone, style });
  }
  return {
    element,
    set(rows, highlight, curves, exact) {
      const low = Math.min(exact, ...curves.map((values) => Math.min(...values)));
      const high = Math.max(exact, ...curves.map((values) => Math.max(...values)));
      const y = (value) => (22 - (20 * (value - low)) / (high - low || 1)).toFixed(1);
      rows.forEach(({ name }, i) => {
        const { alone, style } = cells.get(name);
        const every = Math.ceil(curves[i].length / 110);
        const points = Array.from(curves[i])
          .filter((_, step) => step % every === 0)
          .map((value, x) => `${x},${y(value)}`);
        const ends = `x1="0" y1="${y(curves[i][0])}" x2="${points.length - 1}" y2="${y(exact)}"`;
        alone.innerHTML = `<svg width="112" height="24"><line ${ends} stroke="var(--lk-line)" stroke-width="4"/><polyline points="${points.join(" ")}" fill="none" stroke="var(--lk-${style.colour})" stroke-width="1.8"/></svg>`;
      });
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

export default view(
  { label: "Swallowed updates", kind: "swallowed", alone: true },
  (root, model, life) => {
    const { weights: weightPlaces, updates: updatePlaces, steps } = model.get("_places");
    const random = new Uint32Array(floats(model.get("_random")).buffer);
    const palette = colours(root, life, () => picture.redraw());
    let shown = null; // {now, curves}

    const control = (name, label, values) =>
      slider({
        label,
        min: 0,
        max: values.length - 1,
        page: 4, // a binade
        value: nearest(values, model.get(name), Math.log2),
        text: (i) => quarters(values[i]),
        onInput: (i) => put(model, { [name]: values[i] }),
      });
    const weight = control("weight", "weight w", weightPlaces);
    const update = control("update", "update lr·g", updatePlaces);
    const sliders = h("div", { class: "sw-sliders" }, weight.element, update.element);

    const picture = figure({
      life,
      label:
        "The weight after each update, for six methods; the table and the sentence below say where they end",
      height: (width) => Math.round(Math.min(330, Math.max(250, width * 0.36))),
      draw,
    });
    picture.element.classList.add("sw-picture");
    const words = sentence(model);
    const table = curveTable((name) => {
      put(model, { highlight: model.get("highlight") === name ? "" : name });
    });
    const title = h("span", { class: "lk-title" });
    const legend = h(
      "span",
      { class: "lk-quiet" },
      h("span", { class: "sw-road" }),
      "exact; press a name in the table to see its curve alone",
    );
    root.append(
      h("div", { class: "lk-head" }, title, legend),
      sliders,
      picture.element,
      words.element,
      table.element,
    );

    function areaOf(pen, width, height) {
      const { now, curves } = shown;
      const roomy = width > 600;
      let [low, high] = [Math.min(now.weight, now.exact), Math.max(now.weight, now.exact)];
      for (const values of curves) {
        for (const value of values) [low, high] = [Math.min(low, value), Math.max(high, value)];
      }
      const pad = 0.04 * (high - low);
      [low, high] = [low - pad, high + pad];
      pen.font = `600 ${palette.size - 1}px ${palette.font}`;
      const names =
        Math.max(...CURVES.map(({ name }) => pen.measureText(name).width)) + (roomy ? 64 : 2);
      const [left, right] = [AXES.left, width - names - LEADER];
      const [top, bottom] = [AXES.top, height - AXES.bottom];
      return {
        pen,
        tint: palette,
        low,
        high,
        left,
        right,
        top,
        bottom,
        roomy,
        steps: now.steps,
        x: (step) => left + ((right - left) * step) / now.steps,
        y: (value) => bottom - ((bottom - top) * (value - low)) / (high - low),
      };
    }

    function draw(pen, width, height) {
      if (!shown) return;
      const { now, curves } = shown;
      const highlight = model.get("highlight");
      const area = areaOf(pen, width, height);
      const faded = CURVES.map(({ name }) => Boolean(highlight) && name !== highlight);
      drawAxes(area);
      inkLine(
        area,
        [
          [area.x(0), area.y(now.weight)],
          [area.x(now.steps), area.y(now.exact)],
        ],
        palette.line2,
        9,
      );
      const broadestFirst = CURVES.map((_, i) => i).sort(
        (i, j) => CURVES[j].width - CURVES[i].width,
      );
      for (const i of broadestFirst) drawCurve(area, curves[i], CURVES[i], faded[i]);
      const ends = curves.map((values) => values[values.length - 1]);
      const ys = spreadLabels(ends.map(area.y), LABEL_GAP, area.top, area.bottom - 4);
      CURVES.forEach((style, i) =>
        drawLabel(area, style, ends[i], ys[i], now.rows[i].end, faded[i]),
      );
    }

    function show() {
      const { now } = shown;
      title.textContent = `w \u2190 w \u2212 lr·g, ${steps.toLocaleString("en-US")} times`;
      for (const [name, one, values] of [
        ["weight", weight, weightPlaces],
        ["update", update, updatePlaces],
      ]) {
        one.set(nearest(values, now[name], Math.log2));
        one.output.replaceChildren(rich(quarters(now[name]))); // code may have set what the slider cannot
      }
      words.say(now.sentence);
      table.set(now.rows, model.get("highlight"), shown.curves, now.exact);
    }

    function follow() {
      const [w, u] = [model.get("weight"), model.get("update")];
      const curves = curvesOf(w, u, steps, random);
      const exact = w - steps * u;
      shown = {
        curves,
        now: {
          weight: w,
          update: u,
          steps,
          exact,
          rows: curveRows(curves, exact),
          sentence: swallowedSentence(curves, w, u, steps),
        },
      };
      picture.drawNow(); // not with the next frame: the hand does not wait
      show();
    }

    function single() {
      show();
      picture.redraw();
    }

    watch(life, model, ["weight", "update"], follow);
    watch(life, model, ["highlight"], single);
    follow();
  },
);

// Six presets: a row for each with its whole timeline, and a lens on the steps where they differ.

import { figure } from "../base/canvas.js";
import { newName, headed, segmented, sentence, slider } from "../base/controls.js";
import { h, rich } from "../base/elements.js";
import { put, watch } from "../base/model.js";
import { percent } from "../base/number_words.js";
import {
  inkCross,
  inkFrame,
  inkLine,
  inkSteps,
  inkText,
  inkWindow,
  levelIn,
  stepAt,
  stepPlot,
} from "../base/plot.js";
import { colours } from "../base/theme.js";
import { hoverStep } from "./hover.js";
import { drawHeld, drawScale, rangeOf, scaleTicks, stepText, windowOf } from "./plot.js";
import { knobText, presetSentence, replayOf, skipsOf, sum } from "./replay.js";

const LENS_STEPS = 60;
const LENS = { top: 30, height: 170 };
const LENS_HEIGHT = LENS.top + LENS.height + 32;
const STRIP_HEIGHT = 36;
const LOSSY = "A step is lossy when more than 1% of the gradients underflow at its scale.";
const MODES = [
  {
    value: "alike",
    label: "same start and interval",
    title: "all start at 2^22 and wait for 20 clean steps: only the rule differs",
  },
  {
    value: "shipped",
    label: "as shipped",
    title: "the start and the interval that each framework ships with",
  },
];

function presetRows(names, mode, onSelect) {
  const group = newName("st-preset");
  return names.map((name) => {
    const input = h("input", { type: "radio", name: group, value: name });
    input.addEventListener("change", () => onSelect(name));
    const knobs = h("span", { class: "lk-quiet" });
    const choice = h(
      "label",
      { class: "st-choice" },
      input,
      h("span", { class: "st-name", text: name }),
      knobs,
    );
    const strip = h("td", { class: "st-strip" });
    const cells = { skips: h("td"), lossy: h("td") };
    return {
      name,
      input,
      knobs,
      strip,
      ...cells,
      element: h(
        "tr",
        { data: { preset: name } },
        h("th", { scope: "row" }, choice),
        strip,
        cells.skips,
        cells.lossy,
      ),
    };
  });
}

export function renderPresets(root, model, life) {
  const { source, steps, configs } = model.get("_about");
  const trace = model.get("_trace");
  const window = windowOf(trace);
  const names = Object.keys(configs.alike);
  const each = (mode, make) => names.map((name) => make(configs[mode][name], name));
  const known = Object.fromEntries(
    ["alike", "shipped"].map((mode) => [
      mode,
      each(mode, (config) => replayOf(config, trace, steps[mode])),
    ]),
  );
  const palette = colours(root, life, redraw);

  const mode = () => (model.get("alike") ? "alike" : "shipped");
  const replays = () => known[mode()];
  const chosen = () => names.indexOf(model.get("selected"));
  const choose = (changes) => {
    put(model, changes);
    show();
  };
  const choice = segmented({
    label: "Scalers",
    options: MODES,
    value: mode(),
    labelled: false,
    onChange: (value) => choose({ alike: value === "alike" }),
  });
  const lensFrom = { alike: firstSkip(known.alike), shipped: 0 };
  const from = slider({
    label: "Lens from step",
    min: 0,
    max: 1,
    page: 20,
    value: 0,
    onInput(value) {
      lensFrom[mode()] = value;
      redraw();
    },
  });
  const lens = figure({
    life,
    label: "A few steps of the chosen scaler, beside torch's",
    height: LENS_HEIGHT,
    draw: drawLens,
  });
  const rows = presetRows(names, mode, (name) => choose({ selected: name }));
  const { element: table, body } = headed("st-table", [
    "scaler",
    "its scale over all steps",
    "skipped",
    "lossy",
  ]);
  body.append(...rows.map(({ element }) => element));
  const words = sentence(model);
  root.append(
    h(
      "div",
      { class: "lk-head" },
      h("span", { class: "lk-title", text: "Six scalers on one training" }),
      choice.element,
    ),
    h("p", { class: "lk-quiet st-source", text: `${source} ${LOSSY}` }),
    table,
    words.element,
    h("div", { class: "st-lens" }, from.element),
    lens.element,
  );
  const strips = rows.map((row, i) => {
    const made = figure({
      life,
      label: `The loss scale of ${row.name}`,
      height: STRIP_HEIGHT,
      draw: (pen, width) => drawStrip(pen, width, i),
    });
    row.strip.append(made.element);
    life.listen(made.canvas, "pointerdown", (event) => {
      const at = Math.round(
        (made.at(event).x / made.width) * replays()[i].scale.length - LENS_STEPS / 2,
      );
      from.set(at);
      lensFrom[mode()] = from.value;
      choose({ selected: row.name });
    });
    return made;
  });
  const lensAt = (x) => stepAt(lens, x, { first: lensFrom[mode()], total: LENS_STEPS });
  const hover = hoverStep(
    life,
    lens,
    (x) => (lensAt(x) <= replays()[0].scale.length ? lensAt(x) : null),
    (step) => stepText(replays()[chosen()], window, step),
  );

  // A little before the first overflow that not all of them have alike.
  function firstSkip(found) {
    const last = found[0].scale.length - LENS_STEPS;
    for (let i = 0; i < last; i++)
      if (found.some(({ skipped }) => skipped[i] > 1)) return Math.max(0, i - 12);
    return 0;
  }

  function drawStrip(pen, width, i) {
    const found = replays();
    const total = found[i].scale.length;
    const panel = { top: 2, height: STRIP_HEIGHT - 4 };
    const plot = stepPlot(pen, width, palette, { total, left: 1, right: 1 });
    const [low, high] = rangeOf(found);
    const y = levelIn(panel, [low - 1, high + 1]);
    inkWindow(plot, panel, window, y);
    drawScale(plot, found[i], y, { width: 1.75, crosses: total > 500 ? 2.5 : 3 });
    if (i !== chosen()) return;
    const [left, right] = [plot.x(lensFrom[mode()]), plot.x(lensFrom[mode()] + LENS_STEPS)];
    pen.strokeStyle = palette.accent;
    pen.lineWidth = 2;
    pen.strokeRect(left, 1, Math.max(4, right - left), STRIP_HEIGHT - 2);
  }

  function drawLens(pen, width) {
    const found = replays();
    const mine = found[chosen()];
    const plot = stepPlot(pen, width, palette, { first: lensFrom[mode()], total: LENS_STEPS });
    const part = ({ scale }) => ({ scale: scale.slice(plot.first, plot.first + plot.total) });
    const [low, high] = rangeOf([part(mine), part(found[0])]);
    const range = [Math.floor(low) - 2, Math.ceil(high) + 1.5];
    const y = levelIn(LENS, range);
    inkWindow(plot, LENS, window, y);
    const name = model.get("selected");
    const title = `${name}, step ${(plot.first + 1).toLocaleString("en-US")} to ${(plot.first + plot.total).toLocaleString("en-US")}`;
    inkFrame(plot, LENS, title, scaleTicks(range), y);
    if (chosen() !== 0)
      drawScale(plot, found[0], y, { colour: palette.ink2, width: 1.25, crosses: 0, dash: [3, 4] });
    drawScale(plot, mine, y, { width: 2.5, crosses: 5 });
    drawLegend(plot);
    inkSteps(plot, LENS.top + LENS.height);
    if (hover.step)
      inkLine(
        plot,
        [
          [plot.x(hover.step), LENS.top],
          [plot.x(hover.step), LENS.top + LENS.height],
        ],
        palette.ink,
        1,
        { alpha: 0.6 },
      );
  }

  function drawLegend(plot) {
    let right = plot.end;
    const at = LENS.top - 12;
    const entry = (words, sign) => {
      right -= inkText(plot, words, right, at, { align: "right" }) + 16;
      sign(right, at - 4);
      right -= 26;
    };
    entry("skipped, scale held", (x, y) => {
      drawHeld(plot, x, y);
      inkCross(plot, x, y, 4, palette.ink, 1.75);
    });
    entry("skipped", (x, y) => inkCross(plot, x, y, 4, palette.ink, 1.75));
    if (chosen() !== 0)
      entry(names[0], (x, y) =>
        inkLine(
          plot,
          [
            [x - 18, y],
            [x + 8, y],
          ],
          palette.ink2,
          1.25,
          { dash: [3, 4] },
        ),
      );
  }

  function redraw() {
    for (const strip of strips) strip.drawNow();
    lens.drawNow();
  }

  function show() {
    choice.set(mode());
    from.limit(Math.max(0, steps[mode()] - LENS_STEPS));
    from.set(lensFrom[mode()]);
    rows.forEach((row, i) => {
      row.input.checked = i === chosen();
      row.element.classList.toggle("st-chosen", i === chosen());
      row.knobs.replaceChildren(rich(knobText(configs[mode()][row.name])));
      row.skips.textContent = skipsOf(replays()[i]);
      row.lossy.textContent = percent(sum(replays()[i].lossy) / steps[mode()]);
    });
    words.say(
      presetSentence(names[chosen()], configs[mode()][names[chosen()]], replays()[chosen()]),
    );
    redraw();
  }

  watch(life, model, ["alike", "selected"], show);
  show();
}

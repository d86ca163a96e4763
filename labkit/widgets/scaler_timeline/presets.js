// The scalers of six frameworks: a row for each with its scale over all steps, and a lens that
// enlarges a few steps of the chosen one.

import { figure } from "../base/canvas.js";
import { headed, newName, segmented, sentence, slider } from "../base/controls.js";
import { h, isMainButton, rich } from "../base/elements.js";
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
import {
  drawHeld,
  drawHovered,
  drawScale,
  rangeOf,
  scaleTicks,
  stepText,
  windowOf,
} from "./plot.js";
import { knobText, presetSentence, replayOf, skipsOf, sum } from "./replay.js";

/** @import { Pen } from "../base/canvas.js" */
/** @import { Life } from "../base/lifetime.js" */
/** @import { Model } from "../base/model.js" */
/** @import { ScaleWindow, StepPlot } from "../base/plot.js" */
/** @import { Palette } from "../base/theme.js" */
/** @import { Replay } from "./replay.js" */
/** @import { Mode, PresetTraits } from "./view.js" */

/**
 * The state of the widget.
 *
 * @typedef {object} Board
 * @property {Model<PresetTraits>} model
 * @property {string[]} names The names of the presets.
 * @property {Record<Mode, Replay[]>} known The replays of each mode, in the order of the names.
 * @property {ScaleWindow} bounds
 * @property {Palette} palette
 * @property {Record<Mode, number>} lensFrom The number of steps before the lens.
 */

const LENS_STEPS = 60;
// The steps that the lens shows before the first one at which hysteresis kept a scale.
const STEPS_BEFORE_HELD = 12;
// Lengths in pixels.
const LENS = { top: 30, height: 170 };
const LENS_HEIGHT = LENS.top + LENS.height + 32;
const STRIP_HEIGHT = 36;
const LOSSY = "A step is lossy when more than 1% of the gradients underflow at its scale.";
const HEADS = ["scaler", "its scale over all steps", "skipped", "lossy"];
// The line of torch's scale beside that of another framework.
const THIN_DASHES = { width: 1.25, dash: [3, 4] };

/** @type {{ value: Mode, label: string, title: string }[]} */
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

/**
 * Return the chosen mode.
 *
 * @param {Pick<Board, "model">} board
 * @returns {Mode}
 */
function modeOf({ model }) {
  return model.get("alike") ? "alike" : "shipped";
}

/**
 * Return the replays of the chosen mode, in the order of the presets.
 *
 * @param {Board} board
 */
function replaysOf(board) {
  return board.known[modeOf(board)];
}

/**
 * Return the index of the chosen preset.
 *
 * @param {Board} board
 */
function chosenOf({ model, names }) {
  return names.indexOf(model.get("selected"));
}

/**
 * Replay each preset on the trace.
 *
 * @param {Model<PresetTraits>} model
 * @param {Mode} mode
 */
function replaysIn(model, mode) {
  const { steps, configs } = model.get("_about");
  const trace = model.get("_trace");
  const names = Object.keys(configs.alike);
  return names.map((name) => replayOf(configs[mode][name], trace, steps[mode]));
}

/**
 * Return the number of steps before the lens at first: it shows the first step at which a preset
 * skips without lowering its scale; 0 if there is none.
 *
 * @param {readonly Replay[]} replays
 */
function firstHeld(replays) {
  const { length } = replays[0].scale;
  const steps = Array.from({ length }, (_, i) => i);
  const first = steps.find((i) => replays.some(({ skipped }) => skipped[i] > 1));
  if (first === undefined) return 0;
  return Math.max(0, Math.min(first - STEPS_BEFORE_HELD, length - LENS_STEPS));
}

// --- pictures ------------------------------------------------------------------------------------

/**
 * Draw the scale of a preset over all steps, and a frame where the lens is.
 *
 * @param {Board} board
 * @param {Pen} pen
 * @param {number} width
 * @param {number} i the index of the preset
 */
function drawStrip(board, pen, width, i) {
  const replays = replaysOf(board);
  const total = replays[i].scale.length;
  const panel = { top: 2, height: STRIP_HEIGHT - 4 };
  const plot = stepPlot(pen, width, board.palette, { total, left: 1, right: 1 });
  const [low, high] = rangeOf(replays);
  const y = levelIn(panel, [low - 1, high + 1]);
  inkWindow(plot, panel, board.bounds, y);
  drawScale(plot, replays[i], y, { width: 1.75, crosses: total > 500 ? 2.5 : 3 });
  if (i !== chosenOf(board)) return;
  const from = board.lensFrom[modeOf(board)];
  const left = plot.x(from);
  const right = plot.x(from + LENS_STEPS);
  pen.strokeStyle = board.palette.accent;
  pen.lineWidth = 2;
  pen.strokeRect(left, 1, Math.max(4, right - left), STRIP_HEIGHT - 2);
}

/**
 * Draw the steps in the lens: the chosen preset, and torch's beside it.
 *
 * @param {Board} board
 * @param {Pen} pen
 * @param {number} width
 * @param {number | null} hovered the step under the pointer
 */
function drawLens(board, pen, width, hovered) {
  const [torch] = replaysOf(board);
  const mine = replaysOf(board)[chosenOf(board)];
  const first = board.lensFrom[modeOf(board)];
  const end = first + LENS_STEPS;
  const plot = stepPlot(pen, width, board.palette, { first, total: LENS_STEPS });
  const shown = [mine, torch].map(({ scale }) => ({ scale: scale.slice(first, end) }));
  const [low, high] = rangeOf(shown);
  /** @type {[number, number]} */
  const range = [Math.floor(low) - 2, Math.ceil(high) + 1.5];
  const y = levelIn(LENS, range);
  const span = `${(first + 1).toLocaleString("en-US")} to ${end.toLocaleString("en-US")}`;
  const title = `${board.model.get("selected")}, step ${span}`;
  inkWindow(plot, LENS, board.bounds, y);
  inkFrame(plot, LENS, title, scaleTicks(range), y);
  if (mine !== torch) {
    drawScale(plot, torch, y, { ...THIN_DASHES, colour: plot.tint.ink2, crosses: 0 });
  }
  drawScale(plot, mine, y, { width: 2.5, crosses: 5 });
  drawLegend(plot, mine === torch ? null : board.names[0]);
  inkSteps(plot, LENS.top + LENS.height);
  if (hovered) drawHovered(plot, hovered, LENS);
}

/**
 * Draw a legend above the lens, from right to left.
 *
 * @param {StepPlot} plot
 * @param {string | null} other the name of the preset that is shown beside the chosen one
 */
function drawLegend(plot, other) {
  const { tint } = plot;
  const base = LENS.top - 12;
  const y = base - 4;
  let right = plot.end;

  /**
   * Add an entry on the left of the others.
   *
   * @param {string} words
   * @param {(x: number) => void} drawSign draws what the words explain
   */
  function entry(words, drawSign) {
    right -= inkText(plot, words, right, base, { align: "right" }) + 16;
    drawSign(right);
    right -= 26;
  }
  entry("skipped, scale held", (x) => {
    drawHeld(plot, x, y);
    inkCross(plot, x, y, 4, tint.ink, 1.75);
  });
  entry("skipped", (x) => inkCross(plot, x, y, 4, tint.ink, 1.75));
  if (other === null) return;
  entry(other, (x) => {
    const { width, dash } = THIN_DASHES;
    const from = /** @type {const} */ ([x - 18, y]);
    const to = /** @type {const} */ ([x + 8, y]);
    inkLine(plot, [from, to], tint.ink2, width, { dash });
  });
}

// --- the view ------------------------------------------------------------------------------------

/**
 * Return the rows of the table, each with its cells to fill.
 *
 * @param {readonly string[]} names
 * @param {(name: string) => void} onSelect
 */
function presetRows(names, onSelect) {
  const group = newName("st-preset");
  return names.map((name) => {
    const input = h("input", { type: "radio", name: group, value: name });
    const knobs = h("span", { class: "lk-quiet" });
    const title = h("span", { class: "st-name", text: name });
    const choice = h("label", { class: "st-choice" }, input, title, knobs);
    const strip = h("td", { class: "st-strip" });
    const skips = h("td");
    const lossy = h("td");
    const head = h("th", { scope: "row" }, choice);
    const element = h("tr", { data: { preset: name } }, head, strip, skips, lossy);
    input.addEventListener("change", () => onSelect(name));
    return { name, input, knobs, strip, skips, lossy, element };
  });
}

/**
 * Return the table of the presets, each with its scale over all steps.
 *
 * @param {Board} board
 * @param {Life} life
 * @param {(name: string) => void} onSelect
 */
function presetTable(board, life, onSelect) {
  const { configs, steps } = board.model.get("_about");
  const rows = presetRows(board.names, onSelect);
  const { element, body } = headed("st-table", HEADS);
  body.append(...rows.map((row) => row.element));
  const strips = rows.map((row, i) => {
    const strip = figure({
      life,
      label: `The loss scale of ${row.name}`,
      height: STRIP_HEIGHT,
      draw: (pen, width) => drawStrip(board, pen, width, i),
    });
    row.strip.append(strip.element);
    life.listen(strip.canvas, "pointerdown", (event) => {
      if (!isMainButton(event)) return;
      const total = replaysOf(board)[i].scale.length;
      const pressed = (strip.at(event).x / strip.width) * total;
      moveLens(board, Math.round(pressed - LENS_STEPS / 2));
      onSelect(row.name);
    });
    return strip;
  });
  return {
    element,
    redraw() {
      for (const strip of strips) strip.drawNow();
    },
    show() {
      const mode = modeOf(board);
      const replays = replaysOf(board);
      for (const [i, row] of rows.entries()) {
        const isChosen = i === chosenOf(board);
        row.input.checked = isChosen;
        row.element.classList.toggle("st-chosen", isChosen);
        row.knobs.replaceChildren(rich(knobText(configs[mode][row.name])));
        row.skips.textContent = String(skipsOf(replays[i]));
        row.lossy.textContent = percent(sum(replays[i].lossy) / steps[mode]);
      }
    },
  };
}

/**
 * Return the largest number of steps before the lens.
 *
 * @param {Board} board
 */
function lastLens(board) {
  const { steps } = board.model.get("_about");
  return Math.max(0, steps[modeOf(board)] - LENS_STEPS);
}

/**
 * Move the lens of the chosen mode to the nearest place that it can have.
 *
 * @param {Board} board
 * @param {number} first the number of steps before it
 */
function moveLens(board, first) {
  board.lensFrom[modeOf(board)] = Math.min(lastLens(board), Math.max(0, first));
}

/**
 * Return the lens and its slider.
 *
 * @param {Board} board
 * @param {Life} life
 * @param {() => void} onMove
 */
function lensParts(board, life, onMove) {
  const from = slider({
    label: "Lens from step",
    min: 0,
    max: 1,
    page: 20,
    value: 0,
    onInput(value) {
      moveLens(board, value);
      onMove();
    },
  });
  const lens = figure({
    life,
    label: "A few steps of the chosen scaler, beside torch's",
    height: LENS_HEIGHT,
    draw: (pen, width) => drawLens(board, pen, width, hover.step),
  });

  /**
   * Return the step at a place of the lens; null beside its axis and after the last step.
   *
   * @param {number} x
   */
  function stepUnder(x) {
    const step = stepAt(lens, x, { first: board.lensFrom[modeOf(board)], total: LENS_STEPS });
    return step !== null && step <= replaysOf(board)[0].scale.length ? step : null;
  }
  const hover = hoverStep(life, lens, stepUnder, (step) =>
    stepText(replaysOf(board)[chosenOf(board)], board.bounds, step),
  );
  return {
    elements: [h("div", { class: "st-lens" }, from.element), lens.element],
    redraw: () => lens.drawNow(),
    show() {
      from.limit(lastLens(board));
      from.set(board.lensFrom[modeOf(board)]);
    },
  };
}

/**
 * Fill the root of `ScalerPresets`.
 *
 * @param {HTMLElement} root
 * @param {Model<PresetTraits>} model
 * @param {Life} life
 */
export function fillPresets(root, model, life) {
  const { source, configs } = model.get("_about");
  const known = { alike: replaysIn(model, "alike"), shipped: replaysIn(model, "shipped") };
  /** @type {Board} */
  const board = {
    model,
    names: Object.keys(configs.alike),
    known,
    bounds: windowOf(model.get("_trace")),
    palette: colours(root, life, redraw),
    lensFrom: { alike: firstHeld(known.alike), shipped: 0 },
  };
  const choice = segmented({
    label: "Scalers",
    options: MODES,
    value: modeOf(board),
    labelled: false,
    onChange: (value) => choose({ alike: value === "alike" }),
  });
  const table = presetTable(board, life, (name) => choose({ selected: name }));
  const lens = lensParts(board, life, redraw);
  const words = sentence(model);
  const title = h("span", { class: "lk-title", text: "Six scalers on one training" });
  root.append(
    h("div", { class: "lk-head" }, title, choice.element),
    h("p", { class: "lk-quiet st-source", text: `${source} ${LOSSY}` }),
    table.element,
    words.element,
    ...lens.elements,
  );

  /**
   * Set traits, and show them.
   *
   * @param {Partial<PresetTraits>} changes
   */
  function choose(changes) {
    put(model, changes);
    show();
  }

  function redraw() {
    table.redraw();
    lens.redraw();
  }

  function show() {
    const mode = modeOf(board);
    const chosen = chosenOf(board);
    const name = board.names[chosen];
    choice.set(mode);
    lens.show();
    table.show();
    words.say(presetSentence(name, configs[mode][name], replaysOf(board)[chosen]));
    redraw();
  }

  watch(life, model, ["alike", "selected"], show);
  show();
}

// A scaler on a trace: four knobs and its saw-tooth, or six presets one under another.

import { figure } from "../base/canvas.js";
import { nearest, sentence, slider } from "../base/controls.js";
import { h } from "../base/elements.js";
import { put, watch } from "../base/model.js";
import {
  inkDot,
  inkFrame,
  inkLine,
  inkNames,
  inkSkips,
  inkSteps,
  inkWindow,
  inkZoneNames,
  levelIn,
  stairs,
  stepAt,
  stepPlot,
} from "../base/plot.js";
import { view } from "../base/root.js";
import { colours } from "../base/theme.js";
import { counted } from "../exact/numbers.js";
import { hoverStep } from "./hover.js";
import { drawScale, rangeOf, scaleTicks, stepText, windowOf } from "./plot.js";
import { renderPresets } from "./presets.js";
import { KNOB_PLACES, placeText, replayOf, replaySentence, skipsOf } from "./replay.js";

const SCALE = { top: 30, height: 252 };
const TRACKER = { top: SCALE.top + SCALE.height + 42, height: 54 };
const REST_MS = 700; // a hand that rested so long begins something new
const TIMELINE_HEIGHT = TRACKER.top + TRACKER.height + 32;

// --- four knobs -------------------------------------------------------------------------------------------------------

function renderTimeline(root, model, life) {
  const { steps, source, config } = model.get("_about");
  const trace = model.get("_trace");
  const window = windowOf(trace);
  let [replay, before, changed] = [null, null, 0]; // `before`: what was seen before the hand began to move
  const palette = colours(root, life, () => picture.redraw());

  const knobs = Object.entries(KNOB_PLACES).map(([name, values]) => {
    const made = slider({
      label: name.replace("log2_", ""),
      min: 0,
      max: values.length - 1,
      page: 4,
      value: nearest(values, model.get(name)),
      text: (i) => placeText(name, values[i]),
      onInput: (i) => put(model, { [name]: values[i] }),
    });
    made.element.dataset.knob = name;
    return { name, values, ...made, set: made.set };
  });
  const picture = figure({
    life,
    label:
      "The loss scale of each step before the window between underflow and overflow; the sentence above says how it fares",
    height: TIMELINE_HEIGHT,
    draw,
  });
  const words = sentence(model);
  root.append(
    h(
      "div",
      { class: "lk-head" },
      h("span", { class: "lk-title", text: "The loss scale, step by step" }),
      h("span", { class: "lk-quiet", text: source }),
    ),
    h("div", { class: "st-knobs" }, ...knobs.map(({ element }) => element)),
    words.element,
    picture.element,
  );
  const hover = hoverStep(
    life,
    picture,
    (x) => stepAt(picture, x, { total: steps }),
    (step) => stepText(replay, window, step),
  );

  function draw(pen, width) {
    const plot = stepPlot(pen, width, palette, { total: steps });
    const [low, high] = rangeOf([replay], [0, 32]);
    const range = [Math.min(0, 4 * Math.floor(low / 4)), Math.max(34, high + 1)];
    const y = levelIn(SCALE, range);
    inkWindow(plot, SCALE, window, y);
    inkFrame(plot, SCALE, "Loss scale", scaleTicks(range), y);
    if (before)
      drawScale(plot, before, y, { colour: palette.ink2, width: 1.25, crosses: 0, dash: [3, 4] });
    drawScale(plot, replay, y);
    inkZoneNames(plot, SCALE);
    if (before)
      inkNames(
        plot,
        [{ name: "before", fill: palette.ink2, x: plot.end + 5, y: y(before.scale[steps - 1]) }],
        15,
        SCALE.top,
        SCALE.top + SCALE.height,
      );
    inkSkips(plot, SCALE, counted(skipsOf(replay), "skipped step"), palette.ink);
    drawTracker(plot);
    inkSteps(plot, TRACKER.top + TRACKER.height);
    if (hover.step) {
      const at = plot.x(hover.step);
      inkLine(
        plot,
        [
          [at, SCALE.top],
          [at, TRACKER.top + TRACKER.height],
        ],
        palette.ink,
        1,
        { alpha: 0.6 },
      );
      inkDot(plot, at, y(replay.scale[hover.step - 1]), 3.5, palette.fp16);
    }
  }

  function drawTracker(plot) {
    const interval = model.get("growth_interval");
    const most = Math.max(1, interval - 1);
    const y = (count) => TRACKER.top + TRACKER.height * (1 - count / most);
    const title = `Growth tracker: clean steps in a row; at ${interval.toLocaleString("en-US")} the scale grows`;
    inkFrame(plot, TRACKER, title, [[0, "0"], ...(interval > 1 ? [[most, String(most)]] : [])], y);
    inkLine(plot, stairs(plot, replay.tracker, y), palette.ink2, 1.25);
  }

  function follow() {
    const chosen = Object.fromEntries(knobs.map(({ name }) => [name, model.get(name)]));
    const now = performance.now();
    if (now - changed > REST_MS) before = replay;
    changed = now;
    replay = replayOf({ ...config, ...chosen, init_scale: 2 ** chosen.init_log2_scale }, trace);
    for (const knob of knobs) {
      knob.set(nearest(knob.values, chosen[knob.name]));
      if (!knob.values.includes(chosen[knob.name]))
        knob.output.replaceChildren(String(chosen[knob.name]));
    }
    words.say(replaySentence(replay));
    picture.drawNow(); // not with the next frame: the hand does not wait
    root.dataset.drawn = Number(root.dataset.drawn ?? 0) + 1;
  }

  watch(life, model, Object.keys(KNOB_PLACES), follow);
  follow();
}

const TIMELINE = view(
  { label: "Scaler timeline", kind: "scaler-timeline", alone: true },
  renderTimeline,
);
const PRESETS = view(
  { label: "Six scalers on one training", kind: "scaler-presets", alone: true },
  renderPresets,
);

const viewOf = (model) => (model.get("_kind") === "timeline" ? TIMELINE : PRESETS);

export default {
  render: (page) => viewOf(page.model).render(page),
  answers: (model) => viewOf(model).answers(model),
};

// The playground: a network trains in the page, in the number formats that one chooses, beside its
// twin in FP32.

import { figure } from "../base/canvas.js";
import { button, choice, sentence } from "../base/controls.js";
import { h, rich } from "../base/elements.js";
import { put, watch } from "../base/model.js";
import { view } from "../base/root.js";
import { colours } from "../base/theme.js";
import { addressOf, readAddress, settingOf } from "./address.js";
import { drawCourse, drawPortraits, drawSpreads } from "./drawn.js";
import { knobs } from "./knobs.js";
import { portraitInputs } from "./portraits.js";
import { PROBLEMS } from "./problems.js";
import { RECIPE_PRESETS } from "./recipe.js";
import { SCENES } from "./scenes.js";
import { MOST_STEPS, newSession, portraySome, stepBoth, trainSlice } from "./session.js";
import { newTraining, takeMethod, takeRecipe } from "./trainer.js";
import { happening } from "./words.js";

/** @import { Life } from "../base/lifetime.js" */
/** @import { Model } from "../base/model.js" */
/** @import { Palette } from "../base/theme.js" */
/** @import { Setting } from "./address.js" */
/** @import { Recipe } from "./recipe.js" */
/** @import { Session } from "./session.js" */

/**
 * The traits of Playground (widget.py).
 *
 * @typedef {object} Traits
 * @property {string} scene
 * @property {string} preset
 * @property {Record<string, unknown>} changes
 * @property {Record<string, unknown>} method
 * @property {number} seed
 * @property {string} sentence
 * @property {boolean} in_address Whether the page's address holds the setting.
 */

/**
 * What the view works with.
 *
 * @typedef {object} State
 * @property {HTMLElement} root
 * @property {Model<Traits>} model
 * @property {Setting} setting
 * @property {Session} session
 * @property {Palette} tint
 * @property {boolean} running
 * @property {number} speed Steps in a slice of time.
 */

/** @type {Record<string, number>} */
const SPEEDS = { fast: 1000, medium: 1, slow: 0.1 };
const SLOW_FRAMES = 10;
const FRAME_MS = 16;
const COPIED_MS = 2000;

/**
 * The recipe of a setting.
 *
 * @param {Setting} setting
 * @returns {Recipe}
 */
function recipeOf({ preset, changes }) {
  return /** @type {Recipe} */ ({ ...RECIPE_PRESETS[preset], ...changes });
}

/**
 * Both trainings of a setting, before their first step.
 *
 * @param {Setting} setting
 */
function beginning(setting) {
  const problem = PROBLEMS[SCENES[setting.scene].problem]();
  const training = newTraining(problem, recipeOf(setting), setting.seed);
  takeMethod(training, { ...training.method, ...setting.method });
  return newSession(training, portraitInputs(problem));
}

/**
 * @param {Model<Traits>} model
 * @returns {Setting}
 */
function settingIn(model) {
  return {
    scene: model.get("scene"),
    preset: model.get("preset"),
    changes: model.get("changes"),
    method: model.get("method"),
    seed: model.get("seed"),
  };
}

/** The setting in the page's address; "" where there is none, or the name of a place of the page. */
function writtenSetting() {
  const written = location.hash.slice(1);
  return document.getElementById(written) ? "" : written;
}

/**
 * The setting that the view begins with, and what of the page's address was ignored.
 *
 * @param {Model<Traits>} model
 */
function firstSetting(model) {
  const address = writtenSetting();
  if (!model.get("in_address") || !address) return { setting: settingIn(model), ignored: [] };
  return readAddress(address);
}

/**
 * @param {HTMLElement} root
 * @param {Model<Traits>} model
 * @param {Life} life
 */
function fillPlayground(root, model, life) {
  const { setting, ignored } = firstSetting(model);
  /** @type {State} */
  const state = {
    root,
    model,
    setting,
    session: beginning(setting),
    tint: colours(root, life, () => redraw()),
    running: false,
    speed: SPEEDS.fast,
  };
  const words = sentence(model);
  const pictures = picturesOf(state, life);
  const transport = transportOf(state, { run, pause, step, reset });
  if (model.get("in_address")) transport.element.append(linkButton().element);
  const panel = knobs(setting, { change, begin });
  const guide = h("ol", { class: "pg-guide" });
  const notice = h("p", { class: "pg-notice", role: "status" });
  tellIgnored(ignored);
  root.append(
    h("div", { class: "lk-head pg-head" }, transport.element),
    notice,
    words.element,
    h(
      "div",
      { class: "pg-columns" },
      h("div", { class: "pg-knobs" }, panel.element),
      h("div", { class: "pg-layers" }, pictures.spreads.element, guide),
      h("div", { class: "pg-course" }, pictures.course.element, pictures.portraits.element),
    ),
  );

  /** @param {readonly string[]} parts of the address */
  function tellIgnored(parts) {
    notice.hidden = !parts.length;
    notice.textContent = `Ignored in this page's address: ${parts.join("; ")}.`;
  }

  function redraw() {
    if (!pictures) return;
    pictures.portraits.redraw();
    redrawCourse();
  }

  function redrawCourse() {
    pictures.spreads.redraw();
    pictures.course.redraw();
  }

  function show() {
    tellNews();
    redraw();
  }

  function tellNews() {
    const { session } = state;
    const { question } = SCENES[state.setting.scene];
    const { training, last, lastTwin, skips, broken } = session;
    const text = happening({ training, last, twin: lastTwin, skips, broken }, question);
    words.say(text, text.replace(/[\d.,e-]+/g, ""));
    transport.show(session.twinLosses.length, state.running);
  }

  /** Let model and address follow the setting. */
  function tell() {
    put(model, { ...state.setting });
    if (!model.get("in_address")) return;
    history.replaceState(null, "", `#${addressOf(state.setting)}`);
  }

  /**
   * Change a part of the setting: the training goes on with it.
   *
   * @param {Partial<Setting>} changed
   */
  function change(changed) {
    state.setting = { ...state.setting, ...changed };
    const { training, twin } = state.session;
    takeRecipe(training, recipeOf(state.setting));
    const method = { ...training.problem.method, ...state.setting.method };
    takeMethod(training, method);
    takeMethod(twin, method);
    panel.show(state.setting);
    tell();
    show();
  }

  /**
   * Begin another scene.
   *
   * @param {string} scene
   */
  function begin(scene) {
    state.setting = settingOf(scene, state.setting.seed);
    panel.show(state.setting);
    tell();
    reset();
  }

  function showGuide() {
    const { guide: steps } = SCENES[state.setting.scene];
    guide.replaceChildren(...steps.map((text) => h("li", {}, rich(text))));
  }

  function reset() {
    pause();
    state.setting = { ...state.setting, seed: transport.seed() };
    state.session = beginning(state.setting);
    tell();
    showGuide();
    show();
  }

  function step() {
    pause();
    stepBoth(state.session);
    let whole = false;
    while (!whole) whole = portraySome(state.session);
    show();
  }

  // A frame of the page trains for one slice, and for more of them until the next frame is due:
  // between two slices the page answers what is pressed. A tab in the background has no frames.
  const between = new MessageChannel();
  let frame = 0;
  let frames = 0;
  let due = 0;
  function slice() {
    if (!state.running) return;
    trainSlice(state.session, Math.max(1, state.speed));
    if (state.speed > 1 && performance.now() < due) between.port2.postMessage(null);
  }
  between.port1.onmessage = slice;
  function tick() {
    frames += 1;
    due = performance.now() + FRAME_MS;
    if (state.session.twinLosses.length >= MOST_STEPS) {
      pause();
      return;
    }
    frame = requestAnimationFrame(tick);
    if (state.speed >= 1 || frames % SLOW_FRAMES === 0) slice();
    if (portraySome(state.session)) pictures.portraits.redraw();
    tellNews();
    redrawCourse();
  }
  function run() {
    if (state.running) return;
    state.running = true;
    tick();
  }
  function pause() {
    cancelAnimationFrame(frame);
    state.running = false;
    transport.show(state.session.twinLosses.length, false);
  }

  life.add(() => {
    pause();
    between.port1.close();
  });
  /**
   * Take a setting from outside: a new scene or seed begins again, anything else goes on.
   *
   * @param {Setting} asked
   */
  function take(asked) {
    if (JSON.stringify(asked) === JSON.stringify(state.setting)) return;
    const elsewhere = asked.scene !== state.setting.scene || asked.seed !== state.setting.seed;
    if (!elsewhere) {
      change(asked);
      return;
    }
    state.setting = asked;
    transport.setSeed(asked.seed);
    panel.show(asked);
    reset();
  }
  watch(life, model, ["scene", "preset", "changes", "method", "seed"], () => {
    take(settingIn(model));
  });
  life.listen(window, "hashchange", () => {
    const address = writtenSetting();
    if (!model.get("in_address") || !address) return;
    const found = readAddress(address);
    tellIgnored(found.ignored);
    take(found.setting);
  });
  showGuide();
  show();
}

/**
 * @param {State} state
 * @param {Life} life
 */
function picturesOf(state, life) {
  const spreads = figure({
    life,
    label: "The gradients of each layer by their size; the sentence above says what is lost",
    height: 380,
    draw(pen, width, height) {
      drawSpreads({ pen, tint: state.tint }, width, height, state.session);
    },
  });
  const course = figure({
    life,
    label: "The loss of each step here and in FP32; the sentence above compares them",
    height: 300,
    draw(pen, width, height) {
      drawCourse({ pen, tint: state.tint }, width, height, state.session);
    },
  });
  const portraits = figure({
    life,
    label: "What the network does here, and what its twin in FP32 does",
    height: (width) => Math.min(220, (width - 12) / 2 + 20),
    draw(pen, width, height) {
      drawPortraits({ pen, tint: state.tint }, width, height, state.session);
    },
  });
  return { spreads, course, portraits };
}

/** A button that copies the page's address, which holds the setting. */
function linkButton() {
  const control = button({ label: "Copy link", onPress: copy });
  async function copy() {
    try {
      await navigator.clipboard.writeText(location.href);
      control.setLabel("Copied");
    } catch {
      control.setLabel("The address above is the link");
    }
    setTimeout(() => control.setLabel("Copy link"), COPIED_MS);
  }
  return control;
}

/**
 * Start, pause, one step, reset, speed and seed.
 *
 * @param {State} state
 * @param {{ run: () => void, pause: () => void, step: () => void, reset: () => void }} does
 */
function transportOf(state, does) {
  const start = button({
    label: "Start",
    kind: "primary",
    onPress: () => (state.running ? does.pause() : does.run()),
  });
  const one = button({ label: "One step", onPress: does.step });
  const again = button({ label: "Reset", onPress: does.reset });
  const speed = choice({
    label: "speed",
    onChange: (value) => {
      state.speed = SPEEDS[value];
    },
  });
  speed.show(
    Object.keys(SPEEDS).map((name) => [name, name]),
    "fast",
  );
  const seed = h("input", {
    type: "number",
    min: 0,
    max: 9999,
    value: state.setting.seed,
    "aria-label": "seed",
    class: "pg-seed",
  });
  seed.addEventListener("change", does.reset);
  const count = h("span", { class: "lk-quiet pg-count" });
  const title = h("span", { class: "lk-title", text: "Playground" });
  const seedLabel = h("label", { class: "lk-row lk-tight" }, "seed", seed);
  const parts = [start.element, one.element, again.element, speed.element, seedLabel, count];
  return {
    element: h("div", { class: "lk-row" }, title, ...parts),
    seed() {
      const asked = Math.round(Number(seed.value)) || 0;
      const next = Math.min(9999, Math.max(0, asked));
      seed.value = String(next);
      return next;
    },
    /** @param {number} next */
    setSeed(next) {
      seed.value = String(next);
    },
    /**
     * @param {number} steps
     * @param {boolean} running
     */
    show(steps, running) {
      start.setLabel(running ? "Pause" : "Start");
      const end = steps < MOST_STEPS ? "" : ", the last: Reset begins again";
      count.textContent = `step ${steps.toLocaleString("en-US")}${end}`;
    },
  };
}

export default view({ label: "Playground", kind: "playground", alone: true }, fillPlayground);

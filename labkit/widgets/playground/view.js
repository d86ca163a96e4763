// The playground: a network is trained in the page, in the number formats that the learner chooses,
// beside its twin in FP32.

import { figure } from "../base/canvas.js";
import { sentence } from "../base/controls.js";
import { h, rich } from "../base/elements.js";
import { put, watch } from "../base/model.js";
import { view } from "../base/root.js";
import { colours } from "../base/theme.js";
import { addressOf, readAddress, settingOf } from "./address.js";
import { bestList, EXERCISE_SCENE, EXERCISE_STEPS, reachesGoal } from "./best.js";
import { drawCourse, drawPortraits, drawSpreads } from "./drawn.js";
import { scaleHandle } from "./handle.js";
import { knobs } from "./knobs.js";
import { latestLoss, outcomeOf } from "./outcome.js";
import { portraitInputs } from "./portraits.js";
import { problemNamed } from "./problems.js";
import { questionPanel } from "./question.js";
import { RECIPE_PRESETS } from "./recipe.js";
import { SCENES } from "./scenes.js";
import { MOST_STEPS, newSession, portraySome, stepBoth, trainSlice } from "./session.js";
import { newTraining, restartScale, takeMethod, takeRecipe } from "./trainer.js";
import { linkButton, transportBar } from "./transport.js";
import { happening } from "./words.js";

/** @import { Life } from "../base/lifetime.js" */
/** @import { Model } from "../base/model.js" */
/** @import { Palette } from "../base/theme.js" */
/** @import { Asked, Setting } from "./address.js" */
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
 * @property {number} goal The step to which a link trains; 0 for none.
 * @property {boolean} turned Whether a knob was turned since the first step.
 * @property {boolean} entered Whether the exercise was judged for this run.
 */

/** @type {Record<string, number>} */
const SPEEDS = { fast: 1000, medium: 1, slow: 0.1 };
const SLOW_FRAMES = 10;
const FRAME_MS = 16;
const INTRODUCTION =
  "One network trains twice: here, in number formats that you choose, and as its twin in FP32, 32 \
bits a number. FP16 has 16 bits, and makes numbers below 2^-25 zero.";
const ADDRESS_MS = 150;

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
  const problem = problemNamed(SCENES[setting.scene].problem);
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

/**
 * @param {Setting} one
 * @param {Setting} other
 */
function sameSetting(one, other) {
  return addressOf(one) === addressOf(other);
}

/** The setting in the page's address; "" where there is none, or a place of the page. */
function writtenSetting() {
  const written = location.hash.slice(1);
  return document.getElementById(written) ? "" : written;
}

/**
 * The setting that the view begins with, and what of the page's address was ignored.
 *
 * @param {Model<Traits>} model
 * @returns {Asked}
 */
function firstSetting(model) {
  const address = writtenSetting();
  if (model.get("in_address") && address) return readAddress(address);
  return { setting: settingIn(model), step: 0, ignored: [] };
}

/**
 * @param {HTMLElement} root
 * @param {Model<Traits>} model
 * @param {Life} life
 */
function fillPlayground(root, model, life) {
  const { setting, step: firstGoal, ignored } = firstSetting(model);
  /** @type {State} */
  const state = {
    root,
    model,
    setting,
    session: beginning(setting),
    tint: colours(root, life, () => redraw()),
    running: false,
    speed: SPEEDS.fast,
    goal: 0,
    turned: false,
    entered: false,
  };
  // The model is told one trait after another: in between it holds half a setting.
  let telling = false;
  const words = sentence(model);
  const pictures = picturesOf(state, life);
  const transport = transportBar(setting.seed, {
    toggle: () => (state.running ? pause() : run()),
    step,
    reset,
    setSpeed(speed) {
      state.speed = SPEEDS[speed];
    },
  });
  if (model.get("in_address")) transport.element.append(linkButton(tellLink).element);
  const panel = knobs(setting, { change, begin });
  const handle = scaleHandle(pictures.spreads, moveScale);
  const question = questionPanel();
  const best = bestList(beginWith);
  const guide = h("ol", { class: "pg-guide" });
  const source = h("p", { class: "lk-quiet pg-source" });
  const notice = h("p", { class: "pg-notice", role: "status" });
  tellIgnored(ignored);
  root.append(
    h("div", { class: "lk-head pg-head" }, transport.element),
    h("p", { class: "lk-quiet pg-intro" }, rich(INTRODUCTION)),
    notice,
    words.element,
    question.element,
    h(
      "div",
      { class: "pg-columns" },
      h("div", { class: "pg-knobs" }, panel.element),
      h(
        "div",
        { class: "pg-layers" },
        pictures.spreads.element,
        handle.element,
        guide,
        source,
        best.element,
      ),
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
    handle.show(state.session.training);
    pictures.spreads.redraw();
    pictures.course.redraw();
  }

  function show() {
    tellNews();
    redraw();
  }

  function tellNews() {
    const { session } = state;
    const { question: asked } = SCENES[state.setting.scene];
    const { training, last, lastTwin, skips, broken } = session;
    const text = happening({ training, last, twin: lastTwin, skips, broken }, asked);
    words.say(text, text.replace(/[\d.,e-]+/g, ""));
    transport.show(session.twinLosses.length, state.running);
    answer();
  }

  /** Answer the scene's question where this run has shown it; enter it for the exercise. */
  function answer() {
    const { session } = state;
    const { seen } = SCENES[state.setting.scene];
    const steps = session.twinLosses.length;
    if (steps > 0) question.settle();
    if (question.open && steps > 0 && (state.turned || steps >= seen)) {
      const asked = !state.turned && sameSetting(state.setting, asAsked());
      question.tell(asked ? outcomeOf(session) : null);
    }
    const exercise = state.setting.scene === EXERCISE_SCENE && !state.turned && !state.entered;
    if (!exercise || steps < EXERCISE_STEPS) return;
    state.entered = true;
    const losses = session.losses.slice(0, EXERCISE_STEPS);
    if (reachesGoal(losses)) best.add(state.setting, latestLoss(losses));
  }

  /** The setting that the scene's question is about. */
  function asAsked() {
    return settingOf(state.setting.scene, state.setting.seed);
  }

  /** Let model and address follow the setting and the step. */
  function tell() {
    telling = true;
    put(model, { ...state.setting });
    telling = false;
    if (model.get("in_address")) writeSoon();
  }

  // Browsers refuse an address that changes too often, as under a handle that is dragged.
  let writtenAt = -Infinity;
  let later = 0;
  function writeSoon() {
    clearTimeout(later);
    const wait = ADDRESS_MS - (performance.now() - writtenAt);
    if (wait > 0) later = window.setTimeout(write, wait);
    else write();
  }
  function write() {
    clearTimeout(later);
    writtenAt = performance.now();
    const steps = state.session.twinLosses.length;
    history.replaceState(null, "", `#${addressOf(state.setting, steps)}`);
  }
  life.add(() => clearTimeout(later));

  /** Bring the address up to date for a link; say what it does not hold. */
  function tellLink() {
    write();
    if (!state.turned) return;
    notice.hidden = false;
    notice.textContent =
      "The link holds these settings and the step, not what earlier steps were taken with.";
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
    state.turned = state.session.twinLosses.length > 0;
    panel.show(state.setting);
    tell();
    show();
  }

  /**
   * Let the loss scale go on from here; without one, switch a static one on.
   *
   * @param {number} log2_scale
   */
  function moveScale(log2_scale) {
    const { scaling } = state.session.training.recipe;
    const kept = scaling === "none" ? "static" : scaling;
    const { changes } = state.setting;
    change({ changes: { ...changes, scaling: kept, log2_scale } });
    restartScale(state.session.training);
    redrawCourse();
  }

  /**
   * Begin another scene.
   *
   * @param {string} scene
   */
  function begin(scene) {
    beginWith(settingOf(scene, state.setting.seed));
  }

  /**
   * Begin another training.
   *
   * @param {Setting} asked
   */
  function beginWith(asked) {
    state.setting = asked;
    transport.setSeed(asked.seed);
    panel.show(asked);
    reset();
  }

  function showGuide() {
    const scene = SCENES[state.setting.scene];
    guide.replaceChildren(...scene.guide.map((text) => h("li", {}, rich(text))));
    source.textContent = scene.source ?? "";
    source.hidden = !scene.source;
    best.element.hidden = state.setting.scene !== EXERCISE_SCENE;
    question.ask(scene);
  }

  function reset() {
    pause();
    state.setting = { ...state.setting, seed: transport.seed() };
    state.session = beginning(state.setting);
    state.goal = 0;
    state.turned = false;
    state.entered = false;
    tellIgnored([]);
    tell();
    showGuide();
    show();
  }

  function step() {
    pause();
    stepBoth(state.session);
    tell();
    showAll();
  }

  /** Show everything as it is now, the portraits too. */
  function showAll() {
    state.session.portrait.next = 0;
    let whole = false;
    while (!whole) whole = portraySome(state.session);
    show();
  }

  /**
   * Train to a step.
   *
   * @param {number} goal 0: nowhere
   */
  function trainTo(goal) {
    state.goal = goal;
    if (goal > 0) run();
  }

  // A frame of the page trains for one slice, and for more of them until the next frame is due:
  // between two slices the page answers what is pressed. A tab in the background has no frames.
  const between = new MessageChannel();
  let frame = 0;
  let frames = 0;
  let due = 0;
  const goal = () => state.goal || MOST_STEPS;
  const speed = () => (state.goal > 0 ? SPEEDS.fast : state.speed);
  function slice() {
    if (!state.running) return;
    trainSlice(state.session, Math.max(1, speed()), goal());
    if (speed() > 1 && performance.now() < due) between.port2.postMessage(null);
  }
  between.port1.onmessage = slice;
  function tick() {
    frames += 1;
    due = performance.now() + FRAME_MS;
    if (state.session.twinLosses.length >= goal()) {
      pause();
      return;
    }
    frame = requestAnimationFrame(tick);
    if (speed() >= 1 || frames % SLOW_FRAMES === 0) slice();
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
    if (!state.running) return;
    state.running = false;
    state.goal = 0;
    tell();
    showAll();
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
    if (sameSetting(asked, state.setting)) return;
    const elsewhere = asked.scene !== state.setting.scene || asked.seed !== state.setting.seed;
    if (!elsewhere) {
      change(asked);
      return;
    }
    beginWith(asked);
  }
  watch(life, model, ["scene", "preset", "changes", "method", "seed"], () => {
    if (!telling) take(settingIn(model));
  });
  life.listen(window, "hashchange", () => {
    const address = writtenSetting();
    if (!model.get("in_address") || !address) return;
    const found = readAddress(address);
    if (found.step > 0) beginWith(found.setting);
    else take(found.setting);
    tellIgnored(found.ignored);
    trainTo(found.step);
  });
  const sizes = new ResizeObserver(handle.place);
  sizes.observe(pictures.spreads.element);
  life.add(() => sizes.disconnect());
  showGuide();
  show();
  trainTo(firstGoal);
}

/**
 * @param {State} state
 * @param {Life} life
 */
function picturesOf(state, life) {
  const spreads = figure({
    life,
    label: "The gradients of each layer by their size; the sentence above says what is lost",
    height: 332,
    draw(pen, width, height) {
      drawSpreads({ pen, tint: state.tint }, width, height, state.session);
    },
  });
  const course = figure({
    life,
    label: "The loss of each step here and in FP32; the sentence above compares them",
    height: 280,
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

export default view({ label: "Playground", kind: "playground", alone: true }, fillPlayground);

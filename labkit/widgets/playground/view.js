// The playground: a network is trained in the page, in the number formats that the learner chooses,
// beside its twin in FP32.

import { figure } from "../base/canvas.js";
import { sentence } from "../base/controls.js";
import { h, rich } from "../base/elements.js";
import { put, watch } from "../base/model.js";
import { view } from "../base/root.js";
import { colours } from "../base/theme.js";
import { addressOf, readAddress, settingOf } from "./address.js";
import { addressBar, addressedSetting } from "./address_bar.js";
import { bestList, EXERCISE_SCENE, EXERCISE_STEPS, reachesGoal } from "./best.js";
import { drawCourse, drawPortraits, drawSpreads } from "./drawn.js";
import { scaleHandle } from "./handle.js";
import { knobs } from "./knobs.js";
import { SPEEDS, trainingLoop } from "./loop.js";
import { latestLoss, outcomeOf } from "./outcome.js";
import { portraitInputs } from "./portraits.js";
import { problemNamed } from "./problems.js";
import { questionPanel } from "./question.js";
import { RECIPE_PRESETS } from "./recipe.js";
import { SCENES } from "./scenes.js";
import { newSession, portraySome, stepBoth } from "./session.js";
import { newTraining, restartScale, takeMethod, takeRecipe } from "./trainer.js";
import { linkButton, transportBar } from "./transport.js";
import { happening } from "./words.js";

/** @import { Life } from "../base/lifetime.js" */
/** @import { Model } from "../base/model.js" */
/** @import { Palette } from "../base/theme.js" */
/** @import { AddressContent, Setting } from "./address.js" */
/** @import { LoopState } from "./loop.js" */
/** @import { Recipe } from "./recipe.js" */
/** @import { Scene } from "./scenes.js" */

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
 * The state of the view beside that of its loop.
 *
 * @typedef {object} ViewState
 * @property {Setting} setting
 * @property {Palette} tint
 * @property {boolean} turned Whether a knob was turned since the first step.
 * @property {boolean} entered Whether the exercise was judged for this run.
 */

/** @typedef {LoopState & ViewState} State */

const INTRODUCTION =
  "One network trains twice: here, in number formats that you choose, and as its twin in FP32, 32 \
bits a number. FP16 has 16 bits, and makes numbers below 2^-25 zero.";
const LINK_NOTICE =
  "The link holds these settings and the step, not what earlier steps were taken with.";

/**
 * Return the recipe of a setting.
 *
 * @param {Setting} setting
 * @returns {Recipe}
 */
function recipeOf({ preset, changes }) {
  return /** @type {Recipe} */ ({ ...RECIPE_PRESETS[preset], ...changes });
}

/**
 * Return both trainings of a setting, before their first step.
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
 * Return the setting in the traits.
 *
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
 * Return whether two settings are equal.
 *
 * @param {Setting} one
 * @param {Setting} other
 */
function sameSetting(one, other) {
  return addressOf(one) === addressOf(other);
}

/**
 * Return the setting that the view begins with: that of the page's address, or of the traits.
 *
 * @param {Model<Traits>} model
 * @returns {AddressContent}
 */
function firstSetting(model) {
  const address = addressedSetting();
  if (model.get("in_address") && address) return readAddress(address);
  return { setting: settingIn(model), step: 0, ignored: [] };
}

/**
 * Fill the root of the playground.
 *
 * @param {HTMLElement} root
 * @param {Model<Traits>} model
 * @param {Life} life
 */
function fillPlayground(root, model, life) {
  const { setting, step: firstGoal, ignored } = firstSetting(model);
  /** @type {State} */
  const state = {
    setting,
    session: beginning(setting),
    tint: colours(root, life, () => redraw()),
    running: false,
    speed: SPEEDS.fast,
    goal: 0,
    turned: false,
    entered: false,
  };
  // Whether the traits are being set one after another: until the last one, they are a mixture of
  // two settings, which must not come back as a change from outside.
  let publishing = false;
  const words = sentence(model);
  const pictures = picturesOf(state, life);
  const transport = transportBar(setting.seed, {
    toggle: () => (state.running ? loop.pause() : loop.run()),
    step,
    reset,
    setSpeed(speed) {
      state.speed = SPEEDS[speed];
    },
  });
  if (model.get("in_address")) transport.element.append(linkButton(writeLink).element);
  const panel = knobs(setting, { change, begin: beginScene });
  const handle = scaleHandle(pictures.spreads, moveScale);
  const question = questionPanel();
  const best = bestList(beginWith);
  const guide = sceneGuide();
  const notice = noticeLine();
  const bar = addressBar(life, () => addressOf(state.setting, state.session.twinLosses.length));
  const loop = trainingLoop(life, state, { onFrame, onPause });
  notice.show(ignoredText(ignored));
  root.append(
    h("div", { class: "lk-head pg-head" }, transport.element),
    h("p", { class: "lk-quiet pg-intro" }, rich(INTRODUCTION)),
    notice.element,
    words.element,
    question.element,
    columnsOf(
      [panel.element],
      [pictures.spreads.element, handle.element, ...guide.elements, best.element],
      [pictures.course.element, pictures.portraits.element],
    ),
  );

  function redraw() {
    pictures.portraits.redraw();
    redrawCourse();
  }

  function redrawCourse() {
    handle.show(state.session.training);
    pictures.spreads.redraw();
    pictures.course.redraw();
  }

  function show() {
    followRun();
    redraw();
  }

  /** Let everything beside the pictures follow the run. */
  function followRun() {
    sayWhatHappens();
    transport.show(state.session.twinLosses.length, state.running);
    answerQuestion(state, question);
    judgeExercise(state, best);
  }

  /** Show the sentence about the run. */
  function sayWhatHappens() {
    const { session } = state;
    const scene = SCENES[state.setting.scene];
    const { training, last, lastTwin, skips, broken } = session;
    const text = happening({ training, last, twin: lastTwin, skips, broken }, scene.question);
    // A screen reader reads the sentence again only if more than its numbers has changed.
    words.say(text, text.replace(/\d[\d.,]*(e-?\d+)?/g, ""));
  }

  /** Update traits and address to the setting and the step. */
  function publish() {
    publishing = true;
    try {
      put(model, { ...state.setting });
    } finally {
      publishing = false;
    }
    if (model.get("in_address")) bar.writeSoon();
  }

  /** Update the address for a link; say what it does not hold. */
  function writeLink() {
    bar.write();
    if (state.turned) notice.show(LINK_NOTICE);
  }

  /**
   * Change parts of the setting. The training continues with them.
   *
   * @param {Partial<Setting>} parts
   */
  function change(parts) {
    state.setting = { ...state.setting, ...parts };
    const { training, twin } = state.session;
    takeRecipe(training, recipeOf(state.setting));
    const method = { ...training.problem.method, ...state.setting.method };
    takeMethod(training, method);
    takeMethod(twin, method);
    state.turned = state.session.twinLosses.length > 0;
    panel.show(state.setting);
    publish();
    show();
  }

  /**
   * Set the loss scale; without loss scaling, switch a static one on.
   *
   * @param {number} log2_scale
   */
  function moveScale(log2_scale) {
    const before = state.session.training.recipe.scaling;
    const scaling = before === "none" ? "static" : before;
    const { changes } = state.setting;
    change({ changes: { ...changes, scaling, log2_scale } });
    // A dynamic scale may have left the one to which it is set again.
    restartScale(state.session.training);
    redrawCourse();
  }

  /**
   * Begin another scene.
   *
   * @param {string} scene
   */
  function beginScene(scene) {
    beginWith(settingOf(scene, state.setting.seed));
  }

  /**
   * Begin a training with another setting.
   *
   * @param {Setting} next
   */
  function beginWith(next) {
    // A pause judges and publishes the run under its own setting, so it comes first.
    loop.pause();
    state.setting = next;
    transport.setSeed(next.seed);
    panel.show(next);
    reset();
  }

  function showScene() {
    const scene = SCENES[state.setting.scene];
    guide.show(scene);
    best.element.hidden = state.setting.scene !== EXERCISE_SCENE;
    question.ask(scene);
  }

  function reset() {
    loop.pause();
    state.setting = { ...state.setting, seed: transport.seed() };
    state.session = beginning(state.setting);
    state.goal = 0;
    state.turned = false;
    state.entered = false;
    notice.show("");
    publish();
    showScene();
    show();
  }

  function step() {
    loop.pause();
    stepBoth(state.session);
    publish();
    showAll();
  }

  /** Show the present state in all pictures, with whole portraits. */
  function showAll() {
    state.session.portrait.next = 0;
    let whole = false;
    while (!whole) whole = portraySome(state.session);
    show();
  }

  /**
   * Train to a step.
   *
   * @param {number} goal 0 for no training
   */
  function trainTo(goal) {
    state.goal = goal;
    if (goal > 0) loop.run();
  }

  function onFrame() {
    if (portraySome(state.session)) pictures.portraits.redraw();
    followRun();
    redrawCourse();
  }

  function onPause() {
    publish();
    showAll();
  }

  /**
   * Use a setting from outside. Another scene or seed begins a training; with other changes, the
   * training continues.
   *
   * @param {Setting} next
   */
  function takeSetting(next) {
    if (sameSetting(next, state.setting)) return;
    const begins = next.scene !== state.setting.scene || next.seed !== state.setting.seed;
    if (begins) {
      beginWith(next);
    } else {
      change(next);
    }
  }

  watch(life, model, ["scene", "preset", "changes", "method", "seed"], () => {
    if (!publishing) takeSetting(settingIn(model));
  });
  life.listen(window, "hashchange", () => {
    const address = addressedSetting();
    if (!model.get("in_address") || !address) return;
    const next = readAddress(address);
    if (next.step > 0) {
      beginWith(next.setting);
    } else {
      takeSetting(next.setting);
    }
    notice.show(ignoredText(next.ignored));
    trainTo(next.step);
  });
  const sizes = new ResizeObserver(handle.place);
  sizes.observe(pictures.spreads.element);
  life.add(() => sizes.disconnect());
  showScene();
  show();
  trainTo(firstGoal);
}

/**
 * Show the answer to the scene's question once a run has shown it.
 *
 * @param {State} state
 * @param {ReturnType<typeof questionPanel>} question
 */
function answerQuestion({ session, setting, turned }, question) {
  const { scene, seed } = setting;
  const steps = session.twinLosses.length;
  if (steps === 0) return;
  question.settle();
  if (!question.open) return;
  if (!turned && steps < SCENES[scene].seen) return;
  // The question is about the first settings of the scene.
  const isAboutThisRun = !turned && sameSetting(setting, settingOf(scene, seed));
  question.tell(isAboutThisRun ? outcomeOf(session) : null);
}

/**
 * Add a run to the best ones of the exercise if it has reached the goal.
 *
 * @param {State} state
 * @param {ReturnType<typeof bestList>} best
 */
function judgeExercise(state, best) {
  const { session, setting, turned, entered } = state;
  if (setting.scene !== EXERCISE_SCENE || turned || entered) return;
  if (session.twinLosses.length < EXERCISE_STEPS) return;
  state.entered = true;
  const losses = session.losses.slice(0, EXERCISE_STEPS);
  if (reachesGoal(losses)) best.add(setting, latestLoss(losses));
}

/** Return a line for notices about the page's address, which is hidden without one. */
function noticeLine() {
  const element = h("p", { class: "pg-notice", role: "status" });
  return {
    element,
    /** @param {string} text "" for none */
    show(text) {
      element.hidden = text === "";
      element.textContent = text;
    },
  };
}

/**
 * Return the notice about parts of the page's address that were ignored; "" for none.
 *
 * @param {readonly string[]} parts
 */
function ignoredText(parts) {
  return parts.length ? `Ignored in this page's address: ${parts.join("; ")}.` : "";
}

/** Return the guide of a scene, and the source of its data. */
function sceneGuide() {
  const list = h("ol", { class: "pg-guide" });
  const source = h("p", { class: "lk-quiet pg-source" });
  return {
    elements: [list, source],
    /** @param {Scene} scene */
    show(scene) {
      list.replaceChildren(...scene.guide.map((text) => h("li", {}, rich(text))));
      source.textContent = scene.source ?? "";
      source.hidden = !scene.source;
    },
  };
}

/**
 * Return the columns below the question.
 *
 * @param {HTMLElement[]} knobParts
 * @param {HTMLElement[]} layerParts
 * @param {HTMLElement[]} courseParts
 */
function columnsOf(knobParts, layerParts, courseParts) {
  return h(
    "div",
    { class: "pg-columns" },
    h("div", { class: "pg-knobs" }, ...knobParts),
    h("div", { class: "pg-layers" }, ...layerParts),
    h("div", { class: "pg-course" }, ...courseParts),
  );
}

/**
 * Return the figures: the layers, the losses with the scale, and the portraits.
 *
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

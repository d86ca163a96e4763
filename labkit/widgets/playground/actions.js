// What the learner, the loop and the page's address do to the playground, and what the screen shows
// then.

import { put } from "../base/model.js";
import { addressOf, settingOf } from "./address.js";
import { EXERCISE_SCENE, EXERCISE_STEPS, reachesGoal } from "./best.js";
import { latestLoss, outcomeOf } from "./outcome.js";
import { portraitInputs } from "./portraits.js";
import { problemNamed } from "./problems.js";
import { RECIPE_PRESETS } from "./recipe.js";
import { SCENES } from "./scenes.js";
import { newSession, portraySome, stepBoth } from "./session.js";
import { newTraining, restartScale, takeMethod, takeRecipe } from "./trainer.js";
import { happening } from "./words.js";

/** @import { Model } from "../base/model.js" */
/** @import { Palette } from "../base/theme.js" */
/** @import { Setting } from "./address.js" */
/** @import { LoopState } from "./loop.js" */
/** @import { Recipe } from "./recipe.js" */
/** @import { Traits } from "./view.js" */

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

/**
 * The playground: its state, and the parts of the view that the state is shown in.
 *
 * @typedef {object} Playground
 * @property {Model<Traits>} model
 * @property {State} state
 * @property {boolean} publishing Whether the traits are being set one after another: until the last
 *   one, they are a mixture of two settings, which must not come back as a change from outside.
 * @property {ReturnType<typeof import("../base/controls.js").sentence>} words
 * @property {ReturnType<typeof import("./pictures.js").picturesOf>} pictures
 * @property {ReturnType<typeof import("./transport.js").transportBar>} transport
 * @property {ReturnType<typeof import("./knobs.js").knobs>} panel
 * @property {ReturnType<typeof import("./handle.js").scaleHandle>} handle
 * @property {ReturnType<typeof import("./question.js").questionPanel>} question
 * @property {ReturnType<typeof import("./best.js").bestList>} best
 * @property {ReturnType<typeof import("./notes.js").sceneGuide>} guide
 * @property {ReturnType<typeof import("./notes.js").noticeLine>} notice
 * @property {ReturnType<typeof import("./address_bar.js").addressBar>} bar
 * @property {ReturnType<typeof import("./loop.js").trainingLoop>} loop
 */

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
export function beginning(setting) {
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
export function settingIn(model) {
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
 * Show the answer to the scene's question once a run has shown it.
 *
 * @param {State} state
 * @param {Playground["question"]} question
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
 * @param {Playground["best"]} best
 */
function judgeExercise(state, best) {
  const { session, setting, turned, entered } = state;
  if (setting.scene !== EXERCISE_SCENE || turned || entered) return;
  if (session.twinLosses.length < EXERCISE_STEPS) return;
  state.entered = true;
  const losses = session.losses.slice(0, EXERCISE_STEPS);
  if (reachesGoal(losses)) best.add(setting, latestLoss(losses));
}

// --- what the screen shows ---

/** @param {Playground} playground */
export function redrawAll(playground) {
  playground.pictures.portraits.redraw();
  redrawCourse(playground);
}

/**
 * Draw what changes with every step: the layers, the losses, and the place of the scale's handle.
 *
 * @param {Playground} playground
 */
function redrawCourse({ state, pictures, handle }) {
  handle.show(state.session.training);
  pictures.spreads.redraw();
  pictures.course.redraw();
}

/**
 * Show the present state, with portraits as far as they are drawn.
 *
 * @param {Playground} playground
 */
export function showState(playground) {
  followRun(playground);
  redrawAll(playground);
}

/**
 * Show the present state, with whole portraits.
 *
 * @param {Playground} playground
 */
function showWhole(playground) {
  const { session } = playground.state;
  session.portrait.next = 0;
  let whole = false;
  while (!whole) whole = portraySome(session);
  showState(playground);
}

/**
 * Let everything beside the pictures follow the run.
 *
 * @param {Playground} playground
 */
function followRun(playground) {
  const { state, transport, question, best } = playground;
  sayWhatHappens(playground);
  transport.show(state.session.twinLosses.length, state.running);
  answerQuestion(state, question);
  judgeExercise(state, best);
}

/**
 * Show the sentence about the run.
 *
 * @param {Playground} playground
 */
function sayWhatHappens({ state, words }) {
  const scene = SCENES[state.setting.scene];
  const { training, last, lastTwin, skips, broken } = state.session;
  const text = happening({ training, last, twin: lastTwin, skips, broken }, scene.question);
  // A screen reader reads the sentence again only if more than its numbers has changed.
  words.say(text, text.replace(/\d[\d.,]*(e-?\d+)?/g, ""));
}

/**
 * Show what belongs to the scene: its guide, its question, and the list of the exercise.
 *
 * @param {Playground} playground
 */
export function showScene({ state, guide, question, best }) {
  const scene = SCENES[state.setting.scene];
  guide.show(scene);
  best.element.hidden = state.setting.scene !== EXERCISE_SCENE;
  question.ask(scene);
}

/**
 * Update traits and address to the setting and the step.
 *
 * @param {Playground} playground
 */
function publish(playground) {
  const { model, state, bar } = playground;
  playground.publishing = true;
  try {
    put(model, { ...state.setting });
  } finally {
    playground.publishing = false;
  }
  if (model.get("in_address")) bar.writeSoon();
}

// --- the loop ---

/** @param {Playground} playground */
export function showFrame(playground) {
  if (portraySome(playground.state.session)) playground.pictures.portraits.redraw();
  followRun(playground);
  redrawCourse(playground);
}

/** @param {Playground} playground */
export function showPause(playground) {
  publish(playground);
  showWhole(playground);
}

// --- what the learner does ---

/** @param {Playground} playground */
export function toggleTraining({ state, loop }) {
  if (state.running) {
    loop.pause();
  } else {
    loop.run();
  }
}

/** @param {Playground} playground */
export function takeStep(playground) {
  playground.loop.pause();
  stepBoth(playground.state.session);
  publish(playground);
  showWhole(playground);
}

/**
 * Begin the training again, with the seed in the bar.
 *
 * @param {Playground} playground
 */
export function resetTraining(playground) {
  const { state, transport, notice, loop } = playground;
  loop.pause();
  state.setting = { ...state.setting, seed: transport.seed() };
  state.session = beginning(state.setting);
  state.goal = 0;
  state.turned = false;
  state.entered = false;
  notice.show("");
  publish(playground);
  showScene(playground);
  showState(playground);
}

/**
 * Begin a training with another setting.
 *
 * @param {Playground} playground
 * @param {Setting} next
 */
export function beginWith(playground, next) {
  const { state, transport, panel, loop } = playground;
  // A pause judges and publishes the run under its own setting, so it comes first.
  loop.pause();
  state.setting = next;
  transport.setSeed(next.seed);
  panel.show(next);
  resetTraining(playground);
}

/**
 * Begin another scene, with the same seed.
 *
 * @param {Playground} playground
 * @param {string} scene
 */
export function beginScene(playground, scene) {
  beginWith(playground, settingOf(scene, playground.state.setting.seed));
}

/**
 * Change parts of the setting. The training continues with them.
 *
 * @param {Playground} playground
 * @param {Partial<Setting>} parts
 */
export function changeSetting(playground, parts) {
  const { state, panel } = playground;
  const { training, twin } = state.session;
  state.setting = { ...state.setting, ...parts };
  takeRecipe(training, recipeOf(state.setting));
  const method = { ...training.problem.method, ...state.setting.method };
  takeMethod(training, method);
  takeMethod(twin, method);
  state.turned = state.session.twinLosses.length > 0;
  panel.show(state.setting);
  publish(playground);
  showState(playground);
}

/**
 * Set the loss scale; without loss scaling, switch a static one on.
 *
 * @param {Playground} playground
 * @param {number} log2_scale
 */
export function moveScale(playground, log2_scale) {
  const { state } = playground;
  const before = state.session.training.recipe.scaling;
  const scaling = before === "none" ? "static" : before;
  changeSetting(playground, { changes: { ...state.setting.changes, scaling, log2_scale } });
  // A dynamic scale may have left the one to which it is set again.
  restartScale(state.session.training);
  redrawCourse(playground);
}

/**
 * Use a setting from outside. Another scene or seed begins a training; with other changes, the
 * training continues.
 *
 * @param {Playground} playground
 * @param {Setting} next
 */
export function takeSetting(playground, next) {
  const { setting } = playground.state;
  if (sameSetting(next, setting)) return;
  if (next.scene !== setting.scene || next.seed !== setting.seed) {
    beginWith(playground, next);
  } else {
    changeSetting(playground, next);
  }
}

/**
 * Train to a step.
 *
 * @param {Playground} playground
 * @param {number} goal 0 for no training
 */
export function trainTo({ state, loop }, goal) {
  state.goal = goal;
  if (goal > 0) loop.run();
}

/**
 * Write the address for a link; say what it does not hold.
 *
 * @param {Playground} playground
 */
export function writeLink({ state, bar, notice }) {
  bar.write();
  if (state.turned) notice.show(LINK_NOTICE);
}

// The playground: a network is trained in the page, in the number formats that the learner chooses,
// beside its twin in FP32.

import { sentence } from "../base/controls.js";
import { h, rich } from "../base/elements.js";
import { watch } from "../base/model.js";
import { view } from "../base/root.js";
import { colours } from "../base/theme.js";
import {
  beginning,
  beginScene,
  beginWith,
  changeSetting,
  moveScale,
  redrawAll,
  resetTraining,
  settingIn,
  showFrame,
  showPause,
  showScene,
  showState,
  takeSetting,
  takeStep,
  toggleTraining,
  trainTo,
  writeLink,
} from "./actions.js";
import { addressOf, readAddress } from "./address.js";
import { addressBar, addressedSetting } from "./address_bar.js";
import { bestList } from "./best.js";
import { scaleHandle } from "./handle.js";
import { knobs } from "./knobs.js";
import { SPEEDS, trainingLoop } from "./loop.js";
import { ignoredText, noticeLine, sceneGuide } from "./notes.js";
import { picturesOf } from "./pictures.js";
import { questionPanel } from "./question.js";
import { linkButton, transportBar } from "./transport.js";

/** @import { Life } from "../base/lifetime.js" */
/** @import { Model } from "../base/model.js" */
/** @import { Playground, State } from "./actions.js" */
/** @import { AddressContent, Setting } from "./address.js" */

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

const INTRODUCTION =
  "One network trains twice: here, in number formats that you choose, and as its twin in FP32, 32 \
bits a number. FP16 has 16 bits, and makes numbers below 2^-25 zero.";

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
 * Return the playground of a state, whose parts call the actions.
 *
 * @param {Model<Traits>} model
 * @param {Life} life
 * @param {State} state
 * @returns {Playground}
 */
function playgroundOf(model, life, state) {
  const { setting } = state;
  const pictures = picturesOf(state, life);
  /** @type {Playground} */
  const playground = {
    model,
    state,
    publishing: false,
    pictures,
    words: sentence(model),
    transport: transportBar(setting.seed, {
      toggle: () => toggleTraining(playground),
      step: () => takeStep(playground),
      reset: () => resetTraining(playground),
      setSpeed(speed) {
        state.speed = SPEEDS[speed];
      },
    }),
    panel: knobs(setting, {
      change: (parts) => changeSetting(playground, parts),
      begin: (scene) => beginScene(playground, scene),
    }),
    handle: scaleHandle(pictures.spreads, (log2Scale) => moveScale(playground, log2Scale)),
    question: questionPanel(),
    best: bestList((next) => beginWith(playground, next)),
    guide: sceneGuide(),
    notice: noticeLine(),
    bar: addressBar(life, () => addressOf(state.setting, state.session.twinLosses.length)),
    loop: trainingLoop(life, state, {
      onFrame: () => showFrame(playground),
      onPause: () => showPause(playground),
    }),
  };
  return playground;
}

/**
 * Return the parts of the playground in their order on the page.
 *
 * @param {Playground} playground
 */
function pageParts({ transport, notice, words, question, panel, pictures, handle, guide, best }) {
  return [
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
  ];
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
 * Take the setting that the page's address holds, if the playground follows the address.
 *
 * @param {Playground} playground
 */
function followAddress(playground) {
  const address = addressedSetting();
  if (!playground.model.get("in_address") || !address) return;
  const { setting, step, ignored } = readAddress(address);
  if (step > 0) {
    beginWith(playground, setting);
  } else {
    takeSetting(playground, setting);
  }
  playground.notice.show(ignoredText(ignored));
  trainTo(playground, step);
}

/**
 * Fill the root of the playground.
 *
 * @param {HTMLElement} root
 * @param {Model<Traits>} model
 * @param {Life} life
 */
function fillPlayground(root, model, life) {
  const { setting, step, ignored } = firstSetting(model);
  const playground = playgroundOf(model, life, {
    setting,
    session: beginning(setting),
    tint: colours(root, life, () => redrawAll(playground)),
    running: false,
    speed: SPEEDS.fast,
    goal: 0,
    turned: false,
    entered: false,
  });
  const { transport, notice, pictures, handle } = playground;
  if (model.get("in_address")) {
    transport.element.append(linkButton(() => writeLink(playground)).element);
  }
  notice.show(ignoredText(ignored));
  root.append(...pageParts(playground));
  watch(life, model, ["scene", "preset", "changes", "method", "seed"], () => {
    if (!playground.publishing) takeSetting(playground, settingIn(model));
  });
  life.listen(window, "hashchange", () => followAddress(playground));
  const sizes = new ResizeObserver(handle.place);
  sizes.observe(pictures.spreads.element);
  life.add(() => sizes.disconnect());
  showScene(playground);
  showState(playground);
  trainTo(playground, step);
}

export default view({ label: "Playground", kind: "playground", alone: true }, fillPlayground);

// A router with rounded scores: the choice of one token, and all tokens whose choice changes.

import { figure } from "../base/canvas.js";
import { button, nearest, segmented, sentence, slider, traitChoice } from "../base/controls.js";
import { h } from "../base/elements.js";
import { put, watch } from "../base/model.js";
import { view } from "../base/root.js";
import { colours } from "../base/theme.js";
import { changedTokens, nextChanged, routerSentence, tokenChoice } from "./choosing.js";
import { CHOICE_HEIGHT, COLUMNS, cellOf, drawChoice, drawTokens } from "./picture.js";

/** @import { Life } from "../base/lifetime.js" */
/** @import { Model } from "../base/model.js" */
/** @import { RouterSettings } from "./choosing.js" */

/**
 * @typedef {object} Traits
 * @property {number} experts
 * @property {number} chosen
 * @property {number} spread
 * @property {string} format
 * @property {string} rounded "scores" or "logits".
 * @property {number} token
 * @property {string} sentence
 * @property {RouterChoices} _choices
 */

/**
 * The choices of the controls.
 *
 * @typedef {object} RouterChoices
 * @property {number} tokens
 * @property {number[]} experts
 * @property {number[]} chosen
 * @property {number[]} spreads
 * @property {string[]} formats
 * @property {number[]} quantiles The quantiles of the normal distribution.
 */

/** @type {(keyof Traits)[]} */
const SETTINGS = ["experts", "chosen", "spread", "format", "rounded"];
const ROUNDED = [
  { value: "scores", label: "scores", title: "the sigmoid of each logit is rounded" },
  { value: "logits", label: "logits", title: "the logit is rounded, and no sigmoid follows" },
];

/**
 * @param {Model<Traits>} model
 * @returns {RouterSettings}
 */
function settingsOf(model) {
  return {
    experts: model.get("experts"),
    chosen: model.get("chosen"),
    spread: model.get("spread"),
    format: model.get("format"),
    rounded: model.get("rounded"),
  };
}

/**
 * Return a choice among whole numbers for a trait.
 *
 * @param {Model<Traits>} model
 * @param {"experts" | "chosen"} name
 * @param {string} label
 * @param {readonly number[]} numbers
 */
function numberChoice(model, name, label, numbers) {
  return segmented({
    label,
    options: numbers.map(String),
    value: String(model.get(name)),
    onChange: (text) => put(model, { [name]: Number(text) }),
  });
}

/** @param {Model<Traits>} model */
function routerControls(model) {
  const { experts, chosen, spreads, formats, tokens } = model.get("_choices");
  return {
    experts: numberChoice(model, "experts", "Experts", experts),
    chosen: numberChoice(model, "chosen", "Chosen for a token", chosen),
    format: traitChoice(model, "format", "Rounded to", formats),
    rounded: traitChoice(model, "rounded", "What is rounded", ROUNDED),
    spread: slider({
      label: "Standard deviation of the logits",
      min: 0,
      max: spreads.length - 1,
      page: 3,
      value: nearest(spreads, model.get("spread")),
      text: (place) => String(spreads[place]),
      onInput: (place) => put(model, { spread: spreads[place] }),
    }),
    token: slider({
      label: "Token",
      min: 0,
      max: tokens - 1,
      page: COLUMNS,
      value: model.get("token"),
      onInput: (token) => put(model, { token }),
    }),
  };
}

/**
 * @param {HTMLElement} root
 * @param {Model<Traits>} model
 * @param {Life} life
 */
function fillRouter(root, model, life) {
  const { tokens, spreads, quantiles } = model.get("_choices");
  const tint = colours(root, life, redraw);
  const controls = routerControls(model);
  const words = sentence(model);
  const next = button({
    label: "Next token that changes",
    onPress: () => put(model, { token: nextChanged(changed, model.get("token")) }),
  });
  let changed = changedTokens(tokens, settingsOf(model), quantiles);
  let choice = tokenChoice(model.get("token"), settingsOf(model), quantiles);

  const picture = figure({
    life,
    label: "Scores of the best experts of one token, exact and rounded; the sentence says it",
    height: CHOICE_HEIGHT,
    draw: (pen, width) => drawChoice({ pen, tint }, width, choice, settingsOf(model)),
  });
  const map = figure({
    life,
    label: "A cell for each token, in another colour where rounding changes its experts",
    height: (width) => cellOf(width) * Math.ceil(tokens / COLUMNS),
    draw: (pen, width) => drawTokens({ pen, tint }, width, changed, model.get("token")),
  });

  function redraw() {
    picture.redraw();
    map.redraw();
  }

  function showToken() {
    choice = tokenChoice(model.get("token"), settingsOf(model), quantiles);
    controls.token.set(model.get("token"));
    words.say(routerSentence(choice, model.get("token"), changed, settingsOf(model)));
    redraw();
  }

  function showAll() {
    changed = changedTokens(tokens, settingsOf(model), quantiles);
    controls.experts.set(String(model.get("experts")));
    controls.chosen.set(String(model.get("chosen")));
    controls.format.set(model.get("format"));
    controls.rounded.set(model.get("rounded"));
    controls.spread.set(nearest(spreads, model.get("spread")));
    next.enable(changed.includes(true));
    showToken();
  }

  life.listen(map.canvas, "click", (event) => {
    const { x, y } = map.at(event);
    const cell = cellOf(map.width);
    const token = Math.floor(y / cell) * COLUMNS + Math.floor(x / cell);
    if (token >= 0 && token < tokens) put(model, { token });
  });
  root.append(
    h("div", { class: "lk-title", text: "A router chooses experts by their scores" }),
    h(
      "div",
      { class: "lk-row" },
      controls.format.element,
      controls.rounded.element,
      controls.experts.element,
      controls.chosen.element,
    ),
    h("div", { class: "lk-row" }, controls.spread.element),
    words.element,
    h(
      "div",
      { class: "rt-pictures" },
      h("div", { class: "rt-token" }, picture.element, rowOfToken(controls.token.element, next)),
      h("div", { class: "rt-map" }, map.element, legend(tokens)),
    ),
  );
  watch(life, model, SETTINGS, showAll);
  watch(life, model, ["token"], showToken);
  showAll();
}

/**
 * @param {HTMLElement} token the slider
 * @param {import("../base/controls.js").Button} next
 */
function rowOfToken(token, next) {
  return h("div", { class: "lk-row" }, token, next.element);
}

/** @param {number} tokens */
function legend(tokens) {
  const swatch = h("span", { class: "rt-swatch", "aria-hidden": "true" });
  const text = `one of ${tokens} tokens that gets another set. Click a cell to see the token.`;
  return h("div", { class: "lk-quiet rt-legend" }, swatch, h("span", { text }));
}

export default view(
  { label: "A router of a mixture of experts, with rounded scores", kind: "router", alone: true },
  fillRouter,
);

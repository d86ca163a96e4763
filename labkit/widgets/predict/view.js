// A question, its choices or a line for a number, and a button that commits, as Enter does. Python
// sends the reply after the choice. The reply takes the focus, so that a screen reader reads it and
// the keyboard continues from there. A page without a kernel has `_replies` and answers by itself.

import { button, onEnter, radioList } from "../base/controls.js";
import { h, rich } from "../base/elements.js";
import { put, watch } from "../base/model.js";
import { view } from "../base/root.js";
import { holdOutputs, openTexts } from "./answers.js";
import { keepShut } from "./guess_first.js";
import { numberAsked } from "./number.js";
import { replied } from "./reply.js";

/** @import { Life } from "../base/lifetime.js" */
/** @import { Model } from "../base/model.js" */

/**
 * @typedef {object} Traits
 * @property {string} slug Its id as part of a class; "" for one without an id.
 * @property {boolean} guess_first Whether texts that answer it stay shut until the learner commits.
 * @property {string} question
 * @property {string[]} choices Empty where a number is asked for.
 * @property {Ruler | NoRuler} ruler
 * @property {string} choice "" until the learner commits.
 * @property {string} answered The reply; "" until then.
 * @property {string} answer The right choice; "" until then, and where a number is asked for.
 * @property {boolean} right
 * @property {number} truth What was measured; 0 until then.
 */

/** @typedef {{ low: number, high: number, unit: string }} Ruler The line on which a number lies. */
/** @typedef {{ high?: undefined, unit?: undefined }} NoRuler Of a question with choices. */

/** @typedef {Traits & { _replies?: Replies }} PageTraits A page without a kernel has more. */
/** @typedef {KnownChoices | KnownNumber} Replies */
/** @typedef {{ choices: Record<string, string>, answer: string, near?: undefined }} KnownChoices */

/**
 * @typedef {object} KnownNumber
 * @property {Record<"less" | "near" | "more" | "lost", string>} choices
 * @property {number} near The largest factor at which a guess is right.
 * @property {number} truth 0 where nothing was measured.
 */

/**
 * @typedef {Pick<Traits, "answered" | "right"> & Partial<Pick<Traits, "answer" | "truth">>} Reply
 */

/**
 * The arguments of `choicesAsked` and `numberAsked`.
 *
 * @typedef {object} Asking
 * @property {Model<PageTraits>} model
 * @property {Life} life
 * @property {string} picked The committed choice; "" before.
 * @property {(choice: string) => void} pick Called with a picked choice; with "" for none.
 */

/**
 * The control for the answer. `show` shows whether the learner has committed.
 *
 * @typedef {{ element: HTMLElement, show: (done: boolean) => void }} Asked
 */

const WAITING = "Committed. The reply comes as soon as the kernel is free.";

/**
 * @param {Asking} asking
 * @returns {Asked}
 */
function choicesAsked({ model, picked, pick }) {
  const list = radioList({ options: model.get("choices"), value: picked, onPick: pick });
  return {
    element: list.element,
    show(done) {
      if (done) list.fix(model.get("choice"), model.get("answer"));
    },
  };
}

/**
 * Return the traits that follow from a choice, in a page that has the replies.
 *
 * @param {Model<PageTraits>} model
 * @param {string} choice
 * @returns {Partial<Traits>}
 */
function answerOf(model, choice) {
  const known = model.get("_replies");
  return known ? replied(known, model.get("ruler"), choice) : {};
}

/**
 * @param {HTMLElement} root
 * @param {Model<PageTraits>} model
 * @param {Life} life
 */
function fillPrediction(root, model, life) {
  let picked = model.get("choice");
  const commit = button({
    label: "Commit",
    title: "Your answer stays once you have committed",
    kind: "primary",
    onPress: () => put(model, { choice: picked, ...answerOf(model, picked) }),
  });
  /** @param {string} choice */
  const pick = (choice) => {
    picked = choice;
    commit.enable(Boolean(picked));
  };
  const ruler = model.get("ruler");
  const asking = { model, life, picked, pick };
  const asked = ruler.high ? numberAsked(asking, ruler) : choicesAsked(asking);
  const reply = h("p", { class: "lk-reply", role: "status", tabindex: "-1" });
  const slug = model.get("slug");
  let textsOpen = false;

  function show() {
    const done = model.get("choice") !== "";
    const waiting = done ? WAITING : "";
    reply.replaceChildren(rich(model.get("answered") || waiting));
    if (done && root.contains(document.activeElement)) reply.focus();
    // Once the question is answered, its controls are disabled, and Tab stops at the reply.
    reply.tabIndex = done ? 0 : -1;
    commit.enable(!done && Boolean(picked));
    commit.element.hidden = done;
    asked.show(done);
    if (done && slug && !textsOpen) {
      textsOpen = true;
      openTexts(slug, life);
    }
    root.dataset.right = done ? String(model.get("right")) : "";
  }

  const predict = h("strong", { text: "Predict. " });
  const question = h("p", { class: "lk-question" }, predict, rich(model.get("question")));
  root.append(question, asked.element, commit.element, reply);
  onEnter(asked.element, commit, life);
  if (slug) holdOutputs(root, slug, life);
  if (model.get("guess_first")) keepShut(life);
  watch(life, model, ["choice", "answered", "answer", "right", "truth"], show);
  // The question was answered on an earlier visit to the page.
  if (picked && model.get("_replies")) put(model, answerOf(model, picked));
  show();
}

export default view(
  {
    label: "Prediction",
    kind: "predict",
    alone: (model) => model.get("_replies") !== undefined,
  },
  fillPrediction,
);

// Questions one after another, each of which may be skipped. Before the course, an answer gets no
// reply. After the course, Python replies, and a table compares both answers to each question. A
// page without a kernel has the replies.

import { button, headed, onEnter, radioList } from "../base/controls.js";
import { h, rich } from "../base/elements.js";
import { put, watch } from "../base/model.js";
import { view } from "../base/root.js";

/** @import { Life } from "../base/lifetime.js" */
/** @import { Model } from "../base/model.js" */

/**
 * @typedef {object} Traits
 * @property {"before" | "after"} phase Whether the quiz is before or after the course.
 * @property {Question[]} questions
 * @property {Answers} answers The answers in this phase.
 * @property {Answers} earlier The answers before the course; {} in the phase "before".
 * @property {Record<string, Result>} results The results by the id of the question; they exist
 *   after the course.
 */

/** @typedef {{ id: string, question: string, choices: string[] }} Question */
/** @typedef {Record<string, string>} Answers id -> choice */
/** @typedef {{ answer: string, why: string, lesson: string }} Result */
/** @typedef {Traits & { _on_page?: boolean }} PageTraits A page without a kernel has more. */

/**
 * The state of a view of the quiz.
 *
 * @typedef {object} State
 * @property {Model<PageTraits>} model
 * @property {Life} life
 * @property {HTMLElement} body The element of the question, the reply or the summary.
 * @property {Question | undefined} shown The question that is shown, or whose reply is shown;
 *   undefined at the summary.
 * @property {Set<string>} skipped The ids of questions that were left out.
 */

const WAIT = "Committed. The reply comes as soon as the kernel is free.";
const NONE = "There are no questions here: the lesson that has them is not installed.";
const LATER =
  "At the end of the course the same questions come again. " +
  "Then you see the right answers, and how your own have changed.";

/**
 * Return the questions that are neither answered nor skipped.
 *
 * @param {State} state
 */
function openQuestions({ model, skipped }) {
  const answers = model.get("answers");
  return model.get("questions").filter(({ id }) => !(id in answers) && !skipped.has(id));
}

/**
 * Show the next question, or the summary.
 *
 * @param {State} state
 * @param {boolean} focus whether to move the focus there
 */
function goOn(state, focus) {
  const [next] = openQuestions(state);
  state.shown = next;
  state.body.replaceChildren(...(next ? asked(state, next) : summary(state)));
  if (!focus) return;
  /** @type {HTMLElement | null} */
  const first = state.body.querySelector("input:checked, input, [tabindex='-1']");
  first?.focus();
}

// --- a question ----------------------------------------------------------------------------------

/**
 * Return the elements of a question: its choices, and buttons that commit and skip.
 *
 * @param {State} state
 * @param {Question} one
 */
function asked(state, one) {
  let picked = "";
  const commit = button({
    label: "Commit",
    title: "Your answer stays once you have committed",
    kind: "primary",
    onPress: () => take(state, one, picked),
  });
  const skip = button({
    label: "Skip",
    title: "Leave this question out",
    onPress() {
      state.skipped.add(one.id);
      goOn(state, true);
    },
  });
  const list = radioList({
    options: one.choices,
    value: picked,
    onPick(choice) {
      picked = choice;
      commit.enable(true);
    },
  });
  const questions = state.model.get("questions");
  const number = questions.findIndex(({ id }) => id === one.id) + 1;
  const place = `Question ${number} of ${questions.length}. `;
  commit.enable(false);
  onEnter(list.element, commit, state.life);
  return [
    h("p", { class: "lk-question" }, h("strong", { text: place }), rich(one.question)),
    list.element,
    h("div", { class: "lk-row" }, commit.element, skip.element),
  ];
}

/**
 * Store a choice to which the learner has committed, and show the reply or the next question.
 *
 * @param {State} state
 * @param {Question} question
 * @param {string} choice
 */
function take(state, question, choice) {
  const { model } = state;
  put(model, { answers: { ...model.get("answers"), [question.id]: choice } });
  if (model.get("phase") === "after") reply(state, question, true);
  else goOn(state, true);
}

/**
 * Show the reply to an answer, or that Python has not replied yet.
 *
 * @param {State} state
 * @param {Question} one
 * @param {boolean} focus whether to move the focus there
 */
function reply(state, { id, question }, focus) {
  const choice = state.model.get("answers")[id];
  const text = replyText(state.model.get("results")[id], choice);
  const said = h("p", { class: "lk-reply", role: "status", tabindex: "-1" }, rich(text));
  const next = button({
    label: openQuestions(state).length ? "Next question" : "Compare both times",
    kind: "primary",
    onPress: () => goOn(state, true),
  });
  state.body.replaceChildren(
    h("p", { class: "lk-question" }, rich(question)),
    h("p", {}, "Your answer: ", h("strong", {}, rich(choice))),
    said,
    h("div", { class: "lk-row" }, next.element),
  );
  if (focus) said.focus();
}

/**
 * @param {Result | undefined} result
 * @param {string} choice
 */
function replyText(result, choice) {
  if (!result) return WAIT;
  const verdict = choice === result.answer ? "Yes" : "Not quite";
  return `${verdict}: ${result.answer}. ${result.why}`;
}

// --- the end -------------------------------------------------------------------------------------

/**
 * Return the elements of the summary: how many questions are answered and, after the course, the
 * table that compares the answers.
 *
 * @param {State} state
 */
function summary(state) {
  const { model } = state;
  const questions = model.get("questions");
  // A browser may also have stored answers to questions that the quiz no longer has.
  const count = questions.filter(({ id }) => id in model.get("answers")).length;
  const after = model.get("phase") === "after";
  const about = { class: "lk-reply", role: "status", tabindex: "-1" };
  const more = after ? scored(model) : LATER;
  const text = `You answered ${count} of ${questions.length} questions. ${more}`;
  const rest = button({
    label: "Answer the skipped questions",
    onPress() {
      state.skipped.clear();
      goOn(state, true);
    },
  });
  rest.element.hidden = count === questions.length;
  const line = h("p", about, questions.length ? text : NONE);
  return after && count > 0 ? [line, compared(model), rest.element] : [line, rest.element];
}

/**
 * Return the sentences about the number of right answers, after and before the course.
 *
 * @param {Model<PageTraits>} model
 */
function scored(model) {
  const results = model.get("results");
  const earlier = model.get("earlier");
  /** @param {Answers} given */
  function right(given) {
    const ids = model.get("questions").map(({ id }) => id);
    return ids.filter((id) => given[id] && results[id]?.answer === given[id]).length;
  }
  const now = `Right now: ${right(model.get("answers"))}.`;
  if (!Object.keys(earlier).length) return now;
  return `${now} Right before the course: ${right(earlier)}.`;
}

/**
 * Return the table with both answers to each question.
 *
 * @param {Model<PageTraits>} model
 */
function compared(model) {
  const answers = model.get("answers");
  const earlier = model.get("earlier");
  const results = model.get("results");
  const { element, body } = headed("", ["question", "before", "after", "right", "lesson"]);
  for (const { id, question } of model.get("questions")) {
    if (!results[id] || !answers[id]) continue;
    const { answer, lesson } = results[id];
    const row = h(
      "tr",
      {},
      h("th", { scope: "row" }, rich(question)),
      answerCell(earlier[id], answer),
      answerCell(answers[id], answer),
      h("td", {}, rich(answer)),
      h("td", {}, lessonLink(lesson, model)),
    );
    body.append(row);
  }
  return element;
}

/**
 * Return the link to a lesson, which is in the same folder, as a notebook or as a page.
 *
 * @param {string} lesson
 * @param {Model<PageTraits>} model
 */
function lessonLink(lesson, model) {
  const href = `${lesson}.${model.onPage ? "html" : "ipynb"}`;
  return h("a", { href, target: "_blank", rel: "noopener", text: lesson.replaceAll("_", " ") });
}

/**
 * @param {string | undefined} choice
 * @param {string} right
 */
function answerCell(choice, right) {
  if (choice === undefined) return h("td", { data: { right: "" } }, "not answered");
  const isRight = choice === right;
  const sign = isRight ? "\u2713" : "\u2717";
  return h("td", { data: { right: isRight } }, rich(`${sign} ${choice}`));
}

/**
 * @param {HTMLElement} root
 * @param {Model<PageTraits>} model
 * @param {Life} life
 */
function fillQuiz(root, model, life) {
  const body = h("div", {});
  /** @type {State} */
  const state = { model, life, body, shown: undefined, skipped: new Set() };
  root.append(body);
  // Another view may have answered the question that is shown. After the course, the results follow
  // each answer.
  watch(life, model, ["answers"], () => {
    const { shown } = state;
    if (model.get("phase") === "after") return;
    if (shown && !(shown.id in model.get("answers"))) return;
    goOn(state, root.contains(document.activeElement));
  });
  watch(life, model, ["results"], () => {
    if (!state.shown) {
      goOn(state, false);
    } else if (state.shown.id in model.get("answers")) {
      // A learner who has gone on elsewhere while the kernel was busy keeps the focus there.
      reply(state, state.shown, root.contains(document.activeElement));
    }
  });
  goOn(state, false);
}

export default view(
  {
    label: (model) => `Quiz, ${model.get("phase")} the course`,
    kind: "quiz",
    alone: (model) => model.get("_on_page") === true,
  },
  fillQuiz,
);

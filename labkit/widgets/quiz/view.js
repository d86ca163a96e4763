// Questions one after the other, which may be skipped. The first time an answer gets no reply; the second time Python
// replies, and a table compares both times. A page without a kernel holds the replies.

import { button, headed, onEnter, radioList } from "../base/controls.js";
import { h, rich } from "../base/elements.js";
import { put, watch } from "../base/model.js";
import { view } from "../base/root.js";

const WAIT = "Committed. The reply comes as soon as the kernel is free.";
const NONE = "There are no questions here: the lesson that has them is not installed.";
const LATER =
  "At the end of the course the same questions come again. Then you see the right answers, and how your own have changed.";

const verdict = (choice, right) =>
  choice === undefined ? "not answered" : `${choice === right ? "\u2713" : "\u2717"} ${choice}`;

function compared(questions, answers, earlier, results) {
  const cell = (choice, right) =>
    h(
      "td",
      { data: { right: choice === undefined ? "" : String(choice === right) } },
      rich(verdict(choice, right)),
    );
  const rows = questions
    .filter(({ id }) => results[id] && answers[id])
    .map(({ id, question }) => {
      const { answer, lesson } = results[id];
      const taught = h("td", { text: lesson.replaceAll("_", " ") });
      return h(
        "tr",
        {},
        h("th", { scope: "row" }, rich(question)),
        cell(earlier[id], answer),
        cell(answers[id], answer),
        taught,
      );
    });
  const { element, body } = headed("", ["question", "before", "after", "lesson"]);
  body.append(...rows);
  return element;
}

const onPageAlone = (model) => model.get("_on_page") === true;

export default view(
  { label: (model) => `Quiz, ${model.get("phase")} the course`, kind: "quiz", alone: onPageAlone },
  (root, model, life) => {
    const questions = model.get("questions");
    const again = model.get("phase") === "after";
    const skipped = new Set();
    const answered = () => model.get("answers");
    const open = () => questions.filter(({ id }) => !(id in answered()) && !skipped.has(id));
    const body = h("div", {});
    root.append(body);
    let shown = "";

    function go(focus) {
      const next = open()[0];
      shown = next?.id ?? "";
      body.replaceChildren(...(next ? asked(next) : summary()));
      if (focus) body.querySelector("input:checked, input, [tabindex='-1']")?.focus();
    }

    function asked({ id, question, choices }) {
      let picked = "";
      const commit = button({
        label: "Commit",
        title: "Your answer stays once you have committed",
        kind: "primary",
        onPress: () => take(id, picked),
      });
      const skip = button({
        label: "Skip",
        title: "Leave this question out",
        onPress: () => {
          skipped.add(id);
          go(true);
        },
      });
      commit.enable(false);
      const list = radioList({
        options: choices,
        onPick(choice) {
          picked = choice;
          commit.enable(true);
        },
      });
      onEnter(list.element, commit, life);
      const place = `Question ${questions.findIndex((one) => one.id === id) + 1} of ${questions.length}. `;
      return [
        h("p", { class: "lk-question" }, h("strong", { text: place }), rich(question)),
        list.element,
        h("div", { class: "lk-row" }, commit.element, skip.element),
      ];
    }

    function take(id, choice) {
      put(model, { answers: { ...answered(), [id]: choice } });
      if (again) reply(id);
      else go(true);
    }

    function reply(id) {
      const { question } = questions.find((one) => one.id === id);
      const [result, choice] = [model.get("results")[id], answered()[id]];
      const text = result
        ? `${choice === result.answer ? "Yes" : "Not quite"}: ${result.answer}. ${result.why}`
        : WAIT;
      const said = h("p", { class: "lk-reply", role: "status", tabindex: "-1" }, rich(text));
      const next = button({
        label: open().length ? "Next question" : "Compare both times",
        kind: "primary",
        onPress: () => go(true),
      });
      body.replaceChildren(
        h("p", { class: "lk-question" }, rich(question)),
        h("p", {}, "Your answer: ", h("strong", {}, rich(choice))),
        said,
        h("div", { class: "lk-row" }, next.element),
      );
      said.focus();
    }

    function scored() {
      const [results, earlier] = [model.get("results"), model.get("earlier")];
      const right = (given) =>
        questions.filter(({ id }) => given[id] && results[id]?.answer === given[id]).length;
      return `Right now: ${right(answered())}.${Object.keys(earlier).length ? ` Right before the course: ${right(earlier)}.` : ""}`;
    }

    function summary() {
      const count = Object.keys(answered()).length;
      const text = questions.length
        ? `You answered ${count} of ${questions.length} questions.`
        : NONE;
      const more = again ? scored() : LATER;
      const line = h(
        "p",
        { class: "lk-reply", role: "status", tabindex: "-1" },
        questions.length ? `${text} ${more}` : text,
      );
      const rest = button({
        label: "Answer the skipped questions",
        onPress: () => {
          skipped.clear();
          go(true);
        },
      });
      rest.element.hidden = count === questions.length;
      const table =
        again && count > 0
          ? [compared(questions, answered(), model.get("earlier"), model.get("results"))]
          : [];
      return [line, ...table, rest.element];
    }

    watch(life, model, ["results"], () =>
      shown && shown in answered() ? reply(shown) : shown || go(false),
    );
    go(false);
  },
);

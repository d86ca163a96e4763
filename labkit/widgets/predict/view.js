// A question, its choices or a line for a number, and a button that commits, as Enter does. The reply comes from Python,
// after the choice has gone there, and takes the focus, so that it is read out and the keyboard goes on from there. A page
// without a kernel has `_replies`, and answers by itself.

import { button, onEnter, radioList } from "../base/controls.js";
import { h, rich } from "../base/elements.js";
import { put, watch } from "../base/model.js";
import { view } from "../base/root.js";
import { numberAsked } from "./number.js";
import { replied } from "./reply.js";

const WAITING = "Committed. The reply comes as soon as the kernel is free.";

function choicesAsked({ model, picked, pick }) {
  const list = radioList({ options: model.get("choices"), value: picked, onPick: pick });
  return { element: list.element, show: (done) => done && list.fix(model.get("choice")) };
}

const replies = (model) => model.get("_replies");

export default view(
  { label: "Prediction", kind: "predict", alone: (model) => replies(model) !== undefined },
  (root, model, life) => {
    let picked = model.get("choice");
    const pick = (choice) => {
      picked = choice;
      commit.enable(Boolean(picked));
    };
    const commit = button({
      label: "Commit",
      title: "Your answer stays once you have committed",
      kind: "primary",
      onPress: () => put(model, { choice: picked, ...answerOf(picked) }),
    });
    const asked = (model.get("ruler").high ? numberAsked : choicesAsked)({
      model,
      life,
      picked,
      pick,
    });
    onEnter(asked.element, commit, life);
    const answerOf = (choice) =>
      replies(model) ? replied(replies(model), model.get("ruler"), choice) : {};
    const reply = h("p", { class: "lk-reply", role: "status", tabindex: "-1" });

    function show() {
      const done = model.get("choice") !== "";
      reply.replaceChildren(rich(model.get("answered") || (done ? WAITING : "")));
      if (done && root.contains(document.activeElement)) reply.focus();
      commit.enable(!done && Boolean(picked));
      commit.element.hidden = done;
      asked.show(done);
      root.dataset.right = done ? String(model.get("right")) : "";
    }

    root.append(
      h(
        "p",
        { class: "lk-question" },
        h("strong", { text: "Predict. " }),
        rich(model.get("question")),
      ),
      asked.element,
      commit.element,
      reply,
    );
    watch(life, model, ["choice", "answered", "right", "truth"], show);
    if (picked && replies(model)) put(model, answerOf(picked)); // answered on an earlier visit to the page
    show();
  },
);

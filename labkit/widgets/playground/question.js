// The question of a scene. It is answered before the first step, which fixes the answer; the right
// answer is shown when the run has shown it.

import { radioList } from "../base/controls.js";
import { h, rich } from "../base/elements.js";

/** @import { Outcome } from "./outcome.js" */
/** @import { Scene } from "./scenes.js" */

/** The place of a scene's question. */
export function questionPanel() {
  const guesses = h("div", { class: "pg-guesses" });
  const reply = h("p", { class: "pg-reply", role: "status" });
  /** @type {Scene | null} */
  let scene = null;
  let chosen = "";
  let settled = false;

  /** @param {...(string | Node)} parts */
  function say(...parts) {
    reply.replaceChildren(...parts.map((part) => (typeof part === "string" ? rich(part) : part)));
  }

  return {
    element: h("div", { class: "pg-question" }, guesses, reply),
    /** Whether an answer is still to be told. */
    get open() {
      return scene !== null;
    },
    /**
     * Ask, before the first step.
     *
     * @param {Scene} asked
     */
    ask(asked) {
      scene = asked;
      chosen = "";
      settled = false;
      const list = radioList({
        label: asked.question,
        options: asked.answers.map(({ text }) => text),
        value: "",
        onPick(text) {
          chosen = text;
        },
      });
      guesses.replaceChildren(h("span", { text: "Your guess:" }), list.element);
      guesses.hidden = false;
      say();
    },
    /** The first step is taken: the guess stays what it is. */
    settle() {
      if (!scene || settled) return;
      settled = true;
      guesses.hidden = true;
      const then = `The answer comes at step ${scene.seen}, if you turn no knob until then.`;
      if (chosen) say("Your guess: ", h("strong", { text: chosen }), `. ${then}`);
      else say(then);
    },
    /**
     * Tell what is right.
     *
     * @param {Outcome | null} outcome of this run; null where a knob was turned before one was seen
     */
    tell(outcome) {
      if (!scene) return;
      const { answers, right, why } = scene;
      const shown = answers.findIndex(({ outcomes }) => outcome && outcomes.includes(outcome));
      const index = shown === -1 ? right : shown;
      const answer = h("strong", { text: answers[index].text });
      const reason = index === right ? why : "With most seeds it is otherwise.";
      let opening = outcome === null ? "With the first settings: " : "This run shows: ";
      if (chosen === answers[index].text) opening = "You guessed right: ";
      else if (chosen) opening = `You guessed: ${chosen}. ${opening}`;
      say(opening, answer, `. ${reason}`);
      scene = null;
    },
  };
}

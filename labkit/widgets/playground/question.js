// The question of a scene. The learner can guess the answer until the first step; the right answer
// is shown once the run has done enough steps to show it.

import { radioList } from "../base/controls.js";
import { h, rich } from "../base/elements.js";

/** @import { Outcome } from "./outcome.js" */
/** @import { Scene } from "./scenes.js" */

/** Return the panel for the question of a scene. */
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
    /** Whether the right answer is not shown yet. */
    get open() {
      return scene !== null;
    },
    /**
     * Show the question of a scene before its first step.
     *
     * @param {Scene} next
     */
    ask(next) {
      scene = next;
      chosen = "";
      settled = false;
      const list = radioList({
        label: next.question,
        options: next.answers.map(({ text }) => text),
        value: "",
        onPick(text) {
          chosen = text;
        },
      });
      guesses.replaceChildren(h("span", { text: "Your guess:" }), list.element);
      guesses.hidden = false;
      say();
    },
    /** Fix the guess. Call it after the first step. */
    settle() {
      if (!scene || settled) return;
      settled = true;
      guesses.hidden = true;
      const then = `The answer comes at step ${scene.seen}, if you turn no knob until then.`;
      if (chosen) {
        say("Your guess: ", h("strong", { text: chosen }), `. ${then}`);
      } else {
        say(then);
      }
    },
    /**
     * Show the right answer.
     *
     * @param {Outcome | null} outcome of this run; null if its settings were changed, so that it
     *   answers another question
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

// Counts of answered questions and solved exercises, for each lesson.

import { read } from "./store.js";

/**
 * Return the words of an attribute, which are separated by blanks.
 *
 * @param {Element} place
 * @param {string} name
 */
function words(place, name) {
  return (place.getAttribute(name) ?? "").split(" ").filter(Boolean);
}

/** @param {string} id of an exercise */
export function isSolved(id) {
  return read(`answer/solved/${id}`) !== null;
}

/** Write the counts into their elements; show the button that forgets answers if there are any. */
export function countAnswers() {
  let all = 0;
  for (const place of document.querySelectorAll("[data-questions], [data-exercises]")) {
    const questions = words(place, "data-questions");
    const exercises = words(place, "data-exercises");
    const answered = questions.filter((key) => read(`answer/${key}`) !== null).length;
    const solved = exercises.filter(isSolved).length;
    const written = exercises.filter((id) => read(`answer/code/${id}`) !== null).length;
    const texts = [];
    if (questions.length) texts.push(`${answered} of ${questions.length} questions answered`);
    if (exercises.length) texts.push(`${solved} of ${exercises.length} exercises solved`);
    place.textContent = texts.join(", ");
    all += answered + solved + written;
  }
  const forget = document.getElementById("site-forget");
  if (forget) forget.hidden = all === 0;
}

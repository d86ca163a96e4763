// The setting "guess first": a text that answers a prediction cannot be opened before the learner
// has committed, neither by a click or a key nor by the browser's search.
//
// The answered predictions are stored in the page, as `data-labkit-committed` of its root element.
// A variable would not do: each view has its own modules, and a notebook removes the views of cells
// that are scrolled out of sight.

/** @import { Life } from "../base/lifetime.js" */

const TEXTS = "details.labkit-answer";
const WHY =
  " It stays shut until you have committed: go back to the prediction (run its cell if it shows " +
  "no question), choose, and press Commit.";

/**
 * Return the slugs of the predictions that were answered in this page.
 *
 * @returns {string[]}
 */
function committed() {
  return (document.documentElement.dataset.labkitCommitted ?? "").split(" ").filter(Boolean);
}

/**
 * Remember that a prediction was answered.
 *
 * @param {string} slug
 */
export function noteCommitted(slug) {
  const all = new Set([...committed(), slug]);
  document.documentElement.dataset.labkitCommitted = [...all].join(" ");
}

/**
 * Return whether a prediction in the page cannot be answered, since it has no kernel.
 *
 * @param {string} slug
 */
function isUnanswerable(slug) {
  return document.querySelector(`.labkit-predict[data-slug="${slug}"] > [inert]`) !== null;
}

/**
 * Return whether a text has to stay shut: it answers predictions, and none of them was answered or
 * is unanswerable.
 *
 * @param {Element} text
 */
function isShut(text) {
  const slugs = [...text.classList]
    .filter((name) => name.startsWith("labkit-answer-"))
    .map((name) => name.slice("labkit-answer-".length));
  const known = committed();
  return !slugs.some((slug) => known.includes(slug) || isUnanswerable(slug));
}

/**
 * Say in a text's summary why it does not open.
 *
 * @param {Element} text
 */
function sayWhy(text) {
  const summary = text.querySelector("summary");
  if (!summary || summary.querySelector('[role="status"]')) return;
  const why = document.createElement("span");
  why.setAttribute("role", "status");
  summary.append(why);
  why.textContent = WHY;
}

/**
 * Keep the texts of all predictions that are still open shut, as long as a prediction is shown.
 *
 * @param {Life} life
 */
export function keepShut(life) {
  /** @param {Event} event */
  const refuse = (event) => {
    if (!(event.target instanceof Element)) return;
    const text = event.target.closest("summary")?.closest(TEXTS);
    if (!text || !isShut(text)) return;
    event.preventDefault();
    sayWhy(text);
  };
  /** @param {Event} event */
  const close = ({ target }) => {
    if (!(target instanceof HTMLDetailsElement) || !target.open) return;
    if (!target.matches(TEXTS) || !isShut(target)) return;
    target.open = false;
    sayWhy(target);
  };
  // Both are handled in the capture phase: a toggle event does not bubble, and another handler may
  // stop a click.
  document.addEventListener("click", refuse, true);
  document.addEventListener("toggle", close, true);
  life.add(() => {
    document.removeEventListener("click", refuse, true);
    document.removeEventListener("toggle", close, true);
  });
  for (const text of document.querySelectorAll(`${TEXTS}[open]`)) {
    if (isShut(text)) text.removeAttribute("open");
  }
}

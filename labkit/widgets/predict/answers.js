// Texts and outputs that answer a prediction are hidden until the learner has committed: texts are
// folded, and outputs of code are not shown.
//
// A lesson marks both by a tag (labkit.course). A text is `details.labkit-answer-SLUG`; it is
// opened once, when the learner has committed, and can then be folded again. The output of a code
// cell has an element `.labkit-waits-SLUG`, or its cell has that class. A prediction without a
// kernel hides no outputs, since nobody can answer it.

import { noteCommitted } from "./guess_first.js";

/** @import { Life } from "../base/lifetime.js" */

const WAITS = "Commit to your prediction first: then this cell shows what it found.";
// Checks, errors and warnings do not wait.
const NEVER_WAITS = '.labkit-grade, [data-mime-type$="error"], [data-mime-type$="stderr"]';

/**
 * Return the CSS rules that hide outputs as long as the prediction is open and can be answered.
 *
 * @param {string} slug
 */
function rulesOf(slug) {
  const prediction = `.labkit-predict[data-slug="${slug}"]`;
  // CSS allows no :has() inside :has(), so that two of them are combined.
  const open = `:has(${prediction}[data-right=""]):not(:has(${prediction} > [inert]))`;
  const marked = `:is(.labkit-waits-${slug}, :has(.labkit-waits-${slug}))`;
  const waiting = `${marked}:not(:has(${NEVER_WAITS}))`;
  const output = `body${open} .jp-CodeCell${waiting} .jp-Cell-outputWrapper`;
  return `
    ${output} > * { display: none; }
    ${output}::before {
      color: var(--jp-content-font-color2);
      content: "${WAITS}";
      font-family: var(--jp-ui-font-family);
      font-size: var(--jp-ui-font-size1);
      padding: 4px 12px 4px calc(var(--jp-cell-prompt-width, 64px) + 12px);
    }`;
}

/**
 * Hide the outputs that answer a prediction, while the prediction is in the page and open.
 *
 * @param {HTMLElement} root of the prediction
 * @param {string} slug
 * @param {Life} life
 */
export function holdOutputs(root, slug, life) {
  const sheet = document.createElement("style");
  root.dataset.slug = slug;
  sheet.textContent = rulesOf(slug);
  document.head.append(sheet);
  life.add(() => sheet.remove());
}

/**
 * Open the texts that answer a prediction, each once, also those that are added to the page later.
 *
 * @param {string} slug
 * @param {Life} life
 */
export function openTexts(slug, life) {
  /** @type {WeakSet<Element>} */
  const opened = new WeakSet();
  let frame = 0;
  noteCommitted(slug);

  function openNew() {
    frame = 0;
    for (const text of document.querySelectorAll(`details.labkit-answer-${slug}`)) {
      if (opened.has(text)) continue;
      opened.add(text);
      text.setAttribute("open", "");
    }
  }
  const observer = new MutationObserver(() => {
    frame ||= requestAnimationFrame(openNew);
  });
  observer.observe(document.body, { childList: true, subtree: true });
  life.add(() => {
    observer.disconnect();
    cancelAnimationFrame(frame);
  });
  openNew();
}

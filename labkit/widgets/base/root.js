// The root of every widget: what its view.js hands to the page, and the section that holds its picture.

import { showTitles } from "./controls.js";
import { h } from "./elements.js";
import { keepFocus, keepKeys, sayItWasSaved, watchKernel } from "./host.js";
import { lifetime } from "./lifetime.js";
import { guide } from "./tour.js";

// `alone`: the widget answers in the page, and needs no kernel; or a function of the model that says so.
export function view({ label, kind, alone = false }, fill) {
  const answers = (model) => (typeof alone === "function" ? alone(model) : alone);
  return {
    answers,
    render({ model, el, live }) {
      const life = lifetime();
      const words = typeof label === "function" ? label(model) : label;
      const root = mount(el, { label: words, kind, life, model });
      fill(root, model, life, live);
      if (live === false) sayItWasSaved(root, answers(model));
      return () => life.dispose();
    },
  };
}

function mount(el, { label, kind, life, model }) {
  // Lumino looks for the attribute, other hosts for the event (keys.js); both keep `d d` from deleting the cell.
  const root = h("section", {
    class: `labkit labkit-${kind}`,
    role: "group",
    "aria-label": label,
    tabindex: "-1",
    "data-lm-suppress-shortcuts": "true",
  });
  keepKeys(root, life);
  keepFocus(root, life);
  watchKernel(root, life, model);
  showTitles(root, life);
  guide(root, life, model);
  // JupyterLab would give the focus to the cell when something is pressed that cannot have it.
  life.listen(root, "pointerdown", (event) => {
    if (!event.target.closest("input, button, select, summary, a, [tabindex]:not(section)")) {
      event.preventDefault();
      root.focus({ preventScroll: true });
    }
  });
  life.listen(root, "mousedown", (event) => event.stopPropagation());
  el.classList.add("labkit-room");
  el.replaceChildren(root);
  life.add(() => root.remove());
  return root;
}

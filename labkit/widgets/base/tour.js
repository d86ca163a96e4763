// A guided tour: a few steps, each with a text, a ring round what it is about, and the traits of its state. Methods of a
// step are called by Python.

import { button } from "./controls.js";
import { h, rich } from "./elements.js";
import { put, watch } from "./model.js";
import { reducedMotion } from "./theme.js";

export function guide(root, life, model) {
  const steps = model.get("tour") ?? [];
  if (!steps.length) return;
  const known = (set) =>
    Object.fromEntries(Object.entries(set).filter(([name]) => model.get(name) !== undefined)); // no methods
  const go = (step) => put(model, { ...known(steps[step]?.set ?? {}), tour_step: step });
  const open = button({ label: `Tour in ${steps.length} steps`, onPress: () => go(0) });
  const back = button({ label: "Back", onPress: () => go(model.get("tour_step") - 1) });
  const next = button({
    label: "Next",
    kind: "primary",
    onPress: () => go(at() + 1 < steps.length ? at() + 1 : -1),
  });
  const close = button({
    label: "Close",
    title: "Esc closes the tour, too",
    onPress: () => go(-1),
  });
  const count = h("span", { class: "lk-quiet" });
  const text = h("p", { class: "lk-tour-text", role: "status" });
  const panel = h(
    "div",
    { class: "lk-tour-panel" },
    text,
    h("div", { class: "lk-row" }, back.element, next.element, close.element, count),
  );
  const bar = h(
    "div",
    { class: "lk-tour", role: "group", "aria-label": "Guided tour" },
    open.element,
    panel,
  );
  const at = () => model.get("tour_step");
  let before = -1;

  function show() {
    const step = at();
    const [on, was, held] = [step >= 0, before >= 0, bar.contains(document.activeElement)];
    for (const one of root.querySelectorAll(".lk-ringed")) one.classList.remove("lk-ringed");
    open.element.hidden = on;
    panel.hidden = !on;
    before = step;
    if (on) {
      text.replaceChildren(rich(steps[step].text));
      count.textContent = `${step + 1} of ${steps.length}`;
      back.enable(step > 0);
      next.setLabel(step + 1 < steps.length ? "Next" : "Done");
      const ringed = root.querySelector(steps[step].ring);
      ringed?.classList.add("lk-ringed");
      ringed?.scrollIntoView({ block: "nearest", behavior: reducedMotion() ? "auto" : "smooth" });
    }
    if (on !== was && held) (on ? next : open).element.focus({ preventScroll: true });
  }

  life.listen(
    root,
    "keydown",
    (event) => {
      if (event.key !== "Escape" || at() < 0) return;
      event.preventDefault(); // the tour is closed first; the next Esc leaves the widget
      open.element.hidden = false;
      open.element.focus({ preventScroll: true });
      go(-1);
    },
    true,
  );
  watch(life, model, ["tour_step"], show);
  queueMicrotask(() => {
    root.prepend(bar); // before what the widget's own view has put there
    show();
  });
}

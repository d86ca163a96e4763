// One button that starts or stops, a bar of parts, a sentence, what the command prints, and the pictures it fills.

import { button, sentence } from "../base/controls.js";
import { h } from "../base/elements.js";
import { watch } from "../base/model.js";
import { view } from "../base/root.js";

export default view({ label: "Measure this GPU", kind: "gpu-run" }, (root, model, life) => {
  const press = button({
    label: "Measure my GPU (3 minutes)",
    kind: "primary",
    onPress: () => model.send({ do: model.get("phase") === "running" ? "stop" : "start" }),
  });
  const bar = h("progress", { "aria-label": "Parts begun", max: 1, value: 0 });
  const words = sentence();
  const printed = h("pre");
  const details = h(
    "details",
    { hidden: true },
    h("summary", { text: "What the command prints" }),
    printed,
  );
  const paces = h("ul");
  const pictures = h("div");

  function show() {
    const phase = model.get("phase");
    root.dataset.phase = phase;
    press.setLabel(phase === "running" ? "Stop" : "Measure my GPU (3 minutes)");
    press.enable(phase !== "no gpu");
    bar.hidden = phase !== "running";
    bar.max = Math.max(1, model.get("parts"));
    bar.value = Math.max(0, model.get("part") - 1);
    words.say(model.get("sentence"));
    details.hidden = !model.get("printed");
    printed.textContent = model.get("printed");
  }

  function draw() {
    paces.replaceChildren(...model.get("paces").map((text) => h("li", { text })));
    const picture = ({ src, alt }) => (src ? h("img", { src, alt }) : h("p", { text: alt }));
    pictures.replaceChildren(...model.get("pictures").map(picture));
  }

  root.append(
    h("div", { class: "lk-row" }, press.element, bar),
    words.element,
    details,
    paces,
    pictures,
  );
  watch(life, model, ["phase", "part", "parts", "sentence", "printed"], show);
  watch(life, model, ["pictures", "paces"], draw);
  show();
  draw();
});

// A bar, a sentence, and one button that starts or stops. The training itself runs in a thread of the kernel.

export default view({ label: "Training run", kind: "training-bar" }, (root, model, owner) => {
  const press = button({
    label: "Start",
    kind: "primary",
    onPress: () => put(model, { wanted: model.get("phase") === "ready" ? "start" : "stop" }),
  });
  const bar = h("progress", { "aria-label": "Steps done", max: model.get("total"), value: 0 });
  const words = sentence();

  function show() {
    const phase = model.get("phase");
    root.dataset.phase = phase;
    root.dataset.done = String(model.get("done"));
    press.setLabel(phase === "ready" ? "Start" : "Stop");
    press.enable(phase === "ready" || phase === "running");
    bar.max = Math.max(1, model.get("total"));
    bar.value = model.get("done");
    words.say(model.get("sentence"), phase === "running" ? phase : model.get("sentence"));
  }

  root.append(h("div", { class: "lk-row" }, press.element, bar), words.element);
  watch(owner, model, ["done", "phase", "sentence", "total"], show);
  whenUnseen(owner, () => model.send({ do: "unseen" }));
  show();
});

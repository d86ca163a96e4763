// What a learner can choose and turn at the bench. Each knob sends its name and its position, and shows the kernel's.

const UNHEARD =
  "The kernel does not answer. If a cell is running, wait for it or interrupt it; if the kernel was restarted, run this cell again.";

const HINTS = {
  format: "what matrix products read",
  autocast: "on: weights stay FP32, each operation casts by the lists. off: the model itself is converted",
  norms_fp32: "a converted model keeps its normalisation layers in FP32",
  accumulator: "what matrix products add up in: FP32, FP16, or a GPU's Tensor Core, emulated to the bit",
  masters: "kept: FP32 between steps. forgotten: the step is FP32, its result is rounded. none: the optimizer is 16-bit too",
  scaling: "what the loss is multiplied by",
  log2_scale: "where the scale stays, or starts",
  log2_lr: "the task's own learning rate, times",
  epsilon: "what Adam adds to the root it divides by",
};

let choices = 0;

function choice({ label, onChange }) {
  const id = `wb-choice-${copyOfThisFile}-${++choices}`;
  const select = h("select", { id, class: "wb-select" });
  select.addEventListener("change", () => onChange(select.value));
  return {
    element: h("span", { class: "wb-choice" }, h("label", { for: id, text: label }), select),
    show(options, value, none) {
      const wanted = [...(value ? [] : [["", none]]), ...options.map((name) => [name, name.replaceAll("_", " ")])];
      if (select.dataset.options !== JSON.stringify(wanted)) {
        select.dataset.options = JSON.stringify(wanted);
        select.replaceChildren(...wanted.map(([name, text]) => h("option", { value: name, text, disabled: !name })));
      }
      select.value = value;
    },
  };
}

function makeKnobs(store) {
  const turn = (knob) => (to) => tell(store, { do: "turn", knob, to });
  const pick = (knob, label, values) =>
    segmented({ label, options: values.map((v) => ({ value: v, label: v })), value: values[0], onChange: turn(knob) });
  const slide = (knob, label, min, max, text) => {
    const made = slider({ label, min, max, page: 4, value: 0, text, onInput: turn(knob) });
    made.input.addEventListener("pointerdown", () => (made.held = true));
    for (const type of ["pointerup", "pointercancel", "blur"]) made.input.addEventListener(type, () => (made.held = false));
    return made;
  };
  const scale = (e) => (store.state?.knobs.scaling === "off" ? "off" : `2^${e}`);
  const knobs = {
    format: pick("format", "Format", ["FP32", "FP16", "BF16"]),
    autocast: toggle({ label: "Autocast", value: false, onChange: turn("autocast") }),
    norms_fp32: toggle({ label: "Norms in FP32", value: true, onChange: turn("norms_fp32") }),
    accumulator: pick("accumulator", "Sums", ["FP32", "FP16", "V100", "H100"]),
    masters: pick("masters", "FP32 masters", ["kept", "forgotten", "none"]),
    scaling: pick("scaling", "Loss scaling", ["off", "static", "dynamic"]),
    log2_scale: slide("log2_scale", "Scale", 0, 30, scale),
    log2_lr: slide("log2_lr", "Learning rate ×", -6, 6, (e) => (e < 0 ? `1/${2 ** -e}` : String(2 ** e))),
    epsilon: pick("epsilon", "Epsilon", ["1e-8", "1e-6", "1e-4"]),
  };
  for (const [name, knob] of Object.entries(knobs)) {
    knob.element.dataset.knob = name;
    knob.element.title = HINTS[name];
  }
  return knobs;
}

function showKnobs(store, knobs) {
  const { state } = store;
  if (state.heard < store.sent) return; // this frame is older than what the learner just did
  for (const [name, knob] of Object.entries(knobs)) {
    const why = state.fixed[name] ?? (name === "log2_scale" && state.knobs.scaling === "off" ? "the loss is not scaled" : "");
    const still = why && !(name === "accumulator" && state.knobs.format === "BF16");
    knob.enable(!still);
    knob.element.dataset.fixed = Boolean(still);
    knob.element.title = why || HINTS[name];
    if (!knob.held) knob.set(state.knobs[name]);
  }
}

function makeControls(store) {
  const press = (name) => () => tell(store, { do: "press", button: name });
  const go = button({
    label: "Start",
    kind: "primary",
    onPress: () => tell(store, { do: "press", button: store.state.phase === "running" ? "pause" : "start" }),
  });
  go.element.dataset.button = "go";
  const at = slider({ label: "Fork after step", min: 0, max: 1, page: 20, value: 0, text: String, onInput: () => (at.touched = true) });
  at.input.addEventListener("input", () => schedule(store));
  const fork = button({ label: "Fork", title: "let a second run leave here", onPress: () => tell(store, { do: "fork", step: at.value }) });
  fork.element.dataset.button = "fork";
  const options = [{ value: "0", label: "run" }, { value: "1", label: "fork" }];
  const save = (what) => button({ label: `Save ${what}`, onPress: () => tell(store, { do: "save", what }) });
  return {
    task: choice({ label: "Task", onChange: (task) => tell(store, { do: "choose", task }) }),
    recipe: choice({ label: "Recipe", onChange: (recipe) => tell(store, { do: "choose", recipe }) }),
    go,
    step: button({ label: "Step", onPress: press("step") }),
    reset: button({ label: "Reset", onPress: press("reset") }),
    at,
    fork,
    active: segmented({ label: "Knobs of the", options, value: "0", onChange: (v) => tell(store, { do: "choose", branch: Number(v) }) }),
    record: save("record"),
    picture: save("picture"),
    knobs: makeKnobs(store),
  };
}

function showControls(store, controls) {
  const { state } = store;
  const over = state.phase === "finished" || state.phase === "failed";
  controls.go.setLabel(state.phase === "running" ? "Pause" : over ? "Run again" : state.step > 0 ? "Continue" : "Start");
  controls.step.enable(state.enabled.includes("step"));
  controls.reset.enable(state.enabled.includes("reset"));
  controls.task.show(state.tasks, state.task, "your own");
  controls.recipe.show(state.recipes, state.recipe, "your own");
  const { at } = controls;
  const most = Math.max(Math.min(state.step, state.total - 1), 1);
  const value = at.touched ? Math.min(at.value, most) : Math.floor(most / 2);
  if (Number(at.input.max) !== most || at.value !== value) {
    at.input.max = most;
    at.set(value);
  }
  at.input.style.setProperty("--lk-filled", `${(100 * at.value) / most}%`);
  at.enable(state.step > 0);
  controls.fork.enable(state.step > 0);
  controls.record.enable(state.step > 0);
  controls.picture.enable(state.step > 0);
  controls.active.element.hidden = state.branches.length < 2;
  if (state.heard >= store.sent) controls.active.set(String(state.active));
  showKnobs(store, controls.knobs);
}

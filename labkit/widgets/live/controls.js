// What a learner can press, choose and drag, and what the kernel's state makes of it.

const LOG2_MAX = 30;

const ICONS = {
  start: "M3 1.5v11l9-5.5z",
  pause: "M3 2h3v10H3zM8 2h3v10H8z",
  step: "M2 1.5v11l7-5.5zM10 2h2v10h-2z",
  stop: "M2.5 2.5h9v9h-9z",
  reset: "M7 2.5V0L3.5 3.2 7 6.4V4a3.5 3.5 0 1 1-3.5 3.5H2A5 5 0 1 0 7 2.5z",
};

// Not `disabled`: that would drop the focus, and a keyboard's place with it, when a run ends under the finger.
function iconButton(name, label, kind, onPress) {
  const words = h("span", { text: label });
  const element = h("button", { type: "button", class: "lk-button live-button", data: { button: name, ...(kind && { kind }) } });
  element.innerHTML = `<svg viewBox="0 0 14 14" width="12" height="12" aria-hidden="true"><path d="${ICONS[name]}"/></svg>`;
  element.append(words);
  element.addEventListener("click", () => element.getAttribute("aria-disabled") === "true" || onPress(element.dataset.button));
  return {
    element,
    show(next, text, on) {
      element.dataset.button = next;
      element.querySelector("path").setAttribute("d", ICONS[next]);
      words.textContent = text;
      element.setAttribute("aria-disabled", String(!on));
    },
  };
}

function makeControls(store) {
  const press = (button) => tell(store, { do: "press", button });
  const change = (what) => tell(store, { do: "change", ...what });
  const choose = (scaling) => {
    wishFor(store, scaling === "off" ? 0 : store.state.log2_scale);
    change({ scaling });
  };
  const options = ["off", "static", "dynamic"].map((value) => ({ value, label: value }));
  return {
    go: iconButton("start", "Start", "primary", press),
    step: iconButton("step", "Step", null, press),
    stop: iconButton("stop", "Stop", null, press),
    reset: iconButton("reset", "Reset", null, press),
    scaling: segmented({ label: "Loss scaling", options, value: "off", onChange: choose }),
    scale: scaleSlider(store),
    master: toggle({ label: "FP32 master weights", value: true, onChange: (on) => change({ master_weights: on }) }),
  };
}

// With scaling off it stays where it is.
function scaleSlider(store) {
  const off = () => made.input.getAttribute("aria-disabled") === "true";
  const made = slider({
    label: "Scale",
    min: 0,
    max: LOG2_MAX,
    page: 4,
    value: 10,
    text: (e) => (store.state?.scaling === "off" ? "2^0 = 1, off" : `2^${e} = ${decimal(2 ** e)}`),
    onInput() {
      if (off()) return made.set(0);
      wishFor(store, made.value);
      tellLatest(store, { do: "change", log2_scale: made.value });
    },
  });
  made.input.addEventListener("pointerdown", () => (made.held = true));
  for (const type of ["pointerup", "pointercancel", "blur"]) made.input.addEventListener(type, () => (made.held = false));
  return made;
}

function showControls(store, controls) {
  const { state } = store;
  const can = (name) => state.enabled.includes(name);
  const running = state.phase === "running";
  const over = state.phase === "finished" || state.phase === "failed";
  const go = running ? "Pause" : over ? "Run again" : state.step > 0 ? "Continue" : "Start";
  controls.go.show(running ? "pause" : "start", go, true);
  controls.step.show("step", "Step", can("step"));
  controls.stop.show("stop", "Stop", can("stop"));
  controls.reset.show("reset", "Reset", can("reset"));
  if (state.heard < store.sent || store.afterwards) return; // this frame is older than what the learner just did
  controls.scaling.set(state.scaling);
  controls.master.set(state.master_weights);
  controls.master.enable(!state.master_is_fixed);
  controls.master.element.title = state.master_is_fixed || "off: after each step, what FP16 cannot hold of a weight is forgotten";
  controls.scale.input.setAttribute("aria-disabled", String(state.scaling === "off"));
  if (!controls.scale.held) controls.scale.set(state.scaling === "static" ? state.log2_scale : Math.round(state.scale));
}

const UNHEARD =
  "The kernel does not answer. If a cell is running, wait for it or interrupt it; if the kernel was restarted, run this cell again.";
const RULE = {
  off: () => "the loss is not multiplied",
  static: () => "the scale stays where you put it; steps whose gradients overflow are skipped",
  dynamic: (state) => `the scale halves after inf or NaN, and doubles after ${state.growth_interval} clean steps`,
};

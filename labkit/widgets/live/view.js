// The live training's face: draws what the kernel says, sends what the learner does, and decides nothing.

function showWords(store, parts, seen) {
  const { state } = store;
  const now = performance.now();
  parts.title.textContent = state.title;
  parts.title.title = state.about;
  parts.counter.textContent = `step ${state.step} of ${state.total}`;
  const m = state.metric;
  parts.metric.textContent = m ? `${m.name} at step ${m.step}: ${state.label} ${m.ours}, FP32 ${m.fp32}` : "";
  parts.rule.textContent = RULE[state.scaling](state);
  parts.notice.textContent = store.silent ? UNHEARD : state.notice;
  // words that change 30 times a second cannot be read
  if (state.phase === "running" && state.phase === seen.phase && now - seen.at < 200) return;
  parts.words.say(state.sentence);
  seen.phase = state.phase;
  seen.at = now;
}

// For tests, and for anyone who inspects the page: what was drawn last.
function expose(store, root) {
  const { state, ours, fp32, drawnAt } = store;
  const last = ours.at(-1);
  const span = drawnAt.length > 1 ? (drawnAt.at(-1) - drawnAt[0]) / 1000 : 0;
  Object.assign(root.dataset, {
    phase: state.phase,
    building: state.building,
    step: ours.length,
    total: state.total,
    scaling: state.scaling,
    scale: last?.scale ?? "",
    loss: last?.loss ?? "",
    fp32: fp32[ours.length - 1] ?? "",
    underflow: latestUnderflow(store),
    skipped: state.skipped,
    marks: state.marks.map((mark) => `${mark.step}: ${mark.label}`).join("; "),
    previous: store.previous.length,
    frame: state.number,
    fps: span ? ((drawnAt.length - 1) / span).toFixed(1) : "",
    echo: store.echo?.toFixed(1) ?? "",
    next: store.wish ?? state.scale,
    touch: store.touch?.toFixed(1) ?? "",
    latency: store.latency?.toFixed(1) ?? "",
  });
}

function buildView(root, owner, controls, draw) {
  const part = (name, ...children) => h("div", { class: name }, ...children);
  const parts = {
    title: h("span", { class: "lk-title" }),
    counter: h("span", { class: "lk-number" }),
    metric: h("span", { class: "lk-number live-metric" }),
    rule: h("div", { class: "lk-quiet live-rule" }),
    notice: h("p", { class: "live-notice", role: "alert" }),
    words: sentence(),
    picture: figure({ scope: owner, label: "Loss, loss scale and underflow by step", height: HEIGHT, draw }),
  };
  const { go, step, stop, reset, scaling, scale, master } = controls;
  root.append(
    part("live-head", parts.title, parts.counter, parts.metric),
    part("lk-row", go.element, step.element, stop.element, reset.element),
    part("lk-row live-settings", scaling.element, scale.element, master.element),
    parts.rule,
    parts.picture.element,
    parts.words.element,
    parts.notice,
  );
  parts.tip = tip(parts.picture);
  return parts;
}

function wireHover(owner, store, parts, view) {
  const { canvas } = parts.picture;
  owner.listen(canvas, "pointermove", (event) => {
    const inside = (event.offsetX - LEFT) / (canvas.clientWidth - LEFT - RIGHT);
    const step = Math.round(inside * (store.state?.total ?? 0));
    view.step = step >= 1 && step <= Math.max(store.ours.length, store.fp32.length) ? step : null;
    schedule(store);
  });
  owner.listen(canvas, "pointerleave", () => {
    view.step = null;
    schedule(store);
  });
}

function render({ model, el }) {
  const store = storeOf(model);
  const owner = scope();
  const root = mount(el, { label: "Live training", kind: "live", scope: owner });
  const controls = makeControls(store);
  const seen = { phase: "", at: 0 };
  const view = { step: null };
  const paint = (pen, width) => {
    if (!store.state) return;
    const plot = makePlot(pen, width, store, colours(root));
    const y = drawLoss(plot);
    drawScale(plot);
    drawUnderflow(plot);
    inkSteps(plot, BOTTOM);
    drawHover(plot, view.step, y);
    if (view.step) parts.tip.show(plot.x(view.step), LOSS.top + 2, hoverText(store, view.step));
    else parts.tip.hide();
  };
  const parts = buildView(root, owner, controls, paint);
  view.draw = () => {
    if (!store.state) return;
    showControls(store, controls);
    showWords(store, parts, seen);
    parts.picture.drawNow();
  };
  view.expose = () => expose(store, root);
  wireHover(owner, store, parts, view);
  onTheme(owner, () => schedule(store));
  store.views.add(view);
  owner.add(() => store.views.delete(view));
  parts.words.say("Waiting for the kernel.");
  const silence = setTimeout(() => {
    if (!store.state) parts.words.say(UNHEARD);
  }, 4000);
  owner.add(() => clearTimeout(silence));
  send(store, { do: "hello" });
  return () => owner.dispose();
}

export default { render };

// The workbench's face: draws what the kernel says, sends what the learner does, and decides nothing.

function showWords(store, parts, seen) {
  const { state } = store;
  const now = performance.now();
  parts.title.textContent = state.title;
  parts.title.title = state.about;
  parts.counter.textContent = `step ${state.step} of ${state.total}`;
  const metrics = [["FP32", state.fp32_metric], ...state.branches.map(({ name, metric }) => [name, metric])].filter(([, m]) => m);
  parts.metric.textContent = metrics.length ? `${state.metric_name}: ${metrics.map((m) => m.join(" ")).join(", ")}` : "";
  parts.notice.textContent = store.silent ? UNHEARD : state.notice;
  if (parts.lines.textContent !== state.lines) parts.lines.textContent = state.lines;
  if (state.phase === "running" && state.phase === seen.phase && now - seen.at < 200) return; // too quick to be read
  parts.words.say(state.sentence);
  seen.phase = state.phase;
  seen.at = now;
}

const CATEGORIES = ["weights", "master weights", "gradients", "optimizer state"];

// Bytes as bars on one scale; a letter in each part, so that colour is not the only sign.
function showMemory(store, parts) {
  const rows = store.state.memory;
  const key = JSON.stringify(rows);
  if (parts.memory.dataset.rows === key) return;
  parts.memory.dataset.rows = key;
  const most = Math.max(1, ...rows.map((row) => row.bytes.reduce((a, b) => a + b, 0)));
  const bar = (row) =>
    h(
      "div",
      { class: "wb-bar", role: "img", "aria-label": `${row.name}: ${row.texts.join(", ")}` },
      ...row.bytes.map((bytes, i) =>
        bytes
          ? h("span", { title: row.texts[i], data: { part: i }, style: { width: `${(100 * bytes) / most}%` }, text: "WMGO"[i] })
          : null,
      ),
    );
  const legend = h("div", { class: "wb-legend lk-quiet" }, h("span", { text: "Bytes kept between steps (no activations):" }));
  CATEGORIES.forEach((name, i) => legend.append(h("span", { class: "wb-key" }, h("span", { data: { part: i }, text: "WMGO"[i] }), name)));
  const lines = rows.map((row) => [h("span", { class: "wb-name", text: row.name }), bar(row), h("span", { class: "lk-number", text: row.total })]);
  parts.memory.replaceChildren(...(rows.length ? [legend, h("div", { class: "wb-bars" }, ...lines.flat())] : []));
}

// For tests, and for anyone who inspects the page: what was drawn last.
function expose(store, root) {
  const { state, branches } = store;
  const losses = branches.map((rows) => rows.at(-1)?.loss ?? "");
  Object.assign(root.dataset, {
    phase: state.phase,
    building: state.building,
    task: state.task,
    recipe: state.recipe,
    step: branches[0].length,
    total: state.total,
    loss: losses[0],
    fork: branches[1].length,
    forkLoss: losses[1],
    origin: state.branches[1]?.origin ?? "",
    fp32: store.fp32[branches[0].length - 1] ?? "",
    active: state.active,
    heard: state.heard >= store.sent,
    frame: state.number,
  });
}

function buildView(root, owner, controls, draw) {
  const part = (name, ...children) => h("div", { class: name }, ...children);
  const { task, recipe, go, step, reset, at, fork, active, record, picture, knobs } = controls;
  const group = (title, ...made) => h("fieldset", { class: "wb-group" }, h("legend", { text: title }), ...made.map((k) => k.element));
  const parts = {
    title: h("span", { class: "lk-title" }),
    counter: h("span", { class: "lk-number" }),
    metric: h("span", { class: "lk-number wb-metric" }),
    notice: h("p", { class: "wb-notice lk-quiet", role: "status" }),
    memory: part("wb-memory"),
    lines: h("pre", { class: "wb-lines", tabindex: "0" }),
    words: sentence(),
    picture: figure({ scope: owner, label: "Loss, scale, underflow and swallowed updates by step", height: HEIGHT, draw }),
  };
  root.append(
    part("wb-head", parts.title, parts.counter, parts.metric),
    part("lk-row wb-choices", task.element, recipe.element, go.element, step.element, reset.element),
    part(
      "wb-groups",
      group("A format: turning it begins the run again", knobs.format, knobs.autocast, knobs.norms_fp32, knobs.accumulator),
      group("May change on the way", knobs.scaling, knobs.log2_scale, knobs.masters, knobs.epsilon, knobs.log2_lr),
    ),
    parts.picture.element,
    part("lk-row wb-fork", at.element, fork.element, active.element),
    parts.notice,
    parts.words.element,
    parts.memory,
    part("lk-row wb-export", record.element, picture.element),
    h("details", { class: "wb-details" }, h("summary", { text: "The same in plain torch" }), parts.lines),
  );
  parts.tip = tip(parts.picture);
  return parts;
}

function wireHover(owner, store, parts, view) {
  const { canvas } = parts.picture;
  owner.listen(canvas, "pointermove", (event) => {
    const inside = (event.offsetX - LEFT) / (canvas.clientWidth - LEFT - RIGHT);
    const step = Math.round(inside * (store.state?.total ?? 0));
    view.step = step >= 1 && step <= store.branches[0].length ? step : null;
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
  const root = mount(el, { label: "Workbench", kind: "workbench", scope: owner });
  const controls = makeControls(store);
  const seen = { phase: "", at: 0 };
  const view = { step: null };
  const paint = (pen, width) => {
    if (!store.state) return;
    const plot = makePlot(pen, width, store, colours(root));
    const y = drawLoss(plot);
    drawScale(plot);
    drawShares(plot);
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
    showMemory(store, parts);
    parts.picture.drawNow();
    expose(store, root);
  };
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

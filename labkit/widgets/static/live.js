// The live training's face: draws what the kernel says, sends what the learner does, and decides nothing.
//
// One store for each model keeps the whole curve; the kernel sends only new points, NaN included, as float32 columns.
// Frames are drawn in requestAnimationFrame and acknowledged after drawing, so a slow browser slows the messages down and
// never the training.

const COLUMNS = 5; // loss, scale, found_inf, stepped, underflow: see Outbox in live_outbox.py
const LOG2_MAX = 30;
const SILENCE_MS = 10_000; // building the runs takes a few seconds, and nothing is obeyed meanwhile
const ANSWER_MS = 250; // between two answers to the kernel; it sends 12 frames without one (IN_FLIGHT)

// --- the store: all points so far, and what is under way --------------------------------------------------------------

function makeStore(model) {
  return {
    model,
    views: new Set(),
    state: null,
    ours: [],
    fp32: [],
    previous: [],
    sent: 0, // number of our latest command
    silence: 0, // timer that runs from a command to its answer
    silent: false,
    afterwards: null, // what to say when the kernel has obeyed that one
    asked: null, // the latest command that has not been seen in a trained step: {number, at, running, echoed, trained}
    echo: null, // ms from a command to the first frame that knows it
    latency: null, // ms from a command to the first frame with a step trained under it
    answeredAt: 0,
    lateAnswer: 0,
    drawnAt: [], // when the frames of the last two seconds were drawn
    pending: false,
    fresh: false,
  };
}

const stores = new WeakMap();

function storeOf(model) {
  if (stores.has(model)) return stores.get(model);
  const store = makeStore(model);
  stores.set(model, store);
  model.on("msg:custom", (content, buffers) => content.kind === "frame" && takeFrame(store, content, buffers));
  return store;
}

function floats(view) {
  if (!view || !view.byteLength) return new Float32Array(0);
  const bytes = new Uint8Array(view.buffer ?? view, view.byteOffset ?? 0, view.byteLength);
  return new Float32Array(bytes.slice().buffer); // a copy: in the message they may not lie on a multiple of 4
}

function takeFrame(store, content, buffers) {
  if (content.whole) {
    store.ours = [];
    store.fp32 = [];
    store.previous = Array.from(floats(buffers[2]));
  }
  const rows = floats(buffers[0]);
  for (let i = 0; i < rows.length; i += COLUMNS) {
    const [loss, scale, foundInf, stepped, underflow] = rows.subarray(i, i + COLUMNS);
    store.ours.push({ loss, scale, foundInf: foundInf > 0, stepped: stepped > 0, underflow });
  }
  store.fp32.push(...floats(buffers[1]));
  store.state = content;
  const { asked } = store;
  if (asked && content.heard >= asked.number) {
    asked.echoed = true;
    asked.trained = content.trained >= asked.number;
  }
  store.fresh = true;
  store.silent = false;
  if (content.heard >= store.sent) store.silence = clearTimeout(store.silence);
  if (store.afterwards && content.heard >= store.sent) tell(store, store.afterwards);
  schedule(store);
}

function schedule(store) {
  if (store.pending) return;
  store.pending = true;
  requestAnimationFrame(() => {
    store.pending = false;
    for (const view of store.views) view.draw();
    if (!store.fresh) return;
    store.fresh = false;
    measure(store);
    acknowledge(store);
    for (const view of store.views) view.expose();
  });
}

// Not every frame: an answer costs the kernel more than a frame does. The last one is always answered.
function acknowledge(store) {
  clearTimeout(store.lateAnswer);
  const answer = () => {
    store.answeredAt = performance.now();
    send(store, { do: "drawn", number: store.state.number });
  };
  if (performance.now() - store.answeredAt > ANSWER_MS) answer();
  else store.lateAnswer = setTimeout(answer, ANSWER_MS);
}

function measure(store) {
  const now = performance.now();
  store.drawnAt.push(now);
  while (now - store.drawnAt[0] > 2000) store.drawnAt.shift();
  const { asked } = store;
  if (asked?.echoed) store.echo ??= now - asked.at;
  if (!asked?.trained) return;
  if (asked.running) store.latency = now - asked.at;
  store.asked = null;
}

// While a slider moves: the latest value, as soon as the one before was obeyed. So nothing queues up in front of it.
function tellLatest(store, what) {
  if (store.state.heard >= store.sent) tell(store, what);
  else store.afterwards = what;
}

function tell(store, what) {
  const late = store.afterwards;
  store.afterwards = null;
  if (late && late !== what) tell(store, late);
  store.sent += 1;
  store.asked = { number: store.sent, at: performance.now(), running: store.state.phase === "running" };
  store.echo = null;
  store.silence ||= setTimeout(() => {
    store.silent = true;
    schedule(store);
  }, SILENCE_MS);
  send(store, { ...what, number: store.sent });
}

// After a restart of the kernel there is nobody to send to, and the page's own send throws.
function send(store, content) {
  try {
    store.model.send(content);
  } catch {
    store.silent = true;
    schedule(store);
  }
}

// --- axes ------------------------------------------------------------------------------------------------------------

const FINE = [1, 1.5, 2, 3, 4, 5, 6, 8, 10];

// Round numbers between two ends: the fewer the longer the axis is.
function logTicks(low, high) {
  const ticks = [];
  const digits = high / low > 500 ? [1] : high / low > 8 ? [1, 2, 5] : FINE.slice(0, -1);
  for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++) {
    for (const m of digits) {
      const value = Number(`${m}e${e}`);
      if (value >= low * 0.999 && value <= high * 1.001) ticks.push(value);
    }
  }
  return ticks;
}

// From the smallest to the largest loss, outwards to the next round number: the axis moves seldom, and then visibly.
function lossRange(...curves) {
  let [low, high] = [Infinity, 0];
  for (const curve of curves) {
    for (const loss of curve) {
      if (!Number.isFinite(loss) || loss <= 0) continue;
      low = Math.min(low, loss);
      high = Math.max(high, loss);
    }
  }
  if (high === 0) return [0.01, 1];
  const ladder = (x) => FINE.map((m) => Number(`${m}e${Math.floor(Math.log10(x))}`));
  low = Math.max(...ladder(low * 0.97).filter((v) => v <= low * 0.97));
  high = Math.min(...ladder(high * 1.03).filter((v) => v >= high * 1.03));
  return [low, high];
}

function stepTicks(total) {
  const tens = 10 ** Math.floor(Math.log10(total / 5));
  const every = Math.max(1, [1, 2, 5, 10].map((m) => m * tens).find((v) => v >= total / 5));
  return Array.from({ length: Math.floor(total / every) + 1 }, (_, i) => i * every);
}

// --- drawing ---------------------------------------------------------------------------------------------------------

const LEFT = 52; // room for labels of the axes
const RIGHT = 52; // room for the names at the ends of the curves
const LOSS = { top: 28, height: 236 };
const SCALE = { top: LOSS.top + LOSS.height + 40, height: 84 };
const UNDERFLOW = { top: SCALE.top + SCALE.height + 40, height: 72 };
const BOTTOM = UNDERFLOW.top + UNDERFLOW.height;
const HEIGHT = BOTTOM + 30;

function makePlot(pen, width, store, tint) {
  const total = store.state.total;
  const end = width - RIGHT;
  const label = store.state.label;
  const own = { FP32: tint.fp32, BF16: tint.bf16 }[label] ?? tint.fp16;
  return { pen, store, tint, own, label, total, end, x: (step) => LEFT + ((end - LEFT) * step) / total };
}

function write(plot, words, x, y, { fill = plot.tint.ink2, align = "left", base = "alphabetic", bold = false, halo = false } = {}) {
  const { pen, tint } = plot;
  pen.font = `${bold ? "600 " : ""}${tint.size - 1}px ${tint.font}`;
  pen.textAlign = align;
  pen.textBaseline = base;
  if (halo) {
    pen.strokeStyle = tint.surface;
    pen.lineWidth = 4;
    pen.lineJoin = "round";
    pen.strokeText(words, x, y);
  }
  pen.fillStyle = fill;
  pen.fillText(words, x, y);
  return pen.measureText(words).width;
}

function stroke(plot, points, colour, width, { dash = [], alpha = 1 } = {}) {
  const { pen } = plot;
  Object.assign(pen, { strokeStyle: colour, lineWidth: width, globalAlpha: alpha, lineCap: "round", lineJoin: "round" });
  pen.setLineDash(dash);
  pen.beginPath();
  let down = false;
  for (const [x, y] of points) {
    if (down && Number.isFinite(y)) pen.lineTo(x, y);
    else if (Number.isFinite(y)) {
      pen.moveTo(x, y);
      pen.lineTo(x + 0.01, y); // a single step is a dot
    }
    down = Number.isFinite(y);
  }
  pen.stroke();
  pen.setLineDash([]);
  pen.globalAlpha = 1;
}

function cross(plot, x, y, r, colour, width = 2) {
  stroke(plot, [[x - r, y - r], [x + r, y + r]], colour, width);
  stroke(plot, [[x + r, y - r], [x - r, y + r]], colour, width);
}

function frameOf(plot, { top, height }, title, ticks, y) {
  const { tint, end } = plot;
  for (const [value, label] of ticks) {
    const at = Math.round(y(value)) + 0.5;
    stroke(plot, [[LEFT, at], [end, at]], tint.line2, 1, { alpha: 0.75 });
    if (typeof label === "string") write(plot, label, LEFT - 8, at, { align: "right", base: "middle" });
    else {
      Object.assign(plot.pen, { fillStyle: tint.ink2, textBaseline: "alphabetic", font: `${tint.size - 1}px ${tint.font}` });
      powerLabel(plot.pen, label, LEFT - 8, at + 4, "right");
    }
  }
  const bottom = Math.round(top + height) + 0.5;
  stroke(plot, [[LEFT, bottom], [end, bottom]], tint.line, 1);
  return write(plot, title, LEFT, top - 12, { fill: tint.ink, bold: true, halo: true });
}

function drawLoss(plot) {
  const { store, tint, own, x } = plot;
  const { top, height } = LOSS;
  const ours = store.ours.map((row) => row.loss);
  const [low, high] = lossRange(ours, store.fp32, store.previous);
  const y = (loss) => (loss > 0 ? top + (height * Math.log(high / loss)) / Math.log(high / low) : NaN);
  frameOf(plot, LOSS, "Loss of each batch, log scale", logTicks(low, high).map((v) => [v, decimal(v)]), y);
  drawMarks(plot);
  const curve = (losses, colour, width, look) => stroke(plot, losses.map((loss, i) => [x(i + 1), y(loss)]), colour, width, look);
  const reached = Math.max(ours.length, 1);
  if (store.previous.length) curve(store.previous, own, 1.25, { dash: [1.5, 4], alpha: 0.8 });
  if (store.fp32.length > reached + 1) curve(store.fp32, tint.fp32, 1, { alpha: 0.3 }); // known from the run before
  curve(store.fp32.slice(0, store.fp32.length > reached + 1 ? reached : reached + 1), tint.fp32, 1.5);
  curve(ours, own, 2.25);
  nameCurves(plot, y, ours, store.fp32.slice(0, reached));
  drawNonFinite(plot, ours);
  return y;
}

function nameCurves(plot, y, ours, fp32) {
  const { store, tint, own, label, x, end } = plot;
  const usable = (loss) => Number.isFinite(loss) && loss > 0;
  const ends = [[fp32, "FP32", tint.fp32], [ours, label === "FP32" ? "yours" : label, own]]
    .map(([losses, name, fill]) => ({ name, fill, i: losses.findLastIndex(usable), losses }))
    .filter(({ i }) => i >= 0)
    .map((curve) => ({ ...curve, px: x(curve.i + 1) + 8, py: y(curve.losses[curve.i]) }));
  const [a, b] = ends;
  if (b && Math.abs(a.px - b.px) < 40 && Math.abs(a.py - b.py) < 15) {
    const middle = (a.py + b.py) / 2;
    const sign = a.py <= b.py ? -1 : 1;
    a.py = middle + sign * 7.5;
    b.py = middle - sign * 7.5;
  }
  if (b && ours.length > b.i + 1) b.py -= 13; // its loss is a number no more: do not cover what goes on
  for (const { name, fill, px, py } of ends) write(plot, name, px, py, { fill, bold: true, base: "middle", halo: true });
  if (!store.previous.length) return;
  const wide = write(plot, `${label}, the run before`, end, LOSS.top - 12, { align: "right" });
  stroke(plot, [[end - wide - 34, LOSS.top - 16], [end - wide - 8, LOSS.top - 16]], own, 1.5, { dash: [1.5, 4] });
}

function drawNonFinite(plot, losses) {
  const { tint, x } = plot;
  const y = LOSS.top + 8;
  losses.forEach((loss, i) => {
    if (Number.isFinite(loss) || (i > 0 && !Number.isFinite(losses[i - 1]))) return;
    let last = i;
    while (last + 1 < losses.length && !Number.isFinite(losses[last + 1])) last++;
    stroke(plot, [[x(i + 1), y], [x(last + 1), y]], tint.bad, 2);
    cross(plot, x(i + 1), y, 5, tint.bad);
    write(plot, `${decimal(loss)} from step ${i + 1}`, x(i + 1) + 10, y + 17, { fill: tint.bad, bold: true, halo: true });
  });
}

// What the learner changed: a thin line through all panels, and its name in one of three rows where there is room.
function drawMarks(plot) {
  const { pen, store, tint, x, end } = plot;
  const rows = [-Infinity, -Infinity, -Infinity];
  for (const mark of store.state.marks) {
    const at = Math.round(x(mark.step - 0.5)) + 0.5;
    stroke(plot, [[at, LOSS.top], [at, BOTTOM]], tint.ink2, 1, { alpha: 0.7 });
    pen.font = `${tint.size - 1}px ${tint.font}`;
    const label = mark.label.replace(/2\^(-?\d+)/g, (_, e) => `2${raised(e)}`);
    const wide = pen.measureText(label).width;
    const left = Math.min(at + 5, end + RIGHT - wide - 4);
    const row = rows.findIndex((taken) => taken + 12 < left);
    if (row < 0) continue;
    rows[row] = left + wide;
    write(plot, label, left, LOSS.top + 13 + 17 * row, { fill: tint.ink, halo: true });
  }
}

const raised = (digits) => String(digits).replace(/[-\d]/g, (c) => (c === "-" ? "\u207b" : "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079"[c]));

function drawScale(plot) {
  const { store, tint, own, x, end } = plot;
  const { top, height } = SCALE;
  const exponents = store.ours.map((row) => Math.log2(row.scale));
  const all = [...exponents, store.state.scale];
  const low = Math.min(0, 4 * Math.floor(Math.min(...all) / 4));
  const high = Math.max(16, 4 * Math.ceil((Math.max(...all) + 1) / 4));
  const y = (exponent) => top + (height * (high - exponent)) / (high - low);
  const every = high - low > 16 ? 8 : 4;
  const ticks = Array.from({ length: Math.floor((high - low) / every) + 1 }, (_, i) => low + i * every);
  frameOf(plot, SCALE, "Loss scale", ticks.map((e) => [e, e]), y);
  stroke(plot, exponents.flatMap((e, i) => [[x(i + 0.5), y(e)], [x(i + 1.5), y(e)]]), own, 2.25);
  store.ours.forEach((row, i) => row.stepped || cross(plot, x(i + 1), y(exponents[i]), 4, tint.overflowed));
  if (!store.ours.length) return;
  const { skipped } = store.state;
  const wide = write(plot, skipped === 1 ? "1 skipped step" : `${skipped} skipped steps`, end, top - 12, { align: "right" });
  cross(plot, end - wide - 11, top - 16, 4, tint.overflowed);
}

function latestUnderflow(store) {
  return store.ours.findLast((row) => !Number.isNaN(row.underflow))?.underflow ?? NaN;
}

function drawUnderflow(plot) {
  const { pen, store, tint, label, x } = plot;
  const { top, height } = UNDERFLOW;
  const y = (share) => top + height * (1 - share);
  const title = `Activation gradients: elements that are zero in ${label} and not in FP32`;
  frameOf(plot, UNDERFLOW, title, [[0, "0%"], [0.5, "50%"], [1, "100%"]], y);
  const points = [];
  const measured = [];
  store.ours.forEach((row, i) => Number.isNaN(row.underflow) || measured.push([x(i + 1), y(row.underflow)]));
  if (!measured.length) return;
  measured.forEach(([px, py], i) => points.push(...(i ? [[px, measured[i - 1][1]]] : []), [px, py]));
  points.push([x(store.ours.length), points.at(-1)[1]]); // what was measured stands until it is measured again
  pen.fillStyle = tint.underflowed;
  pen.globalAlpha = 0.16;
  pen.beginPath();
  pen.moveTo(points[0][0], y(0));
  for (const point of points) pen.lineTo(...point);
  pen.lineTo(points.at(-1)[0], y(0));
  pen.fill();
  pen.globalAlpha = 1;
  stroke(plot, points, tint.underflowed, 2);
  for (const [px, py] of measured) dot(plot, px, py, 2.5, tint.underflowed);
  const at = Math.min(Math.max(points.at(-1)[1], top + 7), top + height - 9);
  const share = percent(latestUnderflow(store));
  pen.font = `600 ${tint.size - 1}px ${tint.font}`;
  const left = Math.min(points.at(-1)[0] + 8, plot.end + RIGHT - pen.measureText(share).width);
  write(plot, share, left, at, { fill: tint.underflowed, bold: true, base: "middle", halo: true });
}

function dot({ pen }, x, y, r, colour) {
  pen.fillStyle = colour;
  pen.beginPath();
  pen.arc(x, y, r, 0, 2 * Math.PI);
  pen.fill();
}

function drawSteps(plot) {
  for (const step of stepTicks(plot.total)) {
    const at = Math.round(plot.x(step)) + 0.5;
    stroke(plot, [[at, BOTTOM], [at, BOTTOM + 4]], plot.tint.line, 1);
    write(plot, String(step), at, BOTTOM + 9, { align: "center", base: "top" });
  }
  write(plot, "step", plot.end + 20, BOTTOM + 9, { base: "top" });
}

function drawHover(plot, step, y) {
  if (!step) return;
  const { store, tint, own, x } = plot;
  stroke(plot, [[x(step), LOSS.top], [x(step), BOTTOM]], tint.ink, 1, { alpha: 0.6 });
  for (const [loss, colour] of [[store.fp32[step - 1], tint.fp32], [store.ours[step - 1]?.loss, own]]) {
    if (Number.isFinite(loss) && loss > 0) dot(plot, x(step), y(loss), 3.5, colour);
  }
}

function hoverText(store, step) {
  const row = store.ours[step - 1];
  const fp32 = store.fp32[step - 1];
  const parts = [];
  if (row) parts.push(`${store.state.label} ${decimal(row.loss)}`);
  if (fp32 !== undefined) parts.push(`FP32 ${decimal(fp32)}`);
  if (row) parts.push(`scale 2^${Math.log2(row.scale)} = ${decimal(row.scale)}${row.stepped ? "" : ", skipped"}`);
  if (row && !Number.isNaN(row.underflow)) parts.push(`underflow ${percent(row.underflow)}`);
  return `step ${step}: ${parts.join(", ")}`;
}

// --- controls --------------------------------------------------------------------------------------------------------

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
  const options = ["off", "static", "dynamic"].map((value) => ({ value, label: value }));
  return {
    go: iconButton("start", "Start", "primary", press),
    step: iconButton("step", "Step", null, press),
    stop: iconButton("stop", "Stop", null, press),
    reset: iconButton("reset", "Reset", null, press),
    scaling: segmented({ label: "Loss scaling", options, value: "off", onChange: (scaling) => change({ scaling }) }),
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
      if (off()) made.set(0);
      else tellLatest(store, { do: "change", log2_scale: made.value });
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

// --- the view --------------------------------------------------------------------------------------------------------

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
    drawSteps(plot);
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

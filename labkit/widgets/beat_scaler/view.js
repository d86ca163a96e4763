// The game's face: draws what the kernel says, sends what the hand does, and decides nothing. What the hand wants is drawn
// with the next frame of the page, and the kernel's next step has it.

const COLUMNS = 5; // loss, scale, skipped, keeps_from, overflows_at: see `_columns` in beat_scaler.py
const ANSWER_MS = 250; // between two answers to the kernel; it sends 12 frames without one
const SILENCE_MS = 10_000;
const UNHEARD =
  "The kernel does not answer. If a cell is running, wait for it or interrupt it; if the kernel was restarted, run this cell again.";

function rowsIn(view) {
  const all = floats(view);
  const rows = [];
  for (let i = 0; i < all.length; i += COLUMNS) {
    const [loss, scale, skipped, keepsFrom, overflowsAt] = all.subarray(i, i + COLUMNS);
    rows.push({ loss, scale: Math.log2(scale), skipped: skipped > 0, keepsFrom, overflowsAt });
  }
  return rows;
}

function makeStore(model, life, changed) {
  const store = { state: null, yours: [], scalers: [], wish: null, sent: 0, silent: false, movedAt: null, touch: null };
  let [answeredAt, late, silence] = [0, 0, 0];
  const send = (content) => {
    try {
      model.send(content);
    } catch {
      store.silent = true; // after a restart of the kernel there is nobody to send to
      changed();
    }
  };
  store.tell = (what) => {
    store.sent += 1;
    silence ||= setTimeout(() => {
      store.silent = true;
      changed();
    }, SILENCE_MS);
    send({ ...what, number: store.sent });
  };
  store.move = (e) => {
    store.wish = e;
    store.movedAt = performance.now();
    store.tell({ do: "move", log2_scale: e });
    changed();
  };
  const answer = () => {
    answeredAt = performance.now();
    send({ do: "drawn", number: store.state.number });
  };
  const take = (content, buffers) => {
    if (content.kind !== "frame") return;
    if (content.whole) store.yours = [];
    if (content.whole) store.scalers = [];
    store.yours.push(...rowsIn(buffers[0]));
    store.scalers.push(...rowsIn(buffers[1]));
    store.state = content;
    store.silent = false;
    if (content.heard >= store.sent) {
      store.wish = null;
      silence = clearTimeout(silence);
    }
    changed();
    clearTimeout(late);
    if (performance.now() - answeredAt > ANSWER_MS) answer();
    else late = setTimeout(answer, ANSWER_MS); // the last frame is always answered
  };
  model.on("msg:custom", take);
  life.add(() => {
    model.off("msg:custom", take);
    clearTimeout(late);
    clearTimeout(silence);
  });
  store.hello = () => send({ do: "hello" });
  return store;
}

// Not `disabled`: that would drop the focus, and a keyboard's place with it, when a game ends under the finger.
function pressable(label, kind, onPress) {
  const made = button({ label, kind, onPress: () => made.element.getAttribute("aria-disabled") === "true" || onPress() });
  made.show = (text, on) => {
    made.setLabel(text);
    made.element.setAttribute("aria-disabled", String(!on));
  };
  made.element.classList.add("bs-button");
  return made;
}

function render({ model, el }) {
  const life = scope();
  const root = mount(el, { label: "Beat the scaler", kind: "beat-scaler", scope: life });
  let palette = colours(root);
  let frame = 0;
  const store = makeStore(model, life, () => (frame ||= requestAnimationFrame(show)));
  life.add(() => cancelAnimationFrame(frame));

  const press = (name) => store.tell({ do: "press", button: name });
  const wanted = () => store.wish ?? store.state?.log2_scale ?? 16;
  const move = (e) => {
    const [low, high] = store.state?.range ?? [-4, 30];
    const next = Math.min(high, Math.max(low, e));
    if (next !== wanted()) store.move(next);
  };
  const running = () => store.state?.phase === "running";
  const startOrPause = () => store.state && press(running() ? "pause" : "start");
  const go = pressable("Start", "primary", startOrPause);
  const stop = pressable("Stop", null, () => press("stop"));
  const reset = pressable("Reset", null, () => press("reset"));
  const sight = toggle({ label: "show the window", value: false, onChange: (on) => store.tell({ do: "show", window: on }) });
  const halve = button({ label: "÷ 2", title: "halve the scale (arrow down)", onPress: () => move(wanted() - 1) });
  const double = button({ label: "× 2", title: "double the scale (arrow up)", onPress: () => move(wanted() + 1) });
  const hand = slider({ label: "Your scale", min: -4, max: 30, page: 4, value: 16, text: (e) => `2^${e} = ${decimal(2 ** e)}`, onInput: (e) => store.move(e) });
  const title = h("span", { class: "lk-title" });
  const counter = h("span", { class: "lk-number lk-quiet" });
  const score = h("span", { class: "lk-number bs-score" });
  const picture = figure({ scope: life, label: "Your loss scale and both losses, step by step; the sentence below says how the game stands", height: HEIGHT, draw });
  const words = sentence();
  const notice = h("p", { class: "bs-notice", role: "alert" });
  root.append(
    h("div", { class: "bs-head" }, title, counter, score),
    h("div", { class: "lk-row" }, go.element, stop.element, reset.element, sight.element),
    h("div", { class: "lk-row bs-hand" }, halve.element, double.element, hand.element, h("span", { class: "lk-quiet", text: "keys: ↑ ↓, space to pause" })),
    picture.element,
    words.element,
    notice,
  );
  life.listen(root, "keydown", (event) => {
    const onControl = event.target.closest("button, input[type=checkbox]");
    const e = { ArrowUp: 1, ArrowDown: -1, PageUp: 4, PageDown: -4 }[event.key];
    if (event.key === " " && !onControl) startOrPause();
    else if (e && event.target !== hand.input) move(wanted() + e);
    else return; // the slider knows its arrows itself
    event.preventDefault();
  });

  function draw(pen, width) {
    if (!store.state) return;
    const plot = makePlot(pen, width, store, palette);
    drawGame(plot);
    drawLosses(plot);
    inkSteps(plot, BOTTOM);
  }

  function show() {
    frame = 0;
    const { state } = store;
    notice.textContent = store.silent ? UNHEARD : state?.notice ?? "";
    if (!state) return;
    const over = state.phase === "finished" || state.phase === "failed";
    title.textContent = state.title;
    counter.textContent = `step ${state.step} of ${state.total}; ${state.about}`;
    score.textContent = state.useful && state.step ? `useful steps: you ${percent(state.useful[0])}, scaler ${percent(state.useful[1])}` : "";
    go.show(running() ? "Pause" : over ? "Play again" : state.step ? "Continue" : "Start", true);
    stop.show("Stop", state.enabled.includes("stop"));
    reset.show("Reset", state.enabled.includes("reset"));
    if (state.heard >= store.sent) sight.set(state.in_sight);
    if (hand.value !== wanted()) hand.set(wanted());
    words.say(state.sentence);
    picture.drawNow();
    if (store.movedAt !== null) root.dataset.touch = (performance.now() - store.movedAt).toFixed(1); // ms from hand to picture
    store.movedAt = null;
    expose(state);
  }

  // For tests, and for anyone who inspects the page: what was drawn last.
  function expose(state) {
    const last = store.yours.at(-1);
    Object.assign(root.dataset, {
      phase: state.phase,
      step: store.yours.length,
      scale: last?.scale ?? "",
      rival: store.scalers.at(-1)?.scale ?? "",
      next: wanted(),
      told: state.told,
      skipped: state.skipped.join(" "),
    });
  }

  onTheme(life, () => {
    palette = colours(root);
    picture.redraw();
  }, root);
  words.say("Waiting for the kernel.");
  store.hello();
  return () => life.dispose();
}

export default { render };

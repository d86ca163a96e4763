// A scaler on a trace: four knobs and its saw-tooth, or six presets one under another. The kernel advances the scalers,
// the browser draws what comes back.

const SCALE = { top: 30, height: 252 };
const TRACKER = { top: SCALE.top + SCALE.height + 42, height: 54 };
const TIMELINE_HEIGHT = TRACKER.top + TRACKER.height + 32;
const KNOBS = [
  ["init_log2_scale", "init_scale"],
  ["growth_factor", "growth_factor"],
  ["backoff_factor", "backoff_factor"],
  ["growth_interval", "growth_interval"],
];

function nearest(places, value) {
  return places.reduce((best, place, i) => (Math.abs(place - value) < Math.abs(places[best] - value) ? i : best), 0);
}

function hoverStep(life, picture, stepAt, textOf) {
  const hover = { step: null };
  hovering(life, picture, (at) => {
    hover.step = at && stepAt(at.x);
    picture.redraw();
    return hover.step && [at.x, at.y - 6, textOf(hover.step)];
  });
  return hover;
}

// The places known so far, knobs -> {now, replay}, and what to ask the kernel while the hand rests.
function knobAtlas(model, life, root) {
  const key = (knobs) => KNOBS.map(([name]) => knobs[name]).join(" ");
  const here = () => Object.fromEntries(KNOBS.map(([name]) => [name, model.get(name)]));
  let asked = "";
  function ask() {
    if (key(here()) === asked) return;
    asked = key(here());
    model.send({ ahead: here() });
  }
  const take = (known, { places }, buffers) => places.forEach((now, i) => known.set(key(now), { now, replay: replayOf(buffers[i]) }));
  const { find, rest } = makeAtlas(life, model, root, { ask, take });
  return { find: () => find(key(here())), fits: (now) => key(now) === key(here()), rest };
}

// --- four knobs -------------------------------------------------------------------------------------------------------

function renderTimeline(root, model, life) {
  const { steps, source, places } = model.get("_about");
  const window = windowOf(model.get("_window"));
  const atlas = knobAtlas(model, life, root);
  let { now, replay } = { now: model.get("_now"), replay: replayOf(model.get("_buffer")) };
  const palette = colours(root, life, () => picture.redraw());
  let moved = null; // when the hand last moved, until that is drawn

  const knobs = KNOBS.map(([name, label]) => {
    const { values, texts } = places[name];
    const made = slider({
      label,
      min: 0,
      max: values.length - 1,
      page: 4,
      value: nearest(values, model.get(name)),
      text: (i) => texts[i],
      onInput(i) {
        moved ??= performance.now();
        put(model, { [name]: values[i] });
        atlas.rest();
        const found = atlas.find();
        if (found) show(found);
      },
    });
    made.element.dataset.knob = name;
    return { name, values, ...made, set: made.set };
  });
  const picture = figure({
    scope: life,
    label: "The loss scale of each step before the window between underflow and overflow; the sentence above says how it fares",
    height: TIMELINE_HEIGHT,
    draw,
  });
  const words = sentence();
  root.append(
    h("div", { class: "lk-head" }, h("span", { class: "lk-title", text: "The loss scale, step by step" }), h("span", { class: "lk-quiet", text: source })),
    h("div", { class: "st-knobs" }, ...knobs.map(({ element }) => element)),
    words.element,
    picture.element,
  );
  const stepAt = (x) => {
    const step = Math.round(((x - LEFT) / (picture.width - LEFT - RIGHT)) * steps);
    return step >= 1 && step <= steps ? step : null;
  };
  const hover = hoverStep(life, picture, stepAt, (step) => stepText(replay, window, step));

  function draw(pen, width) {
    const plot = plotOf(pen, width, palette, { total: steps });
    const [low, high] = rangeOf([replay], [0, 32]);
    const range = [Math.min(0, 4 * Math.floor(low / 4)), Math.max(34, high + 1)];
    const y = levelIn(SCALE, range);
    drawWindow(plot, SCALE, window, y);
    inkFrame(plot, SCALE, "Loss scale", scaleTicks(range), y);
    drawScale(plot, replay, y);
    inkZoneNames(plot, SCALE);
    inkSkips(plot, SCALE, skipsIn(replay), palette.ink);
    drawTracker(plot);
    inkSteps(plot, TRACKER.top + TRACKER.height);
    if (hover.step) {
      const at = plot.x(hover.step);
      inkLine(plot, [[at, SCALE.top], [at, TRACKER.top + TRACKER.height]], palette.ink, 1, { alpha: 0.6 });
      inkDot(plot, at, y(replay.scale[hover.step - 1]), 3.5, palette.fp16);
    }
  }

  function drawTracker(plot) {
    const interval = now.growth_interval;
    const most = Math.max(1, interval - 1);
    const y = (count) => TRACKER.top + TRACKER.height * (1 - count / most);
    const title = `Growth tracker: clean steps in a row; at ${interval.toLocaleString("en-US")} the scale grows`;
    inkFrame(plot, TRACKER, title, [[0, "0"], ...(interval > 1 ? [[most, String(most)]] : [])], y);
    inkLine(plot, stairs(plot, replay.tracker, y), palette.ink2, 1.25);
  }

  function show(next) {
    ({ now, replay } = next);
    for (const knob of knobs) {
      const value = model.get(knob.name); // where the hand is, even if the picture is not there yet
      knob.set(nearest(knob.values, value));
      if (!knob.values.includes(value)) knob.output.replaceChildren(String(value));
    }
    words.say(now.sentence);
    picture.drawNow(); // not with the next frame: the hand does not wait
    if (moved === null || !atlas.fits(now)) return;
    root.dataset.latency = (performance.now() - moved).toFixed(1); // ms from the hand to the picture
    root.dataset.drawn = Number(root.dataset.drawn ?? 0) + 1;
    moved = null;
  }

  function arrived() {
    const next = model.get("_now");
    if (atlas.fits(now) && !atlas.fits(next)) return; // an answer to where the hand was a moment ago
    show({ now: next, replay: replayOf(model.get("_buffer")) });
    atlas.rest();
  }

  watch(life, model, ["_now"], arrived);
  arrived();
}

const TIMELINE = view({ label: "Scaler timeline", kind: "scaler-timeline" }, renderTimeline);
const PRESETS = view({ label: "Six scalers on one training", kind: "scaler-presets" }, renderPresets);

export default { render: (page) => (page.model.get("_kind") === "timeline" ? TIMELINE : PRESETS).render(page) };

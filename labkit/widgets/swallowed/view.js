// Swallowed updates: two sliders, six curves. The kernel calculates, the browser draws what arrives. While the hand rests
// it asks for all places one slider can go to, so that the next movement needs no answer: those curves have fewer points,
// and the kernel's own follow.

function curvesIn(all, first = 0, places = 1) {
  const points = all.length / places / CURVES.length;
  return CURVES.map((_, i) => all.subarray((first * CURVES.length + i) * points, (first * CURVES.length + i + 1) * points));
}

// The places known so far, {now, curves} of each, and what to ask the kernel while the hand rests.
function curveAtlas(model, life, root) {
  const asked = new Set();
  const key = (weight, update) => `${weight} ${update}`;
  function ask(axis) {
    const at = model.get(axis === "weight" ? "update" : "weight"); // the other slider stays while this one moves
    if (asked.has(`${axis} ${at}`)) return;
    asked.add(`${axis} ${at}`);
    model.send({ ahead: axis, at });
  }
  function take(known, content, buffers) {
    const all = floats(buffers[0]);
    content.places.forEach((now, i) => {
      known.set(key(now.weight, now.update), { now, curves: curvesIn(all, i, content.places.length) });
    });
    if (content.axis === "update") ask("weight");
  }
  const { find, rest } = makeAtlas(life, model, root, { ask: () => model.get("_places").ahead && ask("update"), take });
  return { find: (weight, update) => find(key(weight, update)), rest };
}

// --- the table ------------------------------------------------------------------------------------------------------

function curveTable(onHighlight) {
  const body = h("tbody");
  const cells = new Map();
  for (const style of CURVES) {
    const dashes = style.dash.length ? style.dash.join(" ") : "none";
    const line = h("span", { class: "sw-line", "aria-hidden": "true" });
    line.innerHTML = `<svg width="36" height="12"><line x2="36" y1="6" y2="6" stroke="var(--lk-${style.colour})" stroke-width="${style.width}" stroke-dasharray="${dashes}"/></svg>`;
    const name = h("button", { type: "button", class: "sw-name", title: "show this curve alone", "aria-pressed": "false" }, line, style.name);
    name.addEventListener("click", () => onHighlight(style.name));
    const row = h("tr", { data: { curve: style.name } }, h("th", { scope: "row" }, name));
    const found = Object.fromEntries(["end", "off", "moved"].map((key) => [key, h("td", { data: { key } })]));
    row.append(...Object.values(found));
    body.append(row);
    cells.set(style.name, { ...found, name, row });
  }
  const moved = h("th", { scope: "col", text: "steps that moved it" });
  const heads = ["end value", "off the exact sum"].map((text) => h("th", { scope: "col", text }));
  const head = h("tr", {}, h("th", { scope: "col", text: "weight in" }), ...heads, moved);
  return {
    element: h("table", { class: "lk-table sw-table" }, h("thead", {}, head), body),
    set(rows, highlight) {
      for (const { name, ...values } of rows) {
        const cell = cells.get(name);
        for (const [key, text] of Object.entries(values)) cell[key].replaceChildren(rich(text));
        cell.name.setAttribute("aria-pressed", String(name === highlight));
        cell.row.classList.toggle("sw-faded", Boolean(highlight) && name !== highlight);
      }
    },
  };
}

// --- the widget -----------------------------------------------------------------------------------------------------

function nearest(places, value) {
  const far = (place) => Math.abs(Math.log2(place / value));
  return places.reduce((best, place, i) => (far(place) < far(places[best]) ? i : best), 0);
}

export default view({ label: "Swallowed updates", kind: "swallowed" }, (root, model, life) => {
  const places = model.get("_places");
  const palette = colours(root, life, () => picture.redraw());
  const atlas = curveAtlas(model, life, root);
  let shown = null; // {now, curves}
  let moved = null; // when the hand last moved, until that is drawn

  const wanted = ({ weight: w, update: u }) => w === model.get("weight") && u === model.get("update");
  const send = (name, value) => {
    moved = performance.now();
    put(model, { [name]: value });
    atlas.rest();
    const found = atlas.find(model.get("weight"), model.get("update"));
    if (found) follow(found);
  };
  const control = (name, label, values, texts) =>
    slider({
      label,
      min: 0,
      max: values.length - 1,
      page: 4, // a binade
      value: nearest(values, model.get(name)),
      text: (i) => texts[i],
      onInput: (i) => send(name, values[i]),
    });
  const weight = control("weight", "weight w", places.weights, places.weights_texts);
  const update = control("update", "update lr·g", places.updates, places.updates_texts);
  const sliders = h("div", { class: "sw-sliders" }, weight.element, update.element);

  const picture = figure({
    scope: life,
    label: "The weight after each update, for six methods; the table and the sentence below say where they end",
    height: (width) => Math.round(Math.min(330, Math.max(250, width * 0.36))),
    draw,
  });
  picture.element.classList.add("sw-picture");
  const words = sentence();
  const table = curveTable((name) => {
    put(model, { highlight: model.get("highlight") === name ? "" : name });
    single();
  });
  const title = h("span", { class: "lk-title" });
  const legend = h("span", { class: "lk-quiet" }, h("span", { class: "sw-road" }), "exact; press a name in the table to see its curve alone");
  root.append(h("div", { class: "lk-head" }, title, legend), sliders, picture.element, words.element, table.element);

  function areaOf(pen, width, height) {
    const { now, curves } = shown;
    const roomy = width > 600;
    let [low, high] = [Math.min(now.weight, now.exact), Math.max(now.weight, now.exact)];
    for (const values of curves) {
      for (const value of values) [low, high] = [Math.min(low, value), Math.max(high, value)];
    }
    const pad = 0.04 * (high - low);
    [low, high] = [low - pad, high + pad];
    pen.font = `600 ${palette.size - 1}px ${palette.font}`;
    const names = Math.max(...CURVES.map(({ name }) => pen.measureText(name).width)) + (roomy ? 64 : 2);
    const [left, right] = [AXES.left, width - names - LEADER];
    const [top, bottom] = [AXES.top, height - AXES.bottom];
    return {
      pen, tint: palette, low, high, left, right, top, bottom, roomy, steps: now.steps,
      x: (step) => left + ((right - left) * step) / now.steps,
      y: (value) => bottom - ((bottom - top) * (value - low)) / (high - low),
    };
  }

  function draw(pen, width, height) {
    if (!shown) return;
    const { now, curves } = shown;
    const highlight = model.get("highlight");
    const area = areaOf(pen, width, height);
    const faded = CURVES.map(({ name }) => Boolean(highlight) && name !== highlight);
    drawAxes(area);
    inkLine(area, [[area.x(0), area.y(now.weight)], [area.x(now.steps), area.y(now.exact)]], palette.line2, 9);
    const broadestFirst = CURVES.map((_, i) => i).sort((i, j) => CURVES[j].width - CURVES[i].width);
    for (const i of broadestFirst) drawCurve(area, curves[i], CURVES[i], faded[i]);
    const ends = curves.map((values) => values[values.length - 1]);
    const ys = spreadLabels(ends.map(area.y), LABEL_GAP, area.top, area.bottom - 4);
    CURVES.forEach((style, i) => drawLabel(area, style, ends[i], ys[i], now.rows[i].end, faded[i]));
    measure(now);
  }

  function measure(now) {
    if (moved === null || !wanted(now)) return;
    root.dataset.latency = (performance.now() - moved).toFixed(1); // ms from the hand to the picture
    moved = null;
  }

  function show() {
    const { now } = shown;
    title.textContent = `w \u2190 w \u2212 lr·g, ${now.steps.toLocaleString("en-US")} times`;
    for (const [name, one, values] of [["weight", weight, places.weights], ["update", update, places.updates]]) {
      one.set(nearest(values, model.get(name))); // where the hand is, even if the picture is not there yet
      if (now[name] === model.get(name)) one.output.replaceChildren(rich(now[`${name}_text`]));
    }
    words.say(now.sentence);
    table.set(now.rows, model.get("highlight"));
  }

  function follow(next) {
    shown = next;
    picture.drawNow(); // not with the next frame: the hand does not wait
    show();
  }

  function arrived() {
    const now = model.get("_now");
    if (shown && wanted(shown.now) && !wanted(now)) return; // an answer to where the hand was a moment ago
    follow({ now, curves: curvesIn(floats(model.get("_buffer"))) });
    atlas.rest();
  }

  function single() {
    show();
    picture.redraw();
  }

  watch(life, model, ["_now"], arrived);
  watch(life, model, ["highlight"], single);
  arrived();
});

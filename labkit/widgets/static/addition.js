// An addition on paper: bits under each other, one scene for each station. Python lays out every scene; here the bits are
// put into their columns and move from one scene to the next. No bit is computed.

const PACE_MS = 1900; // between two stations while playing
const ROW = 30;
const HEAD = 46; // powers of two and the letters G, R, S
const WIDEST_COLUMN = 21;
const NARROWEST_COLUMN = 8; // where the page is narrower than that, the paper scrolls
const NARROW = 560;
const INK_OF = { FP32: "fp32", FP16: "fp16", BF16: "bf16", E4M3: "fp8", E5M2: "fp8" };
const NAMES = { G: "guard", R: "round", S: "sticky" };

// --- the paper ------------------------------------------------------------------------------------------------------

// Where columns stand: the format's window, then guard, round and sticky, then what fell off, with a space between.
function ruler(paper, scene, width) {
  const left = width < NARROW ? 84 : 100;
  const right = width < NARROW ? 52 : 72;
  const { columns } = paper;
  const room = width - left - right;
  const column = Math.min(WIDEST_COLUMN, Math.max(NARROWEST_COLUMN, room / (columns.length + 1.6)));
  const space = column * 0.8;
  const index = new Map(columns.map((place, i) => [place, i]));
  const [, last] = scene.window;
  const sticky = scene.sticky ?? -Infinity;
  const written = scene.rows.flatMap((row) => row.cells.map(([, , place]) => place)).filter((place) => index.has(place));
  return {
    column,
    left,
    has: (place) => index.has(place),
    x(place) {
      const apart = (place < last ? space : 0) + (place < sticky ? space : 0);
      return left + index.get(place) * column + apart;
    },
    gap: columns.indexOf(null),
    sheetEnd: left + columns.length * column + 2 * space, // of the paper
    lowest: Math.min(...written),
    get end() { // of what is written on it in this scene
      return written.length ? this.x(this.lowest) + column : left;
    },
  };
}

function makePaper() {
  const parts = new Map(); // key -> element that stays from scene to scene
  const element = h("div", { class: "ad-paper", "aria-hidden": "true" });

  function put(key, seen, make, x, y, width) {
    let part = parts.get(key);
    const fresh = !part;
    if (fresh) {
      part = make();
      element.append(part);
      parts.set(key, part);
      part.style.opacity = 0;
    }
    part.style.transform = `translate(${x.toFixed(2)}px, ${y}px)`;
    if (width !== undefined) part.style.width = `${width.toFixed(2)}px`;
    if (fresh) part.getBoundingClientRect(); // so that appearing is a transition, and starts where it belongs
    part.style.opacity = "";
    seen.add(key);
    return part;
  }

  function text(key, seen, words, kind, x, y, width) {
    const part = put(key, seen, () => h("span"), x, y, width);
    part.className = `ad-part ad-${kind}`;
    if (part.dataset.text !== words) part.replaceChildren(rich(words));
    part.dataset.text = words;
    return part;
  }

  function drawWindow(seen, scene, paper, at, height) {
    const [first, last] = scene.window;
    const x = at.x(first);
    const width = at.x(last) + at.column - x;
    put("window", seen, () => h("span", { class: "ad-part ad-window" }), x - 3, HEAD - 4, width + 6).style.height = `${height}px`;
    const label = scene.named ? `${paper.places} places of ${paper.format}` : `${paper.format}: ${paper.places} places`;
    text("keeps", seen, width > 120 ? label : paper.format, "keeps", x, 0, width);
    if (scene.named) {
      text("first", seen, `2^${first}`, "power", x, 21, 40);
      if (width > 66) text("last", seen, `2^${last}`, "power ad-right", x + width - 40, 21, 40);
    }
    if (scene.sticky === null) return;
    const boxes = [["G", last - 1, last - 1], ["R", last - 2, last - 2], ["S", last - 3, scene.sticky]];
    for (const [letter, from, to] of boxes) {
      if (!at.has(from)) continue;
      const start = at.x(from);
      const wide = (at.has(to) ? at.x(to) + at.column : at.sheetEnd) - start;
      const box = put(`box ${letter}`, seen, () => h("span", { class: "ad-part ad-box" }), start + 1, HEAD - 4, wide - 2);
      box.style.height = `${height}px`;
      text(`name ${letter}`, seen, wide > 42 ? NAMES[letter] : letter, "letter", start, 21, wide);
    }
    const rest = scene.sticky - 1;
    const room = at.has(rest) && at.lowest <= rest ? at.end - at.x(rest) : 0;
    if (room > 100) text("fell", seen, room > 190 ? "fell off, remembered in S only" : "fell off", "power", at.x(rest), 21);
  }

  function drawRow(seen, row, y, at, width, paper) {
    const kind = row.name === "result" ? "result" : "row";
    text(`${row.name}${row.before} name`, seen, row.name, `name ad-${kind}`, 0, y, at.left - 34);
    text(`${row.name}${row.before} before`, seen, row.before, "sign", at.left - 34, y, 16);
    text(`${row.name} sign`, seen, row.sign, "sign", at.left - 18, y, 16);
    for (const [key, bit, place, what] of row.cells) {
      if (what === "word") text(key, seen, bit, "word", at.left, y);
      else if (at.has(place)) text(key, seen, bit, `bit ad-${what} ad-${kind}`, at.x(place), y, at.column);
    }
    const fallen = row.cells.some(([, , , what]) => what === "fallen");
    if (fallen && at.gap >= 0) text(`${row.name} gap`, seen, "⋯", "bit ad-zero", at.left + at.gap * at.column + at.column * 1.6, y, at.column);
    if (row.point !== null && row.cells.length && at.has(row.point)) {
      text(`${row.name} point`, seen, ".", `bit ad-point ad-${kind}`, at.x(row.point) + at.column / 2, y, at.column);
    }
    if (row.exponent !== null) text(`${row.name} power`, seen, `× 2^${row.exponent}`, `times ad-${kind}`, at.end + 8, y, 72);
  }

  return {
    element,
    draw(paper, step, width, still) {
      const scene = paper.scenes[step];
      const at = ruler(paper, scene, width);
      const rows = Math.max(...paper.scenes.map((one) => one.rows.length));
      const height = scene.rows.length * ROW + 10;
      const seen = new Set();
      element.classList.toggle("still", still);
      element.dataset.station = scene.title;
      element.style.height = `${HEAD + rows * ROW + 12}px`;
      element.style.setProperty("--ad-digit", `${Math.min(17, at.column * 1.5).toFixed(1)}px`);
      element.style.setProperty("--ad-result", `var(--lk-${INK_OF[paper.format] ?? "accent"})`);
      if (paper.columns.length) drawWindow(seen, scene, paper, at, height);
      scene.rows.forEach((row, i) => {
        const y = HEAD + i * ROW;
        if (["sum", "product", "result"].includes(row.name)) {
          put(`rule ${row.name}`, seen, () => h("span", { class: "ad-part ad-rule" }), at.left - 20, y, at.end - at.left + 22);
        }
        drawRow(seen, row, y, at, width, paper);
      });
      for (const [key, part] of parts) {
        if (seen.has(key)) continue;
        part.remove();
        parts.delete(key);
      }
    },
  };
}

// --- controls -------------------------------------------------------------------------------------------------------

function numberField(name, alert, onType) {
  const id = `ad-${name}-${++controls}`;
  const input = h("input", { id, type: "text", class: "ad-input", autocomplete: "off", spellcheck: "false" });
  const hint = h("span", { id: `${id}-hint`, class: "lk-quiet ad-hint" });
  input.setAttribute("aria-describedby", `${id}-hint ${alert.id}`);
  input.addEventListener("change", () => onType(input.value));
  return {
    element: h("div", { class: "ad-field" }, h("label", { for: id, text: name }), input, hint),
    set(text, problem, words) {
      if (input.value !== text) input.value = text;
      input.setAttribute("aria-invalid", String(Boolean(problem)));
      hint.textContent = problem ? "not understood" : words;
    },
  };
}

function stations(onChoose) {
  const element = h("div", { class: "ad-stations" });
  let titles = "";
  let control = null;
  return {
    element,
    set(names, step) {
      if (titles !== names.join()) {
        titles = names.join();
        const options = names.map((name, i) => ({ value: String(i), label: name }));
        const focused = element.contains(document.activeElement);
        control = segmented({ label: "Station", options, value: String(step), onChange: (i) => onChoose(Number(i)), labelled: false });
        element.replaceChildren(control.element);
        if (focused) element.querySelector("input:checked")?.focus();
      }
      control.set(String(step));
    },
  };
}

function factList() {
  const element = h("div", { class: "ad-facts" });
  return {
    element,
    set(facts, known) {
      element.classList.toggle("ad-unknown", !known);
      element.replaceChildren(
        ...facts.map(([name, text]) => {
          const shown = name === "bits" ? fields(text) : rich(text);
          return h("div", {}, h("div", { class: "lk-quiet", text: name }), h("div", { class: "ad-fact", data: { fact: name } }, shown));
        }),
      );
    },
  };
}

function fields(bits) {
  const fragment = document.createDocumentFragment();
  bits.split(" ").forEach((field, i) => {
    fragment.append(h("span", { class: "ad-field-bits", title: ["sign", "exponent", "significand"][i], text: field }));
    fragment.append(i < 2 ? " " : "");
  });
  return fragment;
}

// --- the widget -----------------------------------------------------------------------------------------------------

function render({ model, el }) {
  const life = scope();
  const root = mount(el, { label: "An addition, step by step", kind: "addition", scope: life });
  const send = (name, value) => {
    model.set(name, value);
    model.save_changes();
  };

  const alert = h("p", { class: "ad-problem", id: `ad-problem-${++controls}`, role: "alert" });
  const typed = {
    a: numberField("a", alert, (text) => send("a", text)),
    b: numberField("b", alert, (text) => send("b", text)),
  };
  const operation = segmented({
    label: "Operation",
    options: [{ value: "add", label: "+", title: "add" }, { value: "multiply", label: "×", title: "multiply" }],
    value: model.get("operation"),
    onChange: (value) => send("operation", value),
    labelled: false,
  });
  const formats = segmented({
    label: "Format",
    options: model.get("_choices").map((name) => ({ value: name, label: name })),
    value: model.get("format_name"),
    onChange: (value) => send("format_name", value),
    labelled: false,
  });
  const title = h("span", { class: "lk-title" });
  const place = h("span", { class: "lk-quiet" });
  const head = h("div", { class: "ad-head" }, title, place);
  const inputs = h("div", { class: "ad-inputs" }, typed.a.element, operation.element, typed.b.element, formats.element);

  const go = (step) => {
    const count = model.get("_paper").scenes.length;
    const next = Math.min(count - 1, Math.max(0, step));
    if (next === model.get("step")) return;
    send("step", next);
    follow();
  };
  const move = (step) => {
    player.stop();
    go(step);
  };
  const now = () => model.get("step");
  const player = playing(life, () => {
    const last = model.get("_paper").scenes.length - 1;
    go(now() === last ? 0 : now() + 1);
    return now() < last;
  });
  const first = button({ label: "First", title: "back to the numbers as they are written", onPress: () => move(0) });
  const back = button({ label: "Back", title: "one station back", onPress: () => move(now() - 1) });
  const next = button({ label: "Next", title: "one station on", onPress: () => move(now() + 1) });
  const last = button({ label: "Last", title: "to the result", onPress: () => move(Infinity) });
  const steps = stations(move);
  const bar = h("div", { class: "ad-bar" });
  const buttons = h("div", { class: "ad-buttons" });
  buttons.append(first.element, back.element, player.element, next.element, last.element);
  bar.append(buttons, steps.element);

  const paper = makePaper();
  const words = sentence();
  const facts = factList();
  root.append(head, inputs, alert, bar, paper.element, words.element, facts.element);

  let width = 0;
  function follow(still = false) {
    const sheet = model.get("_paper");
    const step = Math.min(now(), sheet.scenes.length - 1);
    const atEnd = step === sheet.scenes.length - 1;
    const problems = model.get("problems");
    for (const name of ["a", "b"]) typed[name].set(model.get(name), problems[name], sheet.hints[name]);
    const problem = Object.entries(problems).map(([name, said]) => `${name}: ${said}`).join(" ");
    if (alert.textContent !== problem) alert.textContent = problem;
    title.textContent = model.get("operation") === "add" ? "An addition on paper" : "A multiplication on paper";
    place.textContent = `station ${step + 1} of ${sheet.scenes.length}`;
    operation.set(model.get("operation"));
    formats.set(model.get("format_name"));
    steps.set(sheet.scenes.map((scene) => scene.title), step);
    for (const one of [first, back]) disable(one.element, step === 0, next.element);
    for (const one of [next, last]) disable(one.element, atEnd, back.element);
    if (width) paper.draw(sheet, step, width, still || reducedMotion());
    words.say(sheet.scenes[step].sentence);
    facts.set(sheet.facts, atEnd);
  }

  const observer = new ResizeObserver(() => {
    width = paper.element.clientWidth;
    follow(true);
  });
  observer.observe(paper.element);
  life.add(() => observer.disconnect());
  const changed = () => follow();
  for (const name of ["a", "b", "operation", "format_name", "step", "problems", "_paper"]) {
    model.on(`change:${name}`, changed);
    life.add(() => model.off(`change:${name}`, changed));
  }
  follow(true);
  return () => life.dispose();
}

// A disabled button would drop the focus, and with it the next key.
function disable(element, off, instead) {
  if (off && element === document.activeElement) instead.focus({ preventScroll: true });
  element.disabled = off;
}

function playing(life, advance) {
  let timer = 0;
  const control = button({ label: "Play", title: "play the stations one after the other", kind: "primary", onPress: press });
  function stop() {
    clearTimeout(timer);
    timer = 0;
    control.setLabel("Play");
  }
  function tick() {
    if (advance()) timer = setTimeout(tick, PACE_MS);
    else stop();
  }
  function press() {
    if (timer) return stop();
    control.setLabel("Pause");
    timer = 1;
    tick();
  }
  life.add(stop);
  return { element: control.element, stop };
}

export default { render };

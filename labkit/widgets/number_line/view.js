// The number line: where the numbers of a format lie, and what a real number becomes (rounding.js).

import { figure, hovering } from "../base/canvas.js";
import { sentence } from "../base/controls.js";
import { h } from "../base/elements.js";
import { put, watch } from "../base/model.js";
import { view } from "../base/root.js";
import { colours, formatColour } from "../base/theme.js";
import { withMinus } from "../exact/numbers.js";
import { controlsRow, keyboard, modes, pointing, readPlace } from "./hands.js";
import {
  CLOSEST,
  TALL,
  TOP,
  drawAxis,
  drawCounts,
  drawMarks,
  drawOutcome,
  drawZones,
} from "./plot.js";
import { lineFormat, roundedView } from "./rounding.js";
import { as_text, inside, lens, nearby, plainDecimal, spacingAt, tidy, wholeOf } from "./scale.js";

const KEYS = "arrow keys move along, plus and minus zoom, Home shows everything";

export default view(
  { label: "Number line", kind: "number-line", alone: true },
  (root, model, life) => {
    const palette = colours(root, life, () => line.redraw());
    const formats = new Map(model.get("_formats").map((row) => [row.name, lineFormat(row)]));
    const axis = () => formats.get(model.get("format"));
    let [x, answer] = [model.get("x"), null];
    const isLog = () => model.get("scale") === "log";
    const view = () => lens(...model.get("window"), isLog(), line.width);

    const top = controlsRow(model, formats, {
      zoom: (factor) => zoom(factor),
      look,
      rescale,
      type,
    });
    const line = figure({ life, label: "", height: TALL, draw });
    line.canvas.setAttribute("role", "application");
    line.canvas.setAttribute("aria-roledescription", "number line");
    line.canvas.tabIndex = 0;
    line.element.classList.add("nl-line", "lk-drag");
    const handle = h("div", {
      class: "nl-handle",
      role: "slider",
      tabindex: "0",
      "aria-label": "The number x",
    });
    line.element.append(handle);
    const table = modes((rounding) => put(model, { rounding }));
    const words = sentence(model);
    for (const one of [line, table, words]) one.element.classList.add("lk-answer");
    root.append(top.element, line.element, table.element, words.element);

    function draw(pen) {
      const now = view();
      const format = axis();
      pen.font = `${palette.size - 1}px ${palette.font}`;
      drawZones(pen, now, format, palette);
      const tightest = drawMarks(pen, now, format, isLog(), palette);
      drawAxis(pen, now, isLog(), palette);
      drawCounts(pen, now, format, isLog(), palette);
      drawOutcome(pen, now, answer, x, palette, formatColour(format.name, palette));
      placeHandle(now);
      root.dataset.dense = String(tightest < CLOSEST);
    }

    function placeHandle(now) {
      const place = now.x(x);
      const off = place < 0 ? "left" : place > now.width ? "right" : "";
      const text = withMinus(as_text(x));
      handle.textContent =
        off === "left" ? `\u25c2 ${text}` : off === "right" ? `${text} \u25b8` : text;
      const [wide, across] = [handle.offsetWidth, now.width * line.grown];
      handle.style.transform = `translateX(${Math.round(Math.min(across - wide, Math.max(0, place * line.grown - wide / 2)))}px)`;
    }

    function show() {
      x = model.get("x");
      answer = roundedView(x, axis(), model.get("rounding"));
      top.set();
      table.set(answer);
      words.say(answer.sentence);
      const values = answer.values.map(({ text }) => text).join(" or ");
      handle.setAttribute("aria-valuetext", `${as_text(x)}, becomes ${values}`);
      const limits = {
        "aria-valuenow": x,
        "aria-valuemin": model.get("window")[0],
        "aria-valuemax": model.get("window")[1],
      };
      for (const [name, value] of Object.entries(limits))
        handle.setAttribute(name, plainDecimal(value));
      line.canvas.setAttribute("aria-label", `The numbers of ${model.get("format")}; ${KEYS}`);
      root.dataset.x = String(answer.x);
      root.dataset.window = model.get("window").join(" ");
      line.redraw();
    }

    function type(text) {
      const { x: next, problem = "" } = readPlace(text);
      if (!problem) put(model, { x: next });
      return problem;
    }

    function moveTo(value) {
      const [low, high] = model.get("window");
      const next = tidy(value, view(), isLog());
      if (!Number.isFinite(next) || next === x) return;
      put(model, { x: next });
      if (next < low || next > high) pan(view().u(next) - (view().from + view().to) / 2);
      show();
    }

    function step(amount) {
      const now = view();
      const there = now.value(now.u(x) + amount * now.perPixel);
      moveTo(isLog() && x <= 0 ? model.get("window")[0] : there);
    }

    function look(place) {
      const format = axis();
      const [log, gap] = [isLog(), spacingAt(x || 2 ** format.emin, format)];
      const least = 2 ** (format.emin - format.significand_bits);
      const windows = {
        everything: wholeOf(format, log),
        subnormals: log
          ? [least / 4, 2 ** (format.emin + 2)]
          : [-1.5 * 2 ** format.emin, 1.5 * 2 ** format.emin],
        x:
          log && x <= 0
            ? wholeOf(format, log)
            : log
              ? [Math.max(x - 6 * gap, x / 16), x + 6 * gap]
              : [x - 6 * gap, x + 6 * gap],
      };
      frame(windows[place].map(view().u));
    }

    function frame(ends) {
      const log = isLog();
      const [from, to] = inside(ends, axis(), log);
      put(model, { window: log ? [2 ** from, 2 ** to] : [from, to] });
      show();
    }

    function zoom(factor, place) {
      const now = view();
      const seen = x >= now.value(now.from) && x <= now.value(now.to);
      const centre = place ?? (seen ? now.u(x) : (now.from + now.to) / 2);
      frame([centre - (centre - now.from) * factor, centre + (now.to - centre) * factor]);
    }

    function pan(by) {
      const now = view();
      frame([now.from + by, now.to + by]);
    }

    function rescale(scale) {
      const format = axis();
      const [low, high] = model.get("window");
      const whole = wholeOf(format, scale === "log");
      const all = high > format.max; // everything was in sight, and stays so
      const positive = high > 0 ? [Math.min(high / 64, whole[0] * 8), high] : whole;
      put(model, {
        scale,
        window: all ? whole : scale === "log" && low <= 0 ? positive : [low, high],
      });
      show();
    }

    watch(life, model, ["x", "window", "scale", "rounding", "format"], show);
    watch(life, model, ["_formats"], () =>
      model.get("_formats").forEach((row) => formats.set(row.name, lineFormat(row))),
    );
    pointing(line, handle, life, { view, moveTo, pan, zoom, frame });
    keyboard(line, handle, life, {
      step,
      zoom,
      look,
      pan: (pixels) => pan(pixels * view().perPixel),
    });
    hovering(life, line, (at) => {
      const text = at && !at.held && at.y >= TOP - 10 && nearby(view().at(at.x), axis(), isLog());
      return text && [at.x, at.y - 20, text];
    });
    show();
  },
);

// Canvas: figures that stay sharp and fill their width, a label that follows the pointer, fills that need no colour.

import { h, rich } from "./elements.js";
import { TYPE } from "./theme.js";

export function figure({ life, label, height, draw }) {
  const canvas = h("canvas", { role: "img", "aria-label": label });
  const element = h("div", { class: "lk-figure" }, canvas);
  const context = canvas.getContext("2d");
  let frame = 0;
  const self = {
    element,
    canvas,
    width: 0,
    height: 0,
    grown: 1, // how many CSS pixels one of the picture's is
    at(event) {
      return {
        x: event.offsetX / self.grown,
        y: event.offsetY / self.grown,
        held: event.buttons > 0 && event.pointerType === "mouse",
      };
    },
    redraw() {
      frame ||= requestAnimationFrame(self.drawNow);
    },
    measure() {
      self.grown = parseFloat(getComputedStyle(element.closest(".labkit")).fontSize) / TYPE;
      self.width = element.clientWidth / self.grown;
      self.height = typeof height === "function" ? height(self.width) : height;
      element.style.height = `${self.height * self.grown}px`;
      self.drawNow();
    },
    drawNow() {
      cancelAnimationFrame(frame);
      frame = 0;
      if (!self.width) return;
      const ratio = self.grown * (window.devicePixelRatio || 1);
      const [w, ht] = [Math.round(self.width * ratio), Math.round(self.height * ratio)];
      if (canvas.width !== w || canvas.height !== ht) [canvas.width, canvas.height] = [w, ht];
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.clearRect(0, 0, self.width, self.height);
      draw(context, self.width, self.height);
    },
  };
  const observer = new ResizeObserver(self.measure);
  observer.observe(element);
  life.add(() => {
    observer.disconnect();
    cancelAnimationFrame(frame);
  });
  return self;
}

export function tip(over) {
  const element = h("div", { class: "lk-tip", hidden: true, "aria-hidden": "true" });
  over.element.append(element);
  return {
    element,
    show(x, y, text) {
      element.replaceChildren(rich(text));
      element.hidden = false;
      const { width, grown } = over;
      const left = Math.max(
        0,
        Math.min(x * grown - element.offsetWidth / 2, width * grown - element.offsetWidth),
      );
      const top = Math.max(0, y * grown - element.offsetHeight - 8);
      element.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
    },
    hide() {
      element.hidden = true;
    },
  };
}

// Where somebody points in a picture: with a mouse, a finger, or the arrow keys, where the picture has no keys of its own.
export function pointed(life, over, look) {
  const { canvas } = over;
  let x = null;
  const point = (event) => {
    const at = over.at(event);
    x = at.x;
    look(at);
  };
  for (const type of ["pointermove", "pointerdown"]) life.listen(canvas, type, point);
  life.listen(canvas, "pointerleave", (event) => event.pointerType === "mouse" && look(null));
  life.listen(canvas, "blur", () => look(null));
  if (canvas.tabIndex >= 0) return;
  canvas.tabIndex = 0;
  life.listen(canvas, "keydown", (event) => {
    const share = {
      ArrowLeft: -1 / 60,
      ArrowRight: 1 / 60,
      PageDown: -1 / 6,
      PageUp: 1 / 6,
      Home: -1,
      End: 1,
    }[event.key];
    if (!share || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    x = Math.min(over.width, Math.max(0, (x ?? over.width / 2) + share * over.width));
    look({ x, y: over.height / 2, held: false });
  });
}

export function hovering(life, over, at) {
  const label = tip(over);
  pointed(life, over, (place) => {
    const found = at(place);
    if (found) label.show(...found);
    else label.hide();
  });
}

// Text in which 2^-24 has a raised exponent; returns its width.
export function inkRich(pen, text, x, y, align) {
  const font = pen.font;
  const size = parseFloat(font.match(/([\d.]+)px/)[1]);
  const small = font.replace(/[\d.]+px/, `${(size * 0.75).toFixed(1)}px`);
  const runs = text
    .split(/(?<=\d)\^(-?\d+)/)
    .map((run, i) => ({ run: i % 2 ? run.replace("-", "\u2212") : run, up: i % 2 === 1 }));
  const wide = ({ run, up }) => ((pen.font = up ? small : font), pen.measureText(run).width);
  const total = runs.reduce((sum, one) => sum + wide(one), 0);
  let left = align === "center" ? x - total / 2 : align === "right" ? x - total : x;
  Object.assign(pen, { textAlign: "left", textBaseline: "alphabetic" });
  for (const one of runs) {
    const width = wide(one);
    pen.fillText(one.run, left, one.up ? y - size * 0.38 : y);
    left += width;
  }
  pen.font = font;
  return total;
}

const patternCache = new Map();

export function patternImage(fate, palette) {
  const ratio = window.devicePixelRatio || 1;
  const key = `${fate} ${palette[fate]} ${ratio}`;
  if (!patternCache.has(key)) {
    const size = 8;
    const tile = h("canvas");
    tile.width = tile.height = size * ratio;
    const pen = tile.getContext("2d");
    pen.scale(ratio, ratio);
    pen.fillStyle = palette[fate];
    pen.fillRect(0, 0, size, size);
    pen.strokeStyle = pen.fillStyle =
      fate === "underflowed" ? "rgb(255 255 255 / 55%)" : "rgb(0 0 0 / 38%)";
    pen.lineWidth = 1.3;
    pen.beginPath();
    if (fate === "underflowed" || fate === "overflowed") {
      for (const offset of [-size, 0, size]) pen.moveTo(offset, size), pen.lineTo(offset + size, 0);
    }
    if (fate === "overflowed") {
      for (const offset of [-size, 0, size]) pen.moveTo(offset, 0), pen.lineTo(offset + size, size);
    }
    pen.stroke();
    if (fate === "subnormal") {
      for (const [x, y] of [
        [2, 2],
        [6, 6],
      ])
        pen.fillRect(x - 0.8, y - 0.8, 1.6, 1.6);
    }
    patternCache.set(key, { tile, ratio, url: tile.toDataURL() });
  }
  return patternCache.get(key);
}

export function pattern(context, fate, palette) {
  if (fate === "normal") return palette.normal;
  const { tile, ratio } = patternImage(fate, palette);
  const fill = context.createPattern(tile, "repeat");
  fill.setTransform(new DOMMatrix().scale(1 / ratio));
  return fill;
}

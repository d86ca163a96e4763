// Canvas: figures that stay sharp and fill their width, labels at the pointer, and patterns that
// can be told apart without colours.

import { h, rich } from "./elements.js";
import { TYPE } from "./theme.js";

/** @import { Life } from "./lifetime.js" */
/** @import { Fate, Palette } from "./theme.js" */

/** @typedef {CanvasRenderingContext2D} Pen */

/**
 * A place in a picture, in pixels of the picture.
 *
 * @typedef {object} Spot
 * @property {number} x
 * @property {number} y
 * @property {boolean} held Whether a mouse button is down.
 */

/**
 * A picture that fills the width of the element around it.
 *
 * @typedef {object} Figure
 * @property {HTMLDivElement} element
 * @property {HTMLCanvasElement} canvas
 * @property {number} width The width, in pixels of the picture.
 * @property {number} height
 * @property {number} grown The CSS pixels per pixel of the picture; larger type makes it grow.
 * @property {(event: PointerEvent | MouseEvent) => Spot} at Return the place of an event.
 * @property {() => void} redraw Draw with the next frame of the page.
 * @property {() => void} drawNow
 * @property {() => void} measure Fit the size to the element and the type, and draw.
 */

/**
 * Return a figure that draws itself when its size changes, and on request.
 *
 * @param {object} options
 * @param {Life} options.life
 * @param {string} options.label the text for screen readers
 * @param {number | ((width: number) => number)} options.height in pixels of the picture
 * @param {(pen: Pen, width: number, height: number) => void} options.draw
 * @returns {Figure}
 */
export function figure({ life, label, height, draw }) {
  const canvas = h("canvas", { role: "img", "aria-label": label });
  const element = h("div", { class: "lk-figure" }, canvas);
  const pen = penOf(canvas);
  let frame = 0;
  /** @type {Figure} */
  const self = {
    element,
    canvas,
    width: 0,
    height: 0,
    grown: 1,
    at(event) {
      return {
        x: event.offsetX / self.grown,
        y: event.offsetY / self.grown,
        held: event.buttons > 0 && "pointerType" in event && event.pointerType === "mouse",
      };
    },
    redraw() {
      if (!frame) frame = requestAnimationFrame(self.drawNow);
    },
    measure() {
      const root = element.closest(".labkit") ?? element;
      self.grown = parseFloat(getComputedStyle(root).fontSize) / TYPE;
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
      const wide = Math.round(self.width * ratio);
      const tall = Math.round(self.height * ratio);
      // Setting the size of a canvas reallocates its memory, even if the size is the same.
      if (canvas.width !== wide) canvas.width = wide;
      if (canvas.height !== tall) canvas.height = tall;
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      pen.clearRect(0, 0, self.width, self.height);
      draw(pen, self.width, self.height);
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

/**
 * Return the 2d context of a canvas; throw if it has none.
 *
 * @param {HTMLCanvasElement} canvas
 * @returns {Pen}
 */
export function penOf(canvas) {
  const pen = canvas.getContext("2d");
  if (!pen) throw new Error("expected a canvas that can be drawn on, got one without a 2d context");
  return pen;
}

/**
 * Return a label that can be shown above places of a figure.
 *
 * @param {Figure} over
 */
export function tip(over) {
  const element = h("div", { class: "lk-tip", hidden: true, "aria-hidden": "true" });
  over.element.append(element);
  return {
    element,
    /**
     * Show a text above a place of the picture, inside its width.
     *
     * @param {number} x
     * @param {number} y
     * @param {string} text
     */
    show(x, y, text) {
      element.replaceChildren(rich(text));
      element.hidden = false;
      const { width, grown } = over;
      const wanted = x * grown - element.offsetWidth / 2;
      const left = Math.max(0, Math.min(wanted, width * grown - element.offsetWidth));
      const top = Math.max(0, y * grown - element.offsetHeight - 8);
      element.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
    },
    hide() {
      element.hidden = true;
    },
  };
}

/**
 * For each key, how far it moves the place that is pointed at, as a share of the width.
 *
 * @type {Record<string, number>}
 */
const LOOK_KEYS = {
  ArrowLeft: -1 / 60,
  ArrowRight: 1 / 60,
  PageDown: -1 / 6,
  PageUp: 1 / 6,
  Home: -1,
  End: 1,
};

/**
 * Call `look` with the place that the mouse or a finger points at. Keys move this place, too,
 * unless the figure has keys of its own.
 *
 * @param {Life} life
 * @param {Figure} over
 * @param {(spot: Spot | null) => void} look called with null outside the figure
 */
export function pointed(life, over, look) {
  const { canvas } = over;
  /** @type {number | null} */
  let x = null;
  /** @param {PointerEvent} event */
  const point = (event) => {
    const spot = over.at(event);
    x = spot.x;
    look(spot);
  };
  life.listen(canvas, "pointermove", point);
  life.listen(canvas, "pointerdown", point);
  life.listen(canvas, "pointerleave", (event) => {
    if (event.pointerType === "mouse") look(null);
  });
  life.listen(canvas, "blur", () => look(null));
  // A figure that can already have the focus has keys of its own.
  if (canvas.tabIndex >= 0) return;
  canvas.tabIndex = 0;
  life.listen(canvas, "keydown", (event) => {
    const share = LOOK_KEYS[event.key];
    if (!share || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const before = x ?? over.width / 2;
    x = Math.min(over.width, Math.max(0, before + share * over.width));
    look({ x, y: over.height / 2, held: false });
  });
}

/**
 * Show a label at the place that is pointed at.
 *
 * @param {Life} life
 * @param {Figure} over
 * @param {(spot: Spot | null) => [x: number, y: number, text: string] | null | "" | false |
 * undefined} labelAt
 *   a place and its text, or nothing
 */
export function hovering(life, over, labelAt) {
  const label = tip(over);
  pointed(life, over, (spot) => {
    const placed = labelAt(spot);
    if (placed) {
      label.show(...placed);
    } else {
      label.hide();
    }
  });
}

// The size of an exponent and its height above the base line, as shares of the font's size.
const EXPONENT_SIZE = 0.75;
const EXPONENT_RISE = 0.38;

/**
 * Write a text with raised exponents: the -24 of 2^-24, for example.
 *
 * @param {Pen} pen
 * @param {string} text
 * @param {number} x
 * @param {number} y the base line
 * @param {CanvasTextAlign} [align] "left", "center" or "right"
 * @returns {number} the width of the text
 */
export function inkRich(pen, text, x, y, align = "left") {
  const font = pen.font;
  const size = parseFloat(font.match(/([\d.]+)px/)?.[1] ?? String(TYPE));
  const raised = font.replace(/[\d.]+px/, `${(size * EXPONENT_SIZE).toFixed(1)}px`);
  // Split by a group, every second part is an exponent.
  const runs = text.split(/(?<=\d)\^(-?\d+)/).map((run, i) => {
    const up = i % 2 === 1;
    const words = up ? run.replace("-", "\u2212") : run;
    pen.font = up ? raised : font;
    return { words, up, width: pen.measureText(words).width };
  });
  const total = runs.reduce((sum, { width }) => sum + width, 0);
  let left = x;
  if (align === "center") {
    left = x - total / 2;
  } else if (align === "right") {
    left = x - total;
  }
  pen.textAlign = "left";
  pen.textBaseline = "alphabetic";
  for (const { words, up, width } of runs) {
    pen.font = up ? raised : font;
    pen.fillText(words, left, up ? y - size * EXPONENT_RISE : y);
    left += width;
  }
  pen.font = font;
  return total;
}

/**
 * A tile that repeats in both directions.
 *
 * @typedef {object} Pattern
 * @property {HTMLCanvasElement} tile
 * @property {number} ratio The pixels of the tile per CSS pixel.
 * @property {string} url The tile as a data URL, for CSS.
 */

/** @type {Map<string, Pattern>} */
const patternCache = new Map();
// The side of a pattern's tile, in CSS pixels.
const TILE = 8;
const LIGHT_HATCH = "rgb(255 255 255 / 55%)";
const DARK_HATCH = "rgb(0 0 0 / 38%)";

/**
 * Return the pattern of a fate: its colour, with a hatch that tells it apart without colours.
 *
 * @param {Fate} fate
 * @param {Palette} palette
 * @returns {Pattern}
 */
export function patternImage(fate, palette) {
  const ratio = window.devicePixelRatio || 1;
  const key = `${fate} ${palette[fate]} ${ratio}`;
  let image = patternCache.get(key);
  if (!image) {
    const tile = drawTile(fate, palette[fate], ratio);
    image = { tile, ratio, url: tile.toDataURL() };
    patternCache.set(key, image);
  }
  return image;
}

/**
 * Draw a tile: light stripes for underflow, dots for subnormal, dark crosses for overflow.
 *
 * @param {Fate} fate
 * @param {string} colour
 * @param {number} ratio the pixels of the tile per CSS pixel
 */
function drawTile(fate, colour, ratio) {
  const tile = h("canvas");
  tile.width = TILE * ratio;
  tile.height = TILE * ratio;
  const pen = penOf(tile);
  const hatch = fate === "underflowed" ? LIGHT_HATCH : DARK_HATCH;
  pen.scale(ratio, ratio);
  pen.fillStyle = colour;
  pen.fillRect(0, 0, TILE, TILE);
  pen.strokeStyle = hatch;
  pen.fillStyle = hatch;
  pen.lineWidth = 1.3;
  pen.beginPath();
  for (const offset of [-TILE, 0, TILE]) {
    if (fate === "underflowed" || fate === "overflowed") {
      pen.moveTo(offset, TILE);
      pen.lineTo(offset + TILE, 0);
    }
    if (fate === "overflowed") {
      pen.moveTo(offset, 0);
      pen.lineTo(offset + TILE, TILE);
    }
  }
  pen.stroke();
  if (fate === "subnormal") {
    pen.fillRect(1.2, 1.2, 1.6, 1.6);
    pen.fillRect(5.2, 5.2, 1.6, 1.6);
  }
  return tile;
}

/**
 * Return the fill of a fate for a canvas.
 *
 * @param {Pen} pen
 * @param {Fate} fate
 * @param {Palette} palette
 * @returns {string | CanvasPattern}
 */
export function pattern(pen, fate, palette) {
  if (fate === "normal") return palette.normal;
  const { tile, ratio } = patternImage(fate, palette);
  const fill = pen.createPattern(tile, "repeat");
  if (!fill) return palette[fate];
  fill.setTransform(new DOMMatrix().scale(1 / ratio));
  return fill;
}

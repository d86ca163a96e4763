// Colours of the page's theme, and the reader's preference for reduced motion.

/** @import { Life } from "./lifetime.js" */

// The type size that pictures are drawn for, in CSS pixels. With larger type, whole pictures grow.
export const TYPE = 13;

/**
 * What happens to a number when it is rounded to a format.
 *
 * @typedef {"underflowed" | "subnormal" | "normal" | "overflowed"} Fate
 */

/** @type {Fate[]} */
export const FATES = ["underflowed", "subnormal", "normal", "overflowed"];

/**
 * The colours of the theme, as CSS has them, and the type.
 *
 * @typedef {Record<Ink, string> & { font: string, size: number }} Palette
 */

/**
 * The names of the colours: `--lk-NAME` in base.css, without its hyphens.
 *
 * @typedef {Fate | "ink" | "ink2" | "line" | "line2" | "surface" | "surface2" | "accent" | "fp32"
 *   | "fp16" | "bf16" | "fp8" | "bf16Text" | "fp8Text" | "good" | "bad"} Ink
 */

/** @type {Record<Ink, string>} */
const PROPERTIES = {
  ink: "--lk-ink",
  ink2: "--lk-ink-2",
  line: "--lk-line",
  line2: "--lk-line-2",
  surface: "--lk-surface",
  surface2: "--lk-surface-2",
  accent: "--lk-accent",
  underflowed: "--lk-underflowed",
  subnormal: "--lk-subnormal",
  normal: "--lk-normal",
  overflowed: "--lk-overflowed",
  fp32: "--lk-fp32",
  fp16: "--lk-fp16",
  bf16: "--lk-bf16",
  fp8: "--lk-fp8",
  bf16Text: "--lk-bf16-text",
  fp8Text: "--lk-fp8-text",
  good: "--lk-good",
  bad: "--lk-bad",
};
const INKS = /** @type {Ink[]} */ (Object.keys(PROPERTIES));
// The time that a theme's style sheet has to load before the colours are read again.
const SETTLE_MS = 250;

/**
 * Return the colours of the theme. They are updated, and `changed` is called, whenever the theme
 * may have changed.
 *
 * @param {HTMLElement} root
 * @param {Life} life
 * @param {() => void} changed
 * @returns {Palette}
 */
export function colours(root, life, changed) {
  const palette = readColours(root);
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let late;

  function again() {
    Object.assign(palette, readColours(root));
    changed();
  }
  // The style sheet of a theme may load later than its attribute changes, and later than widgets
  // that were saved with the notebook.
  function settle() {
    clearTimeout(late);
    late = setTimeout(() => {
      again();
      if (!palette.ink) settle();
    }, SETTLE_MS);
  }

  const laidOut = new ResizeObserver(() => {
    laidOut.disconnect();
    again();
  });
  const themed = new MutationObserver(() => {
    again();
    settle();
  });
  laidOut.observe(root);
  themed.observe(document.body, {
    attributes: true,
    attributeFilter: ["data-jp-theme-light", "data-jp-theme-name", "class"],
  });
  life.add(() => {
    themed.disconnect();
    laidOut.disconnect();
    clearTimeout(late);
  });
  if (!palette.ink) settle();
  return palette;
}

/**
 * Return the colours that an element has now; they are "" before its style sheet has loaded.
 *
 * @param {HTMLElement} root
 * @returns {Palette}
 */
function readColours(root) {
  const style = getComputedStyle(root);
  const pairs = INKS.map((name) => [name, style.getPropertyValue(PROPERTIES[name]).trim()]);
  return { ...Object.fromEntries(pairs), font: style.fontFamily, size: TYPE };
}

/**
 * Return the colour of texts about something that is drawn in a colour. Lines need a contrast of 3,
 * texts need 4.5 (WCAG 2). Colours with less contrast are replaced by a darker one of the same hue,
 * or by the colour of the text.
 *
 * @param {string} colour
 * @param {Palette} palette
 * @returns {string}
 */
export function wordColour(colour, palette) {
  if (colour === palette.bf16) return palette.bf16Text;
  if (colour === palette.fp8) return palette.fp8Text;
  const weak = [...FATES.map((fate) => palette[fate]), palette.accent];
  return weak.includes(colour) ? palette.ink : colour;
}

/** @type {Record<string, Ink>} */
const FORMAT_INKS = { FP32: "fp32", TF32: "fp32", FP16: "fp16", BF16: "bf16" };

/**
 * Return the colour of a number format; formats of 8 bits and fewer share one.
 *
 * @param {string} name
 * @param {Palette} palette
 */
export function formatColour(name, palette) {
  return palette[FORMAT_INKS[name] ?? "fp8"];
}

// The colours of what a run draws, which `faintly` makes faint; texts and axes keep theirs.
/** @type {Ink[]} */
const DRAWN = [...FATES, "fp32", "fp16", "bf16", "fp8", "bad"];

/**
 * Return faint versions of the colours, for a recorded run that is shown until the learner's own
 * run begins.
 *
 * @param {Palette} palette
 * @returns {Palette}
 */
export function faintly(palette) {
  const faint = { ...palette };
  for (const name of DRAWN) faint[name] = `color-mix(in srgb, ${palette[name]} 55%, transparent)`;
  return faint;
}

/** Return whether the reader prefers reduced motion. */
export function reducedMotion() {
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}

// Colours of the page's theme, and whether it may move.

export const TYPE = 13; // CSS pixels of the type that pictures are drawn for; beside larger type the whole picture is larger

export const FATES = ["underflowed", "subnormal", "normal", "overflowed"];

const INKS = [
  "ink",
  "ink-2",
  "line",
  "line-2",
  "surface",
  "surface-2",
  "accent",
  ...FATES,
  "fp32",
  "fp16",
  "bf16",
  "fp8",
  "good",
  "bad",
];

export function colours(root, life, changed) {
  const palette = { size: TYPE };
  const read = () => {
    const style = getComputedStyle(root);
    for (const name of INKS)
      palette[name.replace("-", "")] = style.getPropertyValue(`--lk-${name}`).trim();
    palette.font = style.fontFamily;
  };
  const again = () => {
    read();
    changed();
  };
  const laidOut = new ResizeObserver(() => {
    laidOut.disconnect();
    again();
  });
  let late;
  // The style sheet of a theme may come after its attribute, and after widgets that were saved with the notebook.
  const settle = () => {
    clearTimeout(late);
    late = setTimeout(() => {
      again();
      if (!palette.ink) settle();
    }, 250);
  };
  const observer = new MutationObserver(() => {
    again();
    settle();
  });
  laidOut.observe(root);
  observer.observe(document.body, {
    attributes: true,
    attributeFilter: ["data-jp-theme-light", "data-jp-theme-name", "class"],
  });
  life.add(() => {
    observer.disconnect();
    laidOut.disconnect();
    clearTimeout(late);
  });
  read();
  if (!palette.ink) settle();
  return palette;
}

export const formatColour = (name, palette) =>
  palette[{ FP32: "fp32", TF32: "fp32", FP16: "fp16", BF16: "bf16" }[name] ?? "fp8"];

// The same colours for what is only shown: a run on record, until one of the learner's own begins.
const DRAWN = [...FATES, "fp32", "fp16", "bf16", "fp8", "bad"];
export const faintly = (palette) => ({
  ...palette,
  ...Object.fromEntries(
    DRAWN.map((name) => [name, `color-mix(in srgb, ${palette[name]} 55%, transparent)`]),
  ),
});

export function reducedMotion() {
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}

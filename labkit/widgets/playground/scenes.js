// Scenes: a problem with the settings in which it fails, and a guide to what can be found there.

/**
 * @typedef {object} Scene
 * @property {string} title
 * @property {string} problem
 * @property {string} preset
 * @property {Record<string, unknown>} [changes] Of the preset.
 * @property {Record<string, unknown>} [method] Changes of the problem's optimizer.
 * @property {string} question To answer before the first step.
 * @property {string[]} guide What to turn, and what to look at.
 */

/** @type {Record<string, Scene>} */
export const SCENES = {
  picture: {
    title: "A dark picture",
    problem: "picture",
    preset: "FP16",
    question: "FP16 without a loss scale: does the face appear?",
    guide: [
      "The network paints a face whose brightness is about 61 millionths. Press Start.",
      "The outlines are the twin's gradients: most are below 2^-25, and FP16 rounds them to 0.",
      "Set the loss scale to static and move it: bars and outlines move out of the red zone.",
      "Now the face appears here too, from the weights that stood still until then.",
    ],
  },
  targets: {
    title: "Targets of five millionths",
    problem: "targets",
    preset: "FP16",
    question: "The targets are small, the inputs are not. What does FP16 learn?",
    guide: [
      "The loss is a mean over 1,000 samples, so each gradient begins with a factor of 1/500.",
      "Press Start: the first two layers get no gradient, and the last one hardly any.",
      "Set the loss scale to dynamic. It begins at 2^16, and the loss falls as in FP32.",
    ],
  },
  spirals: {
    title: "Two spirals",
    problem: "spirals",
    preset: "FP16",
    question: "Gradients of ordinary size: does FP16 need a loss scale here?",
    guide: [
      "Press Start: FP16 learns what FP32 learns. Most of the bars are in the normal zone.",
      "Take the recipe FP8, with three bits of significand. It learns more slowly.",
      "Take own formats with fewer bits. Find the smallest one that still learns.",
    ],
  },
  too_high: {
    title: "A scale that is too high",
    problem: "spirals",
    preset: "FP16 static too high",
    question: "A scale of 2^26 makes every gradient 67 million times larger. Is that better?",
    guide: [
      "Press Start: gradients overflow to infinity, and every step is skipped.",
      "Move the loss scale down until the steps happen. Where is the edge?",
      "Set the scaling to dynamic: it halves the scale at each overflow, and finds the edge.",
    ],
  },
  epsilon: {
    title: "Adam in FP16",
    problem: "spirals",
    preset: "O3",
    question: "Adam divides by a square root plus 1e-8. What is 1e-8 in FP16?",
    guide: [
      "Press One step, and then again: the weights are NaN, since 1e-8 is zero in FP16.",
      "A gradient whose square is zero is then divided by zero.",
      "Reset, set epsilon to 2^-13, and start again. Or let the optimizer work in FP32.",
    ],
  },
  swallowed: {
    title: "Small updates",
    problem: "spirals",
    preset: "BF16 no master",
    method: { rate: 2 ** -11 },
    question: "A small learning rate, and no FP32 masters. Do the weights move?",
    guide: [
      "Most updates are below half the distance of two BF16 numbers near the weight.",
      "Press Start: the loss stops at 0.66, since these updates are rounded away.",
      "Set the rounding to stochastic, or switch master weights on: the loss falls as in FP32.",
    ],
  },
};

// Scenes: a problem with the settings in which it fails, a question to answer before the first
// step, and a guide to what can be found there.

/** @import { Outcome } from "./outcome.js" */

/**
 * An answer to a scene's question.
 *
 * @typedef {object} Answer
 * @property {string} text
 * @property {Outcome[]} outcomes The outcomes of a run for which it is right.
 */

/**
 * A problem with settings and a question about them.
 *
 * @typedef {object} Scene
 * @property {string} title
 * @property {string} problem A key of PROBLEMS.
 * @property {string} preset A key of RECIPE_PRESETS.
 * @property {Record<string, unknown>} [changes] The changes to the preset.
 * @property {Record<string, unknown>} [method] Changes of the problem's optimizer.
 * @property {string} question A question to answer before the first step.
 * @property {Answer[]} answers
 * @property {number} right The index of the answer that runs show
 *   (tests/playground/test_scenes.py).
 * @property {string} why The reason of the right answer.
 * @property {number} seen The step at which the answer can be seen.
 * @property {string[]} guide Instructions: what to turn, and what to look at.
 * @property {string} [source] The source of the data.
 */

const DIGITS_SOURCE = "Digits: E. Alpaydin and C. Kaynak, UCI, CC BY 4.0.";

/** @type {Record<string, Scene>} */
export const SCENES = {
  picture: {
    title: "A dark picture",
    problem: "picture",
    preset: "FP16",
    question: "A network paints a face, in FP16 and without a loss scale. Does the face appear?",
    answers: [
      { text: "Yes, as in FP32", outcomes: ["same"] },
      { text: "Yes, but later", outcomes: ["worse"] },
      { text: "No, nothing appears", outcomes: ["stuck"] },
    ],
    right: 2,
    why: "Nearly all gradients are below 2^-25. FP16 rounds them to zero, so no weight moves.",
    seen: 150,
    guide: [
      "The network paints a face whose brightness is about 61 millionths. Press Start.",
      "The outlines are the twin's gradients: most are below 2^-25, and FP16 rounds them to 0.",
      "Drag the handle under the layers to the right: bars and outlines leave the red zone.",
      "Now the face appears here too, from the weights that stood still until then.",
    ],
  },
  targets: {
    title: "Tiny targets",
    problem: "targets",
    preset: "FP16",
    question: "The targets are small, the inputs are not. What does FP16 learn of them?",
    answers: [
      { text: "What FP32 learns", outcomes: ["same"] },
      { text: "Hardly anything", outcomes: ["worse", "stuck"] },
      { text: "The weights become NaN", outcomes: ["broken"] },
    ],
    right: 1,
    why: "The first two layers get no gradient: each is below 2^-25, half of FP16's smallest.",
    seen: 100,
    guide: [
      "The loss is a mean over 1,000 samples, so each gradient begins with a factor of 1/500.",
      "Press Start: the first two layers get no gradient, and the last one hardly any.",
      "Set the loss scale to dynamic. It begins at 2^16, and the loss falls as in FP32.",
      "Then solve the exercise below, with few bytes for each weight.",
    ],
  },
  spirals: {
    title: "Two spirals",
    problem: "spirals",
    preset: "FP16",
    question: "Gradients of ordinary size, in FP16 and without a loss scale. Does it learn?",
    answers: [
      { text: "As FP32 does", outcomes: ["same"] },
      { text: "Less than FP32", outcomes: ["worse", "stuck"] },
      { text: "The weights become NaN", outcomes: ["broken"] },
    ],
    right: 0,
    why: "Most gradients are in FP16's normal zone: nothing is lost, and no loss scale is needed.",
    seen: 150,
    guide: [
      "Press Start: FP16 learns what FP32 learns. Most of the bars are in the normal zone.",
      "Take the recipe FP8, with three bits of significand. It learns more slowly.",
      "Take own formats with fewer bits. Find the smallest one that still learns.",
    ],
  },
  digits: {
    title: "Digits",
    problem: "digits",
    preset: "FP8",
    question:
      "Operands of 8 bits, of which 3 are significand. Does a network learn to read digits?",
    answers: [
      { text: "As well as in FP32", outcomes: ["same"] },
      { text: "Clearly worse", outcomes: ["worse"] },
      { text: "Not at all", outcomes: ["stuck", "broken"] },
    ],
    right: 0,
    why: "Sums are in FP32 and so are the masters: roundings of single operands average out.",
    seen: 400,
    guide: [
      "Press Start, and look at the digits: a frame marks a mistake. None was trained on.",
      "Take FP16, BF16 or O3: digits train in almost everything.",
      "Now give weights, activations and gradients the format E5M2: 2 bits of significand do.",
      "Give all three your own format e4m2. Its exponents end at 2^7, and the training fails.",
    ],
    source: DIGITS_SOURCE,
  },
  fine_tuning: {
    title: "Fine-tuning",
    problem: "fine_tuning",
    preset: "FP16 no master",
    question:
      "A network that reads digits goes on with digits one row lower, with a small learning rate. \
Weights are FP16 alone. Does it learn them?",
    answers: [
      { text: "As FP32 does", outcomes: ["same"] },
      { text: "Much less than FP32", outcomes: ["worse", "stuck"] },
      { text: "The weights become NaN", outcomes: ["broken"] },
    ],
    right: 1,
    why: "A step of Adam is about 2^-15. Half the distance of FP16 numbers is that above 1/16, so \
the larger weights stand still.",
    seen: 400,
    guide: [
      "The network knows digits. They are one row lower.",
      "Press Start: gradients are fine, none is lost. Yet the loss hardly falls.",
      "Switch FP32 master weights on: from here on small updates add up, and the loss falls.",
      "Without masters, set the rounding of weights to stochastic: that is enough, too.",
    ],
    source: DIGITS_SOURCE,
  },
  too_high: {
    title: "A scale too high",
    problem: "spirals",
    preset: "FP16 static too high",
    question: "A loss scale of 2^26 makes every gradient 67 million times larger. What happens?",
    answers: [
      { text: "It learns as FP32 does", outcomes: ["same", "worse"] },
      { text: "No step is taken", outcomes: ["stuck"] },
      { text: "The weights become NaN", outcomes: ["broken"] },
    ],
    right: 1,
    why: "Gradients beyond 65,504 become infinity in FP16. A step with one of them is skipped.",
    seen: 20,
    guide: [
      "Press Start: gradients overflow to infinity, and every step is skipped.",
      "Drag the handle under the layers to the left until steps happen. Where is the edge?",
      "Set the scaling to dynamic: it halves the scale at each overflow, and finds the edge.",
    ],
  },
  epsilon: {
    title: "Adam in FP16",
    problem: "spirals",
    preset: "O3",
    question: "Adam divides by a square root plus 1e-8, here in FP16. What happens?",
    answers: [
      { text: "It learns as FP32 does", outcomes: ["same"] },
      { text: "It learns less", outcomes: ["worse", "stuck"] },
      { text: "The weights become NaN", outcomes: ["broken"] },
    ],
    right: 2,
    why: "1e-8 is zero in FP16, and so is the square of a small gradient: 0 divided by 0 is NaN.",
    seen: 5,
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
    question: "A small learning rate, weights in BF16, and no FP32 masters. Does it learn?",
    answers: [
      { text: "As FP32 does", outcomes: ["same"] },
      { text: "Much later than FP32", outcomes: ["worse", "stuck"] },
      { text: "The weights become NaN", outcomes: ["broken"] },
    ],
    right: 1,
    why: "Most updates are below half the distance of two BF16 numbers: they are rounded away.",
    seen: 1000,
    guide: [
      "Most updates are below half the distance of two BF16 numbers near the weight.",
      "Press Start: the loss stays near 0.66 long after the twin's has left it.",
      "Set the rounding to stochastic, or switch master weights on: the loss falls as in FP32.",
    ],
  },
};

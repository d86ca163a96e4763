// A progress bar, a sentence, and a button that starts or stops. The training runs in a thread of
// the kernel.

import { button, sentence } from "../base/controls.js";
import { h } from "../base/elements.js";
import { whenUnseen } from "../base/kernel.js";
import { put, watch } from "../base/model.js";
import { decimal } from "../base/number_words.js";
import { view } from "../base/root.js";

/** @import { Life } from "../base/lifetime.js" */
/** @import { Model } from "../base/model.js" */

/**
 * @typedef {object} Traits
 * @property {number} done The number of steps that were done.
 * @property {number} total The number of steps that are planned.
 * @property {"ready" | "running" | "finished" | "stopped" | "failed"} phase
 * @property {string} sentence
 * @property {(number | null)[]} losses null where one is inf or NaN.
 * @property {"" | "start" | "stop"} wanted What the browser asks for.
 */

// The size of the line of losses and the space around it, in pixels.
const WIDTH = 220;
const HEIGHT = 36;
const EDGE = 4;

/** @param {readonly (number | null)[]} losses */
function finiteOf(losses) {
  return losses.filter((loss) => loss !== null);
}

/**
 * Return the losses as a line without axes, on a logarithmic scale, with a cross at the first one
 * that is inf or NaN.
 *
 * @param {readonly (number | null)[]} losses
 * @returns {string} the text of an SVG
 */
function sparkline(losses) {
  const logs = finiteOf(losses)
    .filter((loss) => loss > 0)
    .map(Math.log);
  const low = Math.min(...logs);
  const high = Math.max(...logs);
  const foot = HEIGHT - EDGE;
  /** @param {number} i */
  const x = (i) => EDGE + ((WIDTH - 2 * EDGE) * i) / Math.max(1, losses.length - 1);
  /** @param {number} loss */
  function y(loss) {
    if (loss <= 0) return foot;
    return foot - ((HEIGHT - 2 * EDGE) * (Math.log(loss) - low)) / (high - low || 1);
  }
  const points = [];
  for (const [i, loss] of losses.entries()) {
    if (loss !== null) points.push(`${x(i).toFixed(1)},${y(loss).toFixed(1)}`);
  }
  const line =
    `<polyline points="${points.join(" ")}" fill="none" ` +
    'stroke="var(--lk-accent)" stroke-width="1.8"/>';
  const bad = losses.indexOf(null);
  const cross = bad < 0 ? "" : crossAt(x(bad));
  const size = `viewBox="0 0 ${WIDTH} ${HEIGHT}" width="${WIDTH}" height="${HEIGHT}"`;
  return `<svg ${size}>${line}${cross}</svg>`;
}

/** @param {number} x */
function crossAt(x) {
  const middle = 'text-anchor="middle" dominant-baseline="middle"';
  return `<text x="${x}" y="${HEIGHT / 2}" ${middle} fill="var(--lk-bad)">×</text>`;
}

/** @param {readonly (number | null)[]} losses */
function lossWords(losses) {
  const good = finiteOf(losses);
  const bad = losses.length - good.length;
  const [first] = good;
  const last = good[good.length - 1];
  const range = good.length
    ? `The loss from ${decimal(first)} to ${decimal(last)}, log scale`
    : "The loss";
  return bad ? `${range}; inf or NaN in ${bad} of ${losses.length} points` : range;
}

/**
 * @param {HTMLElement} root
 * @param {Model<Traits>} model
 * @param {Life} life
 */
function fillTrainingBar(root, model, life) {
  const press = button({
    label: "Start",
    kind: "primary",
    onPress: () => put(model, { wanted: model.get("phase") === "ready" ? "start" : "stop" }),
  });
  const bar = h("progress", { "aria-label": "Steps done", max: model.get("total"), value: 0 });
  const words = sentence();
  const spark = h("span", { class: "tb-spark", role: "img" });

  function show() {
    const phase = model.get("phase");
    root.dataset.phase = phase;
    root.dataset.done = String(model.get("done"));
    press.setLabel(phase === "ready" ? "Start" : "Stop");
    press.enable(phase === "ready" || phase === "running");
    bar.max = Math.max(1, model.get("total"));
    bar.value = model.get("done");
    showLosses(model.get("losses"));
    words.say(model.get("sentence"), phase === "running" ? phase : model.get("sentence"));
  }

  /** @param {readonly (number | null)[]} losses */
  function showLosses(losses) {
    spark.hidden = losses.length < 2;
    spark.setAttribute("aria-label", lossWords(losses));
    spark.title = lossWords(losses);
    if (!spark.hidden) spark.innerHTML = sparkline(losses);
  }

  root.append(h("div", { class: "lk-row" }, press.element, bar, spark), words.element);
  watch(life, model, ["done", "losses", "phase", "sentence", "total"], show);
  whenUnseen(life, () => model.send({ do: "unseen" }));
  show();
}

export default view({ label: "Training run", kind: "training-bar" }, fillTrainingBar);

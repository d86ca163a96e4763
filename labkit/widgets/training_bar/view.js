// A bar, a sentence, and one button that starts or stops. The training itself runs in a thread of the kernel.

import { button, sentence } from "../base/controls.js";
import { h } from "../base/elements.js";
import { whenUnseen } from "../base/kernel.js";
import { put, watch } from "../base/model.js";
import { decimal } from "../base/number_words.js";
import { view } from "../base/root.js";

// The loss as a line without axes, on a logarithmic scale; a cross at the first one that is not finite.
function sparkline(losses) {
  const [width, height, edge] = [220, 36, 4];
  const good = losses.filter((loss) => loss !== null && loss > 0).map(Math.log);
  const [low, high] = [Math.min(...good), Math.max(...good)];
  const x = (i) => edge + ((width - 2 * edge) * i) / Math.max(1, losses.length - 1);
  const y = (loss) =>
    loss > 0
      ? height - edge - ((height - 2 * edge) * (Math.log(loss) - low)) / (high - low || 1)
      : height - edge;
  const points = losses.flatMap((loss, i) =>
    loss === null ? [] : [`${x(i).toFixed(1)},${y(loss).toFixed(1)}`],
  );
  const bad = losses.indexOf(null);
  const cross =
    bad < 0
      ? ""
      : `<text x="${x(bad)}" y="${height / 2}" text-anchor="middle" dominant-baseline="middle" fill="var(--lk-bad)">×</text>`;
  const line = `<polyline points="${points.join(" ")}" fill="none" stroke="var(--lk-accent)" stroke-width="1.8"/>`;
  return `<svg viewBox="0 0 ${width} ${height}" width="${width}" height="${height}">${line}${cross}</svg>`;
}

const lossWords = (losses) => {
  const good = losses.filter((loss) => loss !== null);
  const bad = losses.length - good.length;
  const range = good.length
    ? `The loss from ${decimal(good[0])} to ${decimal(good.at(-1))}, log scale`
    : "The loss";
  return bad ? `${range}; inf or NaN in ${bad} of ${losses.length} points` : range;
};

export default view({ label: "Training run", kind: "training-bar" }, (root, model, life) => {
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
    const losses = model.get("losses");
    spark.hidden = losses.length < 2;
    spark.setAttribute("aria-label", lossWords(losses));
    spark.title = lossWords(losses);
    if (!spark.hidden) spark.innerHTML = sparkline(losses);
    words.say(model.get("sentence"), phase === "running" ? phase : model.get("sentence"));
  }

  root.append(h("div", { class: "lk-row" }, press.element, bar, spark), words.element);
  watch(life, model, ["done", "losses", "phase", "sentence", "total"], show);
  whenUnseen(life, () => model.send({ do: "unseen" }));
  show();
});

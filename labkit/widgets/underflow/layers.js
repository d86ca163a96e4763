// The layers as rows to choose from, each with what it loses; the picture behind them is drawn by plot.js.

import { newName } from "../base/controls.js";
import { h } from "../base/elements.js";
import { percent } from "../base/number_words.js";

export function layerList(layers, onChoose, picture) {
  const name = newName("uf-layers"); // two widgets on a page are two groups
  const parts = new Map();
  const rows = h("div", { class: "uf-rows" }, picture);
  for (const layer of layers) {
    const input = h("input", { type: "radio", name, value: layer.name });
    const title = h("span", { class: "uf-name", text: layer.name });
    const zero = h("span", { class: "uf-lost" });
    const infinite = h("span", { class: "uf-lost" });
    input.addEventListener("change", () => onChoose(layer.name));
    parts.set(layer.name, { input, zero, infinite });
    rows.append(
      h(
        "label",
        { class: "uf-layer lk-cover", title: layer.name },
        input,
        title,
        h("span"),
        zero,
        infinite,
      ),
    );
  }
  const headings = ["layer", "", "to zero", "to inf"].map((text) => h("span", { text }));
  const head = h("div", { class: "uf-layers-head lk-quiet", "aria-hidden": "true" }, ...headings);
  return {
    element: h(
      "fieldset",
      { class: "uf-layers", role: "radiogroup", "aria-label": "Layer" },
      head,
      rows,
    ),
    set(chosen, shares) {
      layers.forEach((layer, i) => {
        const { input, zero, infinite } = parts.get(layer.name);
        const { underflowed, overflowed } = shares[i];
        input.checked = layer.name === chosen;
        zero.textContent = percent(underflowed);
        infinite.textContent = overflowed ? percent(overflowed) : "\u2013";
        input.setAttribute(
          "aria-label",
          `${layer.name}: ${percent(underflowed)} to zero, ${percent(overflowed)} to infinity`,
        );
      });
    },
  };
}

// The sentence under the histogram; `layer` is null for all layers together.

export function sayFate(shares, log2Scale, layer, kind, format) {
  const gradients = layer === null ? `these ${kind}` : `the ${kind} of layer ${layer}`;
  const { underflowed, subnormal, normal, overflowed } = shares;
  if (underflowed + subnormal + normal + overflowed === 0) {
    return `At scale 2^${log2Scale}, ${gradients} have nothing to lose: all of them are zero already in FP32.`;
  }
  const lost = underflowed === 0 ? "none" : underflowed === 1 ? "all" : percent(underflowed);
  const said = [`${lost} of ${gradients} underflow in ${format}`];
  if (subnormal) said.push(`${percent(subnormal)} are subnormal`);
  said.push(normal ? `${percent(normal)} keep full precision` : "none keeps full precision");
  if (overflowed) said.push(`${percent(overflowed)} overflow`);
  const ending = overflowed ? "; a single infinity spoils the whole step." : ".";
  const at = `At scale 2^${log2Scale}${log2Scale === 0 ? " (no scaling)" : ""}, `;
  return `${at}${said.slice(0, -1).join(", ")} and ${said.at(-1)}${ending}`;
}

// What is not in the picture: exact zeros, infinities and NaNs of the FP32 gradients; `allZero` names layers of zeros alone.
export function noteOf({ elements, zeros, non_finite }, layer, allZero) {
  const count = (number) => number.toLocaleString("en-US");
  const where = `${count(elements)} elements${layer === null ? "" : ` of layer ${layer}`}`;
  let said = `None of the ${where} is exactly zero in FP32.`;
  if (zeros && zeros === elements)
    said = `All ${where} are exactly zero already in FP32: no gradient arrives here.`;
  else if (zeros) {
    const which = allZero.length ? ` All zero: ${allZero.join(", ")}.` : "";
    said = `${percent(zeros / elements)} of all ${where} are exactly zero already in FP32 and are left out.${which}`;
  }
  return (
    said +
    (non_finite
      ? ` ${count(non_finite)} are infinite or NaN already in FP32 and are left out.`
      : "")
  );
}

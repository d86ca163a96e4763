// The layers as rows to choose from, each with the share that it loses, and the sentence about the
// chosen one. plot.js draws the picture behind them.

import { newName } from "../base/controls.js";
import { h } from "../base/elements.js";
import { percent } from "../base/number_words.js";

/** @import { Shares } from "./plot.js" */
/** @import { LayerRow } from "./view.js" */

// --- the list ------------------------------------------------------------------------------------

/**
 * Return the list of layers, of which one is chosen.
 *
 * @param {readonly { name: string }[]} layers
 * @param {(name: string) => void} onChoose
 * @param {HTMLElement} picture the element behind the rows
 */
export function layerList(layers, onChoose, picture) {
  // The radio buttons of two widgets on a page are two groups.
  const group = newName("uf-layers");
  const rows = layers.map(({ name }) => layerRow(name, group, onChoose));
  const headings = ["layer", "", "to zero", "to inf"].map((text) => h("span", { text }));
  const about = { class: "uf-layers", role: "radiogroup", "aria-label": "Layer" };
  return {
    element: h(
      "fieldset",
      about,
      h("div", { class: "uf-layers-head lk-quiet", "aria-hidden": "true" }, ...headings),
      h("div", { class: "uf-rows" }, picture, ...rows.map(({ element }) => element)),
    ),
    /**
     * Show the chosen layer, and the shares that each layer loses.
     *
     * @param {string} chosen the name of a layer
     * @param {readonly Shares[]} shares of each layer
     */
    set(chosen, shares) {
      for (const [i, row] of rows.entries()) row.set(layers[i].name === chosen, shares[i]);
    },
  };
}

/**
 * Return the row of a layer: its radio button, name and shares.
 *
 * @param {string} name
 * @param {string} group
 * @param {(name: string) => void} onChoose
 */
function layerRow(name, group, onChoose) {
  const input = h("input", { type: "radio", name: group, value: name });
  const title = h("span", { class: "uf-name", text: name });
  const zero = h("span", { class: "uf-lost" });
  const infinite = h("span", { class: "uf-lost" });
  const about = { class: "uf-layer lk-cover", title: name };
  input.addEventListener("change", () => onChoose(name));
  return {
    element: h("label", about, input, title, h("span"), zero, infinite),
    /**
     * Show whether the layer is chosen, and the shares that it loses.
     *
     * @param {boolean} chosen
     * @param {Shares} shares
     */
    set(chosen, { underflowed, overflowed }) {
      const lost = `${percent(underflowed)} to zero, ${percent(overflowed)} to infinity`;
      input.checked = chosen;
      zero.textContent = percent(underflowed);
      infinite.textContent = overflowed ? percent(overflowed) : "\u2013";
      input.setAttribute("aria-label", `${name}: ${lost}`);
    },
  };
}

// --- words ---------------------------------------------------------------------------------------

/**
 * Return the sentence about the shares of a layer at a scale.
 *
 * @param {Shares} shares
 * @param {number} log2Scale
 * @param {string | null} layer null for all layers together
 * @param {string} kind what is counted, such as "weight gradients"
 * @param {string} format the name of the format
 */
export function sayFate(shares, log2Scale, layer, kind, format) {
  const gradients = layer === null ? `these ${kind}` : `the ${kind} of layer ${layer}`;
  const { underflowed, subnormal, normal, overflowed } = shares;
  if (underflowed + subnormal + normal + overflowed === 0) {
    const why = "all of them are zero already in FP32";
    return `At scale 2^${log2Scale}, ${gradients} have nothing to lose: ${why}.`;
  }
  const parts = [`${lostPart(underflowed)} of ${gradients} underflow in ${format}`];
  if (subnormal) parts.push(`${percent(subnormal)} are subnormal`);
  parts.push(normal ? `${percent(normal)} keep full precision` : "none keeps full precision");
  if (overflowed) parts.push(`${percent(overflowed)} overflow`);
  const ending = overflowed ? "; a single infinity spoils the whole step." : ".";
  const at = `At scale 2^${log2Scale}${log2Scale === 0 ? " (no scaling)" : ""}, `;
  return `${at}${parts.slice(0, -1).join(", ")} and ${parts.at(-1)}${ending}`;
}

/**
 * Return a share as the subject of the sentence.
 *
 * @param {number} share
 */
function lostPart(share) {
  if (share === 0) return "none";
  return share === 1 ? "all" : percent(share);
}

/**
 * Return a note about the elements that are not in the picture: exact zeros, infinities and NaNs of
 * the FP32 gradients.
 *
 * @param {Pick<LayerRow, "elements" | "zeros" | "non_finite">} row
 * @param {string | null} layer null for all layers together
 * @param {readonly string[]} allZero names of layers of zeros alone
 */
export function noteOf({ elements, zeros, non_finite }, layer, allZero) {
  const where = `${thousands(elements)} elements${layer === null ? "" : ` of layer ${layer}`}`;
  const text = zerosText(elements, zeros, where, allZero);
  if (!non_finite) return text;
  return `${text} ${thousands(non_finite)} are infinite or NaN already in FP32 and are left out.`;
}

/**
 * Return the part of the note about exact zeros.
 *
 * @param {number} elements
 * @param {number} zeros
 * @param {string} where the number of elements and their layer, as text
 * @param {readonly string[]} allZero names of layers of zeros alone
 */
function zerosText(elements, zeros, where, allZero) {
  if (!zeros) return `None of the ${where} is exactly zero in FP32.`;
  if (zeros === elements) {
    return `All ${where} are exactly zero already in FP32: no gradient arrives here.`;
  }
  const which = allZero.length ? ` All zero: ${allZero.join(", ")}.` : "";
  const share = percent(zeros / elements);
  return `${share} of all ${where} are exactly zero already in FP32 and are left out.${which}`;
}

/**
 * Return a count with a comma after the thousands.
 *
 * @param {number} count
 */
function thousands(count) {
  return count.toLocaleString("en-US");
}

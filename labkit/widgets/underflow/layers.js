// The layers as rows to choose from, each with what it loses; the picture behind them is drawn by plot.js.

function layerList(layers, onChoose, picture) {
  const name = `uf-layers-${copyOfThisFile}-${++controls}`; // two widgets on a page are two groups
  const parts = new Map();
  const rows = h("div", { class: "uf-rows" }, picture);
  for (const layer of layers) {
    const input = h("input", { type: "radio", name, value: layer.name });
    const title = h("span", { class: "uf-name", text: layer.name });
    const zero = h("span", { class: "uf-lost" });
    const infinite = h("span", { class: "uf-lost" });
    input.addEventListener("change", () => onChoose(layer.name));
    parts.set(layer.name, { input, zero, infinite });
    rows.append(h("label", { class: "uf-layer lk-cover", title: layer.name }, input, title, h("span"), zero, infinite));
  }
  const headings = ["layer", "", "to zero", "to inf"].map((text) => h("span", { text }));
  const head = h("div", { class: "uf-layers-head lk-quiet", "aria-hidden": "true" }, ...headings);
  return {
    element: h("fieldset", { class: "uf-layers", role: "radiogroup", "aria-label": "Layer" }, head, rows),
    set(chosen, shares) {
      layers.forEach((layer, i) => {
        const { input, zero, infinite } = parts.get(layer.name);
        const { underflowed, overflowed } = shares[i];
        input.checked = layer.name === chosen;
        zero.textContent = percent(underflowed);
        infinite.textContent = overflowed ? percent(overflowed) : "\u2013";
        input.setAttribute("aria-label", `${layer.name}: ${percent(underflowed)} to zero, ${percent(overflowed)} to infinity`);
      });
    },
  };
}

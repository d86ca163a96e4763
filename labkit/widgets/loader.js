// The ES module of a widget. It joins two scripts: the shared one, which a kernel sends once for
// all widgets, and the widget's own.
//
// Python puts `const OWN_SCRIPT = "...";` before this text.

/** @import { AssetsModel, Model } from "./base/model.js" */
/** @import { LabView, Place } from "./base/root.js" */

/** @typedef {{ _assets: string }} AssetsTrait the address of the model of `Assets` */

/** @type {LabView<AssetsTrait> | undefined} */
let widget;

/**
 * Run both scripts as one module.
 *
 * @param {AssetsModel} assets
 * @returns {Promise<LabView<AssetsTrait>>} what it exports
 */
async function load(assets) {
  const source = [assets.get("script"), OWN_SCRIPT].join("\n");
  const address = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  const loaded = await import(address);
  URL.revokeObjectURL(address);
  return loaded.default;
}

/**
 * Give the page the shared style.
 *
 * @param {string} style
 */
function dress(style) {
  const sheet = document.getElementById("labkit-style") ?? document.createElement("style");
  if (sheet.textContent === style) return;
  sheet.id = "labkit-style";
  sheet.textContent = style;
  document.head.prepend(sheet);
}

/**
 * @param {Model<AssetsTrait>} model
 * @returns {Promise<AssetsModel>}
 */
function assetsOf(model) {
  if (!model.widget_manager) throw new Error("expected a model with a widget manager, got none");
  return model.widget_manager.get_model(model.get("_assets").slice("IPY_MODEL_".length));
}

/** @param {Place<AssetsTrait>} place */
async function render({ model, el }) {
  const assets = await assetsOf(model);
  dress(assets.get("style"));
  if (!widget) widget = await load(assets);
  return widget.render({ model, el, live: assets.comm_live });
}

export default { render };

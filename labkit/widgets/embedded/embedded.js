// A widget as a module in anywidget's form, for pages of MyST, Jupyter Book or marimo (the host).
//
// The module has the first value of each trait. A host may give other values, and each side is told
// of the other's changes.

import { pageModel } from "../base/page.js";

/** @import { Model } from "../base/model.js" */
/** @import { LabView } from "../base/root.js" */

/** @typedef {Record<string, unknown>} Traits the traits of any widget */

/**
 * The model of a host: anywidget's, or one that has only some traits and methods.
 *
 * @typedef {Partial<Pick<Model<Traits>, "get" | "set" | "save_changes" | "on" | "off">>} HostModel
 */

// The colours on a dark page whose host does not define JupyterLab's variables.
const DARK = {
  "--jp-content-font-color1": "#e8e8e8",
  "--jp-content-font-color2": "#b0b0b0",
  "--jp-border-color1": "#616161",
  "--jp-border-color2": "#424242",
  "--jp-layout-color0": "#111111",
  "--jp-layout-color2": "#2a2a2a",
  "--jp-brand-color1": "#64b5f6",
};

/**
 * Return the module of a widget.
 *
 * @param {LabView<Traits>} widget
 * @param {Traits} state the first value of each trait, as JSON
 * @param {string} style its style sheet
 */
export function embedded(widget, state, style) {
  return {
    /** @param {{ model?: HostModel, el: HTMLElement }} place */
    render({ model, el }) {
      /** @type {Model<Traits>} */
      const own = pageModel(state);
      const unlink = model ? link(own, model, Object.keys(state)) : () => {};
      const sheet = document.createElement("style");
      sheet.textContent = style;
      const stopFollowing = followTheme(el);
      const remove = widget.render({ model: own, el });
      el.prepend(sheet);
      return () => {
        remove();
        stopFollowing();
        unlink();
        sheet.remove();
      };
    },
  };
}

/**
 * Copy the traits that a host has, and tell each side of the other's changes.
 *
 * @param {Model<Traits>} own the model of the widget
 * @param {HostModel} host
 * @param {readonly string[]} names the names of the widget's traits
 * @returns {() => void} ends this
 */
function link(own, host, names) {
  /** @type {(() => void)[]} */
  const ends = [];
  for (const name of names) {
    const given = host.get?.(name);
    if (given === undefined || given === null) continue;
    own.set(name, given);
    const toHost = () => {
      if (host.get?.(name) === own.get(name)) return;
      host.set?.(name, own.get(name));
      host.save_changes?.();
    };
    const fromHost = () => own.set(name, host.get?.(name));
    own.on(`change:${name}`, toHost);
    host.on?.(`change:${name}`, fromHost);
    ends.push(() => host.off?.(`change:${name}`, fromHost));
  }
  return () => {
    for (const end of ends) end();
  };
}

/**
 * Follow the host's theme, light or dark, by the colour of its text.
 *
 * @param {HTMLElement} el
 * @returns {() => void} ends this
 */
function followTheme(el) {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const look = () => {
    const styled = getComputedStyle(document.documentElement).getPropertyValue(
      "--jp-layout-color0",
    );
    const dark = !styled && isLight(getComputedStyle(el.parentElement ?? el).color);
    el.dataset.jpThemeLight = String(!dark);
    for (const [name, value] of Object.entries(DARK)) {
      if (dark) el.style.setProperty(name, value);
      else el.style.removeProperty(name);
    }
  };
  const observer = new MutationObserver(look);
  observer.observe(document.documentElement, {
    attributes: true,
    attributeFilter: ["class", "data-theme", "style"],
  });
  system.addEventListener("change", look);
  look();
  return () => {
    observer.disconnect();
    system.removeEventListener("change", look);
  };
}

/**
 * Return whether a colour is lighter than middle grey, by its luminance (Rec. 709).
 *
 * @param {string} colour a computed colour, as rgb(r, g, b)
 */
function isLight(colour) {
  const [r = 0, g = 0, b = 0] = (colour.match(/[\d.]+/g) ?? []).map(Number);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 127;
}

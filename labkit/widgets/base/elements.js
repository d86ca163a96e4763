// Elements of the page, and text in which 2^-24 has a raised exponent.

/**
 * What an element gets beside its tag: `class`, `text`, `data` (its dataset), `style` (properties
 * by name), `on` (handlers by the type of event); anything else is an attribute. true is an
 * attribute without a value; undefined, null and false are left out.
 *
 * @typedef {{
 *   class?: string,
 *   text?: string | number | null,
 *   data?: Record<string, string | number | boolean | undefined>,
 *   style?: Record<string, string | null>,
 *   on?: Record<string, EventListener>,
 *   [attribute: string]: unknown,
 * }} Properties
 */

/** @typedef {Node | string | null | undefined} Child */

/**
 * A new element.
 *
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Properties} [properties]
 * @param {...Child} children null and undefined are left out
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (value !== undefined && value !== null && value !== false) give(element, key, value);
  }
  for (const child of children) {
    if (child !== null && child !== undefined) element.append(child);
  }
  return element;
}

/**
 * @param {HTMLElement} element
 * @param {string} key
 * @param {unknown} value
 */
function give(element, key, value) {
  if (key === "class") element.className = String(value);
  else if (key === "text") element.textContent = String(value);
  else if (key === "data") Object.assign(element.dataset, value);
  else if (key === "style") {
    for (const [name, to] of Object.entries(/** @type {object} */ (value))) {
      element.style.setProperty(name, to);
    }
  } else if (key === "on") {
    for (const [type, handler] of Object.entries(/** @type {object} */ (value))) {
      element.addEventListener(type, handler);
    }
  } else element.setAttribute(key, value === true ? "" : String(value));
}

/**
 * The element that a selector finds; an error where it finds none, since the caller has made it.
 *
 * @template {Element} [Kind=HTMLElement]
 * @param {ParentNode} within
 * @param {string} selector
 * @returns {Kind}
 */
export function required(within, selector) {
  const found = within.querySelector(selector);
  if (!found) throw new Error(`expected an element ${selector}, found none`);
  return /** @type {Kind} */ (found);
}

/**
 * The element in which an event happened.
 *
 * @param {Event} event
 * @returns {HTMLElement}
 */
export function placeOf(event) {
  return /** @type {HTMLElement} */ (event.target);
}

/**
 * A text with its exponents raised: 2^-24.
 *
 * @param {string} text
 * @returns {DocumentFragment}
 */
export function rich(text) {
  const fragment = document.createDocumentFragment();
  let end = 0;
  for (const match of text.matchAll(/(\d)\^(-?\d+)/g)) {
    const raised = h("sup", { text: match[2].replace("-", "\u2212") });
    fragment.append(text.slice(end, match.index), match[1], raised);
    end = match.index + match[0].length;
  }
  fragment.append(text.slice(end));
  return fragment;
}

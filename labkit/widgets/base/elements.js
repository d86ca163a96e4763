// Elements of the page, and text in which 2^-24 has a raised exponent.

/**
 * The properties of a new element: `class`, `text`, `data` (its dataset), `style` (CSS properties
 * by name) and `on` (handlers by the type of event). Any other key is the name of an attribute.
 * true is an attribute without a value; undefined, null and false are left out.
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
 * Return a new element.
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
    const omitted = value === undefined || value === null || value === false;
    if (!omitted) setProperty(element, key, value);
  }
  for (const child of children) {
    if (child !== null && child !== undefined) element.append(child);
  }
  return element;
}

/**
 * Set one of the properties of a new element.
 *
 * @param {HTMLElement} element
 * @param {string} key a key of `Properties`
 * @param {unknown} value
 */
function setProperty(element, key, value) {
  if (key === "class") {
    element.className = String(value);
  } else if (key === "text") {
    element.textContent = String(value);
  } else if (key === "data") {
    Object.assign(element.dataset, value);
  } else if (key === "style") {
    for (const [name, to] of Object.entries(/** @type {object} */ (value))) {
      element.style.setProperty(name, to);
    }
  } else if (key === "on") {
    for (const [type, handler] of Object.entries(/** @type {object} */ (value))) {
      element.addEventListener(type, handler);
    }
  } else {
    element.setAttribute(key, value === true ? "" : String(value));
  }
}

/**
 * Return the first element that matches a selector; throw if there is none.
 *
 * @template {Element} [Kind=HTMLElement]
 * @param {ParentNode} within
 * @param {string} selector
 * @returns {Kind}
 */
export function required(within, selector) {
  const element = within.querySelector(selector);
  if (!element) throw new Error(`expected an element ${selector}, found none`);
  return /** @type {Kind} */ (element);
}

/**
 * Return the element in which an event happened.
 *
 * @param {Event} event
 * @returns {HTMLElement}
 */
export function placeOf(event) {
  return /** @type {HTMLElement} */ (event.target);
}

/**
 * Return whether a pointer is pressed to act: by the left button, a finger or a pen.
 *
 * @param {PointerEvent} event
 */
export function isMainButton(event) {
  return event.button === 0;
}

/**
 * Return a text as nodes of the page, with raised exponents: "2^-24" gets a <sup>.
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

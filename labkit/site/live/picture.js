// The picture of a grade, from HTML that a worker sent.
//
// A learner's code runs in that worker, so its HTML is not trusted: only the elements and styles
// that a grade consists of are copied.

const ELEMENTS = new Set(
  ["section", "strong", "table", "tbody", "tr", "td", "th", "div", "details", "summary"].map(
    (name) => name.toUpperCase(),
  ),
);
// Letters, digits and punctuation, but no addresses, escapes, or positions outside of the picture.
// A style can have several lines, so that the dot has to match a line break, too.
const STYLE = /^(?!.*(url|image|position|\\))[\w\s:;,.%#()-]*$/is;

/**
 * The elements of a grade, without scripts, addresses and handlers.
 *
 * @param {string} html
 */
export function pictureOf(html) {
  const parsed = new DOMParser().parseFromString(html, "text/html");
  const picture = document.createDocumentFragment();
  copyInto(picture, parsed.body);
  return picture;
}

/**
 * Copy the text and the permitted elements inside of a node.
 *
 * @param {Node} target
 * @param {Node} source
 */
function copyInto(target, source) {
  for (const child of source.childNodes) {
    if (child instanceof Text) {
      target.appendChild(document.createTextNode(child.data));
    } else if (child instanceof Element && ELEMENTS.has(child.tagName)) {
      const made = document.createElement(child.tagName);
      const style = child.getAttribute("style");
      if (style && STYLE.test(style)) made.setAttribute("style", style);
      const label = child.getAttribute("aria-label");
      if (label) made.setAttribute("aria-label", label);
      copyInto(made, child);
      target.appendChild(made);
    }
  }
}

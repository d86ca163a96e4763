// Elements of the page, and text in which 2^-24 has a raised exponent.

export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "class") element.className = value;
    else if (key === "text") element.textContent = value;
    else if (key === "data") Object.assign(element.dataset, value);
    else if (key === "style")
      for (const [name, v] of Object.entries(value)) element.style.setProperty(name, v);
    else if (key === "on")
      for (const [type, handler] of Object.entries(value)) element.addEventListener(type, handler);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export function rich(text) {
  const fragment = document.createDocumentFragment();
  let end = 0;
  for (const match of text.matchAll(/(\d)\^(-?\d+)/g)) {
    fragment.append(
      text.slice(end, match.index),
      match[1],
      h("sup", { text: match[2].replace("-", "\u2212") }),
    );
    end = match.index + match[0].length;
  }
  fragment.append(text.slice(end));
  return fragment;
}

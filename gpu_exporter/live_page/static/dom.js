// Makes elements. Text from outside becomes text nodes only, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** Return a new element. Attributes that are null, undefined or false are left out; `on` has the listeners. */
export function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Return a new SVG element. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(made, { on = {}, ...attributes }, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  for (const [event, listener] of Object.entries(on)) made.addEventListener(event, listener);
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

/** Set a text if it has changed: an unchanged node keeps the user's selection, and nothing is read out again. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Set or remove an attribute, if it has changed. */
export function setAttribute(node, name, value) {
  if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

const shown = new WeakMap();

/** Replace the children of a node by what `make` returns, unless the data are the same as last time. */
export function renderIfChanged(node, data, make) {
  const key = JSON.stringify(data);
  if (shown.get(node) === key) return;
  shown.set(node, key);
  node.replaceChildren(...[make(data)].flat(Infinity).filter(Boolean));
}

/** Return a badge: a sign and a word, so that its colour is never the only difference. */
export function badge(tone, text) {
  return element("span", { class: `badge ${tone}` }, text);
}

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

/** Return a link to a dashboard of Grafana, `kind` of gpu or job, for these values; "" if Grafana's address is unknown. */
export function board(kind, values) {
  const place = document.body.dataset[`${kind}Board`];
  if (!place) return "";
  const href = Object.entries(values).reduce((text, [name, value]) => text.replace(`{${name}}`, encodeURIComponent(value)), place);
  return element("a", { class: "board", href, target: "_blank", rel: "noopener noreferrer" }, "Dashboard");
}

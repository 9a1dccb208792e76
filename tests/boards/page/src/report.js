// What the drawn page itself shows to be wrong: panels without data, and text that does not fit.

const PRECISION = 1;

const text = (element) => element.textContent.trim().replace(/\s+/g, ' ').slice(0, 80);

/** Return the texts inside an element that are cut off at its edge or end in an ellipsis. */
function cut(element) {
  const found = new Set();
  for (const each of element.querySelectorAll('*')) {
    const style = getComputedStyle(each);
    const own = [...each.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.textContent.trim());
    const hides = style.overflowX === 'hidden' || style.overflowX === 'clip';
    if (text(each) !== 'Series color' && own && hides && each.scrollWidth > each.clientWidth + PRECISION) { found.add(text(each)); }
  }
  return [...found];
}

/** Return how many entries of a panel's legend lie outside of it, and how many there are. */
function legend(element) {
  const items = [...element.querySelectorAll('button[class*="LegendLabel"], [class*="LegendItem"] button, [data-testid*="VizLegend series"]')];
  const hidden = items.filter((item) => {
    const { top, bottom } = item.getBoundingClientRect();
    for (let box = item.parentElement; box && box !== element.parentElement; box = box.parentElement) {
      const edge = box.getBoundingClientRect();
      if (getComputedStyle(box).overflowY !== 'visible' && (bottom > edge.bottom + PRECISION || top < edge.top - PRECISION)) { return true; }
    }
    return false;
  });
  return { entries: items.length, hidden: hidden.length };
}

/** Return how many pixels of a panel's content lie outside of it, down and to the right. */
function scrolled(element) {
  const boxes = [...element.querySelectorAll('*')].filter((each) => /auto|scroll/.test(getComputedStyle(each).overflow));
  const most = (of) => Math.max(0, ...boxes.map(of));
  return { down: most((box) => box.scrollHeight - box.clientHeight), right: most((box) => box.scrollWidth - box.clientWidth) };
}

const finite = (frame) => frame.fields.some((field) => field.type !== 'time' && field.values.some((value) => value !== null && !Number.isNaN(value)));

function problems(panel, queries, element) {
  const own = queries.filter((query) => query.id === panel.id);
  const found = own.filter((query) => query.error).map((query) => `query error: ${query.error}`);
  if (panel.error) { found.push(`error: ${panel.error}`); }
  const answered = own.some((query) => query.series > 0);
  const shows = panel.frames.some((frame) => frame.length > 0 && finite(frame));
  if (answered && !shows) { found.push('no data, although its queries have results'); }
  const message = element?.querySelector('[data-message]')?.textContent ?? 'nothing';
  if (!answered && own.length) { found.push(`no query has a result; it says "${message}"`); }
  if (element) {
    const { entries, hidden } = legend(element);
    if (hidden) { found.push(`legend: ${hidden} of ${entries} entries are hidden`); }
    const { down, right } = scrolled(element);
    if (panel.type === 'table' && down > 0) { found.push(`${down} px of the table are below the panel`); }
    if (right > PRECISION) { found.push(`${right} px are right of the panel`); }
    const texts = cut(element);
    if (texts.length) { found.push(`text is cut off: ${texts.slice(0, 6).join(' | ')}${texts.length > 6 ? ` and ${texts.length - 6} more` : ''}`); }
  }
  return found;
}

/** Return everything about the page that a reviewer should know. */
export function measured(state) {
  const panels = state.panels.map((panel) => {
    const element = document.querySelector(`[data-panel="${panel.id}"]`);
    return {
      id: panel.id, title: panel.title, type: panel.type, problems: problems(panel, state.queries, element),
    };
  });
  return { panels, queries: state.queries, errors: state.errors };
}

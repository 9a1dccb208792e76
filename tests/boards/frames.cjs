// What Grafana makes of a panel's queries: data frames, transformed and with the field options applied. The data frames
// are made as Grafana's Prometheus data source makes them; everything after that is Grafana's own code.
'use strict';

const STANDARD = [
  'actions', 'color', 'decimals', 'description', 'displayName', 'fieldMinMax', 'filterable', 'links', 'mappings', 'max', 'min',
  'noValue', 'nullValueMode', 'thresholds', 'unit',
];
const NUMBERS_ONLY = ['decimals', 'fieldMinMax', 'max', 'min', 'thresholds'];
const SCRAPE_MS = 15000;

/** Return what follows for an imported `@grafana/data`. */
module.exports = function frames(grafana) {
  const { FieldType, Registry } = grafana;
  // Transformations are registered by the application; the library has each of them under several keys.
  const unique = new Map(Object.values(grafana.standardTransformers).map((each) => [each.id, each]));
  grafana.standardTransformersRegistry.setInit(() =>
    [...unique.values()].map((transformation) => ({ id: transformation.id, name: transformation.name, transformation: async () => transformation })));

  // --- variables ---------------------------------------------------------------------------------------------------

  const escaped = (value) => value.replace(/[\\^$*+?.()|[\]{}]/g, '\\\\$&');

  /** Return a variable's values in one of Grafana's formats; without one, as the Prometheus data source does. */
  function formatted(name, variable, format) {
    const { values, all } = variable;
    if (format === 'queryparam') {
      const shown = all ? ['$__all'] : values;
      return shown.map((value) => `var-${name}=${encodeURIComponent(value)}`).join('&');
    }
    if (format === 'text') { return variable.text; }
    if (all && variable.allValue) { return variable.allValue; }
    if (format === 'csv' || format === 'raw') { return values.join(','); }
    if (format === 'pipe') { return values.join('|'); }
    if (!variable.multi && format !== 'regex') { return values[0] ?? ''; }
    return values.length === 1 ? escaped(values[0]) : `(${values.map(escaped).join('|')})`;
  }

  /** Replace `$name`, `${name}` and `${name:format}` in a text. Unknown names stay. */
  function filled(text, variables) {
    return text.replace(/\$(\w+)|\$\{(\w+)(?::(\w+))?\}|\[\[(\w+)\]\]/g, (match, plain, braced, format, old) => {
      const name = plain ?? braced ?? old;
      return name in variables ? formatted(name, variables[name], format) : match;
    });
  }

  const constant = (value) => ({ text: String(value), values: [String(value)], multi: false, all: false });

  /** Return the variables that a query of a panel of this width sees, and the step in seconds. */
  function intervals(panel, target, range, width, variables) {
    const points = panel.maxDataPoints ?? Math.max(100, Math.round(width));
    const least = target.interval ? grafana.rangeUtil.intervalToMs(target.interval) : SCRAPE_MS;
    const { intervalMs } = grafana.rangeUtil.calculateInterval(range, points, target.interval || panel.interval || `${SCRAPE_MS}ms`);
    const step = Math.max(1, Math.round(intervalMs / 1000));
    const seconds = Math.round((range.to.valueOf() - range.from.valueOf()) / 1000);
    const rate = Math.max(step + least / 1000, (4 * least) / 1000);
    const known = {
      __interval: `${step}s`, __interval_ms: step * 1000, __rate_interval: `${rate}s`, __range: `${seconds}s`,
      __range_s: seconds, __range_ms: seconds * 1000, __from: range.from.valueOf(), __to: range.to.valueOf(),
    };
    for (const [name, value] of Object.entries(known)) { known[name] = constant(value); }
    return { step, variables: { ...variables, ...known } };
  }

  // --- queries -----------------------------------------------------------------------------------------------------

  function seriesName(labels, legend) {
    if (legend && legend !== '__auto') { return legend.replace(/\{\{\s*(.+?)\s*\}\}/g, (match, label) => labels[label] ?? ''); }
    const { __name__: name = '', ...rest } = labels;
    return `${name}{${Object.entries(rest).map(([label, value]) => `${label}="${value}"`).join(', ')}}`;
  }

  const numbers = (points) => points.map(([, text]) => ({ '+Inf': Infinity, '-Inf': -Infinity })[text] ?? Number(text));

  /** Return one frame with a column for each label, as for the format "Table". */
  function table(target, result, several) {
    const labels = [...new Set(result.flatMap((series) => Object.keys(series.metric).sort()))];
    const points = result.map((series) => series.value ?? series.values[series.values.length - 1]);
    return {
      refId: target.refId,
      length: result.length,
      fields: [
        { name: 'Time', type: FieldType.time, config: {}, values: points.map(([at]) => at * 1000) },
        ...labels.map((label) => ({
          name: label, type: label === 'le' ? FieldType.number : FieldType.string, config: { filterable: true },
          values: result.map((series) => (label === 'le' ? Number(series.metric[label]) : series.metric[label] ?? '')),
        })),
        { name: several ? `Value #${target.refId}` : 'Value', type: FieldType.number, config: {}, values: numbers(points) },
      ],
    };
  }

  /** Return one frame for each series. */
  function timeSeries(target, result, step) {
    return result.map((series) => {
      const points = series.values ?? [series.value];
      const name = seriesName(series.metric, target.legendFormat);
      return {
        refId: target.refId,
        name,
        length: points.length,
        fields: [
          { name: 'Time', type: FieldType.time, config: { interval: step * 1000 }, values: points.map(([at]) => at * 1000) },
          { name: 'Value', type: FieldType.number, config: { displayNameFromDS: name }, labels: series.metric, values: numbers(points) },
        ],
      };
    });
  }

  /**
   * Run a panel's queries. `ask(path, parameters)` returns the `result` of Prometheus' API. Return the frames, and for
   * each query its text, time, number of series and their labels, or its error.
   */
  async function queried(panel, { ask, range, width, variables }) {
    const targets = (panel.targets ?? []).filter((target) => !target.hide);
    const run = async (target) => {
      const { step, variables: all } = intervals(panel, target, range, width, variables);
      const query = { panel: filled(panel.title ?? '', all), refId: target.refId, expr: filled(target.expr, all), series: 0 };
      const begin = Date.now();
      let result = [];
      try {
        const [from, to] = [range.from.valueOf() / 1000, range.to.valueOf() / 1000];
        result = target.instant
          ? await ask('query', { query: query.expr, time: to })
          : await ask('query_range', { query: query.expr, step, start: Math.floor(from / step) * step, end: Math.floor(to / step) * step });
      } catch (error) {
        query.error = String(error.message ?? error);
      }
      Object.assign(query, { series: result.length, ms: Date.now() - begin, labels: result.map((series) => series.metric) });
      const asTable = target.format === 'table';
      return { query, frames: !result.length ? [] : asTable ? [table(target, result, targets.length > 1)] : timeSeries(target, result, step) };
    };
    const done = await Promise.all(targets.map(run));
    return { frames: done.flatMap((each) => each.frames), queries: done.map((each) => each.query) };
  }

  // --- transformations and field options ---------------------------------------------------------------------------

  /** Return the frames after the panel's transformations. */
  function transformed(data, panel, variables) {
    const steps = (panel.transformations ?? []).filter((step) => !step.disabled);
    const context = { interpolate: (text) => filled(text, variables) };
    return new Promise((resolve, reject) => {
      grafana.transformDataFrame(steps, data, context).subscribe({ next: resolve, error: reject });
    });
  }

  /** Return a registry of the options that a panel sets: Grafana registers those of each type of panel when it loads it. */
  function registry({ defaults = {}, overrides = [] }) {
    const set = overrides.flatMap((override) => override.properties.map((property) => property.id));
    const custom = new Set([
      ...Object.keys(defaults.custom ?? {}),
      ...set.filter((id) => id.startsWith('custom.')).map((id) => id.slice('custom.'.length)),
    ]);
    const item = (id, path, isCustom) => ({
      id, path, isCustom, name: path, process: (value) => value, settings: {},
      shouldApply: (field) => isCustom || !NUMBERS_ONLY.includes(path) || field.type === FieldType.number,
    });
    return new Registry(() => [
      ...STANDARD.map((path) => item(path, path, false)),
      // Grafana's table migrates `hidden` when it is loaded.
      ...[...custom].map((path) => item(`custom.${path}`, path === 'hidden' ? 'hideFrom.viz' : path, true)),
    ]);
  }

  /** Return the frames with units, names, mappings, thresholds, colours and links. */
  function configured(data, panel, theme, variables) {
    const fieldConfig = { defaults: {}, overrides: [], ...panel.fieldConfig };
    const result = grafana.applyFieldOverrides({
      data, fieldConfig, theme, timeZone: 'utc', fieldConfigRegistry: registry(fieldConfig),
      replaceVariables: (text) => filled(text, variables),
    });
    grafana.cacheFieldDisplayNames(result);
    return result;
  }

  /** Return what a panel shows: its frames, ready to be drawn, and its queries. */
  async function shown(panel, settings) {
    const { frames: raw, queries } = await queried(panel, settings);
    const data = await transformed(raw, panel, settings.variables);
    return { frames: configured(data, panel, settings.theme, settings.variables), queries };
  }

  // --- dashboards --------------------------------------------------------------------------------------------------

  /** Return a dashboard's variables as they are when someone opens it with these `var-` parameters of the address. */
  async function chosen(board, parameters, ask, time) {
    const variables = {};
    for (const variable of board.templating?.list ?? []) {
      const { name, multi = false, current = {} } = variable;
      const given = parameters.getAll(`var-${name}`);
      const wanted = given.length ? given : [current.value ?? []].flat();
      const options = await choices(variable, variables, ask, time);
      let values = wanted.filter((value) => value !== '$__all');
      const all = wanted.includes('$__all');
      if (variable.type === 'query' && !given.length && !all) {
        values = values.filter((value) => options.includes(value));
        if (!values.length) { values = options.slice(0, 1); }
      }
      if (all) { values = options; }
      variables[name] = { multi, all, values, text: all ? 'All' : values.join(' + '), allValue: variable.allValue };
    }
    return variables;
  }

  async function choices(variable, variables, ask, time) {
    const query = typeof variable.query === 'string' ? variable.query : variable.query?.query ?? '';
    const [, selector, label] = /^label_values\((?:([^]*),)?\s*(\w+)\)$/.exec(filled(query, variables)) ?? [];
    if (variable.type !== 'query' || !label) { return [variable.current?.value ?? query].flat(); }
    const series = await ask('query', { query: `group by (${label}) (${selector ?? '{__name__!=""}'})`, time });
    const values = series.map((each) => each.metric[label] ?? '').filter((value) => value !== '');
    return values.sort(new Intl.Collator('en', { numeric: true }).compare);
  }

  return { chosen, filled, shown };
};

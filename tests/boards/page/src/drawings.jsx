// Panels that Grafana's library does not export: state timeline and heatmap. They follow its options; only the drawing
// is simpler.
import React from 'react';
import { formattedValueToString, getFieldDisplayName, getValueFormat } from '@grafana/data';
import { LegendDisplayMode, Pagination, useTheme2, VizLegend } from '@grafana/ui';
import { interpolateGreens, interpolateOranges, interpolateRdYlGn, interpolateReds, interpolateSpectral, interpolateTurbo } from 'd3-scale-chromatic';

const AXIS = 24;
const FONT = 12;
const LETTER = 7.2;
const LEGEND = 34;
const SCHEMES = {
  Greens: interpolateGreens, Oranges: interpolateOranges, RdYlGn: interpolateRdYlGn, Reds: interpolateReds, Spectral: interpolateSpectral,
  Turbo: interpolateTurbo,
};
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720].map((minutes) => minutes * 60000);

/** The labels of the time axis below an area. */
function TimeAxis({ range, left, width, top }) {
  const theme = useTheme2();
  const [from, to] = [range.from.valueOf(), range.to.valueOf()];
  const step = STEPS.find((each) => ((to - from) / each) * 60 < width) ?? STEPS[STEPS.length - 1];
  const ticks = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) { ticks.push(at); }
  const style = { position: 'absolute', top: top + 4, width: 60, textAlign: 'center', fontSize: FONT, color: theme.colors.text.secondary };
  return ticks.map((at) => (
    <span key={at} style={{ ...style, left: left + ((at - from) / (to - from)) * width - 30 }}>
      {new Date(at).toISOString().slice(11, 16)}
    </span>
  ));
}

/** Return the stretches of a field: from, to and value. A gap of more than one and a half steps ends a stretch. */
function stretches(field, time, merge) {
  const step = time.config.interval ?? 15000;
  const found = [];
  field.values.forEach((value, place) => {
    if (value === null || value === undefined) { return; }
    const at = time.values[place];
    const last = found[found.length - 1];
    const adjoins = last && at - last.to < 0.5 * step;
    if (adjoins && merge && last.value === value) { last.to = at + step; } else { found.push({ from: at, to: at + step, value }); }
  });
  return found;
}

/** Draw each number field of the frames as a row of coloured stretches. */
export function StateTimeline({ frames, options, range, width, height }) {
  const theme = useTheme2();
  const [page, setPage] = React.useState(1);
  const all = frames.flatMap((frame) => frame.fields.filter((field) => field.type !== 'time').map((field) => ({
    field, time: frame.fields.find((each) => each.type === 'time'), name: getFieldDisplayName(field, frame, frames),
  })));
  const perPage = options.perPage ?? 20;
  const pages = Math.ceil(all.length / perPage);
  const rows = all.slice((page - 1) * perPage, page * perPage);
  const mappings = rows.flatMap(({ field }) => field.config.mappings ?? []);
  const texts = mappings.flatMap((mapping) => (mapping.type === 'value' ? Object.values(mapping.options) : [mapping.options.result]));
  const legend = new Map(texts.filter((text) => text?.text).map((text) => [text.text, theme.visualization.getColorByName(text.color ?? 'grey')]));
  const drawn = new Set(rows.flatMap(({ field }) => [...new Set(field.values)].map((value) => formattedValueToString(field.display(value)))));
  const items = [...legend].filter(([label]) => drawn.has(label)).map(([label, color]) => ({ label, color, yAxis: 1 }));
  const showsLegend = options.legend?.showLegend && items.length > 0;
  const area = height - AXIS - (showsLegend ? LEGEND : 0) - (pages > 1 ? LEGEND : 0);
  const left = Math.min(width * 0.4, Math.max(0, ...rows.map(({ name }) => name.length * LETTER)) + 16);
  const [from, to] = [range.from.valueOf(), range.to.valueOf()];
  const x = (at) => ((Math.min(Math.max(at, from), to) - from) / (to - from)) * (width - left);
  const line = area / Math.max(1, rows.length);
  const box = line * (options.rowHeight ?? 0.9);
  return (
    <div style={{ position: 'relative', width, height, overflow: 'hidden' }}>
      {rows.map(({ field, time, name }, row) => (
        <React.Fragment key={name + row}>
          <span data-row-label style={{
            position: 'absolute', top: row * line, width: left - 8, height: line, lineHeight: `${line}px`, fontSize: Math.min(FONT, line), textAlign: 'right',
            whiteSpace: 'nowrap', overflow: 'hidden', textOverflow: 'ellipsis', color: theme.colors.text.primary,
          }}>{name}</span>
          {stretches(field, time, options.mergeValues !== false).map((each) => {
            const shown = field.display(each.value);
            const wide = x(each.to) - x(each.from);
            const text = formattedValueToString(shown);
            const fits = wide > text.length * LETTER + 4 && box >= FONT;
            return (
              <div key={each.from} style={{
                position: 'absolute', left: left + x(each.from), top: row * line + (line - box) / 2, width: Math.max(1, wide), height: box, background: shown.color,
                opacity: Math.max(0.2, (field.config.custom?.fillOpacity ?? 70) / 100), fontSize: FONT, lineHeight: `${box}px`, overflow: 'hidden', paddingLeft: fits ? 2 : 0,
                color: theme.colors.getContrastText(shown.color ?? '#808080'), whiteSpace: 'nowrap',
              }}>{options.showValue !== 'never' && fits ? text : ''}</div>
            );
          })}
        </React.Fragment>
      ))}
      <TimeAxis range={range} left={left} width={width - left} top={area} />
      {showsLegend && (
        <div data-legend style={{ position: 'absolute', top: area + AXIS, width, height: LEGEND, overflow: 'hidden' }}>
          <VizLegend placement="bottom" displayMode={LegendDisplayMode.List} items={items} />
        </div>
      )}
      {pages > 1 && (
        <div style={{ position: 'absolute', bottom: 0, width, display: 'flex', justifyContent: 'center' }}>
          <Pagination currentPage={page} numberOfPages={pages} onNavigate={setPage} />
        </div>
      )}
    </div>
  );
}

/** Return the count of each bucket at each time: Prometheus' buckets contain those below them. */
function cells(frames) {
  const rows = frames.map((frame) => frame.fields).filter(([, field]) => field?.labels?.le)
    .map(([time, field]) => ({ bound: Number(field.labels.le.replace('+Inf', 'Infinity')), at: time.values, values: field.values, time }))
    .sort((one, other) => one.bound - other.bound);
  const below = new Map();
  const found = rows.flatMap((row, place) => row.values.map((value, index) => {
    const at = row.at[index];
    const count = value - (below.get(at) ?? 0);
    below.set(at, value);
    return { at, place, count };
  }));
  return { rows, found };
}

/** Draw the frames of a histogram's buckets. */
export function Heatmap({ frames, options, unit, range, width, height }) {
  const theme = useTheme2();
  const { rows, found } = cells(frames);
  const format = getValueFormat(unit);
  const label = ({ bound }) => (Number.isFinite(bound) ? formattedValueToString(format(bound)) : '+Inf');
  const left = 8 + Math.max(...rows.map((row) => label(row).length * LETTER));
  const showsLegend = options.legend?.show;
  const area = height - AXIS - (showsLegend ? LEGEND : 0);
  const line = area / rows.length;
  const shown = found.filter(({ count }) => count > (options.filterValues?.le ?? 0));
  const most = Math.max(...shown.map(({ count }) => count));
  const scheme = SCHEMES[options.color?.scheme] ?? interpolateOranges;
  const shade = (share) => scheme(theme.isDark ? 1 - share : share);
  const [from, to] = [range.from.valueOf(), range.to.valueOf()];
  const step = rows[0].time.config.interval ?? 15000;
  const across = (step / (to - from)) * (width - left);
  const every = Math.ceil((FONT + 2) / line);
  return (
    <div style={{ position: 'relative', width, height }}>
      {rows.map((row, place) => place % every === 0 && (
        <span key={row.bound} style={{
          position: 'absolute', top: area - (place + 1) * line, height: line, lineHeight: `${line}px`, width: left - 6, textAlign: 'right', fontSize: FONT,
          color: theme.colors.text.secondary, whiteSpace: 'nowrap',
        }}>{label(row)}</span>
      ))}
      <svg width={width} height={area} style={{ position: 'absolute', left: 0 }}>
        {shown.map(({ at, place, count }) => (
          <rect key={`${at}/${place}`} x={left + ((at - from) / (to - from)) * (width - left) - across} y={area - (place + 1) * line}
            width={Math.max(1, across - 1)} height={Math.max(1, line - 1)} fill={shade((count / most) ** (options.color?.exponent ?? 0.5))} />
        ))}
      </svg>
      <TimeAxis range={range} left={left} width={width - left} top={area} />
      {showsLegend && (
        <div style={{ position: 'absolute', bottom: 2, left, fontSize: FONT, color: theme.colors.text.secondary }}>
          0 <span style={{ display: 'inline-block', width: 200, height: 8, background: `linear-gradient(90deg, ${[0, 0.25, 0.5, 0.75, 1].map(shade)})` }} />
          {' '}{formattedValueToString(getValueFormat(options.cellValues?.unit ?? 'short')(most))}
        </div>
      )}
    </div>
  );
}

// Draws a dashboard of the project: `?board=fleet&prom=http://…&from=MS&to=MS&var-node=node-000&open=1`.
//
// Grafana's own code draws time series, stats, bar gauges, tables, legends and the frames of panels, with its units,
// colours, thresholds, mappings and transformations. The header, the grid, annotations, state timelines and heatmaps are
// drawn by this program.
import 'uplot/dist/uPlot.min.css';
import React from 'react';
import { createRoot } from 'react-dom/client';
import * as grafana from '@grafana/data';
import {
  BarGauge, BigValue, GlobalStyles, Icon, PanelChrome, PanelContextProvider, PortalContainer, TimeSeries, VizRepeater,
} from '@grafana/ui';
import { TableNG } from '@grafana/ui/unstable';
import makeFrames from '../../frames.cjs';
import { Heatmap, StateTimeline } from './drawings.jsx';
import { measured } from './report.js';

const address = new URLSearchParams(window.location.search);
const theme = grafana.createTheme({ colors: { mode: address.get('theme') ?? 'dark' } });
const { chosen, filled, shown } = makeFrames(grafana);
const [CELL, GAP, MARGIN] = [30, 8, 16];

// What the screenshots wait for and write down.
const state = { waiting: 1, panels: [], queries: [], errors: [] };
window.boards = { ready: () => state.waiting === 0 && state.panels.every(drawn), report: () => measured(state) };

/** Return whether a panel's content can be seen: tables measure themselves first. */
function drawn({ id, type, frames }) {
  if (type !== 'table' || frames.every((frame) => frame.length === 0)) { return true; }
  const cell = document.querySelector(`[data-panel="${id}"] [role="gridcell"]`);
  return Boolean(cell?.offsetWidth && cell.checkVisibility({ visibilityProperty: true, opacityProperty: true }));
}

async function ask(path, parameters) {
  const answer = await fetch(`${address.get('prom')}/api/v1/${path}`, { method: 'POST', body: new URLSearchParams(parameters) });
  const content = await answer.json();
  if (content.status !== 'success') { throw new Error(content.error); }
  return content.data.result;
}

/** Keep an exception of one panel's components from removing the others. */
class Boundary extends React.Component {
  state = { error: null };
  static getDerivedStateFromError(error) { return { error }; }
  componentDidCatch(error) { state.errors.push(`${this.props.title}: ${error}`); }
  render() { return this.state.error ? <pre>{String(this.state.error)}</pre> : this.props.children; }
}

const Message = ({ children, width, height }) => (
  <div data-message style={{ width, height, display: 'grid', placeItems: 'center', color: theme.colors.text.secondary }}>{children}</div>
);

function values(panel, frames, sparkline) {
  return grafana.getFieldDisplayValues({
    data: frames, theme, timeZone: 'utc', sparkline, fieldConfig: { defaults: {}, overrides: [], ...panel.fieldConfig },
    reduceOptions: { calcs: ['lastNotNull'], ...panel.options?.reduceOptions }, replaceVariables: (text) => text,
  });
}

function Stat({ panel, frames, width, height }) {
  const { graphMode = 'none', orientation = 'auto', textMode = 'auto', ...options } = panel.options ?? {};
  const all = values(panel, frames, graphMode !== 'none');
  const draw = ({ value, width: w, height: h, count }) => {
    const titled = textMode === 'value_and_name' || textMode === 'name' || (textMode === 'auto' && count > 1);
    return (
      <BigValue value={titled ? value.display : { ...value.display, title: undefined }} count={count} width={w} height={h} theme={theme} sparkline={value.sparkline}
        graphMode={graphMode} textMode={textMode} colorMode={options.colorMode ?? 'value'} justifyMode={options.justifyMode ?? 'auto'} wideLayout={options.wideLayout ?? true} text={options.text} />
    );
  };
  return <VizRepeater getValues={() => all} renderValue={draw} source={frames} width={width} height={height} orientation={orientation} autoGrid renderCounter={1} />;
}

function Bars({ panel, frames, width, height }) {
  const { orientation = 'auto', displayMode = 'gradient', valueMode = 'color', namePlacement = 'auto', showUnfilled = true, text } = panel.options ?? {};
  const all = values(panel, frames, false);
  const alignment = grafana.getDisplayValueAlignmentFactors(all);
  const draw = ({ value: { field, display, view, colIndex }, width: w, height: h, orientation: lies }) => (
    <BarGauge value={display} field={field} display={view?.getFieldDisplayProcessor(colIndex)} width={w} height={h} orientation={lies} theme={theme} text={text}
      displayMode={displayMode} valueDisplayMode={valueMode} namePlacement={namePlacement} showUnfilled={showUnfilled} itemSpacing={8} alignmentFactors={alignment} />
  );
  return <VizRepeater getValues={() => all} renderValue={draw} source={frames} width={width} height={height} orientation={orientation} minVizHeight={16} minVizWidth={8} itemSpacing={8} renderCounter={1} />;
}

/** Draw each annotation as Grafana does: lines at its start and end, and a shade in between. */
function Marks({ builder, marks }) {
  React.useLayoutEffect(() => {
    builder.addHook('draw', (plot) => {
      const { left, top, width, height } = plot.bbox;
      plot.ctx.save();
      for (const { from, to, color } of marks) {
        const at = (time) => Math.min(Math.max(plot.valToPos(time, 'x', true), left), left + width);
        plot.ctx.fillStyle = plot.ctx.strokeStyle = color;
        plot.ctx.setLineDash([5, 5]);
        for (const x of new Set([at(from), at(to)])) {
          plot.ctx.beginPath();
          plot.ctx.moveTo(x, top);
          plot.ctx.lineTo(x, top + height);
          plot.ctx.stroke();
        }
        plot.ctx.globalAlpha = 0.1;
        plot.ctx.fillRect(at(from), top, at(to) - at(from), height);
        plot.ctx.globalAlpha = 1;
      }
      plot.ctx.restore();
    });
  }, [builder]);
  return null;
}

function Content({ panel, frames, range, marks, width, height }) {
  const options = panel.options ?? {};
  const common = { frames, options, range, width, height };
  if (panel.type === 'text') {
    const html = grafana.renderMarkdown(filled(options.content ?? '', {}));
    return <div className="markdown-html" style={{ width, height, overflow: 'auto' }} dangerouslySetInnerHTML={{ __html: html }} />;
  }
  const empty = !frames.some((frame) => frame.length > 0);
  if (empty && panel.type !== 'stat') {
    return <Message width={width} height={height}>{panel.fieldConfig?.defaults?.noValue || 'No data'}</Message>;
  }
  switch (panel.type) {
    case 'stat': return <Stat panel={panel} frames={frames} width={width} height={height} />;
    case 'gauge': // Grafana's library does not export its gauge.
    case 'bargauge': return <Bars panel={panel} frames={frames} width={width} height={height} />;
    case 'table': {
      const data = frames[options.frameIndex ?? 0] ?? frames[0];
      return (
        <TableNG data={data} width={width} height={height} noHeader={options.showHeader === false} cellHeight={options.cellHeight ?? 'sm'} initialSortBy={options.sortBy} sortBy={options.sortBy}
          showTypeIcons={options.showTypeIcons} fieldConfig={panel.fieldConfig} timeRange={range} structureRev={1} frozenColumns={options.frozenColumns?.left} noValue={panel.fieldConfig?.defaults?.noValue}
          enablePagination={options.enablePagination} enableVirtualization={false} />
      );
    }
    case 'timeseries':
      return (
        <TimeSeries frames={frames} timeRange={range} timeZone="utc" width={width} height={height} legend={options.legend ?? {}} options={options} structureRev={1}>
          {(builder) => <Marks builder={builder} marks={marks} />}
        </TimeSeries>
      );
    case 'state-timeline': return <StateTimeline {...common} />;
    case 'heatmap': return <Heatmap {...common} unit={options.yAxis?.unit ?? panel.fieldConfig?.defaults?.unit} />;
    default: return <Message width={width} height={height}>{panel.type} is not drawn</Message>;
  }
}

function Panel({ panel, variables, range, marks, place }) {
  const [data, setData] = React.useState(null);
  React.useEffect(() => {
    state.waiting += 1;
    shown(panel, { ask, range, width: place.width, variables, theme })
      .catch((error) => ({ frames: [], queries: [], error: String(error) }))
      .then((result) => {
        const record = { id: panel.id, title: filled(panel.title ?? '', variables), type: panel.type, frames: result.frames, error: result.error };
        state.panels.push(record);
        state.queries.push(...result.queries.map(({ labels, ...query }) => ({ id: panel.id, ...query })));
        setData(result);
        setTimeout(() => { state.waiting -= 1; }, 300);
      });
  }, []);
  const failed = data && (data.error ?? data.queries.find((query) => query.error)?.error);
  return (
    <div data-panel={panel.id} style={{ position: 'absolute', ...place }}>
      <PanelChrome title={filled(panel.title ?? '', variables)} description={panel.description || undefined} width={place.width} height={place.height}
        padding={panel.type === 'table' ? 'none' : 'md'} displayMode={panel.transparent ? 'transparent' : 'default'} statusMessage={failed || undefined}
        titleItems={(panel.links ?? []).map((link) => <Icon key={link.title} name="external-link-alt" title={link.title} />)}>
        {(width, height) => data && (
          <Boundary title={panel.title}><Content panel={panel} frames={data.frames} range={range} marks={marks} width={width} height={height} /></Boundary>
        )}
      </PanelChrome>
    </div>
  );
}

/** Return the panels where they are when the collapsed rows are closed, or all opened. */
function laidOut(panels, open) {
  const placed = [];
  let lower = 0;
  for (const panel of panels) {
    placed.push({ ...panel, opened: open || !panel.collapsed, gridPos: { ...panel.gridPos, y: panel.gridPos.y + lower } });
    if (panel.type !== 'row' || !panel.collapsed || !open) { continue; }
    const inner = panel.panels.map((each) => each.gridPos);
    const top = Math.min(...inner.map(({ y }) => y));
    const below = panel.gridPos.y + lower + 1 - top;
    placed.push(...panel.panels.map((each) => ({ ...each, gridPos: { ...each.gridPos, y: each.gridPos.y + below } })));
    lower += Math.max(...inner.map(({ y, h }) => y + h)) - top;
  }
  return placed;
}

async function annotated(board, variables, range) {
  const enabled = (board.annotations?.list ?? []).filter((each) => each.enable && !each.builtIn && each.expr);
  const found = await Promise.all(enabled.map(async (each) => {
    const [from, to] = [range.from.valueOf() / 1000, range.to.valueOf() / 1000];
    const color = theme.visualization.getColorByName(each.iconColor);
    const query = { panel: `annotation ${each.name}`, expr: filled(each.expr, variables), series: 0 };
    const result = await ask('query_range', { query: query.expr, start: from, end: to, step: 60 }).catch((error) => { query.error = String(error); return []; });
    state.queries.push({ ...query, series: result.length });
    return result.flatMap(({ values: points }) => {
      const marks = [];
      for (const [at, text] of points) {
        const time = each.useValueForTime ? Number(text) : at * 1000;
        const last = marks[marks.length - 1];
        if (last && time - last.to <= 60000) { last.to = time; } else { marks.push({ from: time, to: time, color }); }
      }
      return marks;
    });
  }));
  return found.flat();
}

const box = { border: `1px solid ${theme.colors.border.weak}`, borderRadius: 2, padding: '4px 8px', fontSize: 12, color: theme.colors.text.primary };

function Header({ board, variables, range }) {
  const shownVariables = (board.templating?.list ?? []).filter((each) => each.hide !== 2);
  return (
    <>
      <div style={{ display: 'flex', height: 40, alignItems: 'center', fontSize: 14, color: theme.colors.text.primary }}>
        {board.title}<span style={{ marginLeft: 16, color: theme.colors.text.secondary }}>{address.get('note')}</span>
        <span style={{ marginLeft: 'auto' }}>{new Date(range.from.valueOf()).toISOString().slice(0, 16)} to {new Date(range.to.valueOf()).toISOString().slice(11, 16)} UTC</span>
      </div>
      <div style={{ display: 'flex', flexWrap: 'wrap', gap: 8, paddingBottom: 12 }}>
        {shownVariables.map(({ name, label }) => <span key={name} style={box}>{label ?? name} <b>{variables[name].text || '–'}</b></span>)}
        {(board.annotations?.list ?? []).filter((each) => !each.hide && !each.builtIn).map((each) => <span key={each.name} style={box}>{each.enable ? '☑' : '☐'} {each.name}</span>)}
        <span style={{ marginLeft: 'auto' }} />
        {(board.links ?? []).map((link) => <span key={link.title} style={box}>↗ {link.title}</span>)}
      </div>
    </>
  );
}

function Board({ board, variables, range, marks, width }) {
  const panels = laidOut(board.panels ?? [], address.get('open') === '1');
  const column = (width - 2 * MARGIN + GAP) / 24;
  const rows = Math.max(...panels.map(({ gridPos }) => gridPos.y + gridPos.h));
  return (
    <div style={{ padding: `0 ${MARGIN}px`, width, background: theme.colors.background.canvas }}>
      <Header board={board} variables={variables} range={range} />
      <div style={{ position: 'relative', height: rows * (CELL + GAP) }}>
        {panels.map((panel) => {
          const { x, y, w, h } = panel.gridPos;
          const place = { left: x * column, top: y * (CELL + GAP), width: w * column - GAP, height: h * (CELL + GAP) - GAP };
          return panel.type === 'row' ? (
            <div key={panel.id} style={{ position: 'absolute', ...place, display: 'flex', alignItems: 'center', gap: 8, fontWeight: 500, color: theme.colors.text.primary }}>
              <Icon name={panel.opened ? 'angle-down' : 'angle-right'} />{filled(panel.title, variables)}
              {!panel.opened && <span style={{ color: theme.colors.text.secondary, fontSize: 12 }}>({panel.panels.length} panels)</span>}
            </div>
          ) : <Panel key={panel.id} panel={panel} variables={variables} range={range} marks={marks} place={place} />;
        })}
      </div>
    </div>
  );
}

async function start() {
  const board = await (await fetch(`dashboards/${address.get('board')}.json`)).json();
  const [from, to] = ['from', 'to'].map((name) => grafana.dateTime(Number(address.get(name))));
  const range = { from, to, raw: { from, to } };
  const variables = await chosen(board, address, ask, to.valueOf() / 1000);
  const marks = await annotated(board, variables, range);
  createRoot(document.getElementById('root')).render(
    <grafana.ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <PortalContainer />
      <PanelContextProvider value={{ eventsScope: 'boards', eventBus: new grafana.EventBusSrv() }}>
        <Board board={board} variables={variables} range={range} marks={marks} width={document.documentElement.clientWidth} />
      </PanelContextProvider>
    </grafana.ThemeContext.Provider>,
  );
  setTimeout(() => { state.waiting -= 1; }, 1000);
}

start().catch((error) => { state.errors.push(String(error.stack ?? error)); state.waiting = 0; });

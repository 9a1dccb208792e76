// node contents.cjs NODE_MODULES <REQUEST.json: what the panels of dashboards contain, by Grafana's own code: all that are
// visible when a dashboard is opened, and the tables in collapsed rows.
//
// {"prometheus": address, "from": ms, "to": ms, "views": [{"board": dashboard, "parameters": {"var-node": "node-000"}}]}
// The answer has for each view its panels: title, type, whether visible, queries with the labels of their results, and frames with the
// name and the shown text of each field.
'use strict';

const path = require('node:path');
const { createRequire } = require('node:module');

const modules = path.resolve(process.argv[2]);
const grafana = createRequire(path.join(modules, 'x.js'))('@grafana/data');
// The library expects a browser; set afterwards, because others look for one when they are loaded.
globalThis.window = globalThis;
globalThis.navigator ??= { language: 'en-US', languages: ['en-US'] };
const { chosen, shown } = require('../frames.cjs')(grafana);
const WIDTH = 800;

async function read(stream) {
  const chunks = [];
  for await (const chunk of stream) { chunks.push(chunk); }
  return JSON.parse(Buffer.concat(chunks).toString());
}

function field(each, frame, frames) {
  return {
    id: each.name,
    name: grafana.getFieldDisplayName(each, frame, frames),
    type: each.type,
    hidden: Boolean(each.config.custom?.hideFrom?.viz),
    absent: each.values.map((value) => value === null || value === undefined),
    text: each.values.map((value) => grafana.formattedValueToString(each.display(value))),
  };
}

async function main() {
  const request = await read(process.stdin);
  const ask = async (what, parameters) => {
    const answer = await (await fetch(`${request.prometheus}/api/v1/${what}`, { method: 'POST', body: new URLSearchParams(parameters) })).json();
    if (answer.status !== 'success') { throw new Error(answer.error); }
    return answer.data.result;
  };
  const range = { from: grafana.dateTime(request.from), to: grafana.dateTime(request.to), raw: {} };
  const theme = grafana.createTheme();
  const views = [];
  for (const { board, parameters } of request.views) {
    const variables = await chosen(board, new URLSearchParams(parameters), ask, request.to / 1000);
    const panels = [];
    const inRows = board.panels.flatMap((each) => each.panels ?? []).filter((each) => each.type === 'table');
    for (const panel of [...board.panels.filter((each) => each.type !== 'row'), ...inRows]) {
      const { frames, queries } = await shown(panel, { ask, range, width: WIDTH, variables, theme });
      panels.push({
        title: panel.title, type: panel.type, visible: !inRows.includes(panel), queries,
        frames: frames.map((frame) => ({ rows: frame.length, fields: frame.fields.map((each) => field(each, frame, frames)) })),
      });
    }
    views.push(panels);
  }
  process.stdout.write(JSON.stringify(views));
}

main().catch((error) => { process.stderr.write(`${error.stack}\n`); process.exitCode = 1; });

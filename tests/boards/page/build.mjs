// node build.mjs NODE_MODULES OUTPUT: bundles the page with the libraries of NODE_MODULES.
import fs from 'node:fs';
import path from 'node:path';
import { createRequire } from 'node:module';
import { fileURLToPath } from 'node:url';

const [modules, output] = process.argv.slice(2).map((each) => path.resolve(each));
const here = path.dirname(fileURLToPath(import.meta.url));
const { build } = createRequire(path.join(modules, 'x.js'))('esbuild');
await build({
  entryPoints: [path.join(here, 'src/main.jsx')],
  outdir: output, bundle: true, splitting: true, format: 'esm', target: 'es2022', jsx: 'automatic', logLevel: 'error', nodePaths: [modules],
  define: { 'process.env.NODE_ENV': '"production"', 'process.env': '{}', global: 'globalThis' },
  loader: { '.svg': 'dataurl', '.png': 'dataurl', '.woff': 'file', '.woff2': 'file', '.ttf': 'file' },
});
fs.cpSync(path.join(modules, '@grafana/ui/dist/public'), path.join(output, 'public'), { recursive: true });
fs.writeFileSync(path.join(output, 'index.html'), `<!doctype html>
<meta charset="utf-8">
<link rel="stylesheet" href="main.css">
<script>window.__grafana_public_path__ = '/public/';</script>
<body style="margin: 0"><div id="root"></div><script type="module" src="main.js"></script>
`);

"""The style sheet of the page: light and dark, for screens and for paper."""

STYLE = """
:root{color-scheme:light dark;--back:#fff;--text:#1c2024;--soft:#5b6470;--edge:#d5d9de;--plot:#f4f6f8;--line:#1f6feb;
--band:#1f6feb33;--critical:#b42318;--warning:#9a6700;--info:#0b6bcb;--ok:#1a7f37}
@media (prefers-color-scheme:dark){:root{--back:#14171a;--text:#e6e9ec;--soft:#a3acb7;--edge:#373d44;--plot:#1d2125;
--line:#6cb0ff;--band:#6cb0ff33;--critical:#ff8a80;--warning:#e3b341;--info:#79c0ff;--ok:#7ee787}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--text);font:16px/1.5 system-ui,sans-serif}
main{max-width:1200px;margin:auto;padding:16px}
h1{font-size:1.6em;margin:.4em 0}h2{font-size:1.25em;margin:1.6em 0 .4em}h3{font-size:1em;margin:0}
small{color:var(--soft);font-weight:normal}
a{color:var(--line)}
.banner{background:#f2c037;color:#1c2024;font-weight:bold;padding:8px 12px;margin:0 0 12px}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:4px 12px 4px 0;border-bottom:1px solid var(--edge);white-space:nowrap}
tr.critical th,tr.critical td:nth-child(11),p.critical{color:var(--critical)}
tr.warning td:nth-child(11){color:var(--warning)}tr.info td:nth-child(11){color:var(--info)}
p,li,dd{overflow-wrap:anywhere}ul{margin:.2em 0 .6em;padding-left:1.4em}
.finding{border-left:4px solid var(--info);padding:2px 12px;margin:12px 0}
.finding.critical{border-color:var(--critical)}.finding.warning{border-color:var(--warning)}
.finding p{margin:.3em 0}
.process{font-family:ui-monospace,monospace;font-size:.9em}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(280px,1fr));gap:12px;margin-top:12px}
figure{margin:0}figcaption{font-size:.85em;color:var(--soft)}figcaption b{color:var(--text)}
.none{color:var(--soft);font-size:.85em;margin:0}
svg{display:block;width:100%;height:auto}svg.time{height:14px}
svg text{font:10px system-ui,sans-serif;fill:var(--soft)}
.plot{fill:var(--plot)}.band{fill:var(--band)}polyline.value{fill:none;stroke:var(--line);stroke-width:1.5}
circle.value{fill:var(--line)}.limit{stroke:var(--critical);stroke-width:1;stroke-dasharray:4 3}
dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 16px}dt{color:var(--soft)}dd{margin:0}
code{font-family:ui-monospace,monospace}
@media print{.finding,figure{break-inside:avoid}}
"""

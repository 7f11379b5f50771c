"""The style sheet of ``report.html``: light, system fonts, one class per kind of mark."""

from __future__ import annotations

_STACK = (
    "#9ecae9", "#ffc98a", "#a3d6ae", "#f4aaaa", "#c9bdea", "#dcc7ad",
    "#f5c8dd", "#b3d3db", "#e0da95", "#a9c4f5", "#ecc5a9", "#d0d5db",
)  # fmt: skip

_PAGE = """
:root{color-scheme:light;--ink:#1c2430;--soft:#5d6877;--rule:#e3e7ec;--accent:#1f5fbf}
*{box-sizing:border-box}
body{margin:0;background:#f4f6f8;color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1120px;margin:0 auto;padding:28px 20px 60px}
header,section{background:#fff;border:1px solid var(--rule);border-radius:8px;padding:22px 26px;margin:0 0 18px}
h1{font-size:26px;margin:0}h2{font-size:18px;margin:0 0 6px}h3{font-size:15px;margin:18px 0 6px}
p{margin:6px 0}.about{color:var(--soft);font-size:13.5px}
code,pre{font:12.5px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
code{background:#f0f3f7;border-radius:3px;padding:1px 4px}
pre{background:#f7f9fb;border:1px solid var(--rule);border-radius:6px;padding:10px 12px;overflow-x:auto;
white-space:pre-wrap;margin:10px 0}
.kind{border-radius:4px;padding:2px 8px;font-weight:600;font-size:13px}
.measured{background:#d9f0e0;color:#14613a}.simulated{background:#dce9fb;color:#17498f}
.modelled{background:#fdeccf;color:#7d4b06}
.tiles{display:flex;flex-wrap:wrap;gap:10px 34px;margin-top:14px}
.tiles b{display:block;font-size:22px;font-variant-numeric:tabular-nums}.tiles span{color:var(--soft);font-size:13px}
.knobs{display:grid;grid-template-columns:repeat(auto-fill,minmax(185px,1fr));gap:6px 18px;margin:12px 0}
.knobs dt{color:var(--soft);font-size:12.5px}.knobs dd{margin:0;font-weight:600}
.side{display:grid;grid-template-columns:repeat(auto-fit,minmax(420px,1fr));gap:0 18px}
.side pre{white-space:pre}
.panels{display:grid;grid-template-columns:repeat(auto-fill,minmax(320px,1fr));gap:6px 14px}
figure{margin:0}figcaption{font:600 13px ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace;margin:8px 0 0 4px}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums;margin:8px 0;min-width:50%}
th{color:var(--soft);font-weight:600;text-align:left}
th,td{padding:4px 14px 4px 0;border-bottom:1px solid var(--rule);vertical-align:top}
td em{font-style:normal;color:#a04a00;font-weight:600}
.best10 td:first-child,.best10 th:first-child{color:var(--soft);font-weight:400;text-align:left}
.best10 td,.best10 th{text-align:right;padding-right:10px}.best10{font-size:12.5px}
.facts td:first-child{color:var(--soft);white-space:nowrap}.facts td{overflow-wrap:anywhere}
details summary{cursor:pointer;color:var(--accent);margin:6px 0}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;font-size:12.5px;color:var(--soft);margin:4px 0 0}
.legend i{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:6px;vertical-align:-1px}
.legend i.pt{border-radius:50%}.legend i.line{height:3px;vertical-align:4px;background:#c0392b}
.legend i.tick{width:3px;background:#8b929a}
"""

_CHARTS = """
svg{display:block;max-width:100%;height:auto;font:12px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
svg text{fill:#3b4654}
.tick{font-size:11.5px}.count{font-size:10px}svg text.count{fill:#8b929a}
.note{font-size:11.5px}svg text.note{fill:#5d6877}.name{font-size:12.5px}.strong{font-weight:600}
.inside{font-size:11px}svg text.inside{fill:#1c2430}
.mid{text-anchor:middle}.end{text-anchor:end}
.grid{stroke:#e9edf1}.axis{stroke:#9aa5b1}
circle.pt{fill:#4c78a8;fill-opacity:.5}i.pt{background:#94aeca}
circle.default{fill:#e08a1e;fill-opacity:1}i.default{background:#e08a1e}
circle.neighbour{fill:#3f9b5f;fill-opacity:1}i.neighbour{background:#3f9b5f}
.cloud{stroke:#4c78a8;stroke-opacity:.5;stroke-width:5.2;stroke-linecap:round;fill:none}
.best{fill:none;stroke:#c0392b;stroke-width:2}
.winner{fill:#c0392b;stroke:#fff}.low{fill:#4c78a8}
.failed{stroke:#8b929a;stroke-width:1.5}
.reference{stroke:#9aa5b1;stroke-dasharray:5 4}
.whisker{stroke:#9aa5b1}.box{fill:#cfdcec;stroke:#7f9cc0}.median{stroke:#1c2430;stroke-width:1.6}
.fill{fill:#4c78a8}.empty{fill:#f0f3f7;stroke:#d5dbe2}
.roof{stroke:#5d6877;stroke-width:1.8;fill:none}.roof.smem{stroke:#4c78a8}.roof.dram{stroke:#7b4fc9}
path.dram{fill:#7b4fc9;stroke:#fff}
"""

STYLE = (
    _PAGE
    + _CHARTS
    + "".join(f".c{index}{{fill:{colour};background:{colour}}}" for index, colour in enumerate(_STACK))
).replace("\n", "")

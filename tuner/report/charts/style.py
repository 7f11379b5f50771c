"""The style sheet of ``report.html``: light and dark, system fonts, one class per kind of mark."""

from __future__ import annotations

from typing import Final

# Name -> colour on a light page, on a dark one.
_COLOURS: Final = {
    "page": ("#f4f6f8", "#14171c"),
    "card": ("#ffffff", "#1d2127"),
    "ink": ("#1c2430", "#e3e7ed"),
    "soft": ("#5d6877", "#9aa6b5"),
    "faint": ("#8b929a", "#7d8794"),
    "text": ("#3b4654", "#c3cbd6"),
    "rule": ("#e3e7ec", "#333a44"),
    "grid": ("#e9edf1", "#2c323b"),
    "axis": ("#9aa5b1", "#5f6b79"),
    "well": ("#f7f9fb", "#171b20"),
    "code": ("#f0f3f7", "#282e37"),
    "accent": ("#1f5fbf", "#7fb0f5"),
    "changed": ("#a04a00", "#f0a35c"),
    "mark": ("#4c78a8", "#79a6d6"),
    "mark2": ("#d9822b", "#eda24f"),
    "mark3": ("#3f9b5f", "#63bd82"),
    "mark4": ("#7b4fc9", "#ab8bef"),
    "best": ("#c0392b", "#f0766a"),
    "box": ("#cfdcec", "#3a4d66"),
    "boxline": ("#7f9cc0", "#6f8db3"),
    "inside": ("#1c2430", "#14171c"),
    "measured": ("#d9f0e0", "#1d4a30"),
    "measuredink": ("#14613a", "#a5e3bf"),
    "simulated": ("#dce9fb", "#1f3f6b"),
    "simulatedink": ("#17498f", "#b5d2fa"),
    "modelled": ("#fdeccf", "#5a3c0d"),
    "modelledink": ("#7d4b06", "#f6d399"),
}

# What engines do and what is waited for, in timelines and bars alike; dark numbers are readable on the bright ones.
_ACTIVITIES: Final = {
    "tma0": ("#8fb3e0", "#7ba3d6"),
    "tma1": ("#c3a6ea", "#b08fe0"),
    "tma2": ("#9fd3c9", "#7fbdb2"),
    "tma3": ("#d9c48f", "#c4ad74"),
    "mma0": ("#5b8fd4", "#6ea3ea"),
    "mma1": ("#a579dc", "#b98ff0"),
    "mma2": ("#4fa3a5", "#66bcbe"),
    "copy": ("#35a59c", "#45bdb3"),
    "switch": ("#6b4a1e", "#d6b27a"),
    "epilogue": ("#74b56c", "#79bf70"),
    "store": ("#b99466", "#c9a576"),
    "wait0": ("#e8604c", "#f07663"),
    "wait1": ("#e160ae", "#ee7cc2"),
    "wait2": ("#d98a5f", "#e39c74"),
    "wait3": ("#c9737f", "#d98a95"),
    "wait_acc": ("#f2a03d", "#f5ae57"),
    "wait_tensor": ("#b8a04a", "#cdb65c"),
    "wait_slot": ("#d3d9e0", "#3f4853"),
    "wait_result": ("#d3d9e0", "#3f4853"),
    "issue": ("#e3cf57", "#e6d468"),
    "prologue": ("#aab4c0", "#8996a6"),
    "launch": ("#d3d9e0", "#5a6675"),
    "other": ("#c0b6a6", "#9c9384"),
    "tail": ("#7a8695", "#8d99a8"),
}

_STACK: Final = (
    "#9ecae9", "#ffc98a", "#a3d6ae", "#f4aaaa", "#c9bdea", "#dcc7ad",
    "#f5c8dd", "#b3d3db", "#e0da95", "#a9c4f5", "#ecc5a9", "#d0d5db",
)  # fmt: skip

_PAGE = """
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1120px;margin:0 auto;padding:28px 20px 60px}
header,section{background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:22px 26px;margin:0 0 18px}
h1{font-size:26px;margin:0}h2{font-size:18px;margin:0 0 6px}h3{font-size:15px;margin:18px 0 6px}
p{margin:6px 0}.about{color:var(--soft);font-size:13.5px}
code,pre{font:12.5px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
code{background:var(--code);border-radius:3px;padding:1px 4px}
pre{background:var(--well);border:1px solid var(--rule);border-radius:6px;padding:10px 12px;overflow-x:auto;
white-space:pre-wrap;margin:10px 0}
.kind{border-radius:4px;padding:2px 8px;font-weight:600;font-size:13px}
.measured{background:var(--measured);color:var(--measuredink)}
.simulated{background:var(--simulated);color:var(--simulatedink)}
.modelled{background:var(--modelled);color:var(--modelledink)}
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
td em{font-style:normal;color:var(--changed);font-weight:600}
.best10 td:first-child,.best10 th:first-child{color:var(--soft);font-weight:400;text-align:left}
.best10 td,.best10 th{text-align:right;padding-right:10px}.best10{font-size:12.5px}
.numbers td,.numbers th{text-align:right}.numbers td:first-child,.numbers th:first-child{text-align:left}
.facts td:first-child{color:var(--soft);white-space:nowrap}.facts td{overflow-wrap:anywhere}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;font-size:12.5px;color:var(--soft);margin:4px 0 0}
.legend i{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:6px;vertical-align:-1px}
.legend i.pt{border-radius:50%}.legend i.line{height:3px;vertical-align:4px;background:var(--best)}
.legend i.tick{width:3px;background:var(--faint)}
"""

_CHARTS = """
svg{display:block;max-width:100%;height:auto;font:12px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
svg text{fill:var(--text)}
.tick{font-size:11.5px}.count{font-size:10px}svg text.count{fill:var(--faint)}
.note{font-size:11.5px}svg text.note{fill:var(--soft)}.name{font-size:12.5px}.strong{font-weight:600}
.inside{font-size:11px}svg text.inside{fill:var(--inside)}
.mid{text-anchor:middle}.end{text-anchor:end}
.grid{stroke:var(--grid)}.axis{stroke:var(--axis)}
circle.pt{fill:var(--mark);fill-opacity:.5}i.pt{background:var(--mark)}
circle.default{fill:var(--mark2);fill-opacity:1}i.default{background:var(--mark2)}
circle.neighbour{fill:var(--mark3);fill-opacity:1}i.neighbour{background:var(--mark3)}
circle.published{fill:var(--mark4);fill-opacity:1}i.published{background:var(--mark4)}
circle.pt.pair{fill:var(--mark)}circle.pt.single{fill:var(--mark2)}circle.pt.third{fill:var(--mark3)}circle.pt.fourth{fill:var(--mark4)}circle.pt{stroke:none}
i.pair{background:var(--mark)}i.single{background:var(--mark2)}i.third{background:var(--mark3)}i.fourth{background:var(--mark4)}
.cloud{stroke:var(--mark);stroke-opacity:.5;stroke-width:5.2;stroke-linecap:round;fill:none}
.cloud.single{stroke:var(--mark2)}.cloud.third{stroke:var(--mark3)}.cloud.fourth{stroke:var(--mark4)}
.best{fill:none;stroke:var(--best);stroke-width:2}
.winner{fill:var(--best);stroke:var(--card)}.low{fill:var(--mark)}
.ring{fill:none;stroke:var(--ink);stroke-width:1.6}
.failed{stroke:var(--faint);stroke-width:1.5}
.reference{stroke:var(--axis);stroke-dasharray:5 4}
.whisker{stroke:var(--axis)}.box{fill:var(--box);stroke:var(--boxline)}.median{stroke:var(--ink);stroke-width:1.6}
.fill{fill:var(--mark)}.empty{fill:var(--code);stroke:var(--rule)}
.roof{stroke:var(--soft);stroke-width:1.8;fill:none}.roof.fast{stroke-dasharray:7 4}.roof.smem{stroke:var(--mark)}
.roof.l2{stroke:var(--mark3)}.roof.dram{stroke:var(--mark4)}
path.dram{fill:var(--mark4);stroke:var(--card)}
.tile{stroke:var(--axis);stroke-dasharray:2 3}.stop{stroke:var(--best);stroke-width:1.4}
.thin{opacity:.45}.lane{opacity:1}
"""


def _variables(side: int) -> str:
    pairs = {**_COLOURS, **{f"t-{name}": colours for name, colours in _ACTIVITIES.items()}}
    return "".join(f"--{name}:{colours[side]};" for name, colours in pairs.items())


STYLE: Final = (
    f":root{{color-scheme:light dark;{_variables(0)}}}"
    f"@media(prefers-color-scheme:dark){{:root{{{_variables(1)}}}}}"
    + _PAGE
    + _CHARTS
    + "".join(f".t-{name}{{fill:var(--t-{name});background:var(--t-{name})}}" for name in _ACTIVITIES)
    + "".join(f".c{index}{{fill:{colour};background:{colour}}}" for index, colour in enumerate(_STACK))
).replace("\n", "")

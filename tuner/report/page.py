"""What all pages share: the document around a page's sections, and the files that pages of a device have in common.

A page names style, scripts and the list of problems by relative paths, so that a device's folder can be copied, opened
from a disk and served as it is. Data goes into a page as JSON, in which no markup can begin.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib import resources
from typing import Any, Final

from tuner.report.marks.svg import escape

ASSETS: Final = "assets"  # folder of a device's results
ASSET_FILES: Final = ("pages.css", "pages.js", "uplot.min.js", "uplot.LICENSE")
PROBLEMS_FILE: Final = "problems.js"
PAGE_FILE: Final = "report.html"
LOST: Final = (
    "This page looks for its style and its pictures in the folder assets of the device's results; copy that folder "
    "along."
)


def asset(name: str) -> bytes:
    """A file that is shipped with this package."""
    return resources.files("tuner.report").joinpath(ASSETS, name).read_bytes()


def section(title: str, body: str, note: str = "", *, css: str = "", name: str = "") -> str:
    """``css``: ``half`` where half of a wide page is enough. ``name``: what a link calls it."""
    told = f'<p class="about">{escape(note)}</p>' if note else ""
    marks = "".join(f' {key}="{value}"' for key, value in (("class", css), ("id", name)) if value)
    return f"<section{marks}><h2>{escape(title)}</h2>{told}{body}</section>"


def document(title: str, sections: Iterable[str], *, up: str = "", page: str = "", data: Any = None) -> str:
    """``up``: from the page to the device's folder. ``page``: the folder of a report, as the list of problems names it.
    ``data``: what the page's script draws and lists."""
    held = "" if data is None else f'<script type="application/json" id="data">{inline_json(data)}</script>\n'
    scripts = [f"{ASSETS}/uplot.min.js", PROBLEMS_FILE, f"{ASSETS}/pages.js"]
    lines = "".join(f'<script src="{up}{path}" defer></script>' for path in scripts)
    return (
        f'<!doctype html>\n<html lang="en" data-page="{escape(page)}"><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title>"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="stylesheet" href="{up}{ASSETS}/pages.css">{lines}</head>\n'
        f'<body><p class="lost">{LOST}</p><main>\n{chr(10).join(sections)}\n</main>\n{held}</body></html>\n'
    )


def inline_json(data: Any) -> str:
    """JSON that may stand in a script element: ``<`` is spelled by its number, so that no tag begins in a string."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")

"""Bars as lines of HTML, which fit any width: stacked parts of a time or of a budget, and shares."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tuner.report.marks.svg import escape, number

Part = tuple[str, float, str]  # name, size, class of its colour
LABEL_SHARE = 0.035  # of the whole: a narrower part has its number in its tooltip only
CSS_COLOURS = 12


def stacked(
    lines: Iterable[tuple[str, Sequence[Part], str]], whole: float, unit: str, *, tails: Sequence[float] = ()
) -> str:
    """``lines``: (name, parts, what stands at the end of the bar). ``whole``: what the full width means. ``tails``:
    of each line the last part of its bar that a thin line below it marks; 0: none."""
    rows = []
    for index, (name, parts, end) in enumerate(lines):
        bars = "".join(_part(name, part, whole, unit) for part in parts)
        rows.append(f'<span>{escape(name)}</span><div class="lane">{bars}{_end(end)}</div>')
        if index < len(tails) and tails[index] > 0:
            total = sum(size for _, size, _ in parts)
            about = escape(f"{name}: {number(tails[index])} {unit}")
            rows.append(
                f'<span></span><div class="tail t-tail" title="{about}" '
                f'style="margin-left:{_share(total - tails[index], whole)};width:{_share(tails[index], whole)}"></div>'
            )
    return f'<div class="stack">{"".join(rows)}</div>'


def _part(line: str, part: Part, whole: float, unit: str) -> str:
    name, size, css = part
    about = escape(f"{line}, {name}: {number(size)} {unit}")
    text = number(size) if size >= LABEL_SHARE * whole else ""
    return f'<i class="{css}" style="width:{_share(size, whole)}" title="{about}">{text and f"<span>{text}</span>"}</i>'


def _end(text: str) -> str:
    return f"<b>{escape(text)}</b>" if text else ""


def _share(size: float, whole: float) -> str:
    """The last tenth of the width is left for what stands at a bar's end."""
    return f"{90 * size / whole:.2f}%" if whole > 0 else "0%"


def budget_bar(title: str, unit: str, rows: Sequence[tuple[str, int]], limit: int) -> str:
    """One budget up to its limit; columns that two allocations share are left out."""
    shown = [(name, size) for name, size in rows if size > 0]
    parts = [(name, float(size), f"c{index % CSS_COLOURS}") for index, (name, size) in enumerate(shown)]
    used = sum(size for _, size in rows)
    bars = "".join(_budget_part(part, limit, unit) for part in parts)
    about = escape(f"{title}: {used:,} of {limit:,} {unit}")
    legend = [(css, f"{name} {size:,.0f}") for name, size, css in parts if size >= 0.01 * limit]
    return (
        f'<p class="about">{about}</p><div class="stack"><span>{escape(title.split()[0])}</span>'
        f'<div class="lane limit" title="{about}">{bars}</div></div>{legend_of(legend)}'
    )


def _budget_part(part: Part, limit: int, unit: str) -> str:
    name, size, css = part
    about = escape(f"{name}: {size:,.0f} {unit}")
    return f'<i class="{css}" style="width:{100 * size / limit:.2f}%" title="{about}"></i>'


def shares(rows: Iterable[tuple[str, float]]) -> str:
    """Names and their shares of 1, the longest bar as wide as the place."""
    found = list(rows)
    most = max((share for _, share in found), default=1.0)
    lines = "".join(
        f'<span class="name">{escape(name)}</span><div class="lane"><i class="fill" '
        f'style="width:{_share(share, most * 1.02)}"></i><b>{share:.1%}</b></div>'
        for name, share in found
    )
    return f'<div class="stack shares">{lines}</div>'


def legend_of(entries: Iterable[tuple[str, str]]) -> str:
    """(class of a colour, what it stands for)."""
    items = "".join(f'<span><i class="{css}"></i>{escape(name)}</span>' for css, name in entries)
    return f'<p class="legend">{items}</p>'

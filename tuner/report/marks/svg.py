"""Small inline SVG charts: scales with round ticks, axes with units, marks with tooltips. Text is always escaped.

Colours come from classes that the page's style sheet defines, so that a mark costs few bytes.
"""

from __future__ import annotations

import contextlib
import html
import math
from collections.abc import Iterator, Sequence

TICK_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
LOG_STEPS = ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7))  # per decade, from few to many


def escape(text: object) -> str:
    """Safe in element text and in attributes."""
    return html.escape(str(text), quote=True)


def short(value: float) -> str:
    """A coordinate: one decimal, no trailing zero."""
    text = f"{value:.1f}"
    return text.removesuffix(".0")


def number(value: float) -> str:
    """A tick or a figure for people: three significant digits, thousands with a thin space, no exponent."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{digits}f}".replace(",", "\u2009")
    return text.rstrip("0").rstrip(".") if "." in text else text


class Scale:
    """Maps data to pixels; ``ticks`` are round numbers inside the data range."""

    def __init__(
        self, low: float, high: float, start_px: float, end_px: float, *, log: bool = False, ticks: int = 6
    ) -> None:
        if log and low <= 0:
            raise ValueError(f"a logarithmic scale starts above 0, got {low}")
        if high <= low:
            low, high = (low / 1.5, high * 1.5) if log else (low - 0.5, high + 0.5)
        self.low, self.high, self.log = low, high, log
        self._start, self._end = start_px, end_px
        self.ticks = _log_ticks(low, high, ticks) if log else _linear_ticks(low, high, ticks)

    def __call__(self, value: float) -> float:
        low, high, at = self.low, self.high, min(max(value, self.low), self.high)
        share = math.log(at / low) / math.log(high / low) if self.log else (at - low) / (high - low)
        return self._start + share * (self._end - self._start)


def _linear_ticks(low: float, high: float, count: int) -> list[float]:
    rough = (high - low) / max(1, count)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in TICK_STEPS if power * factor >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def _log_ticks(low: float, high: float, count: int) -> list[float]:
    """1-2-5 ticks; over less than a factor of three evenly spaced round numbers read better."""
    if high / low < 3:
        return _linear_ticks(low, high, count)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    chosen: list[float] = []
    for factors in LOG_STEPS:
        finer = [factor * 10.0**decade for decade in decades for factor in factors]
        finer = [tick for tick in finer if low <= tick <= high]
        if len(finer) > count and chosen:
            break
        chosen = finer
    return chosen


class Chart:
    """A drawing of ``width`` x ``height`` pixels with a plot area inside ``left, top, right, bottom`` margins."""

    def __init__(
        self,
        width: int,
        height: int,
        label: str,
        *,
        margins: tuple[int, int, int, int] = (64, 14, 16, 46),
    ) -> None:
        self.width, self.height, self._label = width, height, label
        self.left, self.top, right, bottom = margins
        self.right, self.bottom = width - right, height - bottom
        self._parts: list[str] = []

    def x_scale(self, low: float, high: float, *, log: bool = False, ticks: int = 8) -> Scale:
        return Scale(low, high, self.left, self.right, log=log, ticks=ticks)

    def y_scale(self, low: float, high: float, *, log: bool = False, ticks: int = 5) -> Scale:
        return Scale(low, high, self.bottom, self.top, log=log, ticks=ticks)

    def axes(self, x: Scale | None, y: Scale | None, x_label: str = "", y_label: str = "") -> None:
        """Grid lines, tick numbers and axis names with units."""
        across = [(x(tick), tick) for tick in x.ticks] if x else []
        up = [(y(tick), tick) for tick in y.ticks] if y else []
        top, bottom, left, right = map(short, (self.top, self.bottom, self.left, self.right))
        grid = [f"M{short(at)} {top}V{bottom}" for at, _ in across]
        grid += [f"M{left} {short(at)}H{right}" for at, _ in up]
        if grid:  # one element for all of them: a page has hundreds
            self._element("path", f'd="{"".join(grid)}" class="grid"', "")
        for at, tick in across:
            self.text(at, self.bottom + 16, number(tick), "tick mid")
        for at, tick in up:
            self.text(self.left - 7, at + 4, number(tick), "tick end")
        self.line(self.left, self.bottom, self.right, self.bottom, "axis")
        if x_label:
            self.text((self.left + self.right) / 2, self.height - 8, x_label, "name mid")
        if y_label:
            middle = (self.top + self.bottom) / 2
            self.text(14, middle, y_label, "name mid", turn=-90)

    def line(self, x1: float, y1: float, x2: float, y2: float, css: str, tip: str = "") -> None:
        ends = f'x1="{short(x1)}" y1="{short(y1)}" x2="{short(x2)}" y2="{short(y2)}"'
        self._element("line", f'{ends} class="{css}"', tip)

    def path(self, points: Sequence[tuple[float, float]], css: str, tip: str = "") -> None:
        steps = "L".join(f"{short(x)} {short(y)}" for x, y in points)
        self._element("path", f'd="M{steps}" class="{css}"', tip)

    def dot(self, x: float, y: float, radius: float, css: str, tip: str = "") -> None:
        place = f'cx="{short(x)}" cy="{short(y)}" r="{short(radius)}"'
        self._element("circle", f'{place} class="{css}"', tip)

    def cloud(self, points: Sequence[tuple[float, float]], css: str) -> None:
        """Dots without tooltips, a few bytes each: strokes of no length with round ends."""
        steps = "".join(f"M{short(x)} {short(y)}h0" for x, y in points)
        self._element("path", f'd="{steps}" class="{css}"', "")

    def diamond(self, x: float, y: float, radius: float, css: str, tip: str = "") -> None:
        corners = ((x, y - radius), (x + radius, y), (x, y + radius), (x - radius, y), (x, y - radius))
        self.path(corners, css, tip)

    def bar(self, x: float, y: float, width: float, height: float, css: str, tip: str = "") -> None:
        place = f'x="{short(x)}" y="{short(y)}" width="{short(max(width, 0.2))}" height="{short(height)}"'
        self._element("rect", f'{place} class="{css}"', tip)

    def boxes(self, rects: Sequence[tuple[float, float, float, float]], css: str, tip: str = "") -> None:
        """Many rectangles (x, y, width, height) of one colour as one path, about 20 bytes each."""
        steps = "".join(
            f"M{short(x)} {short(y)}h{short(max(width, 0.4))}v{short(height)}h-{short(max(width, 0.4))}z"
            for x, y, width, height in rects
        )
        if steps:
            self._element("path", f'd="{steps}" class="{css}"', tip)

    def area(
        self, x: float, step: float, heights: Sequence[float], base: float, css: str, tip: str = ""
    ) -> None:
        """Columns ``step`` wide from ``x`` on, so many pixels high above ``base``; equal neighbours are one."""
        if not any(round(height, 1) for height in heights):
            return
        parts, level, at = [f"M{short(x)} {short(base)}"], 0.0, x
        for number, height in enumerate([*heights, 0.0]):
            if (rounded := round(height, 1)) != level:
                edge = x + number * step
                parts.append(f"H{short(edge)}" if edge > at else "")
                parts.append(f"V{short(base - rounded)}")
                level, at = rounded, edge
        self._element("path", f'd="{"".join(parts)}z" class="{css}"', tip)

    def text(
        self, x: float, y: float, text: str, css: str = "tick", tip: str = "", *, turn: float = 0
    ) -> None:
        """``turn``: degrees clockwise around its anchor."""
        title = f"<title>{escape(tip)}</title>" if tip else ""
        turned = f' transform="rotate({short(turn)} {short(x)} {short(y)})"' if turn else ""
        place = f'x="{short(x)}" y="{short(y)}" class="{css}"'
        self._parts.append(f"<text {place}{turned}>{title}{escape(text)}</text>")

    @contextlib.contextmanager
    def group(self, css: str) -> Iterator[None]:
        """What is drawn meanwhile belongs to one group: its opacity is that of the whole, overlaps included."""
        self._parts.append(f'<g class="{css}">')
        yield
        self._parts.append("</g>")

    def _element(self, name: str, attributes: str, tip: str) -> None:
        end = f"><title>{escape(tip)}</title></{name}>" if tip else "/>"
        self._parts.append(f"<{name} {attributes}{end}")

    def __str__(self) -> str:
        size = f'viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}"'
        return f'<svg {size} role="img" aria-label="{escape(self._label)}">{"".join(self._parts)}</svg>'

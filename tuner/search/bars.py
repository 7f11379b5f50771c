"""A tune on a terminal: a bar with where it stands, and below it a line for each busy worker. Drawn by tqdm."""

from __future__ import annotations

from typing import TextIO

from tqdm import tqdm

MOST_WORKERS = 8  # lines; a host with more cores says how many more
BAR = "{desc}|{bar:16}| {unit}"


class Bars:
    """Redrawn in place until ``close``, which leaves the bar standing and takes the workers' lines away."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._bar = tqdm(bar_format=BAR, position=0, **_options(stream))
        self._workers: list[tqdm] = []

    def show(self, label: str, text: str, done: int, total: int, workers: tuple[str, ...]) -> None:
        self._bar.total, self._bar.n = max(total, 1), done
        self._bar.unit = text
        self._bar.set_description_str(label, refresh=False)
        self._bar.refresh()
        self._show_workers(_shown(workers))

    def say(self, text: str) -> None:
        """A line above the bar."""
        tqdm.write(text, file=self._stream)

    def close(self) -> None:
        for line in reversed(self._workers):
            line.close()
        self._bar.close()

    def _show_workers(self, texts: list[str]) -> None:
        while len(self._workers) < len(texts):
            place = len(self._workers) + 1
            self._workers.append(
                tqdm(bar_format="{desc}", position=place, leave=False, **_options(self._stream))
            )
        for number, line in enumerate(self._workers):
            line.set_description_str(texts[number] if number < len(texts) else "", refresh=True)


def _shown(workers: tuple[str, ...]) -> list[str]:
    lines = [f"  compiling {one}" for one in workers[:MOST_WORKERS]]
    more = len(workers) - MOST_WORKERS
    return [*lines, f"  and {more} more"] if more > 0 else lines


def _options(stream: TextIO) -> dict[str, object]:
    return {"total": 1, "file": stream, "dynamic_ncols": True, "disable": False}

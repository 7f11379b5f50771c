"""Blocks of a page in docs/, and whether what they print still has the form that the page shows.

A fence says what its block is:

    ```python my_operators/rowmax/operator.py     a file
    ```diff my_operators/rowmax/operator.py       lines that are added to a file that stands before
    ```sh                                         commands
    ```python                                     code that is run
    ```text                                       what the block before prints
    ```python card                                as the others, but on a card

``python -m tests.docs.pages PAGE`` runs the code of a page and writes what it prints into its text blocks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CARD = "card"
_FENCE = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.M | re.S)
# What differs from run to run and from machine to machine: hashes, dates, times, numbers with a point, folders.
_VARIES = [
    (re.compile(r"\b\d{4}-\d\d-\d\dT[\d:+.]+"), "DATE"),
    (re.compile(r"(?:~|/)[\w.~-]*/[\w./~-]*"), "PATH"),
    (re.compile(r"\bk?[0-9a-f]{12,64}\b"), "HASH"),
    (re.compile(r"\d+\.\d+"), "NUMBER"),
    (re.compile(r"\b\d+(?= (?:s|%)\b)"), "NUMBER"),
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """``word``: what the fence says after the language: a file, ``card``, or nothing."""

    language: str
    word: str
    text: str

    @property
    def is_file(self) -> bool:
        return "/" in self.word


def blocks(page: Path) -> list[Block]:
    """Every fenced block of a page, in order."""
    found = (match.groups() for match in _FENCE.finditer(page.read_text()))
    return [Block(language=language, word=word or "", text=text) for language, word, text in found]


def shown(page_blocks: list[Block]) -> Iterator[tuple[Block, str]]:
    """Commands and code for this machine, each with what the page says that it prints; empty where it says nothing."""
    for number, block in enumerate(page_blocks):
        if block.language in ("sh", "python") and not block.word:
            following = page_blocks[number + 1 : number + 2]
            yield block, "".join(one.text for one in following if one.language == "text")


def missing(expected: str, printed: str) -> list[str]:
    """Lines of ``expected`` that ``printed`` lacks, or has in another order. A line may end with ``…``: then it only
    begins so; a line that is ``…`` alone stands for any."""
    rest = iter([form(line) for line in printed.splitlines()])
    wanted = [line for line in expected.splitlines() if line.strip() not in ("", "…")]
    return [line for line in wanted if not any(_is(form(line), other) for other in rest)]


def form(line: str) -> str:
    """A line without what varies and without the widths of its columns."""
    for pattern, name in _VARIES:
        line = pattern.sub(name, line)
    return " ".join(line.split())


def _is(wanted: str, line: str) -> bool:
    return line.startswith(wanted.removesuffix("…").rstrip()) if wanted.endswith("…") else line == wanted


def add_lines(text: str, diff: str) -> str:
    """``text`` with the lines of ``diff`` that begin with ``+`` after those before them that begin with a space."""
    position, lines = 0, text.splitlines()
    for line in diff.splitlines():
        if line.startswith("+"):
            lines.insert(position, line[1:])
            position += 1
        else:
            position = lines.index(line[1:], position) + 1
    return "\n".join(lines) + "\n"


def write_files(page_blocks: list[Block], folder: Path, *, added: bool = False) -> None:
    """The files of a page below ``folder``; ``added``: with what its diffs add."""
    for block in page_blocks:
        if not block.is_file:
            continue
        path = folder / block.word
        path.parent.mkdir(parents=True, exist_ok=True)
        if block.language != "diff":
            path.write_text(block.text)
        elif added:
            path.write_text(add_lines(path.read_text(), block.text))


def run_code(page_blocks: list[Block]) -> Iterator[tuple[Block, str, str]]:
    """Run a page's code in one namespace; (block, what the page shows, what it printed)."""
    names: dict[str, Any] = {"__name__": "page"}
    for block, expected in shown(page_blocks):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block.text, "page", "exec"), names)
        yield block, expected, printed.getvalue()


def main(page: Path) -> None:
    """Write what the code prints into the text blocks behind it."""
    text, position = page.read_text(), 0
    for block, _, printed in run_code(blocks(page)):
        position = text.index(block.text, position) + len(block.text)
        if printed:
            start = text.index("```text\n", position) + len("```text\n")
            end = text.index("```", start)
            text = text[:start] + printed + text[end:]
    page.write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

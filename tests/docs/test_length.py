"""What a user reads is short: the words of the user pages together, and the words of their sentences."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

INDEX = ROOT / "docs" / "README.md"
MOST_WORDS = 15_900  # of all user pages together, code and tables included
LONG, SHARE = 25, 0.9  # words that a sentence should not exceed, and the share of sentences that keep to it
LONGEST, LONGEST_ELSEWHERE = 35, 40  # of a user page, and of a page for authors; evidence may be longer
# Where a text has a full stop, and no sentence ends.
_ABBREVIATIONS = re.compile(r"\b(e\.g|i\.e|etc|vs|cf|al)\.")
_END = re.compile(r"(?<=[.!?])[\"')*_]*\s+(?=[\"'(*_`\[]*[A-Z0-9`@])")


def user_pages() -> list[Path]:
    """The pages that the index lists below ``## To use it``, and the index."""
    found = re.search(r"^## To use it\n(.*?)^## ", INDEX.read_text(), re.M | re.S)
    assert found
    links = re.findall(r"^\| \[[^]]+\]\(([^)]+)\)", found[1], re.M)
    return [INDEX, *((INDEX.parent / link).resolve() for link in links)]


def sentences(text: str) -> list[str]:
    """Sentences of a page. Code blocks, tables and headings hold none; a list item ends one, with or without a stop."""
    text = re.sub(r"^```.*?^```", "\n", text, flags=re.M | re.S)
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    parts = [""]
    for line in text.splitlines():
        if not line.strip() or re.match(r"#+ |\||    (?! *(?:[-*]|\d+\.) )\S", line):
            parts.append("")
        elif item := re.match(r" *(?:[-*]|\d+\.) +(.*)", line):
            parts.append(item[1])
        else:
            parts[-1] = f"{parts[-1]} {line.strip()}".strip()
    return [one for part in parts for one in _END.split(_ABBREVIATIONS.sub(r"\1", part)) if one.strip()]


def words(text: str) -> int:
    """Words with a letter or a digit in them."""
    return sum(any(character.isalnum() for character in word) for word in text.split())


def long_ones(text: str) -> tuple[list[str], int]:
    """Sentences beyond ``LONG`` words, and how many sentences there are."""
    every = sentences(text)
    return [one for one in every if words(one) > LONG], len(every)


PAGES = user_pages()
AUTHOR_PAGES = sorted({ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")} - set(PAGES))


def test_index_names_user_pages() -> None:
    assert ROOT / "README.md" in PAGES
    assert len(PAGES) > 5


def test_all_user_pages_fit_into_an_hour() -> None:
    counted = {page.relative_to(ROOT).as_posix(): len(page.read_text().split()) for page in PAGES}
    assert sum(counted.values()) <= MOST_WORDS, counted


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_sentences_are_short(page: Path) -> None:
    beyond, count = long_ones(page.read_text())
    assert len(beyond) <= (1 - SHARE) * count, beyond
    assert not [one for one in beyond if words(one) > LONGEST]


@pytest.mark.parametrize("page", AUTHOR_PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_sentence_of_an_author_page_runs_on(page: Path) -> None:
    assert not [one for one in sentences(page.read_text()) if words(one) > LONGEST_ELSEWHERE]


def test_splitter_finds_sentences() -> None:
    page = (
        "# A heading of words. And more\n\nOne has 3.5 us. `two` follows it (e.g. here).\nThree goes\nover lines: so\n"
        "it does; still one.\n\n| a table. | of cells. |\n\n```\ncode. Code\n```\n- an item\n- [a link](x.md). Last!\n"
        "\n    indented code. More\n"
    )
    assert sentences(page) == [
        "One has 3.5 us.",
        "`two` follows it (e.g here).",
        "Three goes over lines: so it does; still one.",
        "an item",
        "a link.",
        "Last!",
    ]
    assert long_ones("word " * 26 + "end.\n\nShort.")[1] == 2
    assert len(long_ones("word " * 26 + "end.\n\nShort.")[0]) == 1
    assert words("1.3 us — of `a b`") == 5

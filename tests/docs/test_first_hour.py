"""The four pages of a user's first hour, followed to the letter: what their commands and code print, without a card."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.docs.pages import CARD, ROOT, Block, blocks, missing, shown
from tests.docs.test_add_an_operator import output_of
from tests.docs.test_length import user_pages
from tuner.cli.main import COMMANDS, DEFAULT_COMMAND, parser_of

NAMES = ("first_tune", "first_report", "first_model", "first_card")
PAGES = {name: ROOT / "docs" / f"{name}.md" for name in NAMES}
MOST_WORDS = 450  # of one page: they are read one after the other, in an hour with what runs


@pytest.mark.parametrize("name", NAMES)
def test_every_page_is_short_and_shows_what_it_runs(name: str) -> None:
    text = PAGES[name].read_text()
    assert len(text.split()) <= MOST_WORDS and PAGES[name] in user_pages()
    found = list(shown(blocks(PAGES[name])))
    assert found and all(expected.strip(" …\n") for _, expected in found), (
        "a block without output checks nothing"
    )


def test_each_page_leads_to_the_next() -> None:
    for name, following in zip(NAMES, NAMES[1:], strict=False):
        assert f"({following}.md)" in PAGES[name].read_text().rstrip().splitlines()[-1]


@pytest.mark.parametrize("name", NAMES)
def test_every_command_line_of_the_page_is_one(name: str) -> None:
    """Those within sentences and those for a card too."""
    text = PAGES[name].read_text()
    lines = re.findall(r"(?:^|`)python (tune\.py [^`\n]+)", text, re.M)
    assert lines
    for line in lines:
        _, *arguments = shlex.split(line)
        command = arguments.pop(0) if arguments[0] in COMMANDS else DEFAULT_COMMAND
        parser_of(command).parse_args(arguments)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a user who has tuned nothing."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [NAMES[:2], NAMES[2:3], NAMES[3:]],
    ids=["first_tune, then first_report", *NAMES[2:]],
)
def test_what_runs_prints_what_the_page_says(names: tuple[str, ...], folder: Path) -> None:
    for name in names:
        for block, expected in shown(blocks(PAGES[name])):
            assert not missing(expected, output_of(block, folder)), block.text


@pytest.mark.gpu
def test_what_is_for_a_card_runs_on_one(folder: Path) -> None:
    pytest.importorskip("cutlass", reason="tuning needs the compiler")
    (model,) = (block for block in blocks(PAGES["first_model"]) if block.word == CARD)
    printed = output_of(Block(language=model.language, word="", text=model.text), folder)
    assert re.search(r"1 x svdquant_linear 64,512,1024,32  \d+\.\d+ us", printed), printed

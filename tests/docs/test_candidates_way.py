"""docs/candidates_way.md: its code runs, and what it prints has the form that the page shows; times may differ."""

from __future__ import annotations

import pytest

from tests.docs.pages import ROOT, blocks, missing, run_code

PAGE = ROOT / "docs" / "candidates_way.md"


def test_every_step_shows_what_it_prints() -> None:
    """A block of code without its output would be checked by nothing."""
    languages = [block.language for block in blocks(PAGE) if block.language in ("python", "text")]
    assert languages == ["python", "text"] * (len(languages) // 2) and len(languages) == 22


@pytest.mark.slow
def test_every_step_prints_what_the_page_shows() -> None:
    for block, expected, printed in run_code(blocks(PAGE)):
        assert not missing(expected, printed), block.text
        assert len(expected.splitlines()) == len(printed.splitlines()), block.text

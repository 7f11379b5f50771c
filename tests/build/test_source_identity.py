"""``code_only``: what counts as a change of a source file, and what does not."""

from __future__ import annotations

import pytest

from kernel_space.build.source_facts import identity
from kernel_space.build.source_identity import code_only

SOURCE = b'''"""About."""

import os  # the system
from a.b import (
    c,
    d,
)


def f(x):  # a comment
    """What it does."""
    import json; y = 1
    text = "# no comment"

    return c(x, text) + y
'''


def test_only_code_is_left() -> None:
    lines = [line.strip() for line in code_only(SOURCE).decode().splitlines()]
    assert lines == ["def f(x):", "; y = 1", 'text = "# no comment"', "return c(x, text) + y"]


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        (b"About.", b"About it.", True),
        (b"the system", b"the operating system", True),
        (b"from a.b import", b"from a.z.b import", True),
        (b"What it does.", b"Something.", True),
        (b"a comment", b"none", True),
        (b"    text", b"\n\n    text", True),
        (b"return c", b"return d", False),
        (b"# no comment", b"# a comment", False),
        (b"y = 1", b"y = 2", False),
        (b"    return", b"        return", False),
    ],
)
def test_what_counts(old: bytes, new: bytes, same: bool) -> None:
    changed = SOURCE.replace(old, new, 1)
    assert changed != SOURCE
    if b"        return" in changed:  # deeper than its block: only ever inside of one
        changed = changed.replace(b"        return", b"    if x:\n        return")
    assert (identity([changed]) == identity([SOURCE])) is same


def test_order_and_files_without_code_do_not_count() -> None:
    one, other, empty = b"x = 1\n", b"y = 2\n", b'"""Nothing but words."""\nimport os\n'
    assert identity([one, other]) == identity([other, empty, one])
    assert identity([one, one]) != identity([one])
    assert identity([one]) != identity([other])

"""Facts of sources on disk: what one process parsed, another finds, whatever happened to the file in between."""

from __future__ import annotations

import ast
import hashlib
import json
from pathlib import Path

import pytest

from kernel_space.build import source_facts
from kernel_space.build.source_identity import code_only

SOURCE = b'"""About."""\nimport os, a.b\nfrom . import near\nfrom ..up import one, two\n\ndef f(): return 1\n'
CODE = hashlib.sha256(b"def f(): return 1").hexdigest()
IMPORTS = ((0, "os", ()), (0, "a.b", ()), (1, "", ("near",)), (2, "up", ("one", "two")))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(source_facts, "cache_folder", lambda: tmp_path / "cache")
    forget()
    return tmp_path / "cache"


def forget() -> None:
    """As another process: nothing is known but what is on disk."""
    source_facts.source_facts.cache_clear()
    source_facts._known.cache_clear()


def parses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    forget()
    monkeypatch.setattr(source_facts, "_read_off", lambda source: pytest.fail("parsed again"))


def test_what_is_read_off(cache: Path) -> None:
    assert code_only(SOURCE) == b"def f(): return 1"
    assert source_facts.source_facts(SOURCE) == (CODE, IMPORTS)


def test_another_process_need_not_parse(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = b'"""Nothing but words."""\n'
    before = [source_facts.source_facts(one) for one in (SOURCE, words)]
    parses_nothing(monkeypatch)
    assert (
        [source_facts.source_facts(one) for one in (SOURCE, words)] == before == [(CODE, IMPORTS), ("", ())]
    )


def test_one_byte_is_another_source(cache: Path) -> None:
    source_facts.source_facts(SOURCE)
    forget()
    other = SOURCE.replace(b"return 1", b"return 2")
    assert source_facts.source_facts(other).code == hashlib.sha256(b"def f(): return 2").hexdigest()


@pytest.mark.parametrize(
    "left",
    [
        '{"cut',
        "[1]",
        "no JSON",
        json.dumps({hashlib.sha256(SOURCE).hexdigest(): ["not a digest", []]}),
        json.dumps({hashlib.sha256(SOURCE).hexdigest(): [CODE, [["far", "os"]]]}),
        json.dumps({hashlib.sha256(SOURCE).hexdigest(): 7}),
    ],
)
def test_what_another_writer_left_is_passed_over(
    cache: Path, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.mkdir()
    (path := source_facts._path(cache)).write_text(left)
    assert source_facts.source_facts(SOURCE) == (CODE, IMPORTS)
    assert len(path.read_text().splitlines()) == 2
    parses_nothing(monkeypatch)
    assert source_facts.source_facts(SOURCE) == (CODE, IMPORTS)


def test_a_folder_that_cannot_be_written_is_no_error(cache: Path) -> None:
    cache.write_text("a file")
    assert source_facts.source_facts(SOURCE) == (CODE, IMPORTS)


def test_what_is_no_python(cache: Path) -> None:
    with pytest.raises(SyntaxError):
        source_facts.source_facts(b"def f(:\n")
    assert not cache.exists()


def test_of_this_project(cache: Path) -> None:
    """As ``ast`` says, of every file of this package's folder."""
    for path in sorted(Path(source_facts.__file__).parent.glob("*.py")):
        source = path.read_bytes()
        names = {
            alias.name
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Import)
            for alias in node.names
        }
        facts = source_facts.source_facts(source)
        assert {module for _, module, taken in facts.imports if not taken} == names

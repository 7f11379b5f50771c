"""Footprints on disk: what one process adds, another finds, whatever happened to the file in between."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernel_space.build import footprint_store
from kernel_space.core.registry import kernel

KERNEL = kernel("svdquant_gemm", "sm100a")


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cache" / "footprints.json"
    monkeypatch.setattr(footprint_store, "_path", lambda kernel: path)
    forget()
    return path


def forget() -> None:
    """As another process: nothing is known but what is on disk."""
    footprint_store._entries.cache_clear()


def test_what_was_saved_is_found_by_another_process(path: Path) -> None:
    assert footprint_store.load(KERNEL, "one") is None
    footprint_store.save(KERNEL, "one", {"smem": [["A", 8192, "ab"]]})
    footprint_store.save(KERNEL, "two", {"smem": []})
    forget()
    assert footprint_store.load(KERNEL, "one") == {"smem": [["A", 8192, "ab"]]}
    assert footprint_store.entries(KERNEL) == {"one": {"smem": [["A", 8192, "ab"]]}, "two": {"smem": []}}


def test_nothing_is_lost_when_two_processes_add(path: Path) -> None:
    footprint_store.save(KERNEL, "one", {"smem": [1]})
    with path.open("a") as another:
        another.write('\n{"two": {"smem": [2]}}')
    footprint_store.save(KERNEL, "three", {"smem": [3]})
    forget()
    assert footprint_store.entries(KERNEL) == {
        key: {"smem": [n + 1]} for n, key in enumerate(("one", "two", "three"))
    }


@pytest.mark.parametrize("left", ['{"cut": {"sm', "[1, 2]", "no JSON", json.dumps({"whole": {"smem": []}})])
def test_what_another_writer_left_does_not_hide_what_comes_after(path: Path, left: str) -> None:
    """A killed writer's half line, other JSON, and a file of one object, as earlier versions wrote."""
    path.parent.mkdir()
    path.write_text(left)
    footprint_store.save(KERNEL, "one", {"smem": [1]})
    forget()
    assert footprint_store.load(KERNEL, "one") == {"smem": [1]}
    assert (footprint_store.load(KERNEL, "whole") is not None) == ("whole" in left)


def test_a_folder_that_cannot_be_written_is_no_error(path: Path) -> None:
    path.parent.write_text("a file where the folder should be")
    footprint_store.save(KERNEL, "one", {"smem": [1]})
    assert footprint_store.load(KERNEL, "one") == {"smem": [1]}

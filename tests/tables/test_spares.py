"""Spares: the file, what is bundled of it, and when one is launched."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernel_space.core.arch import SM90A
from kernel_space.core.errors import InputError
from kernel_space.core.registry import kernel_of, parse_config
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tests.runtime.test_choice import PLAIN, SPLIT, of_rank
from tests.tables.test_bundle import cached, tuned
from tests.tables.test_estimates import H200, results
from tuner.cli.main import main
from tuner.runtime.choice.choose import Library
from tuner.tables import bundle_widest, bundle_write
from tuner.tables.borrow import table_of
from tuner.tables.bundle import FOLDER, Bundle
from tuner.tables.bundle_write import bundle_spares, write_bundle
from tuner.tables.estimates import FILE_NAME as ESTIMATES
from tuner.tables.estimates import Estimates
from tuner.tables.spares import FILE_NAME, Spare, read_spares, write_spares

SPARE = Spare(problem=GemmProblem.parse("16,3840,3072,128"), config=SPLIT, us=5.5)
FEW = "4,4096,1024,128"  # four splits of K reach SMs that whole tiles leave idle


def library(root: Path) -> Library:
    return Library.of_class(root, H200, cache_dir=root / "cache")


# ------------------------------------------------------------------ what is launched


def times(root: Path, shape: str) -> tuple[float, float]:
    """Estimates of the two configs."""
    estimates, problem = Estimates.over([root / "h200"], H200), GemmProblem.parse(shape)
    plain, split = (
        estimates.of(parse_config("svdquant_gemm", SM90A, text), problem) for text in (PLAIN, SPLIT)
    )
    assert plain is not None and split is not None
    return plain.us, split.us


def test_a_spare_is_launched_where_it_is_estimated_faster(tmp_path: Path) -> None:
    """One row, of PLAIN; the bundle has SPLIT besides."""
    root = results(tmp_path, ("256,3840,3072,128", PLAIN))
    few, many = FEW, "4352,8192,8192,128"
    assert times(root, few)[0] > times(root, few)[1] and times(root, many)[0] < times(root, many)[1]
    choice = library(root).choose(GemmProblem.parse(few))
    assert (str(choice.config), choice.source, choice.row) == (SPLIT, "spare of R=128", None)
    assert f"estimated {times(root, few)[1]:.4g} us within 10%" in choice.reason
    assert (
        "for what trials at 256,3840,3072,128 say of its kind; it was not checked on a card" in choice.reason
    )
    assert str(library(root).choose(GemmProblem.parse(many)).config) == PLAIN


def test_a_problem_with_a_row_keeps_it(tmp_path: Path) -> None:
    choice = library(results(tmp_path, (FEW, PLAIN))).choose(GemmProblem.parse(FEW))
    assert (str(choice.config), choice.source) == (PLAIN, "exact")


def test_a_smaller_rank_is_padded_for_a_spare(tmp_path: Path) -> None:
    choice = library(results(tmp_path, ("256,3840,3072,128", PLAIN))).choose(
        GemmProblem.parse("4,4096,1024,64")
    )
    assert (str(choice.config), choice.launched.r) == (SPLIT, 128)


def test_nobody_launches_a_spare_without_an_estimate(tmp_path: Path) -> None:
    """The row's four splits need four tiles of K; this K is one."""
    root, problem = results(tmp_path, ("256,3840,3072,128", SPLIT)), GemmProblem.parse("64,128,512,128")
    assert str(library(root).choose(problem).config) == PLAIN
    (root / "h200" / ESTIMATES).unlink()
    with pytest.raises(InputError, match=f"no kernel for {problem}"):
        library(root).choose(problem)


def test_a_row_near_its_own_batch_is_trusted_and_a_spare_is_not(tmp_path: Path) -> None:
    """Trust is a fifth of the time, and would be a third of the spare's: the kernels are less apart in either case."""
    near, own = "20,2048,8192,128", "320,3840,3072,128"  # the spare was timed at M = 256
    root = results(tmp_path, ("16,2048,8192,128", PLAIN), error=0.5)
    assert 1 < times(root, near)[0] / times(root, near)[1] < 1.2
    assert 0.7 < times(root, own)[0] / times(root, own)[1] < 1
    assert library(root).choose(GemmProblem.parse(near)).source == "nearest M 16"
    assert str(library(root).choose(GemmProblem.parse(own)).config) == PLAIN


def test_lookup_says_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = results(tmp_path, ("256,3840,3072,128", PLAIN))
    assert main(["lookup", "--device", "h200", "--shape", FEW, "--out", str(root)]) == 0
    choice, text = library(root).choose(GemmProblem.parse(FEW)), capsys.readouterr().out
    assert choice.reason in text and SPLIT in text


# ------------------------------------------------------------------ what is bundled


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, str]]:
    """(config, class) of what the compiler is asked for."""
    asked: list[tuple[str, str]] = []

    def build(one: Any, problem: GemmProblem, *_: Any) -> tuple[dict[str, Any], bytes]:
        asked.append((one.config, str(problem.problem_class)))
        meta, data = cached(tmp_path / "built", one.config, problem_class=str(problem.problem_class))
        kernel = kernel_of(parse_config(problem.operator, SM90A, one.config), problem)
        return {**meta, "source_hash": bundle_widest.kernel_source_hash(kernel)}, data

    monkeypatch.setattr(bundle_write, "_built", build)
    monkeypatch.setattr(bundle_write, "widest_problems", lambda problems: list(problems) and [])
    return asked


def configs(folder: Path) -> list[tuple[str, str]]:
    return sorted((one.config, one.problem_class) for one in Bundle.load(folder / FOLDER, SM90A).entries)


BF16 = of_rank(128).replace("fp16", "bf16")


def test_spares_are_bundled_with_other_dtypes_and_stay(tmp_path: Path, built: list[tuple[str, str]]) -> None:
    folder, rows = tmp_path / "h200", [tuned(tmp_path / "cache", "256,3840,3072,128", PLAIN)]
    write: Callable[..., Any] = lambda **more: write_bundle(  # noqa: E731
        folder, SM90A, rows, caches=[tmp_path / "cache"], **more
    )
    write()
    alone = configs(folder)
    also = [{"lora_dtype": "bf16", "out_dtype": "bf16"}]
    done = bundle_spares(folder, SM90A, rows, [SPARE], also=also)
    assert not done.refused and built == [(SPLIT, of_rank(128)), (SPLIT, BF16)]
    assert configs(folder) == sorted([*alone, *built])
    built.clear()
    write(spares=[SPARE])
    assert built == [] and configs(folder) == sorted([*alone, (SPLIT, of_rank(128))])
    write()
    assert configs(folder) == alone


def test_a_spare_of_older_sources_is_made_anew(tmp_path: Path, built: list[tuple[str, str]]) -> None:
    folder = tmp_path / "h200"
    (entry,) = bundle_spares(folder, SM90A, [], [SPARE]).entries
    index = folder / FOLDER / "index.json"
    index.write_text(index.read_text().replace(entry.source_hash, "of another day"))
    (again,) = bundle_spares(folder, SM90A, [], [SPARE]).entries
    assert again.source_hash == entry.source_hash and len(built) == 2


def test_an_object_that_was_judged_for_a_row_stays_as_it_is(
    tmp_path: Path, built: list[tuple[str, str]]
) -> None:
    """The spare has won a tune since: its sources are of another day, and what was judged is what is launched."""
    folder, rows = tmp_path / "h200", [tuned(tmp_path / "cache", "16,3840,3072,128", SPLIT)]
    first = write_bundle(folder, SM90A, rows, caches=[tmp_path / "cache"])
    assert bundle_spares(folder, SM90A, rows, [SPARE]).entries == first.entries and built == []


# ------------------------------------------------------------------ the file


def test_the_file_gives_back_what_was_written(tmp_path: Path) -> None:
    assert read_spares(tmp_path) == []
    bf16 = dataclasses.replace(SPARE.problem, out_dtype="bf16")
    both = [SPARE, Spare(problem=bf16, config=PLAIN, us=7.25)]
    write_spares(tmp_path, "h200", {"svdquant_gemm": {"spares": [one.to_record() for one in both]}})
    write_spares(tmp_path, "h200", {"not_installed": {"spares": [{"problem": {}, "config": "", "us": 1}]}})
    assert read_spares(tmp_path) == both


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"schema": 2}', '{"schema": 1, "operators": []}', '{"schema": 1}']
)
def test_what_is_no_file_of_spares_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    for refused in (read_spares, lambda folder: write_spares(folder, "h200", {})):
        with pytest.raises(InputError, match="choose them again, or remove it"):
            refused(tmp_path)
    assert (tmp_path / FILE_NAME).read_text() == text


def test_what_is_shipped_is_bundled_and_no_row() -> None:
    """Each for both dtypes, from sources of the day on which it was chosen."""
    folder = Path(__file__).parents[2] / "results" / "h200"
    bundle, spares = Bundle.load(folder / FOLDER, SM90A), read_spares(folder)
    entries = {(one.op, one.config, one.problem.r) for one in bundle.entries}
    assert spares and {(one.problem.operator, one.config, one.problem.r) for one in spares} <= entries
    rows = table_of(folder, H200).table.rows
    taken = {(row.key.op, row.config, row.key.problem.r) for row in rows.values()}
    assert not taken & {(one.problem.operator, one.config, one.problem.r) for one in spares}

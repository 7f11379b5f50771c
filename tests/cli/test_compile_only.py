"""``compile-only``: what it reads of earlier results, and that bad ones leave nothing behind."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kernel_space.core.arch import SM90A
from kernel_space.core.config import KernelConfig
from kernel_space.core.rules import Legal, legalize
from tests.compile.test_manifest import PROBLEM, SPACE, Compiler
from tests.operators.svdquant_gemm.candidates import parse
from tests.tables.test_dispatch import row
from tuner.cli.main import main
from tuner.cli.tune import compile_only as cli_compile_only
from tuner.compile.manifest import Manifest
from tuner.tables.row import DispatchKey
from tuner.trials.outcome import Kind

OTHER_ARCH = '{"schema": 2, "arch": "sm_100a", "rows": [\n\n]}\n'


@pytest.fixture
def compile_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The command in ``tmp_path`` with a compiler that makes things up, into ``objects``."""
    compiler = Compiler(tmp_path / "home")
    monkeypatch.setattr(
        cli_compile_only, "CompilePool", lambda jobs, limit_s: contextlib.nullcontext(compiler)
    )
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("SVDQUANT_TUNE_RESULTS", "mine")
    shape = ("--shape", str(PROBLEM), "--trials", "2", "--jobs", "1")
    return lambda *more: main(["compile-only", *shape, "--out", "objects", *more])


def test_without_results_there_is_nothing_to_choose_from(compile_only: Callable[..., int]) -> None:
    assert compile_only() == 0
    assert len(Manifest.load(Path("objects")).problems[PROBLEM]) == 2


@pytest.mark.parametrize("named", ["gone", "file", "file/below"])
def test_results_that_were_named_must_be_there(
    named: str, compile_only: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("file").write_text("precious")
    assert compile_only("--results", named) == 2
    said = capsys.readouterr()
    assert (
        said.err
        == f"error: --results must be a folder, got {named}; name one that is there, or leave it out\n"
    )
    assert not said.out and [path.name for path in Path().iterdir()] == ["file"]


def test_the_problems_own_row_is_taken_without_its_journal(compile_only: Callable[..., int]) -> None:
    """As after a change of the kernel's sources, or in a clone. Neighbours follow it."""
    default = SPACE.default(PROBLEM)
    text = "kernel=sm90a_ring tile_mnk=64x{}x128 consumer_warpgroups=1"
    own, other = (parse(text.format(columns)) for columns in (40, 24))
    keys = (DispatchKey.of(problem, "sm_90a") for problem in (dataclasses.replace(PROBLEM, m=65), PROBLEM))
    rows = [
        row(Kind.MEASURED, key=key, config=str(config))
        for key, config in zip(keys, (other, own), strict=True)
    ]
    Path("results", "h200").mkdir(parents=True)
    text = json.dumps({"schema": 2, "arch": "sm_90a", "rows": [one.to_record() for one in rows]})
    Path("results", "h200", "dispatch.json").write_text(text)
    assert compile_only("--results", "results", "--trials", "3") == 0
    chosen = [entry.resolved for entry in Manifest.load(Path("objects")).problems[PROBLEM]]
    assert chosen == [resolved(config) for config in (default, own, other)]


def resolved(config: KernelConfig) -> str:
    legal = legalize(config, PROBLEM, SM90A)
    assert isinstance(legal, Legal)
    return str(legal.config)


@pytest.mark.parametrize("named", [(), ("--results", "results")])
@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("dispatch.json", "{", "dispatch.json is damaged"),
        ("dispatch.json", OTHER_ARCH, "one arch, got sm_100a, sm_90a"),
        ("svdquant_gemm/64x3840x3072x128/trials.parquet", "PAR", "cannot read trials"),
    ],
)
def test_damaged_results_leave_no_folder_behind(
    file: str,
    content: str,
    message: str,
    named: tuple[str, ...],
    compile_only: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SVDQUANT_TUNE_RESULTS", "results")
    path = Path("results", "h200", file)
    path.parent.mkdir(parents=True)
    path.write_text(content)
    assert compile_only(*named) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert [path.name for path in Path().iterdir()] == ["results"]

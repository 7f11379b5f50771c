"""The object of the largest rank that every bundle holds: which config it takes, and that it stays."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kernel_space.core.arch import SM90A
from kernel_space.core.errors import InputError
from kernel_space.core.registry import kernel_of, parse_config
from kernel_space.core.rules import Legal, legalize
from kernel_space.operators.svdquant_gemm.operands import Operands, make_operands
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.reference import check_packed
from kernel_space.operators.svdquant_gemm.runtime import pad_rank
from tests.operators.svdquant_gemm.test_sm90a_expand import execute_in_machine
from tests.runtime.test_choice import PLAIN, SPLIT, of_rank
from tests.tables.test_bundle import cached, tuned
from tuner.cli.main import main
from tuner.runtime.choice.choose import Library
from tuner.tables import bundle_widest, bundle_write
from tuner.tables.bundle import FOLDER, Bundle
from tuner.tables.bundle_write import Bundled, write_bundle
from tuner.tables.dispatch import render_table
from tuner.tables.row import Row

FEW_ROWS = str(
    parse_config(
        GemmProblem.operator,
        SM90A,
        "kernel=sm90a_small_m tile_mnk=32x8x128 num_ab_stage=3 num_dq_stage=0",
    )
)
BF16_OPTIONS = {"lora_dtype": "bf16", "out_dtype": "bf16"}
BF16 = of_rank(128).replace("fp16", "bf16")
SIZES = ("1,32,8,0", "5,64,16,16", "4352,15360,3840,240", "100000,3840,3072,144")


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, str]]:
    """(config, class) of what the compiler is asked for; an object without a kernel in it comes back."""
    asked: list[tuple[str, str]] = []

    def build(one: Row, problem: GemmProblem, *_: Any) -> tuple[dict[str, Any], bytes]:
        asked.append((one.config, str(problem.problem_class)))
        meta, data = cached(tmp_path / "built", one.config, problem_class=str(problem.problem_class))
        return {
            **meta,
            "source_hash": bundle_widest.kernel_source_hash(
                kernel_of(parse_config(problem.operator, SM90A, one.config), problem)
            ),
        }, data

    monkeypatch.setattr(bundle_write, "_built", build)
    return asked


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Bundled]:
    def run(rows: list[Row], **options: Any) -> Bundled:
        table = render_table(sorted(rows, key=lambda one: one.key))
        (tmp_path / "h200").mkdir(exist_ok=True)
        (tmp_path / "h200" / "dispatch.json").write_text(table)
        return write_bundle(tmp_path / "h200", SM90A, rows, caches=[tmp_path / "cache"], **options)

    return run


def classes(done: Bundled) -> list[str]:
    return sorted(entry.problem_class for entry in done.entries)


def test_every_pair_of_dtypes_has_one_and_any_rank_launches(
    tmp_path: Path, write: Callable[..., Bundled], built: list[tuple[str, str]]
) -> None:
    rows = [tuned(tmp_path / "cache", "16,3840,3072,128", FEW_ROWS)]
    done = write(rows, also=[BF16_OPTIONS])
    assert not done.refused
    wide = [of_rank(256), of_rank(512)]
    assert [asked for _, asked in built] == [BF16, *wide, *(one.replace("fp16", "bf16") for one in wide)]
    library = Library.load(tmp_path / "h200", SM90A, cache_dir=tmp_path / "nowhere")
    for text in SIZES:
        for dtype in ("fp16", "bf16"):
            choice = library.choose(GemmProblem.parse(text, lora_dtype=dtype, out_dtype=dtype))
            assert choice.object.read().endswith(str(choice.launched.problem_class).encode())
            # An independent opinion on what was chosen: all rules of the compiler's side, budgets included.
            assert isinstance(legalize(choice.config, choice.launched, SM90A), Legal)
    launched = [library.choose(GemmProblem.parse(f"9,64,16,{r}")).launched.r for r in (144, 256, 272, 512)]
    assert launched == [256, 256, 512, 512]
    for rank, wide_rank in ((16, 256), (272, 512)):
        with pytest.raises(InputError, match=f"--also-dtype bf16/fp16 makes an object of R={wide_rank}"):
            library.choose(GemmProblem.parse(f"16,3840,3072,{rank}", lora_dtype="bf16"))


@pytest.mark.parametrize(
    ("rows", "config"),
    [
        ([("256,3840,3072,128", PLAIN), ("16,3840,3072,32", SPLIT)], PLAIN),
        ([("4352,3840,3072,32", PLAIN), ("16,3840,3072,128", SPLIT)], PLAIN),  # SPLIT needs four k-tiles
        ([("16,3840,3072,128", FEW_ROWS)], None),  # takes few rows of act only: the default rule's
    ],
)
def test_it_takes_the_config_of_the_row_of_the_nearest_rank_that_suits_all_shapes(
    tmp_path: Path,
    write: Callable[..., Bundled],
    built: list[tuple[str, str]],
    rows: list[tuple[str, str]],
    config: str | None,
) -> None:
    write([tuned(tmp_path / "cache", shape, text) for shape, text in rows])
    assert [asked for _, asked in built] == [of_rank(256), of_rank(512)]
    for made, _ in built:
        assert made == config if config else made not in [text for _, text in rows]


def test_it_stays_without_a_compiler_and_when_rows_go(
    tmp_path: Path, write: Callable[..., Bundled], built: list[tuple[str, str]]
) -> None:
    rows = [
        tuned(tmp_path / "cache", "256,3840,3072,128"),
        tuned(tmp_path / "cache", "16,3840,3072,128", SPLIT),
    ]
    first = write(rows)
    assert classes(first) == [of_rank(128), of_rank(128), *map(of_rank, (256, 512))] and len(built) == 2
    again = write(rows)
    assert again.entries == first.entries and len(built) == 2 and not again.removed
    fewer = write(rows[1:])
    assert classes(fewer) == list(map(of_rank, (128, 256, 512))) and len(built) == 2
    assert len(fewer.removed) == 1


def test_what_is_damaged_or_of_other_sources_is_made_again(
    tmp_path: Path,
    write: Callable[..., Bundled],
    built: list[tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [tuned(tmp_path / "cache", "256,3840,3072,128")]
    (made,) = [entry for entry in write(rows).entries if entry.problem_class == of_rank(256)]
    (tmp_path / "h200" / FOLDER / made.file).write_bytes(b"damaged")
    write(rows)
    assert [asked for _, asked in built] == [of_rank(256), of_rank(512), of_rank(256)]
    monkeypatch.setattr(bundle_widest, "kernel_source_hash", lambda _: "other")
    write(rows)
    assert len(built) == 5


def test_a_row_of_that_rank_for_any_shape_is_enough(
    tmp_path: Path, write: Callable[..., Bundled], built: list[tuple[str, str]]
) -> None:
    one = dataclasses.replace(tuned(tmp_path / "cache", "256,3840,3072,256"), object=None, cubin_sha256="")
    assert classes(write([one])) == [of_rank(256), of_rank(512)]
    assert [asked for _, asked in built].count(of_rank(256)) == 1


def test_without_the_compiler_it_is_refused_and_named(
    tmp_path: Path, write: Callable[..., Bundled], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise InputError("the CuTe DSL is not installed; pip install it")

    monkeypatch.setattr(bundle_widest, "toolchain", missing)
    done = write([tuned(tmp_path / "cache", "256,3840,3072,128")])
    assert classes(done) == [of_rank(128)]
    assert [(str(problem), reason) for problem, reason in done.refused] == [
        (f"256,3840,3072,{rank}", "the CuTe DSL is not installed; pip install it") for rank in (256, 512)
    ]
    Bundle.load(tmp_path / "h200" / FOLDER, SM90A)


def test_lookup_says_what_is_launched_instead(
    tmp_path: Path,
    write: Callable[..., Bundled],
    built: list[tuple[str, str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    write([tuned(tmp_path / "cache", "256,3840,3072,128")])
    command = ["lookup", "--device", "h200", "--out", str(tmp_path), "--json"]
    for shape in ("256,3840,3072,128", "250,3840,3072,128", "256,3840,3072,48", "256,3840,3072,240"):
        command += ["--shape", shape]
    assert main(command) == 0
    found = [one["run_time"] for one in json.loads(capsys.readouterr().out)["results"]]
    assert found[:2] == [None, None]
    assert [one["launches"] for one in found[2:]] == ["256,3840,3072,128", "256,3840,3072,256"]
    assert found[2]["source"] == "exact, R padded to 128"
    assert main([*command[:5], "--shape", "256,3840,3072,48"]) == 0
    assert "launches 256,3840,3072,128 (exact, R padded to 128)" in capsys.readouterr().out
    assert main([*command, "--dtype", "bf16"]) == 0
    found = [one["run_time"] for one in json.loads(capsys.readouterr().out)["results"]]
    assert all(one["launches"] is None and "tune.py bundle --device h200" in one["reason"] for one in found)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 16, 48])
def test_padded_operands_in_the_machine(rank: int) -> None:
    """The default rule's kernel of R = 256 on a small ragged problem, against float64 of the unpadded operands."""
    problem = GemmProblem.parse(f"20,96,24,{rank}")
    one = make_operands(problem, seed=3)
    tensors = {name: pad_rank(one.tensors()[name], 256) for name in ("lora_act_in", "lora_up")}
    wide = Operands(**{**one.tensors(), **tensors}, problem=dataclasses.replace(problem, r=256))
    execute_in_machine("kernel=sm90a_ring tile_mnk=64x16x128 consumer_warpgroups=1", wide, check_races=False)
    assert check_packed(wide.y, one).ok and torch.isfinite(wide.y).all()

"""Which kernels are chosen as spares: against brute force, and the problems that they are chosen for by hand."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import pytest

from kernel_space.core.arch import SM90A
from kernel_space.core.registry import parse_config
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tests.calibration.test_fit import H200, hopper, journal
from tuner.calibration.fit import Constants, Family, Sample
from tuner.calibration.spares import choose_spares, of_one_class, usual_problems
from tuner.cli.main import main
from tuner.tables.spares import read_spares

STAGES = "num_ab_stage=4 num_dq_stage=4 num_lora_stage=1"
TEXTS = tuple(
    str(parse_config("svdquant_gemm", SM90A, f"kernel=sm90a_expand tile_mnk={tile} {STAGES}{more}"))
    for tile, more in (
        ("128x200x128", ""),
        ("128x256x128", " split_k=2"),
        ("128x128x128", ""),
        ("64x128x128", " consumer_warpgroups=1 split_k=3"),
        ("128x64x128", " split_k=4"),
    )
)


def sample(text: str, shape: str, us: float = 10.0, best_us: float = 10.0) -> Sample:
    return Sample(
        problem=GemmProblem.parse(shape),
        config=parse_config("svdquant_gemm", SM90A, text),
        effort=hopper(text, shape),
        us=us,
        weight=1.0,
        best_us=best_us,
    )


def nominal(text: str, problem: GemmProblem) -> float:
    one = hopper(text, str(problem))
    return float(one.us(dict.fromkeys(one.needs, 1.0), dict.fromkeys(one.choices, 0.0)))


def family() -> dict:
    one = hopper(TEXTS[0], "64,3072,3072,128")
    common = Constants(factors=dict.fromkeys(one.needs, 1.0), shares=dict.fromkeys(one.choices, 0.0))
    return {(one.needs, tuple(one.choices)): Family(common=common, kernels={})}


SAMPLES = [sample(text, shape) for text in TEXTS for shape in ("1,2048,8192,128", "512,3072,4096,128")]


def test_the_problems_by_hand() -> None:
    """M from 1 to 512 in powers of two; K and N of 2048, 3072, 4096, 6144 and 8192."""
    found = {(one.m, one.k, one.n) for one in usual_problems(SAMPLES)}
    sizes = (2048, 3072, 4096, 6144, 8192)
    assert found == set(itertools.product([2**power for power in range(10)], sizes, sizes))


@pytest.mark.parametrize("row", TEXTS)
def test_the_first_is_what_brute_force_finds(row: str) -> None:
    found = choose_spares(
        SAMPLES,
        family(),
        [parse_config("svdquant_gemm", SM90A, row)],
        arch=SM90A,
        rates=H200,
        most=1,
    )
    problems = usual_problems(SAMPLES)
    times = {text: [nominal(text, one) for one in problems] for text in TEXTS}
    mean = {
        text: sum(math.log(min(a, b)) for a, b in zip(times[text], times[row], strict=True)) for text in TEXTS
    }
    (chosen,) = found.chosen
    assert str(chosen.config) == min(TEXTS, key=mean.__getitem__) != row
    best = [min(times[text][at] for text in TEXTS) for at in range(len(problems))]
    ratios = [a / b for a, b in zip(times[row], best, strict=True)]
    mean_before = math.exp(sum(map(math.log, ratios)) / len(ratios))
    assert found.rows_alone == pytest.approx((mean_before, max(ratios)))
    assert found.with_spares[0] < found.rows_alone[0]


def test_all_that_help_are_taken_and_no_more() -> None:
    """Until what is left is under half a percent."""
    rows = [parse_config("svdquant_gemm", SM90A, TEXTS[0])]
    found = choose_spares(SAMPLES, family(), rows, arch=SM90A, rates=H200, most=9)
    assert 2 <= len(found.chosen) <= len(TEXTS) - 1 and found.with_spares[0] < 1.005
    every = [parse_config("svdquant_gemm", SM90A, text) for text in TEXTS]
    assert choose_spares(SAMPLES, family(), every, arch=SM90A, rates=H200, most=9).chosen == ()


def test_what_was_slow_where_it_was_timed_is_none() -> None:
    """Though brute force would take it: it is 1.6 times the best of its problem."""
    rows = [parse_config("svdquant_gemm", SM90A, TEXTS[0])]
    (first,) = choose_spares(SAMPLES, family(), rows, arch=SM90A, rates=H200, most=1).chosen
    slow = [
        sample(str(one.config), str(one.problem), us=16) if one.config == first.config else one
        for one in SAMPLES
    ]
    found = choose_spares(slow, family(), rows, arch=SM90A, rates=H200, most=9)
    assert first.config not in [one.config for one in found.chosen]


def test_samples_are_those_of_the_rank_that_most_have() -> None:
    other = sample(TEXTS[0], "64,3072,3072,64")
    assert of_one_class([other, *SAMPLES]) == SAMPLES and of_one_class([]) == []


def test_the_command_writes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without rows, so the best kernels of all; the table of spares is what the text says."""
    results = tmp_path / "results"
    results.mkdir()
    command = ["calibrate", str(journal(tmp_path, 60)), "--out", str(results), "--spares"]
    assert main([*command, "2", "--dry-run"]) == 0 and not list(results.iterdir())
    assert "rows and spares  " in capsys.readouterr().out
    assert main([*command, "2", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    spares = read_spares(results / "h200")
    assert 1 <= len(spares) <= 2
    assert [one["config"] for one in record["spares"]["svdquant_gemm"]["spares"]] == [
        one.config for one in spares
    ]
    assert main([*command, "-1"]) == 2 and "--spares must be a number" in capsys.readouterr().err

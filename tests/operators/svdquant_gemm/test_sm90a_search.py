"""The tuner on the sm_90a kernel: space, search, dispatch table and command line, without a card."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from kernel_space.core import registry
from kernel_space.core.arch import SM90A, Arch
from kernel_space.core.errors import InputError
from kernel_space.core.registry import kernels_of
from kernel_space.core.rules import Legal, legalize
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm90a_parts.config import KernelConfigSm90a
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from kernel_space.operators.svdquant_gemm.tiles import waves
from tests.cli.test_cli import SHAPE, run
from tests.fakes import FakeDevice, FakePool, fake_us
from tests.operators.svdquant_gemm.test_sm90a_config import SERIALIZED
from tests.space.brute_force import every_point, small
from tests.space.test_space import DEFAULT_GRID
from tuner.compile.worker import CompileResult, Task, _answer
from tuner.devices.select import select_device
from tuner.space.space import SearchSpace
from tuner.tables.dispatch import DispatchTable
from tuner.trials.outcome import Kind, Origin, Status
from tuner.tune.driver import TuneOptions, tune

PROBLEM = GemmProblem.parse("4352,3840,3072,128")
FEW_ROWS = GemmProblem.parse("16,3840,3072,128")  # for mainloop=mma
NARROW = {
    "tile_mnk": "256x128x128 256x144x128 128x16x128 64x32x128",
    "consumer_warpgroups": "2 1",
    "pingpong": "false true",
    "num_ab_stage": "auto 4",
    "num_dq_stage": "auto 4",
    "num_lora_stage": "auto 2",
    "epi_tile_n": "0 16",
    "register_operand": "act wgt",
    "mainloop": "wgmma expand mma",
    "num_dequant_warpgroups": "1 2",
    "ctas_per_sm": "1 2",
    "split_k": "1 10",
}


def rule_names(arch: Arch) -> tuple[str, ...]:
    (kernel,) = kernels_of(GemmProblem.operator, arch)
    return kernel.rule_names


@pytest.fixture(scope="module")
def space() -> SearchSpace:
    return SearchSpace.load(GemmProblem.operator, SM90A)


def h200(**fields: object) -> FakeDevice:
    return FakeDevice(name="h200", arch=SM90A, sm_count=132, kind=Kind.MEASURED, **fields)


def options(out: Path, **fields: object) -> TuneOptions:
    return TuneOptions(**{"out": out, "trials": 20, "jobs": 2, "count_space": False, **fields})


# -- the space --


def test_default_is_legal_for_every_problem(space: SearchSpace) -> None:
    for m, k, n, r, dtype in DEFAULT_GRID:
        problem = GemmProblem(m=m, k=k, n=n, r=r, lora_dtype=dtype, out_dtype=dtype)
        assert isinstance(legalize(space.default(problem), problem, SM90A), Legal), problem


def test_every_choice_is_legal_somewhere(space: SearchSpace) -> None:
    generator = random.Random(1)
    for name, choice in ((name, choice) for name, knob in space.knobs.items() for choice in knob.choices):
        tries = (space.config({**space.random_config(generator).fields(), name: choice}) for _ in range(2000))
        found = (legalize(config, problem, SM90A) for config in tries for problem in (PROBLEM, FEW_ROWS))
        assert any(isinstance(verdict, Legal) for verdict in found), (name, choice)


@pytest.mark.parametrize("shape", ["4352,3840,3072,128", "64,3840,3072,0", "1,256,8,256"])
def test_count_and_enumeration_equal_brute_force(space: SearchSpace, shape: str) -> None:
    part, problem = small(space, **NARROW), GemmProblem.parse(shape)
    spelled, resolved, rejected = every_point(part, problem, SM90A)
    count = part.count(problem, SM90A)
    assert (count.raw, count.spelled, count.legal) == (part.raw_size, spelled, len(resolved))
    assert count.rejected == dict(rejected) and len(rejected) >= 2
    points = [str(legal.config) for legal in part.legal_points(problem, SM90A)]
    assert len(points) == len(set(points)) and set(points) == resolved


def test_solved_stages_are_spelled_as_auto(space: SearchSpace) -> None:
    legal = legalize(KernelConfigSm90a(), PROBLEM, SM90A)
    assert isinstance(legal, Legal) and "auto" not in str(legal.config)
    spelled = space.spell(legal.config.replace(num_dq_stage=3), PROBLEM, SM90A)
    assert spelled is not None
    assert legalize(space.config(spelled), PROBLEM, SM90A).config == legal.config
    assert space.spell(KernelConfigSm90a(swizzle_size=2), PROBLEM, SM90A) is None


# -- one kernel is never taken for the other --


def test_config_of_the_other_kernel_is_a_bug() -> None:
    with pytest.raises(
        TypeError, match="svdquant_gemm_sm90a takes a KernelConfigSm90a, got KernelConfigSm100a"
    ):
        legalize(KernelConfigSm100a(), PROBLEM, SM90A)
    assert "smem_capacity" in rule_names(SM90A) and "tmem_capacity" not in rule_names(SM90A)
    with pytest.raises(InputError, match="its kernels are sm100a, sm90a"):
        registry.kernel(GemmProblem.operator, "sm80")


def test_budget_without_tensor_memory_is_one_table() -> None:
    legal = legalize(KernelConfigSm90a(), PROBLEM, SM90A)
    assert isinstance(legal, Legal)
    assert legal.budget.tables == (legal.budget.smem,) and not legal.budget.tmem.rows
    assert (legal.budget.tmem_columns_used, legal.budget.tmem_columns_allocated) == (0, 0)
    assert "TMEM" not in str(legal.budget) and str(legal.budget).startswith("SMEM per CTA")


@pytest.mark.parametrize(
    ("config", "sm_count", "clusters"),
    [
        (KernelConfigSm90a(), 132, 132),
        (KernelConfigSm90a(ctas_per_sm=2), 132, 264),
        (KernelConfigSm100a(cluster_shape_mn=(4, 2)), 148, 18),
        (KernelConfigSm100a(cluster_shape_mn=(1, 1)), 148, 148),
    ],
)
def test_clusters_at_once_by_hand(
    config: KernelConfigSm90a | KernelConfigSm100a, sm_count: int, clusters: int
) -> None:
    assert config.max_active_clusters(sm_count) == clusters


def test_waves_by_hand() -> None:
    """y.T of 16x3072 in tiles of 128x16: 24 tiles, 5 splits each of at most 6 of the 30 k-tiles."""
    config = KernelConfigSm90a(tile_mnk=(128, 16, 128), register_operand="wgt", split_k=5)
    found = waves(config, GemmProblem.parse("16,3840,3072,128"), 100)
    assert (found.clusters, found.places, found.k_tiles, found.waves) == (120, 100, 6, 2)


# -- search and table --


def test_tune_records_a_row_that_the_table_answers_with(tmp_path: Path) -> None:
    device, pool = h200(), FakePool()
    result = tune(PROBLEM, device, options(tmp_path), pool=pool)
    assert result.winner is not None and result.default is not None and len(result.trials) >= 20
    assert len(pool.submitted) == len(result.trials)
    assert result.trials[0].origin is Origin.DEFAULT
    assert result.winner.us == min(fake_us(trial.resolved) for trial in result.trials)
    assert isinstance(result.winner.resolved_config, KernelConfigSm90a)
    answer = DispatchTable.load(tmp_path / "h200").lookup(PROBLEM)
    assert (answer.source, answer.arch) == ("exact", SM90A)
    assert answer.config == result.winner.resolved_config
    assert answer.row is not None and answer.row.config == str(answer.config)
    near = DispatchTable.load(tmp_path / "h200").lookup(GemmProblem.parse("4000,3840,3072,128"))
    assert (near.source, near.config) == ("nearest M 4352", answer.config)


def test_winners_of_other_problems_are_tried_after_the_default(tmp_path: Path) -> None:
    other = GemmProblem.parse("4352,3840,15360,128")
    first = tune(other, h200(), options(tmp_path), pool=FakePool()).winner
    assert first is not None
    result = tune(PROBLEM, h200(), options(tmp_path), pool=FakePool())
    assert [trial.origin for trial in result.trials[:3]] == [
        Origin.DEFAULT,
        Origin.NEIGHBOUR,
        Origin.SAMPLED,
    ]
    assert result.trials[1].resolved == first.resolved


def test_row_of_the_other_kernels_knobs_is_passed_over(tmp_path: Path) -> None:
    tune(PROBLEM, h200(), options(tmp_path, trials=3), pool=FakePool())
    path = tmp_path / "h200" / "dispatch.json"
    document = json.loads(path.read_text())
    document["rows"][0]["config"] = str(KernelConfigSm100a(num_ab_stage=4))
    path.write_text(json.dumps(document))
    answer = DispatchTable.load(path).lookup(PROBLEM)
    assert answer.source == "default" and "unknown knob 'mma_tiler_mn'" in answer.reason


def test_serialized_wgmma_is_a_failed_trial(tmp_path: Path) -> None:
    legal = legalize(KernelConfigSm90a.parse(SERIALIZED), PROBLEM, SM90A)
    assert isinstance(legal, Legal)
    answer = _answer(
        Task(config=legal.config, problem_class=PROBLEM.problem_class, arch=SM90A, cache_dir=tmp_path)
    )
    assert isinstance(answer, CompileResult) and answer.status is Status.COMPILE_FAILED
    assert answer.reason.startswith("ptxas serializes wgmma (C7512): ")


# -- command line --


def test_tune_without_a_card_is_refused_in_one_line(tmp_path: Path) -> None:
    done = run("--shape", SHAPE, "--device", "h200", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "h200 has no simulator: it is measured on a card" in done.stderr
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError, match="measured on a card"):
        tune(PROBLEM, select_device("h200"), options(tmp_path), pool=FakePool())


def test_explain_shows_budget_and_schedule_and_no_time() -> None:
    """256x3072 in tiles of 256x128: 24, with 2 splits each of 15 of the 30 k-tiles."""
    done = run("explain", "--shape", SHAPE, "--device", "h200", "--config", "split_k=2")
    assert done.returncode == 0, done.stderr
    schedule = "48 cluster tiles, 132 at once: 1 waves of 15 k-tiles"
    for words in ("SMEM per CTA", "dequantized", schedule, "no model of sm_90a"):
        assert words in done.stdout, words
    assert " us " not in done.stdout and "TMEM" not in done.stdout
    refused = run("explain", "--shape", SHAPE, "--device", "h200", "--config", "mma_tiler_k=256")
    assert refused.returncode == 2 and "unknown knob 'mma_tiler_k'; the knobs are tile_mnk" in refused.stderr


def test_compile_for_h200_names_a_hopper_kernel() -> None:
    done = run("compile", "--shape", "64,256,128,0", "--device", "h200", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)["results"][0]
    assert ".target sm_90a" in Path(result["ptx"]).read_text()
    assert any(name.startswith("HGMMA") for name in result["sass_counts"])
    assert result["tmem_columns"] == 0
    failed = run("compile", "--shape", SHAPE, "--device", "h200", "--config", SERIALIZED)
    assert failed.returncode == 1 and "ptxas serializes wgmma (C7512)" in failed.stderr


def test_lookup_answers_for_h200(tmp_path: Path) -> None:
    found = run("lookup", "--shape", SHAPE, "--device", "h200", "--out", str(tmp_path / "none"), "--json")
    assert found.returncode == 0, found.stderr
    result = json.loads(found.stdout)["results"][0]
    assert result["source"] == "default" and result["config"].startswith("tile_mnk=")


@pytest.mark.slow
def test_space_counts_every_point_for_h200() -> None:
    counted = run("space", "--shape", SHAPE, "--device", "h200", "--json")
    assert (
        json.loads(counted.stdout)["results"][0]["size"]
        == SearchSpace.load(GemmProblem.operator, SM90A).raw_size
    )

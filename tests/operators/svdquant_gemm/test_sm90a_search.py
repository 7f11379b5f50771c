"""The tuner on the sm_90a kernels: space, search, dispatch table and command line, without a card."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path

import pytest

from kernel_space.core import registry
from kernel_space.core.arch import SM90A, SM100A
from kernel_space.core.config import KernelConfig
from kernel_space.core.errors import InputError
from kernel_space.core.rules import Legal, legalize
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm90a_expand.config import ExpandConfig
from kernel_space.operators.svdquant_gemm.sm90a_ring.config import RingConfig
from kernel_space.operators.svdquant_gemm.sm90a_small_m.config import SmallMConfig
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from kernel_space.operators.svdquant_gemm.tiles import waves
from tests.cli.test_cli import SHAPE, run
from tests.fakes import FakeDevice, FakePool, fake_us
from tests.operators.svdquant_gemm.candidates import EXPAND, PROBLEM, RING, SMALL_M, legal
from tests.operators.svdquant_gemm.test_sm90a_config import SERIALIZED
from tests.space.brute_force import every_point, small
from tests.space.test_space import DEFAULT_GRID
from tuner.compile.worker import CompileResult, Task, _answer
from tuner.devices.select import select_device
from tuner.space.space import SearchSpace
from tuner.tables.dispatch import DispatchTable
from tuner.trials.outcome import Kind, Origin, Status
from tuner.tune.driver import TuneOptions, tune

FEW_ROWS = GemmProblem.parse("16,3840,3072,128")  # for sm90a_small_m
KERNELS = ("sm90a_ring", "sm90a_expand", "sm90a_small_m")
NARROW = {
    "tile_mnk": "256x128x128 256x144x128 128x16x128 64x32x128",
    "sm90a_small_m.tile_mnk": "32x8x128 128x64x128 64x32x128",
    "consumer_warpgroups": "2 1",
    "pingpong": "false true",
    "num_ab_stage": "auto 4",
    "num_dq_stage": "auto 4",
    "num_lora_stage": "auto 2",
    "epi_tile_n": "0 16",
    "stream_k": "false true",
    "register_operand": "act wgt",
    "num_dequant_warpgroups": "1 2",
    "ctas_per_sm": "1 2",
    "split_k": "1 10",
}


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
        gated = dataclasses.replace(problem, n=-(-n // 16) * 16, activation="swiglu")
        for one in (problem, gated):
            assert isinstance(legalize(space.default(one), one, SM90A), Legal), one


def test_every_choice_is_legal_somewhere(space: SearchSpace) -> None:
    generator = random.Random(1)
    assert tuple(space.kernels) == KERNELS
    for kernel, part in space.kernels.items():
        choices = ((name, choice) for name, knob in part.knobs.items() for choice in knob.choices)
        for name, choice in choices:
            tries = (
                part.config({**part.random_config(generator).fields(), name: choice}) for _ in range(2000)
            )
            found = (legalize(config, problem, SM90A) for config in tries for problem in (PROBLEM, FEW_ROWS))
            assert any(isinstance(verdict, Legal) for verdict in found), (kernel, name, choice)


def test_default_rule_is_made_of_choices(space: SearchSpace) -> None:
    """So that a search finds its way back to it; and every kernel is the default of some problems."""
    assert {rule.config.kernel for rule in space.defaults} == {*KERNELS}
    for rule in space.defaults:
        assert not space.kernels[rule.config.kernel].outside(rule.config), rule.config


@pytest.mark.parametrize(
    "shape", ["4352,3840,3072,128", pytest.param("64,3840,3072,0", marks=pytest.mark.slow), "1,256,8,256"]
)
def test_count_and_enumeration_equal_brute_force(space: SearchSpace, shape: str) -> None:
    part, problem = small(space, **NARROW), GemmProblem.parse(shape)
    spelled, resolved, rejected = every_point(part, problem, SM90A)
    count = part.count(problem, SM90A)
    assert (count.raw, count.spelled, count.legal) == (part.raw_size, spelled, len(resolved))
    assert count.rejected == dict(rejected) and len(rejected) >= 2
    points = [str(one.config) for one in part.legal_points(problem, SM90A)]
    assert len(points) == len(set(points)) and set(points) == resolved


def test_solved_stages_are_spelled_as_auto(space: SearchSpace) -> None:
    solved = legal(RING).config
    assert "auto" not in str(solved)
    spelled = space.spell(solved.replace(num_dq_stage=3), PROBLEM, SM90A)
    assert spelled is not None and spelled["kernel"] == "sm90a_ring"
    assert legalize(space.config(spelled), PROBLEM, SM90A).config == solved
    assert space.spell(RingConfig(swizzle_size=2), PROBLEM, SM90A) is None


@pytest.mark.parametrize(
    "text", [f"{EXPAND} tile_mnk=64x128x128 consumer_warpgroups=1", f"{SMALL_M} num_ab_stage=5"]
)
def test_every_kernel_is_spelled_in_its_own_knobs(space: SearchSpace, text: str) -> None:
    solved = legal(text, FEW_ROWS).config
    spelled = space.spell(solved, FEW_ROWS, SM90A)
    assert spelled is not None and list(spelled) == ["kernel", *solved.knob_names()]
    assert legalize(space.config(spelled), FEW_ROWS, SM90A).config == solved


# -- one kernel is never taken for the other --


def test_config_of_the_other_kernel_is_a_bug() -> None:
    with pytest.raises(TypeError, match="svdquant_gemm/sm100a is for sm_100a, sm_103a, not for sm_90a"):
        legalize(KernelConfigSm100a(), PROBLEM, SM90A)
    for config in (RingConfig(), ExpandConfig(), SmallMConfig()):
        with pytest.raises(TypeError, match=f"{config.kernel} is for sm_90a, not for sm_100a"):
            legalize(config, PROBLEM, SM100A)
    for name in KERNELS:
        assert registry.kernel(GemmProblem.operator, name).capacities == ("smem",)
    with pytest.raises(InputError, match="its kernels are sm100a, sm90a_ring, sm90a_expand, sm90a_small_m"):
        registry.kernel(GemmProblem.operator, "sm80")


@pytest.mark.parametrize("kernel", [RING, EXPAND, SMALL_M])
def test_budget_without_tensor_memory_is_one_table(kernel: str) -> None:
    budget = legal(kernel, GemmProblem.parse("64,3840,3072,128")).budget
    assert budget.tables == (budget.smem,) and not budget.tmem.rows
    assert (budget.tmem_columns_used, budget.tmem_columns_allocated) == (0, 0)
    assert "TMEM" not in str(budget) and str(budget).startswith("SMEM per CTA")


@pytest.mark.parametrize(
    ("config", "sm_count", "clusters"),
    [
        (RingConfig(), 132, 132),
        (RingConfig(ctas_per_sm=2), 132, 264),
        (ExpandConfig(cluster_shape_mn=(2, 1)), 132, 66),
        (SmallMConfig(split_k=4, ctas_per_sm=2), 132, 264),  # in CTAs: its host code makes clusters along K
        (KernelConfigSm100a(cluster_shape_mn=(4, 2)), 148, 18),
        (KernelConfigSm100a(cluster_shape_mn=(1, 1)), 148, 148),
    ],
)
def test_clusters_at_once_by_hand(config: KernelConfig, sm_count: int, clusters: int) -> None:
    assert config.max_active_clusters(sm_count) == clusters


def test_waves_by_hand() -> None:
    """y.T of 16x3072 in tiles of 128x16: 24 tiles, 5 splits each of at most 6 of the 30 k-tiles."""
    config = RingConfig(tile_mnk=(128, 16, 128), register_operand="wgt", split_k=5)
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
    assert isinstance(result.winner.resolved_config, RingConfig | ExpandConfig | SmallMConfig)
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


def test_row_of_another_archs_kernel_is_passed_over(tmp_path: Path) -> None:
    tune(PROBLEM, h200(), options(tmp_path, trials=3), pool=FakePool())
    path = tmp_path / "h200" / "dispatch.json"
    document = json.loads(path.read_text())
    document["rows"][0]["config"] = str(KernelConfigSm100a(num_ab_stage=4))
    path.write_text(json.dumps(document))
    answer = DispatchTable.load(path).lookup(PROBLEM)
    assert answer.source == "default"
    assert "kernel must be one of sm90a_ring, sm90a_expand, sm90a_small_m" in answer.reason


def test_serialized_wgmma_is_a_failed_trial(tmp_path: Path) -> None:
    answer = _answer(
        Task(
            config=legal(SERIALIZED).config,
            problem_class=PROBLEM.problem_class,
            arch=SM90A,
            cache_dir=tmp_path,
        )
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
    done = run("explain", "--shape", SHAPE, "--device", "h200", "--config", f"{RING} split_k=2")
    assert done.returncode == 0, done.stderr
    schedule = "48 pieces of work, 132 at once: 1 waves of 15 turns of the main loop"
    for words in ("SMEM per CTA", "dequantized", schedule):
        assert words in done.stdout, words
    assert "simulated" not in done.stdout and "TMEM" not in done.stdout
    refused = run("explain", "--shape", SHAPE, "--device", "h200", "--config", f"{RING} mma_tiler_k=256")
    assert refused.returncode == 2 and "unknown knob 'mma_tiler_k'; the knobs are tile_mnk" in refused.stderr
    unnamed = run("explain", "--shape", SHAPE, "--device", "h200", "--config", "split_k=2")
    assert unnamed.returncode == 2
    assert "must begin with kernel=NAME, one of sm90a_ring, sm90a_expand, sm90a_small_m" in unnamed.stderr


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
    found = run("lookup", "--shape", SHAPE, "--device", "h200", "--out", str(tmp_path), "--json")
    assert found.returncode == 0, found.stderr
    result = json.loads(found.stdout)["results"][0]
    assert result["source"] == "default" and result["config"].startswith("kernel=sm90a_ring tile_mnk=")


@pytest.mark.slow
def test_space_counts_every_point_for_h200() -> None:
    counted = run("space", "--shape", SHAPE, "--device", "h200", "--json")
    assert (
        json.loads(counted.stdout)["results"][0]["size"]
        == SearchSpace.load(GemmProblem.operator, SM90A).raw_size
    )

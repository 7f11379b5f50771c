"""Simulated times of compiled kernels: floors, work counted by hand, effects that hardware shows."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import qmc

from kernel_space.build.build import CompiledKernel, build
from kernel_space.core.arch import SM100A, SM103A
from kernel_space.core.errors import InputError
from kernel_space.core.rules import Legal
from kernel_space.machine.clock.constants import B200 as TABLE
from kernel_space.machine.clock.estimate import TimedRun, simulate_launch
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from kernel_space.operators.svdquant_gemm.sm100a.machine import atomic_results
from tests.compiled_cases import resolved
from tests.published import B200
from tuner.simulated import time as simulated_time
from tuner.simulated.constants import sets as clock_sets
from tuner.simulated.constants.clock import LATER, mma_cycles, records_of
from tuner.simulated.constants.sets import ConstantSets, admissible_sets, draw_sets
from tuner.simulated.time import SimulatedTime, agreement, simulate, simulate_time
from tuner.trials.outcome import Kind

SHAPE = "4352,3840,3072,128"
WHOLE_R = "mma_tiler_mn=256x128 num_acc_stage=2 lora_tile_k=all num_lora_stage=2 num_c_stage=2"


def compiled_case(text: str, shape: str = SHAPE) -> tuple[CompiledKernel, KernelConfigSm100a, GemmProblem]:
    config, problem = resolved(text, shape)
    return build(config, problem.problem_class, SM100A), config, problem


def simulated(text: str, shape: str = SHAPE, **options: object) -> SimulatedTime:
    compiled, config, problem = compiled_case(text, shape)
    return simulate(compiled, config, problem, B200(), **options)  # type: ignore[arg-type]


def one_cluster(text: str, shape: str, number: int, sets: ConstantSets) -> TimedRun:
    compiled, _, problem = compiled_case(text, shape)
    launch = simulated_time.capture_launch(compiled, problem, 4)
    return simulate_launch(launch, compiled.ptx, sets.clock, sm_count=148, places=74, cluster=number)


# -- work ------------------------------------------------------------------------------------------------------
def test_work_of_the_busiest_cluster_is_that_of_its_tiles() -> None:
    """17 x 24 tiles on 74 pairs are 6 tiles each; 15 k-tiles of 4 MMAs, 8 LoRA MMAs of K = 16, 64.2 cycles each."""
    time = simulated("mma_tiler_mn=256x128", sets=draw_sets(SM100A, 1))
    per_us = TABLE["clock_ghz"].value * 1e3
    assert time.terms["tensor, NVFP4"] * per_us == pytest.approx(6 * 15 * 4 * 64.2)
    assert time.terms["tensor, LoRA"] * per_us == pytest.approx(6 * 8 * 64.2)
    assert time.terms["tensor, scale-factor copies"] * per_us == pytest.approx(
        6 * 15 * 8 * TABLE["sf_copy"].value
    )


def test_bytes_of_one_sm() -> None:
    """Per k-tile 16384 A, 8192 B, 2048 SFA, 2048 SFB; per tile 128 x 128 x 2 B of LoRA act, 64 x 128 x 2 B of up."""
    run = simulated("mma_tiler_mn=256x128").run
    assert run.filled == 6 * (15 * (16384 + 8192 + 2048 + 2048) + 32768 + 16384)
    assert run.stored == 6 * 128 * 128 * 2
    assert (run.rounds, run.clusters, run.active_sms) == (1, 74, 148)


def test_terms_add_up() -> None:
    for text, shape in (("mma_tiler_mn=256x256", SHAPE), ("mma_tiler_mn=128x128", "256,3840,3072,32")):
        time = simulated(text, shape)
        assert sum(time.terms.values()) == pytest.approx(time.us)
        assert all(us >= -1e-9 for us in time.terms.values())


def test_cluster_0_is_the_slowest() -> None:
    """The launch's time is that of cluster 0: 6 tiles on 4 clusters, so that two of them have one tile less."""
    sets = draw_sets(SM100A, 4)
    cycles = [
        one_cluster("mma_tiler_mn=256x128", "768,1024,256,32", number, sets).cycles for number in range(4)
    ]
    assert all((other <= cycles[0] * 1.0001).all() for other in cycles)
    assert (cycles[3] < 0.8 * cycles[0]).all()


def test_sets_do_not_influence_each_other() -> None:
    """Queues are served in nominal order: a set alone may differ by that, but by little."""
    sets = admissible_sets()
    together = simulated("mma_tiler_mn=256x256").sets_us
    for number in (1, 17, 53):
        alone = simulated("mma_tiler_mn=256x256", sets=sets.take([number])).sets_us[0]
        assert together[number] == pytest.approx(alone, rel=0.01)


# -- floors ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("text", ["mma_tiler_mn=256x128", "mma_tiler_mn=256x256", "mma_tiler_mn=128x128"])
def test_nothing_beats_the_tensor_core(text: str) -> None:
    """2MNK over 148 SMs at 32768 FLOP per cycle, plus LoRA at a quarter of that rate."""
    time = simulated(text)
    problem = GemmProblem.parse(SHAPE)
    floor = 2 * problem.m * problem.n * (problem.k / 32768 + problem.r / 8192) / 148
    assert (time.run.cycles > 0.99 * floor).all()


def test_nothing_beats_dram_from_a_cold_l2() -> None:
    """M = 128, K = 16384, N = 7168: 58.7 MB of weights and their 7.3 MB of scale factors pass DRAM."""
    time = simulated("mma_tiler_mn=128x64", "128,16384,7168,32")
    weights = 16384 * 7168 / 2 * (1 + 1 / 8)
    sets = admissible_sets()
    floor = weights / (sets.values["dram_tb_s"] * 1e6)
    assert (time.sets_us > floor).all()
    assert (simulated("mma_tiler_mn=128x64", "128,16384,7168,32", cold=False).sets_us < time.sets_us).all()


# -- effects ---------------------------------------------------------------------------------------------------
def test_more_ab_stages_are_never_slower() -> None:
    times = [simulated(f"{WHOLE_R} num_ab_stage={stages}").sets_us for stages in (2, 3, 4)]
    assert (times[0] > times[1]).all()
    assert (times[1] > times[2]).all()


def test_two_more_ab_stages_save_about_what_was_measured() -> None:
    """Published: 72433 -> 46126 SM-active cycles, 36 %; 31 % of the time under the profiler."""
    cycles = [simulated(f"{WHOLE_R} num_ab_stage={stages}").run.cycles for stages in (2, 4)]
    saved = 1 - cycles[1] / cycles[0]
    assert ((saved > 0.28) & (saved < 0.45)).all()


def test_lora_costs_more_than_its_tensor_time() -> None:
    with_lora, without = (
        simulated("mma_tiler_mn=256x128"),
        simulated("mma_tiler_mn=256x128", "4352,3840,3072,0"),
    )
    tensor = with_lora.terms["tensor, LoRA"]
    assert without.terms.get("tensor, LoRA", 0.0) == 0.0
    assert with_lora.us - without.us > 0.9 * tensor


def test_two_ctas_beat_one_where_published() -> None:
    """Same tile area: 256x128 on a pair against 128x256 on one SM, 87.0 against 125.3 us published."""
    shape = "4352,15360,3840,0"
    assert (
        agreement(simulated("mma_tiler_mn=256x128", shape), simulated("mma_tiler_mn=128x256", shape)) == 1.0
    )


def test_256x256_loses_at_small_m() -> None:
    shape = "256,3840,3072,0"
    assert (
        agreement(simulated("mma_tiler_mn=256x128", shape), simulated("mma_tiler_mn=256x256", shape)) == 1.0
    )


def test_split_k_is_simulated_as_the_last_to_arrive() -> None:
    """The reduction costs; 24 tiles in 4 splits on 74 pairs are 2 pieces for the busiest, each a quarter of a tile."""
    split = simulated("mma_tiler_mn=256x128 split_k=4 lora_schedule=tail", "256,15360,3072,128")
    whole = simulated("mma_tiler_mn=256x128 split_k=1 lora_schedule=tail", "256,15360,3072,128")
    assert split.terms["epilogue exposed"] > whole.terms["epilogue exposed"]
    assert split.terms["tensor, NVFP4"] == pytest.approx(whole.terms["tensor, NVFP4"] * 2 / 4)


@pytest.mark.slow
def test_one_piece_in_split_k_reduces() -> None:
    """One cluster does 16 tiles in 4 splits: 64 pieces, 16 of which reduce; without the atomics' turns all would."""
    config, problem = resolved("mma_tiler_mn=256x128 split_k=4 lora_schedule=tail", "1024,3840,512,128")
    one_pair = dataclasses.replace(B200(), sm_count=2)
    compiled = build(config, problem.problem_class, SM100A)
    counted = atomic_results(config, problem, one_pair.sm_count)
    assert (len(counted), sum(value == 3 for value in counted), counted[-1]) == (64, 16, 3)
    launch = simulated_time.capture_launch(compiled, problem, 1)
    turns, always = (
        simulate_launch(
            launch, compiled.ptx, admissible_sets().clock, sm_count=2, places=1, atomic_results=results
        ).cycles
        for results in (counted, (3,))
    )
    assert (turns < always).all()
    assert simulate(compiled, config, problem, one_pair, cold=False).run.cycles == pytest.approx(turns)


# -- as the tuner uses it ----------------------------------------------------------------------------------------
def test_timing_of_a_trial() -> None:
    compiled, config, problem = compiled_case("mma_tiler_mn=256x128")
    timing = simulate_time(compiled, Legal(config=config, budget=None), problem, B200())  # type: ignore[arg-type]
    assert timing.kind is Kind.SIMULATED
    assert timing.low_us < timing.us < timing.high_us
    assert timing.evidence["bound"] in {*timing.evidence, "tensor"}
    assert timing.evidence["judge"] == simulated_time.simulation_hash()


def test_programmatic_launch_saves_its_measured_gain() -> None:
    run = simulated("mma_tiler_mn=256x128").run
    sets = admissible_sets()
    plain, pdl = simulated_time.time_of(run, sets), simulated_time.time_of(run, sets, use_pdl=True)
    assert np.allclose(plain.sets_us - pdl.sets_us, sets.values["pdl_gain_us"])


def test_agreement_needs_the_same_sets() -> None:
    time = simulated("mma_tiler_mn=256x128")
    other = dataclasses.replace(time, sets_us=time.sets_us[:3])
    with pytest.raises(InputError, match="same sets"):
        agreement(time, other)


# -- constants ---------------------------------------------------------------------------------------------------
def test_stored_sets_lie_within_the_table() -> None:
    sets = admissible_sets()
    assert sets.count >= 64
    for name, record in records_of(SM100A).items():
        values = sets.values[name]
        assert len(values) == sets.count
        assert record.low * 0.9999 <= values.min() <= values.max() <= record.high * 1.0001


def test_what_no_gemm_decides_leaves_the_other_constants_alone() -> None:
    """The others are drawn as if there were no more; the nominal set has the table's own value of the later ones."""
    names = [name for name in records_of(SM100A) if name not in LATER]
    points = qmc.Sobol(d=len(names), scramble=True, seed=3).random(8)
    drawn, sets = draw_sets(SM100A, 8, seed=3), admissible_sets()
    for column, name in enumerate(names):
        one = records_of(SM100A)[name]
        assert drawn.values[name][1:] == pytest.approx(one.low + points[1:, column] * (one.high - one.low))
    assert all(sets.values[name][0] == record.value for name, record in LATER.items())


def test_sets_of_another_draw_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = json.loads(clock_sets.STORED.read_text())
    document["values"]["clock_ghz"][5] += 0.01
    other = tmp_path / "sets.json"
    other.write_text(json.dumps(document))
    monkeypatch.setattr(clock_sets, "STORED", other)
    with pytest.raises(InputError, match="comes out otherwise"):
        clock_sets.kept_sets()


def test_a_changed_table_makes_the_stored_sets_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock_sets, "table_hash", lambda: "another")
    for kept in (admissible_sets, clock_sets.stored_document):
        kept.cache_clear()
    with pytest.raises(InputError, match="another table"):
        admissible_sets()
    for kept in (admissible_sets, clock_sets.stored_document):
        kept.cache_clear()


def test_b300_runs_at_its_own_clock() -> None:
    fast, slow = admissible_sets(SM100A).values["clock_ghz"], admissible_sets(SM103A).values["clock_ghz"]
    assert slow.max() <= records_of(SM103A)["clock_ghz"].high
    assert (slow < fast).all()


def test_drawn_sets_fill_their_bounds() -> None:
    sets = draw_sets(SM100A, 64)
    record = records_of(SM100A)["tma_latency"]
    drawn = sets.values["tma_latency"]
    assert drawn[0] == record.value
    assert drawn.min() < record.low + 0.1 * (record.high - record.low)
    assert drawn.max() > record.high - 0.1 * (record.high - record.low)


@pytest.mark.parametrize(
    ("group", "m", "n", "cycles"),
    [
        (1, 128, 64, 48.2),
        (2, 256, 256, 128.2),
        (2, 256, 160, (64.2 + 96.2) / 2),
        (2, 128, 256, 64.1),
        (1, 64, 128, 64.0),
    ],
)
def test_mma_cycles_of_measured_and_interpolated_shapes(group: int, m: int, n: int, cycles: float) -> None:
    assert math.isclose(mma_cycles(group, m, n), cycles)

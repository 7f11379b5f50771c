"""The timing model against hand arithmetic, published measurements, hardware floors and monotonicity."""

from __future__ import annotations

import itertools
import random

import pytest
from scipy.stats import spearmanr

from kernel_space.core.arch import SM90A, SM100A, SM103A
from kernel_space.core.errors import InputError
from kernel_space.machine.clock.constants import cluster_places
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from kernel_space.operators.svdquant_gemm.sm100a.model_constants import constants_of
from kernel_space.operators.svdquant_gemm.sm100a.model_time import (
    CORNERS,
    NOMINAL,
    agreement,
    model_time,
    model_us,
)
from kernel_space.operators.svdquant_gemm.sm100a.model_work import count_work
from tests.published import B200, Published, cutlass_rows, svdquant_rows

PRODUCTION = GemmProblem.parse("4352,3840,3072,128")
STAGES = "num_ab_stage=4 num_lora_stage=2 num_acc_stage=2 num_c_stage=3"


def config(text: str = "") -> KernelConfigSm100a:
    """A resolved config: the default with numbers for stage counts, changed by ``text``."""
    return KernelConfigSm100a.from_fields({**KernelConfigSm100a.parse(STAGES).fields(), **_fields(text)})


def _fields(text: str) -> dict[str, str]:
    return dict(item.split("=") for item in text.split())


def sample_configs(count: int, r: int) -> list[KernelConfigSm100a]:
    """Random knob values; stage counts need not fit, the model does not ask."""
    rng = random.Random(7)
    tiles = list(itertools.product((128, 256), (64, 128, 192, 256)))
    configs = []
    for _ in range(count):
        m, n = rng.choice(tiles)
        configs.append(
            KernelConfigSm100a(
                mma_tiler_mn=(m, n),
                mma_tiler_k=rng.choice((128, 256)),
                cluster_shape_mn=(rng.choice((1, 2)) * (m // 128), rng.choice((1, 2, 4))),
                num_ab_stage=rng.randint(1, 8),
                num_lora_stage=rng.randint(1, 4) if r else 0,
                num_acc_stage=rng.choice((1, 2)),
                num_c_stage=rng.randint(1, 6),
                lora_tile_k=rng.choice((64, "all")),
                lora_schedule=rng.choice(("interleave", "tail")),
                lora_buffer=rng.choice(("dedicated", "ab_stage")),
                raster_order=rng.choice(("m", "n")),
                swizzle_size=rng.choice((1, 2, 8)),
                epi_tile_n=rng.choice((16, 32, 64)),
                split_k=rng.choice((1, 1, 2, 4)),
                swap_ab=rng.choice((False, True)),
                prefetch_dist=rng.choice((0, 4)),
                use_pdl=rng.choice((False, True)),
            )
        )
    return configs


PROBLEMS = [GemmProblem.parse(text) for text in ("4352,3840,3072,128", "17,3840,3072,64", "300,1056,520,0")]
CASES = [(one, problem) for problem in PROBLEMS for one in sample_configs(60, problem.r)]


def test_terms_by_hand() -> None:
    """512x1024x1024 on 256x128 tiles: 16 pairs, one wave, 4 k-tiles of 256; 1850 cycles are 1 us."""
    time = model_time(config("num_lora_stage=0"), GemmProblem.parse("512,1024,1024,0"), B200())
    mma = 4 * 4 * 64.2  # k-tiles, instructions each, cycles each
    copies = 4 * 8 * 4.0  # one SFA and one SFB atom per instruction
    fill = 4 * 28672 / 80  # bytes of a stage as published, over B/clk
    epilogue = 4 * (170 + 32 * 5)  # subtiles of 32 columns; three C slots hide the store
    cycles = {
        "setup": 1000,
        "first_load": 1850,
        "mma": mma,
        "sf_copy": copies,
        "wait_smem_fill": fill - mma - copies,
        "last_epilogue": 170 + 128 / 2 + epilogue + 800,
    }
    expected = {"launch": 2.2} | {name: value / 1850 for name, value in cycles.items()}
    assert time.terms == pytest.approx(expected)
    assert time.us == pytest.approx(sum(expected.values()))
    assert time.bound == "fixed"


def test_lora_and_waves_by_hand() -> None:
    """17x12 tiles of 256x256 on 74 pairs are 3 waves; R = 128 is 8 half-precision instructions per tile."""
    time = model_time(config("mma_tiler_mn=256x256 num_ab_stage=3"), PRODUCTION, B200())
    assert time.work.schedule.waves == 3
    assert time.terms["mma"] == pytest.approx(3 * 60 * 128.2 / 1850)
    assert time.terms["lora_mma"] == pytest.approx(3 * (8 * 128.2 + 2 * 40) / 1850)
    assert time.terms["output_store"] == pytest.approx(2 * 128 * 256 * 2 * 0.035 / 1850)
    assert time.work.loads.tile_bytes == 60 * 9728 + (128 + 128) * 128 * 2


def test_weights_from_dram_by_hand() -> None:
    """148 CTAs read 16384 x 18944 weights once: 9/16 B each at 7.2 TB/s is longer than their MMAs."""
    one = config("mma_tiler_mn=128x64 cluster_shape_mn=1x1 swap_ab=true num_lora_stage=0")
    time = model_time(one, GemmProblem.parse("17,16384,18944,0"), B200())
    dram = (16384 * (18944 + 17) * 9 / 16 + 17 * 18944 * 2 + 18944 * 8) / 7.2e6
    assert time.bound == "dram"
    assert time.demands["dram"] == pytest.approx(dram)
    fixed = sum(time.terms[name] for name in ("launch", "setup", "first_load", "last_epilogue"))
    assert time.us == pytest.approx(dram + fixed)


def test_split_k_by_hand() -> None:
    """Four splits of 15 k-tiles: the longest has 4; each writes 128x64 fp32, the last reads four of them."""
    split = config("mma_tiler_mn=128x64 cluster_shape_mn=1x1 split_k=4 num_lora_stage=0")
    time = model_time(split, GemmProblem.parse("128,3840,64,0"), B200())
    assert time.work.loop.k_tiles == 4
    assert time.work.schedule.clusters == 4
    assert time.terms["split_k"] == pytest.approx((1000 + 5 * 128 * 64 * 4 / 40) / 1850)


def test_partial_sums_are_whole_tiles_and_loads_those_of_the_fullest_cta() -> None:
    """17 rows of a tile of 128x64: 32 KiB of fp32 sums all the same. Of 128 rows over a cluster of 2x1 one CTA has all,
    and as many bytes a stage as without a cluster; 32 rows of zeros bring none.
    """
    small, cluster = GemmProblem.parse("17,3840,3072,64"), GemmProblem.parse("128,3840,3072,0")
    split = count_work(config("mma_tiler_mn=128x64 split_k=4"), small, 148)
    assert split.drain.partial_bytes == 128 * 64 * 4
    alone, pair = (
        count_work(config(f"mma_tiler_mn=128x64 cluster_shape_mn={shape}"), cluster, 148).loads
        for shape in ("1x1", "2x1")
    )
    assert pair.stage_bytes == alone.stage_bytes
    fewer = count_work(config("mma_tiler_mn=128x64"), GemmProblem.parse("96,3840,3072,0"), 148).loads
    assert alone.stage_bytes - fewer.stage_bytes == 32 * 256 / 2


@pytest.mark.parametrize(
    ("tile", "bytes_per_k64"),
    [("128x128", 9216), ("128x256", 13824), ("256x128", 7168), ("256x256", 9728)],
)
def test_stage_bytes_are_the_known_ones(tile: str, bytes_per_k64: int) -> None:
    """A + B + SFA + SFB of one CTA, from the TMA boxes of NVIDIA's kernel."""
    cluster = "2x1" if tile.startswith("256") else "1x1"
    work = count_work(config(f"mma_tiler_mn={tile} cluster_shape_mn={cluster}"), PRODUCTION, 148)
    assert work.loads.stage_bytes == 4 * bytes_per_k64


def test_clusters_stay_in_their_group() -> None:
    """20,20,20,18,18,18,18,10,6 SMs: 3*5 + 4*4 + 2 + 1 clusters of 4."""
    assert [cluster_places(148, size) for size in (1, 2, 4, 8)] == [148, 74, 34, 15]
    assert cluster_places(160, 2) == 80


@pytest.mark.parametrize("knob", ["num_ab_stage", "num_lora_stage", "num_c_stage", "num_acc_stage"])
def test_another_stage_is_never_slower(knob: str) -> None:
    for one, problem in CASES:
        if knob == "num_lora_stage" and one.num_lora_stage == 0:
            continue
        most = 2 if knob == "num_acc_stage" else 9
        times = [model_us(one.replace(**{knob: n}), problem, B200()) for n in range(1, most + 1)]
        assert times == sorted(times, reverse=True), f"{knob} {one} on {problem}: {times}"


def test_more_sms_are_never_slower() -> None:
    for one, problem in CASES:
        times = [model_us(one, problem, B200(sm_count=count)) for count in range(60, 240, 12)]
        assert all(b <= a * (1 + 1e-9) for a, b in itertools.pairwise(times)), f"{one} on {problem}: {times}"


def test_more_work_is_never_faster() -> None:
    for one, problem in CASES:
        taller = GemmProblem(m=4 * problem.m, k=problem.k, n=problem.n, r=problem.r)
        deeper = GemmProblem(m=problem.m, k=4 * problem.k, n=problem.n, r=problem.r)
        base = model_us(one, problem, B200())
        assert model_us(one, taller, B200()) >= base
        assert model_us(one, deeper, B200()) >= base


def test_no_time_below_the_machine() -> None:
    """Even the optimistic end stays above 32768 FLOP/clk/SM (8192 for LoRA) at 1.965 GHz and above 7.48 TB/s."""
    for one, problem in CASES:
        time = model_time(one, problem, B200())
        p = problem
        cycles = 2 * p.m * p.n * (p.k / 32768 + p.r / 8192) / 148
        operands = (p.m + p.n) * (p.k * 9 / 16 + p.r * 2) + p.m * p.n * 2
        assert time.low_us >= cycles / 1965
        assert time.low_us >= operands / 7.48e6


def test_terms_add_up_and_the_interval_holds_the_time() -> None:
    for one, problem in CASES:
        time = model_time(one, problem, B200())
        assert sum(time.terms.values()) == pytest.approx(time.us)
        assert min(time.terms.values()) >= 0
        assert time.low_us < time.us < time.high_us
        assert time.demands[time.bound] == max(time.demands.values())


def test_constants_have_ordered_bounds_and_a_source() -> None:
    for name, one in constants_of(SM100A).items():
        assert one.low < one.value < one.high, name
        assert one.kind in ("measured", "derived", "fitted", "assumed"), name
        assert one.source and one.unit, name


@pytest.mark.parametrize("corner", [NOMINAL, *CORNERS])
def test_published_ranking_at_large_m(corner: str) -> None:
    rows = [row for row in cutlass_rows() if row.problem.m == 4352]
    assert len(rows) == 12
    published = [row.problem.flops / row.us for row in rows]
    modelled = [row.problem.flops / model_us(row.config, row.problem, B200(), corner) for row in rows]
    assert spearmanr(published, modelled).statistic >= 0.8


def test_published_order_of_tiles() -> None:
    """At every large M: 256x256 before 256x128 before 128x256; at M=256 the small 2-CTA tile wins."""
    for problem in {row.problem for row in cutlass_rows()}:
        rows = [row for row in cutlass_rows() if row.problem == problem]
        by_model = sorted(rows, key=lambda row: model_us(row.config, problem, B200()))
        assert [row.tile for row in by_model] == [row.tile for row in sorted(rows, key=lambda row: row.us)]


@pytest.mark.parametrize("row", cutlass_rows() + svdquant_rows(), ids=lambda row: f"{row.problem} {row.tile}")
def test_published_time_lies_in_the_interval_widened_by_its_spread(row: Published) -> None:
    """The source states a run-to-run spread of 15-25 %."""
    time = model_time(row.config, row.problem, B200())
    assert time.low_us <= row.us * 1.2
    assert row.us * 0.8 <= time.high_us
    assert time.us == pytest.approx(row.us, rel=0.25)


def test_losing_two_ab_stages_costs_what_was_measured() -> None:
    """46.7 against 32.1 us: a factor of 1.45 (1.57 in SM-active cycles)."""
    starved, fed = (model_us(row.config, row.problem, B200()) for row in svdquant_rows())
    assert 1.3 < starved / fed < 1.9


def test_small_m_wants_more_ctas() -> None:
    """M=128, N=7168: tiles of 64 columns keep 112 SMs busy instead of 56 (an NVFP4 contest entry's gain)."""
    problem = GemmProblem.parse("128,16384,7168,0")
    narrow = config("mma_tiler_mn=128x64 cluster_shape_mn=1x1 num_ab_stage=6 num_lora_stage=0")
    wide = config("mma_tiler_mn=128x128 cluster_shape_mn=1x1 num_ab_stage=5 num_lora_stage=0")
    assert model_us(narrow, problem, B200()) < model_us(wide, problem, B200())


def test_split_k_pays_only_where_tiles_are_few() -> None:
    small = GemmProblem.parse("17,16384,3072,0")
    one = config("mma_tiler_mn=128x64 cluster_shape_mn=1x1 num_lora_stage=0")
    assert model_us(one.replace(split_k=4), small, B200()) < model_us(one, small, B200())
    assert model_us(one.replace(split_k=4), PRODUCTION, B200()) > model_us(one, PRODUCTION, B200())


def test_swap_ab_saves_zero_rows() -> None:
    """17 rows of act fill a 128-row operand A with zeros; as operand B of 64 rows they need fewer tiles."""
    problem = GemmProblem.parse("17,3840,18944,0")
    one = config("mma_tiler_mn=128x64 cluster_shape_mn=1x1 num_lora_stage=0")
    assert model_us(one.replace(swap_ab=True), problem, B200()) < model_us(one, problem, B200())


def test_pdl_saves_what_was_measured() -> None:
    saved = model_us(config(), PRODUCTION, B200()) - model_us(config("use_pdl=true"), PRODUCTION, B200())
    assert saved == pytest.approx(0.44)


def test_lora_in_ab_stages_beats_losing_stages_to_lora() -> None:
    """Same SMEM: whole-R slices leave 4 A/B stages (published budget), riding slices leave 7."""
    riding = config("lora_buffer=ab_stage num_lora_stage=0 num_ab_stage=7")
    dedicated = config("lora_tile_k=all num_lora_stage=2 num_ab_stage=4")
    assert model_us(riding, PRODUCTION, B200()) < model_us(dedicated, PRODUCTION, B200())


def test_agreement_counts_constant_sets() -> None:
    fast, slow = config("num_ab_stage=4"), config("num_ab_stage=1")
    assert agreement(fast, slow, PRODUCTION, B200()) == 1.0
    assert agreement(slow, fast, PRODUCTION, B200()) == 0.0
    assert agreement(fast, fast, PRODUCTION, B200()) == 0.0


def test_archs() -> None:
    assert model_us(config(), PRODUCTION, B200(arch=SM103A)) > 0
    with pytest.raises(InputError, match="sm_100a, sm_103a, got sm_90a"):
        model_time(config(), PRODUCTION, B200(arch=SM90A))

"""Rows of other layers whose tiles fit: how many waves of 132 SMs each config makes is counted by hand."""

from __future__ import annotations

from typing import Any

import pytest

from kernel_space.core.arch import SM90A
from kernel_space.core.registry import operator, parse_config
from tests.runtime.test_choice import PLAIN
from tuner.devices.classes import DEVICE_CLASSES
from tuner.tables.estimates import Estimates
from tuner.tables.order import Offer, by_estimate

# Of PLAIN 128 rows and 128 columns of y: 1024 rows are eight rows of tiles, so 16 columns of tiles are a wave.
WIDE = PLAIN.replace("tile_mnk=128x128x128", "tile_mnk=128x192x128")
NEAREST, FURTHER = "1024,3840,2048,128", "1024,3840,3072,128"
UNCOUNTED = (
    "kernel=merged_fp8 tile_mnk=128x208x128 consumer_warpgroups=2 cluster_shape_mn=1x1 num_ab_stage=4 "
    "epi_tile_n=0 raster_order=m swizzle_size=1 stream_k=false use_pdl=true"
)
CHAIN = (
    "kernel=lora_tma+sm90a_expand quantize_tile_m=40 quantize_quant_warps=8 quantize_split_k=4 quantize_num_stage=8 "
    "gemm_tile_mnk=128x{columns}x128 gemm_consumer_warpgroups=2 gemm_num_ab_stage=2 gemm_num_dq_stage=3 "
    "gemm_num_lora_stage=2 gemm_use_pdl=true"
)
STAGED = (
    "kernel=staged tile_mnk=256x{columns}x128 consumer_warpgroups=2 num_dequant_warpgroups=1 num_ab_stage=2 "
    "num_dq_stage=2 num_x_stage=2 split_k=1 down_columns=64 share=1 early_release=true ctas_per_sm=1 use_pdl=true"
)


def offer(
    asked: str, known: str, config: str, us: float | None, op: str = "svdquant_gemm", **more: Any
) -> Any:
    problem = operator(op).problem
    options = {} if op == "svdquant_gemm" else {"dtype": "bf16"}
    return Offer(
        item=known,
        config=parse_config(op, SM90A, config),
        launched=problem.parse(asked, **options),
        known=problem.parse(known, **options),
        took_us=us,
        **more,
    )


def order(*offers: Any) -> list[str]:
    """Nothing is estimated."""
    return by_estimate(offers, Estimates(DEVICE_CLASSES["h200"]))


def test_a_row_whose_tiles_make_a_wave_more_is_passed_by_one_whose_tiles_fit() -> None:
    """2304 columns are 18 of PLAIN's, 144 tiles: two waves, where 2048 columns made one. So 10 us become 20, while the
    work grows by an eighth. Of WIDE they are 12, one wave as 3072 columns are: 15 us stay 15, and 25 us are more.
    """
    asked = "1024,3840,2304,128"
    nearest, far = offer(asked, NEAREST, PLAIN, 10.0), "8192,3840,2304,128"
    others = offer(asked, far, PLAIN, 9.0), offer(asked, "512,3840,2304,128", WIDE, 1.0)
    assert order(nearest, offer(asked, FURTHER, WIDE, 15.0), *others) == [
        FURTHER,
        NEAREST,
        far,
        "512,3840,2304,128",
    ]
    assert order(nearest, offer(asked, FURTHER, WIDE, 25.0))[0] == NEAREST


def test_the_fastest_of_those_that_fit_comes_first_and_adapting_counts() -> None:
    asked, other = "1024,3840,2304,128", "1024,4096,3072,128"
    nearest, fits = offer(asked, NEAREST, PLAIN, 10.0), offer(asked, FURTHER, WIDE, 15.0)
    assert order(nearest, fits, offer(asked, other, WIDE, 14.0)) == [other, FURTHER, NEAREST]
    assert order(nearest, fits, offer(asked, other, WIDE, 14.0, adapting_us=3.0)) == [FURTHER, other, NEAREST]


@pytest.mark.parametrize("asked", ["1024,3840,4096,128", "1024,7680,2048,128"])
def test_where_tiles_of_the_nearest_fit_it_stands(asked: str) -> None:
    """4096 columns make two waves of PLAIN, a longer K as long a loop: twice the time for twice the work. A row of
    another layer may say less.
    """
    assert order(offer(asked, NEAREST, PLAIN, 10.0), offer(asked, FURTHER, WIDE, 4.0))[0] == NEAREST


def test_a_row_is_not_taken_for_what_it_would_be_if_it_fitted() -> None:
    """3264 columns are 17 of WIDE's, 136 tiles: two waves. The 2304 asked for make one, so by waves 28 us become 14. By
    the work they are 0.71 of it, 20 us, more than the 19 of the nearest; of 25 us they are less. With its two waves
    that row was the fastest of many, so they cost it less than they say.
    """
    asked = "1024,3840,2304,128"
    assert (
        order(offer(asked, NEAREST, PLAIN, 10.0), offer(asked, "1024,3840,3264,128", WIDE, 28.0))[0]
        == NEAREST
    )
    assert (
        order(offer(asked, NEAREST, PLAIN, 10.0), offer(asked, "1024,3840,3264,128", WIDE, 25.0))[0]
        != NEAREST
    )


def test_only_times_of_one_card_are_compared_and_only_those_that_somebody_took() -> None:
    asked = "1024,3840,2304,128"
    nearest = offer(asked, NEAREST, PLAIN, 10.0, origin="a")
    assert order(nearest, offer(asked, FURTHER, WIDE, 15.0, origin="a"))[0] == FURTHER
    assert order(nearest, offer(asked, FURTHER, WIDE, 15.0, origin="b"))[0] == NEAREST
    assert order(nearest, offer(asked, FURTHER, WIDE, None, origin="a"))[0] == NEAREST
    assert order(offer(asked, NEAREST, PLAIN, None), offer(asked, FURTHER, WIDE, 15.0))[0] == NEAREST


def test_a_kernel_without_a_formula_stays_where_it_is_near() -> None:
    """9216 columns of 12288: nobody counts waves of FP8's kernels."""
    asked, near, far = (f"1024,3072,{n},128" for n in (9216, 12288, 3072))
    fp8 = [
        offer(asked, known, UNCOUNTED, us, "svdquant_linear_fp8") for known, us in ((near, 90.0), (far, 1.0))
    ]
    assert order(*fp8) == [near, far]


def test_tiles_of_staged_by_the_rows_of_an_h200() -> None:
    """Tiles of 256x128 make three waves of 9216 columns as of 12288: (72 + 2) x 4 and (96 + 2) x 4 of 132. So 133 us
    stay 133; measured were 115 in calls where that row's own problem took 118. Of 256x104 it is (89 + 2) x 4 tiles,
    three waves, where (30 + 2) x 4 of 3072 columns are one: 3 x 35.0.
    """
    asked, near, far = (f"1024,3072,{n},128" for n in (9216, 12288, 3072))
    rows = (near, STAGED.format(columns=128), 133.0), (far, STAGED.format(columns=104), 35.0)
    assert order(*(offer(asked, *one, "svdquant_linear_16bit") for one in rows)) == [far, near]


def test_a_chain_goes_by_the_formulas_of_its_links() -> None:
    """3072 columns are 12 x 8 tiles of 128x256, and 3840 are 15 x 8, one wave of 132 either way: 179.6 us of K = 15360
    are 143.7 of 12288. Tiles of 128x208 are 15 x 8 both times: 46.0 us of K = 3840 are 147.2, less what does not grow
    with K. An H200 measured 144.8 and 133.8.
    """
    asked, near, far = "1024,12288,3072,128", "1024,15360,3840,128", "1024,3840,3072,128"
    rows = (near, CHAIN.format(columns=256), 179.6), (far, CHAIN.format(columns=208), 46.0)
    assert order(*(offer(asked, *one, "svdquant_linear") for one in rows)) == [far, near]

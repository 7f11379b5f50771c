"""The kernel executed: ragged shapes, every schedule, races on, against ``reference.py`` to the bit."""

from __future__ import annotations

import pytest

from kernel_space.machine.run.schedules import SCHEDULES
from kernel_space.operators.nvfp4_quantize.reference import expected_outputs
from tests.checkered import checkered
from tests.operators.nvfp4_quantize.runs import ARCHS, quantized
from tests.operators.nvfp4_quantize.values import activations

SMALL = "tile_mk=16x64 threads_per_cta=64 threads_per_row=4 row_loads=1"
PERSISTENT = (
    "tile_mk=8x64 threads_per_cta=32 threads_per_row=4 row_loads=1 ctas_per_sm=1 persistent=true use_pdl=true"
)
# Several passes along K and steps along M; half a block and two blocks a thread; words of scales across whole warps.
CONFIGS = (
    "",
    PERSISTENT,
    "tile_mk=64x256 threads_per_cta=256 threads_per_row=8 vector_width=8 row_loads=2 ctas_per_sm=2 use_pdl=true",
    "tile_mk=32x256 threads_per_cta=32 threads_per_row=2 vector_width=32 row_loads=1",
    "tile_mk=1x1024 threads_per_cta=64 threads_per_row=64 vector_width=16 row_loads=1 persistent=true",
    "tile_mk=128x64 threads_per_cta=64 threads_per_row=4 vector_width=16 row_loads=8 ctas_per_sm=8",
)

SLOW_CONFIGS = {(2, "sm_90a"), (3, "sm_90a")}


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(("m", "k"), [(1, 32), (5, 96), (129, 160)])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_ragged_shapes_under_every_schedule(schedule: str, m: int, k: int, arch: str) -> None:
    x, smooth = activations(m, k, "fp16")
    text = PERSISTENT if m == 129 else SMALL
    got = quantized(x, smooth, arch, text, schedule=schedule, seed=m)
    assert expected_outputs(x, smooth).differences(*got) == 0


@pytest.mark.parametrize(
    ("has_smooth", "x_dtype", "arch"), checkered([False, True], ["fp16", "bf16", "fp32"], ARCHS)
)
def test_every_class(arch: str, x_dtype: str, has_smooth: bool) -> None:
    x, smooth = activations(33, 1056, x_dtype)
    got = quantized(x, smooth if has_smooth else None, arch, SMALL, schedule="random")
    assert expected_outputs(x, smooth if has_smooth else None).differences(*got) == 0


@pytest.mark.parametrize(
    ("number", "arch"),
    [
        pytest.param(number, arch, marks=[pytest.mark.slow] * ((number, arch) in SLOW_CONFIGS))
        for number in range(len(CONFIGS))
        for arch in ARCHS
    ],
)
def test_configs(arch: str, number: int) -> None:
    """Each with one of the dtypes."""
    x, smooth = activations(33, 352, ("bf16", "fp32", "fp16")[number % 3])
    got = quantized(x, smooth, arch, CONFIGS[number], schedule="random", seed=1)
    assert expected_outputs(x, smooth).differences(*got) == 0


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("text", CONFIGS)
def test_several_blocks_of_scales_both_ways(text: str, schedule: str, arch: str) -> None:
    x, smooth = activations(300, 1056, "fp16")
    got = quantized(x, smooth, arch, text, schedule=schedule)
    assert expected_outputs(x, smooth).differences(*got) == 0


@pytest.mark.parametrize("arch", ARCHS)
def test_nothing_but_x_smooth_and_the_outputs_is_touched(arch: str) -> None:
    """Without smooth its pointer may be null; reading it would be an illegal access."""
    x, _ = activations(3, 32, "bf16")
    got = quantized(x, None, arch, SMALL)
    assert expected_outputs(x, None).differences(*got) == 0

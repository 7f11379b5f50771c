"""No kernel moves the bytes of its tensors faster than the memory of its card: simulated times of kernels without TMA.

The oracle is the operator's own count of bytes and the bandwidth of the device class, which the clock does not use.
"""

from __future__ import annotations

import functools

import pytest

from kernel_space.build.build import CompiledKernel, build
from kernel_space.core import registry
from kernel_space.core.arch import SM100A
from kernel_space.core.problem import Problem
from kernel_space.core.rules import Legal, legalize
from kernel_space.machine.clock import plain
from tuner.devices.classes import DEVICE_CLASSES
from tuner.devices.simulated import Chip
from tuner.simulated.time import SimulatedTime, simulate

B200 = DEVICE_CLASSES["b200"]
CHIP = Chip(name=B200.name, arch=B200.arch, sm_count=B200.sm_count)
SMALL = "tile_mk=8x256 threads_per_row=16 vector_width=16 row_loads=1 ctas_per_sm=16"
UNSPILLED = SMALL.replace("ctas_per_sm=16", "ctas_per_sm=8")
WIDE = "tile_mk=128x512 threads_per_cta=1024 threads_per_row=32 row_loads=1 ctas_per_sm=1"
LARGE = ("4352,3840", "16384,4096")
KERNEL = {"nvfp4_quantize": "kernel=rows "}
RANK = {"nvfp4_quantize": ",0", "rowstats": ""}  # what its problems have beside M and K
CASES = [
    *(("nvfp4_quantize", config, shape)
      for config in (SMALL, f"{SMALL} persistent=true", "tile_mk=32x256", WIDE)
      for shape in ("1,64", "128,3840", *LARGE)),
    *(("rowstats", config, shape)
      for config in ("vec=8", "vec=2 fused=false", "vec=1 rows=32", "vec=8 rows=1 use_pdl=true")
      for shape in ("1,8", "600,264", *LARGE)),
    ("rowstats", "vec=8", "2000003,64"),
    ("rowstats", "vec=8 rows=32", "7,100000"),
]  # fmt: skip


@functools.cache
def compiled(operator: str, text: str, shape: str) -> tuple[CompiledKernel, Legal, Problem]:
    problem = registry.operator(operator).problem.parse(shape + RANK[operator])
    legal = legalize(
        registry.parse_config(operator, SM100A, KERNEL.get(operator, "") + text), problem, SM100A
    )
    assert isinstance(legal, Legal), legal
    return build(legal.config, problem.problem_class, SM100A), legal, problem


def simulated(operator: str, text: str, shape: str, *, cold: bool = True) -> SimulatedTime:
    kernel, legal, problem = compiled(operator, text, shape)
    return simulate(kernel, legal.config, problem, CHIP, cold=cold)


def floor_us(operator: str, shape: str) -> float:
    """Each tensor of the call passes memory once."""
    found = registry.operator(operator)
    assert B200.dram_bytes_s is not None
    return (
        1e6
        * sum(found.tensor_bytes(found.problem.parse(shape + RANK[operator])).values())
        / B200.dram_bytes_s
    )


@pytest.mark.parametrize(("operator", "config", "shape"), CASES)
def test_no_set_of_constants_beats_the_memory(operator: str, config: str, shape: str) -> None:
    assert (simulated(operator, config, shape).sets_us >= floor_us(operator, shape)).all()


@pytest.mark.parametrize(
    ("operator", "config", "most"),
    [("rowstats", "vec=8 rows=4", 1.5), ("nvfp4_quantize", UNSPILLED, 2.6)],
    ids=["rowstats", "nvfp4_quantize, some 30 instructions an element"],
)
def test_a_good_config_comes_near(operator: str, config: str, most: float) -> None:
    time = simulated(operator, config, "16384,4096")
    assert time.us < most * floor_us(operator, "16384,4096")
    assert (simulated(operator, config, "16384,4096", cold=False).sets_us <= time.sets_us).all()


def test_bytes_through_dram_are_those_of_the_tensors() -> None:
    """In one round of a grid that walks over all of them: x, act and scales, and smooth once."""
    time = simulated("nvfp4_quantize", f"{SMALL} persistent=true", "4352,3840")
    operator = registry.operator("nvfp4_quantize")
    exact = sum(operator.tensor_bytes(operator.problem.parse("4352,3840,0")).values())
    assert time.run.rounds == 1 and exact <= time.run.dram < 1.01 * exact


def test_without_the_charge_memory_is_beaten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What passes DRAM is what keeps the times above the floor: without it L2 would feed this config faster."""
    monkeypatch.setattr(plain.Touched, "first", lambda *_, **__: 0)
    time = simulated("rowstats", "vec=8 rows=4", "16384,4096")
    assert (time.sets_us < floor_us("rowstats", "16384,4096")).any()

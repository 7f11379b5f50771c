"""Where the CPU seconds of one build for sm_90a go, kernel by kernel.

Run from the repository root: ``python -m benchmarks.bench_compile_stages``. Each kernel is built twice in this process,
into a fresh cache; the second is printed (the first also imports the kernel's modules and rewrites their syntax trees).
The stages are functions of the DSL and of this project, timed from outside.
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernel_space.build.dsl_env import import_dsl
from kernel_space.core.arch import SM90A
from kernel_space.core.registry import parse_config
from kernel_space.core.rules import Legal, legalize
from kernel_space.operators.svdquant_gemm.problem import GemmProblem

KERNELS = {
    "small_m": (
        "64,3840,3072,128",
        "kernel=sm90a_small_m register_operand=wgt tile_mnk=128x64x128 split_k=4",
    ),
    "ring": ("256,3840,3072,128", "kernel=sm90a_ring tile_mnk=128x128x128"),
    "expand": ("4352,3840,3072,128", "kernel=sm90a_expand tile_mnk=128x200x128 cluster_shape_mn=2x1"),
    "ring, 10 splits": ("256,3840,3072,128", "kernel=sm90a_ring tile_mnk=128x128x128 split_k=10"),
}
STAGES = ("tracing", "MLIR, LLVM, ptxas", "export", "resources")


def main() -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    start = _cpu_seconds()
    import_dsl(SM90A.name)
    print(f"measured, CPU seconds of one process; importing the DSL takes {_cpu_seconds() - start:.2f}")
    spent = _time_stages()
    print(f"{'':18}{'all':>7}" + "".join(f"{stage:>20}" for stage in STAGES))
    for name, (problem, config) in KERNELS.items():
        _build(problem, config)
        spent.clear()
        start = _cpu_seconds()
        _build(problem, config)
        whole = _cpu_seconds() - start
        print(f"{name:18}{whole:7.2f}" + "".join(f"{spent.get(stage, 0.0):20.2f}" for stage in STAGES))


def _build(problem: str, config: str) -> None:
    from kernel_space.build.build import build

    parsed = GemmProblem.parse(problem)
    legal = legalize(parse_config(GemmProblem.operator, SM90A, config), parsed, SM90A)
    assert isinstance(legal, Legal), legal
    with tempfile.TemporaryDirectory() as folder:
        build(legal.config, parsed.problem_class, SM90A, cache_dir=Path(folder))


def _cpu_seconds() -> float:
    """Of this process and of the tools that it ran."""
    return sum(os.times()[:4])


def _time_stages() -> dict[str, float]:
    """Wrap the functions that are the stages; what they took, by stage."""
    from cutlass.base_dsl.compiler import Compiler
    from cutlass.base_dsl.dsl import BaseDSL

    from kernel_space.build import build, dsl_compile

    spent: dict[str, float] = {}
    _wrap(BaseDSL, "generate_original_ir", "tracing", spent)
    _wrap(Compiler, "compile", "MLIR, LLVM, ptxas", spent)
    _wrap(dsl_compile, "_export", "export", spent)
    _wrap(build, "_resources", "resources", spent)
    return spent


def _wrap(owner: Any, name: str, stage: str, spent: dict[str, float]) -> None:
    original: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(original)
    def timed(*args: Any, **kwargs: Any) -> Any:
        start = _cpu_seconds()
        try:
            return original(*args, **kwargs)
        finally:
            spent[stage] = spent.get(stage, 0.0) + _cpu_seconds() - start

    setattr(owner, name, timed)


if __name__ == "__main__":
    main()

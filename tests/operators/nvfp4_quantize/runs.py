"""Compile a config of the kernel ``rows`` and run it in the machine, once per process and case."""

from __future__ import annotations

import functools
import importlib
import tempfile
from pathlib import Path
from typing import Any

import torch

from kernel_space.build.dsl_compile import Artifacts, compile_function
from kernel_space.build.dsl_env import import_dsl
from kernel_space.core.arch import arch
from kernel_space.core.rules import Legal, legalize
from kernel_space.machine import run_compiled
from kernel_space.machine.run.launch import Exported
from kernel_space.numerics.blocked import blocked_scale_bytes
from kernel_space.operators.nvfp4_quantize.problem import QuantizeProblem
from kernel_space.operators.nvfp4_quantize.rows.config import RowsConfig
from kernel_space.operators.nvfp4_quantize.signature import SIGNATURE
from tests.operators.nvfp4_quantize.values import DTYPES

ARCHS = ("sm_90a", "sm_100a")
UNTOUCHED = 0xA5
SMS = 4


@functools.cache
def compiled(text: str, x_dtype: str, smooth: bool, arch_name: str) -> Artifacts:
    """PTX, cubin and object of a legal config."""
    problem = QuantizeProblem(m=4352, k=3840, r=0, x_dtype=x_dtype, smooth="fp32" if smooth else "none")
    target = arch(arch_name)
    legal = legalize(RowsConfig.parse(text), problem, target)
    assert isinstance(legal, Legal), legal
    function, arguments = kernel_module(arch_name).host_function(legal.config, problem.problem_class, target)
    _, artifacts = compile_function(function, arguments, {}, arch=arch_name, prefix="quantize")
    return artifacts


def kernel_module(arch_name: str) -> Any:
    import_dsl(arch_name)
    return importlib.import_module("kernel_space.operators.nvfp4_quantize.rows.kernel")


@functools.cache
def exported(text: str, x_dtype: str, smooth: bool, arch_name: str) -> Exported:
    artifacts = compiled(text, x_dtype, smooth, arch_name)
    path = Path(tempfile.mkdtemp(prefix="quantize-")) / "kernel.o"
    path.write_bytes(artifacts.object_code)
    return Exported(artifacts.ptx, path, artifacts.prefix, SIGNATURE.abi)


def quantized(
    x: torch.Tensor, smooth: torch.Tensor | None, arch_name: str, text: str = "", **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """(act, ascales) as the kernel leaves them in the machine; the run itself must be without a finding."""
    m, k = x.shape
    x_dtype = next(name for name, dtype in DTYPES.items() if dtype == x.dtype)
    kernel = exported(text, x_dtype, smooth is not None, arch_name)
    act = torch.full((m, k // 2), UNTOUCHED, dtype=torch.uint8)
    ascales = torch.full((blocked_scale_bytes(m, k),), UNTOUCHED, dtype=torch.uint8)
    clusters = RowsConfig.parse(text).max_active_clusters(SMS)
    result = run_compiled(
        kernel, x, 0 if smooth is None else smooth, 0, act, ascales, 0, m, k, clusters, sms=SMS, **options
    )
    assert result.ok, str(result)
    return act, ascales

"""Compile a config of a kernel of the operator and run it in the machine, once per process and case."""

from __future__ import annotations

import dataclasses
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
from kernel_space.operators.nvfp4_quantize.lora_mma.config import LoraMmaConfig
from kernel_space.operators.nvfp4_quantize.lora_tcgen05.config import LoraTcgen05Config
from kernel_space.operators.nvfp4_quantize.lora_tma.config import LoraTmaConfig
from kernel_space.operators.nvfp4_quantize.operator import OPERATOR
from kernel_space.operators.nvfp4_quantize.problem import QuantizeProblem
from kernel_space.operators.nvfp4_quantize.rows.config import RowsConfig
from kernel_space.operators.nvfp4_quantize.signature import SIGNATURE
from tests.operators.nvfp4_quantize.values import DTYPES

CONFIGS: dict[str, Any] = {
    config.kernel: config for config in (RowsConfig, LoraMmaConfig, LoraTmaConfig, LoraTcgen05Config)
}
ARCHS = ("sm_90a", "sm_100a")
UNTOUCHED = 0xA5
SMS = 4


@functools.cache
def compiled(text: str, x_dtype: str, smooth: bool, arch_name: str, r: int = 0) -> Artifacts:
    """PTX, cubin and object of a legal config: of the kernel it names, else of ``lora_mma`` for R > 0, of ``rows``."""
    legal, problem = legal_config(text, x_dtype, smooth, arch_name, r)
    module = kernel_module(arch_name, legal.config.kernel)
    function, arguments = module.host_function(legal.config, problem.problem_class, arch(arch_name))
    _, artifacts = compile_function(function, arguments, {}, arch=arch_name, prefix="quantize")
    return artifacts


def legal_config(
    text: str, x_dtype: str, smooth: bool, arch_name: str, r: int
) -> tuple[Legal, QuantizeProblem]:
    problem = QuantizeProblem(m=4352, k=3840, r=r, x_dtype=x_dtype, smooth="fp32" if smooth else "none")
    named, kernel = "lora_mma" if r else "rows", text.split(" ")[0].removeprefix("kernel=")
    legal = legalize(CONFIGS.get(kernel, CONFIGS[named]).parse(text), problem, arch(arch_name))
    assert isinstance(legal, Legal), legal
    return legal, problem


def kernel_module(arch_name: str, kernel: str = "rows") -> Any:
    import_dsl(arch_name)
    return importlib.import_module(f"kernel_space.operators.nvfp4_quantize.{kernel}.kernel")


@functools.cache
def exported(text: str, x_dtype: str, smooth: bool, arch_name: str, r: int = 0) -> Exported:
    artifacts = compiled(text, x_dtype, smooth, arch_name, r)
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


def with_lora(
    problem: QuantizeProblem,
    arch_name: str,
    text: str,
    *,
    source: str = "gaussian",
    inputs: dict[str, torch.Tensor] | None = None,
    ptx: str | None = None,
    **options: Any,
) -> tuple[Any, dict[str, Any]]:
    """(the run, how each output compares) of a kernel with LoRA-down on inputs of ``source``, but those given. ``ptx``
    runs in place of its own.
    """
    smooth = problem.smooth == "fp32"
    kernel = exported(text, problem.x_dtype, smooth, arch_name, problem.r)
    if ptx is not None:
        kernel = dataclasses.replace(kernel, ptx=ptx)
    legal, _ = legal_config(text, problem.x_dtype, smooth, arch_name, problem.r)
    inputs = {**OPERATOR.inputs(problem, problem.m, source, "cpu"), **(inputs or {})}
    specs = {name: spec for name, spec in SIGNATURE.tensors(problem).items() if name not in inputs}
    outputs = {name: torch.full((spec.nbytes,), UNTOUCHED, dtype=torch.uint8) for name, spec in specs.items()}
    dtypes = {"uint8": torch.uint8, **DTYPES}
    outputs = {
        name: data.view(dtypes[specs[name].dtype]).view(specs[name].shape) for name, data in outputs.items()
    }
    tensors = {**inputs, **outputs}
    pointers = {name: tensor if tensor.numel() else 0 for name, tensor in tensors.items()}
    values = SIGNATURE.values(problem, pointers, clusters=SMS)
    result = run_compiled(kernel, *values[:-1], sms=4 * SMS, **options)
    return result, OPERATOR.check(problem, tensors, legal.config)

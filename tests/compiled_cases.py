"""Compile a config and run its host code on callbacks, once per process and case."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from kernel_space.build.dsl_compile import Artifacts, compile_function
from kernel_space.build.dsl_env import import_dsl
from kernel_space.core.arch import SM100A, Arch
from kernel_space.core.config import KernelConfig
from kernel_space.core.problem import ProblemClass
from kernel_space.core.registry import kernel_of, operator_of
from kernel_space.core.rules import Legal, legalize
from kernel_space.launch.capture import CaptureRuntime, Launch
from kernel_space.launch.loading import load_bytes
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a

FIRST_ADDRESS = 0x7F00_0000_0000
ADDRESS_STEP = 1 << 32
SM_COUNT = 148


@functools.lru_cache(maxsize=256)
def compile_case(config: KernelConfig, problem_class: ProblemClass, arch: Arch = SM100A) -> Artifacts:
    """PTX, cubin and object of a resolved config."""
    function, arguments = kernel_module(config, problem_class, arch).host_function(
        config, problem_class, arch
    )
    _, artifacts = compile_function(function, arguments, {}, arch=arch.name, prefix="case")
    return artifacts


def kernel_module(config: KernelConfig, problem_class: ProblemClass, arch: Arch) -> Any:
    import_dsl(arch.name)
    return importlib.import_module(kernel_of(config, problem_class).source)


def compile_and_capture(
    config: KernelConfig, problem: GemmProblem, arch: Arch = SM100A, sm_count: int = SM_COUNT
) -> tuple[Artifacts, list[Launch]]:
    """Artifacts of a resolved config and the launches of one call for ``problem`` on so many SMs."""
    artifacts, signature = compile_case(config, problem.problem_class, arch), operator_of(problem).signature
    runtime = CaptureRuntime(artifacts.ptx)
    with load_bytes(artifacts.object_code, artifacts.prefix, runtime, arguments=signature.abi) as loaded:
        pointers = {
            name: FIRST_ADDRESS + ADDRESS_STEP * index for index, name in enumerate(signature.pointers)
        }
        loaded.call(*signature.values(problem, pointers, clusters=config.max_active_clusters(sm_count)))
    return artifacts, runtime.launches


def resolved(text: str, shape: str, arch: Arch = SM100A) -> tuple[KernelConfigSm100a, GemmProblem]:
    """A legal config and its problem from their printed forms."""
    problem = GemmProblem.parse(shape)
    verdict = legalize(KernelConfigSm100a.parse(text), problem, arch)
    assert isinstance(verdict, Legal), verdict
    return verdict.config, problem

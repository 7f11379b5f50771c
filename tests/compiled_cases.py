"""Compile a config and run its host code on callbacks, once per process and case."""

from __future__ import annotations

import functools

from kernel_space.arch import SM100A, Arch
from kernel_space.capture import CaptureRuntime, Launch
from kernel_space.config_sm100a import KernelConfigSm100a
from kernel_space.dsl_compile import Artifacts, compile_function
from kernel_space.dsl_env import import_dsl
from kernel_space.loading import load_bytes
from kernel_space.problem import GemmProblem, ProblemClass
from kernel_space.rules import Legal, legalize

FIRST_ADDRESS = 0x7F00_0000_0000
ADDRESS_STEP = 1 << 32
SM_COUNT = 148


@functools.lru_cache(maxsize=256)
def compile_case(config: KernelConfigSm100a, problem_class: ProblemClass, arch: Arch = SM100A) -> Artifacts:
    """PTX, cubin and object of a resolved config."""
    import_dsl(arch.name)
    from kernel_space.kernels import svdquant_gemm_sm100a

    function, arguments = svdquant_gemm_sm100a.host_function(config, problem_class, arch)
    _, artifacts = compile_function(function, arguments, {}, arch=arch.name, prefix="case")
    return artifacts


def compile_and_capture(
    config: KernelConfigSm100a, problem: GemmProblem, arch: Arch = SM100A
) -> tuple[Artifacts, list[Launch]]:
    """Artifacts of a resolved config and the launches of one call for ``problem`` on 148 SMs."""
    from kernel_space.kernels.svdquant_gemm_sm100a import ARGUMENTS, POINTERS

    artifacts = compile_case(config, problem.problem_class, arch)
    runtime = CaptureRuntime(artifacts.ptx)
    with load_bytes(artifacts.object_code, artifacts.prefix, runtime, arguments=ARGUMENTS) as loaded:
        addresses = [FIRST_ADDRESS + ADDRESS_STEP * index for index in range(len(POINTERS))]
        loaded.call(*addresses, problem.m, problem.n, problem.k, SM_COUNT // config.cluster_size, 0)
    return artifacts, runtime.launches


def resolved(text: str, shape: str, arch: Arch = SM100A) -> tuple[KernelConfigSm100a, GemmProblem]:
    """A legal config and its problem from their printed forms."""
    problem = GemmProblem.parse(shape)
    verdict = legalize(KernelConfigSm100a.parse(text), problem, arch)
    assert isinstance(verdict, Legal), verdict
    return verdict.config, problem

"""The kernel ``sm90a_small_m``: for few rows of act, one wave of CTAs, K split over a cluster.

Two designs: ``wgmma.py`` with dq slots, ``mma_sync.py`` without.
"""

from typing import Any

from kernel_space.core.arch import Arch
from kernel_space.core.problem import ProblemClass
from kernel_space.operators.svdquant_gemm.sm90a_parts.host import typed_arguments
from kernel_space.operators.svdquant_gemm.sm90a_small_m.config import SmallMConfig
from kernel_space.operators.svdquant_gemm.sm90a_small_m.mma.mma_sync import SmallMSm90a
from kernel_space.operators.svdquant_gemm.sm90a_small_m.wgmma import SmallMWgmmaSm90a


def host_function(
    config: SmallMConfig, problem_class: ProblemClass, arch: Arch
) -> tuple[Any, tuple[Any, ...]]:
    """The function to compile and arguments that give it the types of a call, in the order of the signature."""
    generator = SmallMWgmmaSm90a if config.num_dq_stage else SmallMSm90a
    return generator(config, problem_class), typed_arguments(problem_class)

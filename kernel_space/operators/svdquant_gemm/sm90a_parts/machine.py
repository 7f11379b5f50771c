"""What is known of the designs for sm_90a beside their sources: how a launch is dealt out."""

from __future__ import annotations

from kernel_space.core.traits import MachineTraits, Schedule
from kernel_space.operators.svdquant_gemm.gemm_config import GemmConfig
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.tiles import waves


def schedule(config: GemmConfig, problem: GemmProblem, sm_count: int) -> Schedule:
    """Output tiles of clusters, or splits of them. What ``stream_k`` deals out again counts as whole tiles."""
    found = waves(config, problem, sm_count)
    return Schedule(pieces=found.clusters, places=found.places, steps=found.k_tiles)


TRAITS = MachineTraits(schedule=schedule)

"""What checks know of the kernels that take x by chunks: a small problem in which every ring wraps in both parities."""

from __future__ import annotations

import dataclasses
from typing import Any

from kernel_space.core.traits import MachineTraits
from kernel_space.operators.nvfp4_quantize.packing import CHUNK_K
from kernel_space.operators.nvfp4_quantize.problem import K_MULTIPLE

MOST_CHUNKS = 40  # of all CTAs that share rows: about what a run of a second takes


def turns(config: Any, problem: Any) -> tuple[Any, int]:
    """(problem, SMs of the chip): one ragged tile of rows, K in so many chunks. Also of ``smooth_lora_down``."""
    shared = config.sums_along_k
    stages = int(getattr(config, "num_stage", 0) or config.num_b_stage)
    each = 2 * stages + 1 if (2 * stages + 1) * shared <= MOST_CHUNKS else stages + 2
    rows = max(1, min(config.tile_mk[0] - 3, problem.m))
    k = each * shared * CHUNK_K - K_MULTIPLE
    return dataclasses.replace(problem, m=rows, k=k), config.cluster_size


TRAITS = MachineTraits()
TURNS = turns

"""Barriers of the rings of a kernel whose slots a cluster may share: initialised once, before anything is loaded."""

from typing import Any

import cutlass.pipeline as pipeline
from cutlass import Int32, cute

from kernel_space.operators.svdquant_gemm.sm90a_parts.layouts import LayoutsSm90a
from kernel_space.operators.svdquant_gemm.sm90a_parts.tma import TmaSm90a


class BarriersSm90a(TmaSm90a):
    """Mixin of a kernel class that says how many arrivals each of its barriers expects."""

    def _arrivals(self, lay: LayoutsSm90a) -> dict[str, int]:
        """Arrivals per phase of every barrier of a ring: see the table of rings in the kernel's docstring."""
        raise NotImplementedError

    @cute.jit
    def _init_barriers(self, lay: LayoutsSm90a, buffers: Any, warp_idx: Int32):
        counts = self._arrivals(lay)
        barriers = [
            (buffers[name].iterator + slot, counts[name])
            for name, count, _ in lay.barriers()
            for slot in range(count)
        ]
        if warp_idx == 0:
            with cute.arch.elect_one():
                self._init_each(barriers)
            cute.arch.mbarrier_init_fence()
        pipeline.pipeline_init_arrive(cluster_shape_mn=self.config.cluster_shape_mn, is_relaxed=True)
        pipeline.pipeline_init_wait(cluster_shape_mn=self.config.cluster_shape_mn)

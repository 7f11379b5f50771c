"""The kernel ``wide``: y.T = weights @ xs.T on 16-bit activations; weights become 16-bit in registers.

The GEMM of ``svdquant_gemm``'s ``sm90a_expand`` without its first kernel: xs comes in the order in which packed codes
are unpacked (``quad_order``), by TMA straight to where wgmma reads it.

| warps | role |
|---|---|
| 0 | TMA loads of packed weights and their scale factors |
| 1 | TMA loads of slices of lora_up |
| 2 | TMA loads of slices of lora_act_in, then of xs |
| 3 | none |
| consumer warpgroups | weights: packed ring -> registers; wgmma; epilogue |

| ring | producer -> consumer | slots | full barrier | empty barrier |
|---|---|---|---|---|
| ab | TMA -> consumer warps | num_ab_stage | bytes of one k-tile of weights | a lane of every consumer warp |
| dq | TMA -> consumer warps of the cluster | num_dq_stage (64 of K) | bytes of one slot | the same of all its CTAs |
| lora | TMA -> consumer warps | num_lora_stage | bytes of one slice | a lane of every consumer warp |

With a cluster of two along rows both CTAs multiply the same xs: each loads every second slot and multicasts it. A full
barrier may get its bytes before its CTA has announced them: its phase waits for that arrival anyway, and its phase
before is over, since its own consumers had to give the slot back before the other CTA could load.

With ``use_pdl`` weights, their scales, lora_up, wcscale and bias are read before the kernel before has ended
(``griddepcontrol.wait``, in warp 2): it must not be the one that writes them. Nothing is written, to y or to the
workspace, before xs has come through its ring, so not before that wait. Dependents are let go after it: every kernel
before the one before is complete by then.
"""

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Int32, cute
from cutlass.cute.nvgpu import cpasync

from kernel_space.core.arch import Arch
from kernel_space.core.problem import ProblemClass
from kernel_space.operators.svdquant_gemm.sm90a_expand.kernel import ExpandedGemmSm90a
from kernel_space.operators.svdquant_gemm.sm90a_parts.layouts import DQ_K
from kernel_space.operators.svdquant_gemm.sm90a_parts.stream_k import stream_clusters
from kernel_space.operators.svdquant_gemm_16bit.host import typed_arguments
from kernel_space.operators.svdquant_gemm_16bit.wide.config import WideConfig
from kernel_space.operators.svdquant_gemm_16bit.wide.consumer import FROM_DEQUANT_SCALE, WideConsumer
from kernel_space.operators.svdquant_gemm_16bit.wide.layouts import WideLayouts


class WideGemm(WideConsumer, ExpandedGemmSm90a):
    """Generator of one kernel: a resolved config (no ``auto``) and a problem class. Loading warps and epilogue are
    those of ``sm90a_expand``'s GEMM.
    """

    def _layouts(self) -> WideLayouts:
        return WideLayouts(self.config, self.problem_class)

    @cute.jit
    def __call__(
        self,
        xs: cute.Pointer,
        wgt: cute.Pointer,
        wscales: cute.Pointer,
        lora_act_in: cute.Pointer,
        lora_up: cute.Pointer,
        wcscale: cute.Pointer,
        bias: cute.Pointer,
        y: cute.Pointer,
        workspace: cute.Pointer,
        m: Int32,
        n: Int32,
        k: Int32,
        max_active_clusters: Int32,
        stream: cuda.CUstream,
    ):
        """Build TMA descriptors for M, N, K and launch. ``max_active_clusters`` bounds the grid."""
        lay = self._layouts()
        cluster_m, cluster_n = self.config.cluster_shape_mn
        clusters_m = cute.ceil_div(n, lay.rows * cluster_m)
        clusters_n = cute.ceil_div(m, lay.columns * cluster_n)
        tma_a, mA = self._tma_packed(lay.a_box, wgt, n, k, 1)
        tma_sfa, mSFA = self._tma_scales(lay, lay.sfa, wscales, n, k)
        tma_x, mX = self._tma_xs(lay, xs, m, k)
        tma_la, mLA, tma_lb, mLB = None, None, None, None
        if cutlass.const_expr(self.has_lora):
            tma_la, mLA = self._tma_lora(lay.lora_a_box, lora_up, n)
            tma_lb, mLB = self._tma_lora(lay.lora_b_box, lora_act_in, m, self.config.cluster_size)
        k_tiles = cute.ceil_div(k, lay.k)
        num_clusters = cutlass.min(clusters_m * clusters_n * self.split_k, max_active_clusters)
        if cutlass.const_expr(self.stream_k):
            num_clusters = stream_clusters(self.config, clusters_m * clusters_n, max_active_clusters)
        self.gemm_kernel(
            (tma_a, tma_sfa, tma_x),
            (mA, mSFA, mX),
            (tma_la, tma_lb),
            (mLA, mLB),
            y,
            wcscale,
            bias,
            workspace,
            (clusters_m, clusters_n, k_tiles, self.deal(clusters_m * clusters_n, k_tiles, num_clusters)),
            m,
            n,
        ).launch(
            grid=(cluster_m, cluster_n, num_clusters),
            block=[self.threads, 1, 1],
            cluster=(cluster_m, cluster_n, 1),
            stream=stream,
            min_blocks_per_mp=self.config.expand_registers[0],
            preferred_smem_carveout=100,
            use_pdl=self.config.use_pdl,
        )

    def _tma_xs(self, lay: WideLayouts, xs: cute.Pointer, m: Int32, k: Int32) -> Any:
        """Activations ``[m, K']``; a box is one slot. K' = K rounded up to 64; zeros beyond."""
        extent = cute.ceil_div(k, DQ_K) * DQ_K
        gmem = cute.make_tensor(xs, cute.make_layout((m, extent), stride=(cute.assume(extent, DQ_K), 1)))
        op = self._load_op(self.config.cluster_size)
        return cpasync.make_tiled_tma_atom(op, gmem, lay.dq_box, (lay.columns, DQ_K))

    @cute.jit
    def _load_affine(
        self,
        lay: WideLayouts,
        vectors: Any,
        buffers: Any,
        tile_m: Int32,
        tile_n: Int32,
        n: Int32,
        thread: Int32,
        group: Int32,
    ):
        """The epilogue's wcscale gives back what products of two dequantized operands lack; here one is not."""
        ExpandedGemmSm90a._load_affine(self, lay, vectors, buffers, tile_m, tile_n, n, thread, group)
        affine = buffers["affine"]
        for i in cutlass.range_constexpr(2 * self.config.row_blocks):
            affine[0, i] = affine[0, i] * FROM_DEQUANT_SCALE


def host_function(config: WideConfig, problem_class: ProblemClass, arch: Arch) -> tuple[Any, tuple[Any, ...]]:
    """The function to compile and arguments that give it the types of a call, in the order of the signature."""
    return WideGemm(config, problem_class), typed_arguments(problem_class)

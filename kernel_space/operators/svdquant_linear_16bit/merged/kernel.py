"""The kernel ``merged``: a layer on many rows of 16-bit activations as they are.

``merged[N,K] = round16(wgt[N,K] / smooth[K] + lora_up[N,R] @ lora_down[K,R].T)``
``y[M,N] = f((x[M,K] @ merged[N,K].T) * wcscale[N] + bias[N])``

Two kernels a launch. The first (``merge.py``) writes merged weights into the workspace, the second (``product.py``) is
a plain GEMM: what is done for each weight is done once for a launch, however many rows x has, and the low-rank branch
costs N K R products instead of M R (K + N). x is not touched before it is multiplied.

| warps | role |
|---|---|
| 0 | TMA loads of merged weights and of x |
| 1 - 3 | none |
| consumer warpgroups | wgmma; epilogue of ``sm90a_expand`` |

| ring | producer -> consumer | slots | full barrier | empty barrier |
|---|---|---|---|---|
| ab | TMA -> consumer warps | num_ab_stage (64 of K) | bytes of one slot | a lane of every such warp of the cluster |

With a cluster of two along rows both CTAs multiply the same x, along columns the same weights: each loads every second
slot's and multicasts them. A full barrier may get its bytes before its CTA has announced them: its phase waits for that
arrival anyway, and its phase before is over, since its own consumers had to give the slot back before the other CTA
could load.

The second kernel is launched with programmatic dependent launch after the first, whose end its loading warp waits for
before it loads anything; nothing is written before something was loaded. The first one writes into the workspace only
when the kernel before has ended, with ``use_pdl`` by its own wait, so the second of the launch before has read it. With
``use_pdl`` everything but x is read before that wait: the kernel before must not be the one that writes weights.
"""

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Int32, Int64, cute
from cutlass.cute.nvgpu import cpasync

from kernel_space.core.arch import Arch
from kernel_space.core.problem import ProblemClass
from kernel_space.operators.svdquant_gemm.partials import PARTIALS_ALIGN
from kernel_space.operators.svdquant_gemm.parts.allocations import HALF_DTYPES
from kernel_space.operators.svdquant_gemm.sm90a_expand.epilogue import EpilogueExpandSm90a
from kernel_space.operators.svdquant_gemm.sm90a_parts.dequant import FROM_DEQUANT_SCALE
from kernel_space.operators.svdquant_gemm.sm90a_parts.layouts import WARPS_PER_GROUP
from kernel_space.operators.svdquant_gemm.sm90a_parts.split_k import GROUP_THREADS
from kernel_space.operators.svdquant_gemm.sm90a_parts.stream_k import stream_bytes, stream_clusters
from kernel_space.operators.svdquant_linear_16bit.host import typed_arguments
from kernel_space.operators.svdquant_linear_16bit.merged.config import REGISTERS, MergedConfig, MergingConfig
from kernel_space.operators.svdquant_linear_16bit.merged.layouts import ProductLayouts
from kernel_space.operators.svdquant_linear_16bit.merged.merge import Merge
from kernel_space.operators.svdquant_linear_16bit.merged.product import Product


class MergedLayer(EpilogueExpandSm90a, Merge, Product):
    """Generator of both kernels: a resolved config (no ``auto``) and a problem class."""

    def __init__(self, config: MergingConfig, problem_class: ProblemClass):
        self.config = config
        self.problem_class = problem_class
        self.cta_group_size = 1
        self.split_k = 1
        self.stream_k = config.stream_k
        self.has_lora = False
        self.interleave = False
        self.threads = GROUP_THREADS * (1 + config.consumer_warpgroups)

    def _layouts(self) -> ProductLayouts:
        return ProductLayouts(self.config, self.problem_class)

    @cute.jit
    def __call__(
        self,
        x: cute.Pointer,
        smooth: cute.Pointer,
        lora_down: cute.Pointer,
        wgt: cute.Pointer,
        wscales: cute.Pointer,
        lora_up: cute.Pointer,
        wcscale: cute.Pointer,
        bias: cute.Pointer,
        xs: cute.Pointer,
        lora_act_in: cute.Pointer,
        y: cute.Pointer,
        workspace: cute.Pointer,
        m: Int32,
        k: Int32,
        n: Int32,
        max_active_clusters: Int32,
        stream: cuda.CUstream,
    ):
        """Build TMA descriptors for M, N, K and launch both kernels. ``max_active_clusters`` bounds the second grid.
        ``xs`` and ``lora_act_in``, which the links of a chain hand on, are not written.
        """
        lay = self._layouts()
        merged = self._merged(workspace)
        self.launch_merge((wgt, wscales, smooth, lora_down), lora_up, merged, n, k, stream)

        cluster_m, cluster_n = self.config.cluster_shape_mn
        clusters_m = cute.ceil_div(n, lay.rows * cluster_m)
        clusters_n = cute.ceil_div(m, lay.columns * cluster_n)
        tma_w, mW = self._tma_of(merged, n, k, lay.a_box, cluster_n)
        tma_x, mX = self._tma_of(x, m, k, lay.b_box, cluster_m)
        k_tiles = cute.ceil_div(k, lay.k)
        num_clusters = cutlass.min(clusters_m * clusters_n, max_active_clusters)
        if cutlass.const_expr(self.stream_k):
            num_clusters = stream_clusters(self.config, clusters_m * clusters_n, max_active_clusters)
        self.product_kernel(
            (tma_w, tma_x),
            (mW, mX),
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
            min_blocks_per_mp=1,
            preferred_smem_carveout=100,
            use_pdl=True,
        )

    def _merged(self, workspace: cute.Pointer) -> Any:
        """Where merged weights begin: behind what stream-K needs."""
        offset = Int64(stream_bytes(self.config) if self.stream_k else 0)
        at = (workspace + cute.assume(offset, PARTIALS_ALIGN)).align(PARTIALS_ALIGN)
        return cute.recast_ptr(at, dtype=HALF_DTYPES[self.problem_class.dtype])

    def _tma_of(self, matrix: Any, extent: Int32, k: Int32, box: Any, sharers: int) -> Any:
        """A matrix ``[extent, K]``; zeros beyond."""
        gmem = cute.make_tensor(matrix, cute.make_layout((extent, k), stride=(cute.assume(k, 32), 1)))
        tiler = (cute.size(box, mode=[0]), cute.size(box, mode=[1]))
        return cpasync.make_tiled_tma_atom(self._load_op(sharers), gmem, box, tiler)

    @cute.kernel
    def product_kernel(
        self,
        atoms: Any,
        tensors: Any,
        y: cute.Pointer,
        wcscale: cute.Pointer,
        bias: cute.Pointer,
        workspace: cute.Pointer,
        tiles: Any,
        m: Int32,
        n: Int32,
    ):
        lay = self._layouts()
        warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        if warp_idx == 0:
            for atom in atoms:
                cpasync.prefetch_descriptor(atom)
        buffers = self._allocate(lay)
        self._init_barriers(lay, buffers, warp_idx)
        if warp_idx < WARPS_PER_GROUP:
            cute.arch.setmaxregister_decrease(REGISTERS[0])
            if warp_idx == 0:
                self.loading_warp(tiles, atoms, tensors, buffers)
        else:
            cute.arch.setmaxregister_increase(REGISTERS[1])
            self.consumer_warps(tiles, (y, m, n), (wcscale, bias, workspace), n, buffers)
        if cutlass.const_expr(self.config.cluster_size > 1):
            # The other CTA may still multicast to this one's shared memory and arrive at its barriers.
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()

    @cute.jit
    def _load_affine(
        self,
        lay: ProductLayouts,
        vectors: Any,
        buffers: Any,
        tile_m: Int32,
        tile_n: Int32,
        n: Int32,
        thread: Int32,
        group: Int32,
    ):
        """What the epilogue's wcscale gives back, products of dequantized operands lack; here none is."""
        EpilogueExpandSm90a._load_affine(self, lay, vectors, buffers, tile_m, tile_n, n, thread, group)
        affine = buffers["affine"]
        for i in cutlass.range_constexpr(2 * self.config.row_blocks):
            affine[0, i] = affine[0, i] * FROM_DEQUANT_SCALE


def host_function(
    config: MergedConfig, problem_class: ProblemClass, arch: Arch
) -> tuple[Any, tuple[Any, ...]]:
    """The function to compile and arguments that give it the types of a call, in the order of the signature."""
    return MergedLayer(config, problem_class), typed_arguments(problem_class)

"""The kernel ``merged_fp8``: a layer on many rows, whose activations and weights are FP8 where they are multiplied.

``merged8[N,K] = e4m3((wgt[N,K] / smooth[K] + lora_up[N,R] @ lora_down[K,R].T) * (448 / wpeak[N]))``
``x8[M,K] = e4m3(x[M,K] * (448 / xpeak[M]))``, xpeak the largest magnitude of each row
``y[M,N] = f((x8 @ merged8.T) * (xpeak[M] / 448) * (wpeak[N] / 448 * wcscale[N]) + bias[N])``

Two kernels a launch. A CTA of the first asks for the weights that it merges (``merge.py``), quantizes its rows of x
(``rows.py``), and merges; or merges first (``quantize_last``). The second is the GEMM of ``merged`` with FP8 operands
and twice as many K in a slot and an instruction.

| warps of the second | role |
|---|---|
| 0 | TMA loads of merged weights and of x8 |
| 1 - 3 | none |
| consumer warpgroups | wgmma (``product.py``); epilogue (``store.py``) |

Rings, clusters and stream-K are those of ``merged`` (``svdquant_linear_16bit/merged/kernel.py``). Everything that the
second kernel reads of the first, a thread reads after a wait of its own warp for the end of that: the loading warp
before it loads, consumer warps before they read scales.
"""

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Float32, Int32, Int64, cute
from cutlass.cute.nvgpu import cpasync

from kernel_space.core.arch import Arch
from kernel_space.core.problem import ProblemClass
from kernel_space.operators.nvfp4_quantize.packing import CHUNK_K
from kernel_space.operators.svdquant_gemm.partials import PARTIALS_ALIGN
from kernel_space.operators.svdquant_gemm.sm90a_parts.layouts import WARPS_PER_GROUP
from kernel_space.operators.svdquant_gemm.sm90a_parts.stream_k import stream_bytes, stream_clusters
from kernel_space.operators.svdquant_linear_16bit.host import typed_arguments
from kernel_space.operators.svdquant_linear_16bit.merged.config import REGISTERS
from kernel_space.operators.svdquant_linear_16bit.merged.kernel import MergedLayer
from kernel_space.operators.svdquant_linear_fp8.merged_fp8.config import MergedFp8Config
from kernel_space.operators.svdquant_linear_fp8.merged_fp8.layouts import (
    FP8,
    MergeFp8Layouts,
)
from kernel_space.operators.svdquant_linear_fp8.merged_fp8.merge import MergeFp8
from kernel_space.operators.svdquant_linear_fp8.merged_fp8.product import ProductFp8
from kernel_space.operators.svdquant_linear_fp8.merged_fp8.rows import QuantizeRows


class MergedFp8Layer(ProductFp8, QuantizeRows, MergeFp8, MergedLayer):
    """Generator of both kernels: a resolved config (no ``auto``) and a problem class."""

    config: MergedFp8Config

    def _merge_layouts(self) -> MergeFp8Layouts:
        return MergeFp8Layouts(self.config, self.problem_class)

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
        wpeak: cute.Pointer,
        y: cute.Pointer,
        workspace: cute.Pointer,
        m: Int32,
        k: Int32,
        n: Int32,
        max_active_clusters: Int32,
        stream: cuda.CUstream,
    ):
        """Build TMA descriptors for M, N, K and launch both kernels. ``max_active_clusters`` bounds the second grid."""
        lay = self._layouts()
        merged, x8, scales = self._rooms(workspace, m, n, k)
        self.launch_first(
            (wgt, wscales, smooth, lora_down, wpeak), lora_up, merged, x, (x8, scales), m, n, k, stream
        )

        cluster_m, cluster_n = self.config.cluster_shape_mn
        clusters_m = cute.ceil_div(n, lay.rows * cluster_m)
        clusters_n = cute.ceil_div(m, lay.columns * cluster_n)
        tma_w, mW = self._tma_of(cute.recast_ptr(merged, dtype=FP8), n, k, lay.a_box, cluster_n)
        tma_x, mX = self._tma_of(cute.recast_ptr(x8, dtype=FP8), m, k, lay.b_box, cluster_m)
        k_tiles = cute.ceil_div(k, lay.k)
        num_clusters = cutlass.min(clusters_m * clusters_n, max_active_clusters)
        if cutlass.const_expr(self.stream_k):
            num_clusters = stream_clusters(self.config, clusters_m * clusters_n, max_active_clusters)
        tma_y, mY = None, None
        if cutlass.const_expr(not lay.gated):
            tma_y, mY = self._tma_of_y(lay, y, m, n)
        self.product_fp8_kernel(
            (tma_w, tma_x),
            (mW, mX),
            y,
            tma_y,
            mY,
            (wcscale, bias, wpeak, scales),
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

    def _rooms(self, workspace: cute.Pointer, m: Any, n: Any, k: Any) -> tuple[Any, Any, Any]:
        """Where merged weights, x8 and its scales begin: ``budget.room`` has the same order."""
        first = Int64(stream_bytes(self.config) if self.stream_k else 0)
        second = first + _aligned(Int64(n) * k)
        third = second + _aligned(Int64(m) * k)
        places = [
            (workspace + cute.assume(offset, PARTIALS_ALIGN)).align(PARTIALS_ALIGN)
            for offset in (first, second, third)
        ]
        return places[0], places[1], cute.recast_ptr(places[2], dtype=Float32)

    @cute.jit
    def launch_first(
        self,
        pointers: Any,
        lora_up: cute.Pointer,
        merged: Any,
        x: cute.Pointer,
        made: Any,
        m: Int32,
        n: Int32,
        k: Int32,
        stream: Any,
    ):
        """As many CTAs as rows of x and weights need; with ``use_pdl`` their launch overlaps the kernel before."""
        lay = self._merge_layouts()
        up = self._tma_up(lay, lora_up, n)
        codes = self._tma_packed(lay.codes_box, pointers[0], n, k, 1)
        quantizing = cute.ceil_div(m, self.config.quantize_rows)
        row_tiles = cute.ceil_div(n, lay.rows)
        merging = row_tiles * cute.ceil_div(cute.ceil_div(k, CHUNK_K), lay.chunks)
        stored = self.tma_merged(lay, merged, n, k)
        self.first_kernel(up, codes, stored, pointers, merged, x, made, m, n, k, row_tiles).launch(
            grid=(cutlass.max(quantizing, merging), 1, 1),
            block=[lay.threads, 1, 1],
            stream=stream,
            min_blocks_per_mp=2,
            # As the GEMM that follows: an SM that has to change it must be empty first.
            preferred_smem_carveout=100,
            use_pdl=self.config.use_pdl,
        )

    @cute.kernel
    def first_kernel(
        self,
        up: Any,
        codes: Any,
        stored: Any,
        pointers: Any,
        merged: cute.Pointer,
        x: cute.Pointer,
        made: Any,
        m: Int32,
        n: Int32,
        k: Int32,
        row_tiles: Int32,
    ):
        # The GEMM may be launched now: it waits for the end of this grid before it reads what is made here.
        cute.arch.griddepcontrol_launch_dependents()
        lay = self._merge_layouts()
        buffers = self._allocate_merge(lay)
        block, _, _ = cute.arch.block_idx()
        where = (block % row_tiles, block // row_tiles)
        place = self._merge_place(lay, pointers, merged, buffers, where, n, k)
        held = self.make_held(lay)
        self.ask_for_weights(lay, place, buffers, up, codes, held)
        if cutlass.const_expr(self.config.use_pdl):
            # For x; and the GEMM of the launch before reads what was made for it until it ends.
            cute.arch.griddepcontrol_wait()
        rows = (x, made, m, k)
        if cutlass.const_expr(not self.config.quantize_last):
            self._quantize_own(lay, rows, buffers, block)
        if place["count"] > 0:
            self.merge_fp8_part(lay, place, buffers, codes, stored, held)
        if cutlass.const_expr(self.config.quantize_last):
            self._quantize_own(lay, rows, buffers, block)

    @cute.jit
    def _quantize_own(self, lay: MergeFp8Layouts, rows: Any, buffers: Any, block: Int32):
        """The rows of x of CTA ``block``, if there are any. ``rows``: x, addresses for x8 and scales, M, K."""
        x, (x8, scales), m, k = rows
        first = block * self.config.quantize_rows
        last = cutlass.min(first + self.config.quantize_rows, m)
        if first < last:
            self.quantize_part(lay, x, (x8.toint(), scales.toint()), buffers, first, last, k)

    @cute.kernel
    def product_fp8_kernel(
        self,
        atoms: Any,
        tensors: Any,
        y: cute.Pointer,
        tma_y: Any,
        tensor_y: Any,
        vectors: Any,
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
            if cutlass.const_expr(not lay.gated):
                cpasync.prefetch_descriptor(tma_y)
        buffers = self._allocate(lay)
        self._init_barriers(lay, buffers, warp_idx)
        wcscale, bias, wpeak, scales = vectors
        if warp_idx < WARPS_PER_GROUP:
            cute.arch.setmaxregister_decrease(REGISTERS[0])
            if warp_idx == 0:
                self.loading_warp(tiles, atoms, tensors, buffers)
        else:
            cute.arch.setmaxregister_increase(REGISTERS[1])
            # For the scales of x.
            cute.arch.griddepcontrol_wait()
            kept = cute.make_tensor(scales, cute.make_layout(m + lay.columns))
            given = {**buffers, "wpeak": wpeak, "scales": kept}
            self.consumer_warps(tiles, ((y, m, n), tma_y, tensor_y), (wcscale, bias, workspace), n, given)
            if cutlass.const_expr(not lay.gated):
                # Shared memory is the CTA's until TMA has read it; of those who did not store nothing is waited for.
                cute.arch.cp_async_bulk_wait_group(0, read=True)
        if cutlass.const_expr(self.config.cluster_size > 1):
            # The other CTA may still multicast to this one's shared memory and arrive at its barriers.
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()


def _aligned(size: Any) -> Any:
    return (size + (PARTIALS_ALIGN - 1)) // PARTIALS_ALIGN * PARTIALS_ALIGN


def host_function(
    config: MergedFp8Config, problem_class: ProblemClass, arch: Arch
) -> tuple[Any, tuple[Any, ...]]:
    """The function to compile and arguments that give it the types of a call, in the order of the signature."""
    return MergedFp8Layer(config, problem_class), typed_arguments(problem_class)

"""The kernel ``sm90a_expand``: activations are expanded once, weights where they are multiplied.

Two kernels a launch. The first (``expand.py``) writes the activations as fp16 into the workspace; the second is the
GEMM of ``sm90a_ring`` without dequantizing warps: TMA fills the dq ring. Weights are the row operand (the
kernel computes y.T); they stay packed in global and in shared memory and become fp16 in the registers that wgmma reads.

| warps | role |
|---|---|
| 0 | TMA loads of packed weights and their scale factors |
| 1 | TMA loads of LoRA slices |
| 2 | TMA loads of expanded activations |
| 3 | none |
| consumer warpgroups | weights: packed ring -> registers; wgmma; epilogue |

| ring | producer -> consumer | slots | full barrier | empty barrier |
|---|---|---|---|---|
| ab | TMA -> consumer warps | num_ab_stage | bytes of one k-tile of weights | a lane of every consumer warp |
| dq | TMA -> consumer warps of the cluster | num_dq_stage (64 of K) | bytes of one slot | the same of all its CTAs |
| lora | TMA -> consumer warps | num_lora_stage | bytes of one slice | a lane of every consumer warp |

With ``pingpong`` the consumer warps of a slot are those of the warpgroup whose tile it belongs to.

With a cluster of two along rows both CTAs multiply the same activations: each loads every second dq slot and multicasts
it. A full barrier may get its bytes before its CTA has announced them: its phase waits for that arrival anyway, and
its phase before is over, since its own consumers had to give the slot back before the other CTA could load.

The second kernel is launched with programmatic dependent launch after the first: its prologue, its first weights and
LoRA slices overlap it, and only warp 2 waits for it, with ``use_pdl`` before it loads anything: the kernel before may
still run and write activations. Weights, wcscale and bias are then read early, as by ``sm90a_small_m``. Nothing is
written, to y or to the workspace, before warp 2 has loaded, so not before the kernel before has ended.
With one consumer warpgroup and up to 64 accumulators a thread the GEMM leaves registers, shared memory and the split of
L1 and shared memory of an SM to blocks of the first kernel: they run beside its CTAs, so its prologue and first weights
overlap them, and the next launch's blocks wait beside this launch's GEMM.
The first kernel overwrites the workspace only when the kernel before has ended, so the last launch has read it.
"""

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.pipeline as pipeline
from cutlass import Int32, Int64, cute
from cutlass.cute.nvgpu import cpasync

from kernel_space.core.arch import Arch
from kernel_space.core.problem import ProblemClass
from kernel_space.operators.svdquant_gemm.partials import COUNTER_BYTES, PARTIAL_BYTES, PARTIALS_ALIGN
from kernel_space.operators.svdquant_gemm.sm90a_expand.config import ExpandConfig
from kernel_space.operators.svdquant_gemm.sm90a_expand.epilogue import EpilogueExpandSm90a
from kernel_space.operators.svdquant_gemm.sm90a_expand.expand import ExpandSm90a
from kernel_space.operators.svdquant_gemm.sm90a_parts.barriers import BarriersSm90a
from kernel_space.operators.svdquant_gemm.sm90a_parts.consumer import ConsumerSm90a
from kernel_space.operators.svdquant_gemm.sm90a_parts.host import typed_arguments
from kernel_space.operators.svdquant_gemm.sm90a_parts.layouts import (
    DQ_DTYPE,
    DQ_K,
    SWIZZLE_ALIGN,
    WARPS_PER_GROUP,
    LayoutsSm90a,
)
from kernel_space.operators.svdquant_gemm.sm90a_parts.split_k import GROUP_THREADS
from kernel_space.operators.svdquant_gemm.sm90a_parts.stream_k import stream_bytes, stream_clusters

DQ_PER_K_TILE = 2


class ExpandedGemmSm90a(EpilogueExpandSm90a, ExpandSm90a, ConsumerSm90a, BarriersSm90a):
    """Generator of the two kernels: a resolved config (no ``auto``) and a problem class."""

    def __init__(self, config: ExpandConfig, problem_class: ProblemClass):
        self.config = config
        self.problem_class = problem_class
        self.cta_group_size = 1
        self.split_k = config.split_k
        self.stream_k = config.stream_k
        self.has_lora = problem_class.r > 0
        self.interleave = False
        self.threads = GROUP_THREADS * (1 + config.consumer_warpgroups)

    def _layouts(self) -> LayoutsSm90a:
        return LayoutsSm90a(self.config, self.problem_class)

    @cute.jit
    def __call__(
        self,
        act: cute.Pointer,
        ascales: cute.Pointer,
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
        """Build TMA descriptors for M, N, K and launch both kernels. ``max_active_clusters`` bounds the second grid."""
        lay = self._layouts()
        cluster_m, cluster_n = self.config.cluster_shape_mn
        clusters_m = cute.ceil_div(n, lay.rows * cluster_m)
        clusters_n = cute.ceil_div(m, lay.columns * cluster_n)
        expanded = self._expanded(workspace, clusters_m * cluster_m * clusters_n * cluster_n)
        self.launch_expand(act, ascales, expanded, m, k, stream)

        tma_a, mA = self._tma_packed(lay.a_box, wgt, n, k, 1)
        tma_sfa, mSFA = self._tma_scales(lay, lay.sfa, wscales, n, k)
        tma_x, mX = self._tma_expanded(lay, expanded, m, k)
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
            use_pdl=True,
        )

    @cute.jit
    def _expanded(self, workspace: cute.Pointer, num_tiles: Int32):
        """Where the expanded activations begin: behind the counters and partial sums of split-K or stream-K."""
        offset = Int64(0)
        if cutlass.const_expr(self.stream_k):
            offset = Int64(stream_bytes(self.config))
        elif cutlass.const_expr(self.split_k > 1):
            lay = self._layouts()
            counters = (num_tiles * COUNTER_BYTES + PARTIALS_ALIGN - 1) // PARTIALS_ALIGN * PARTIALS_ALIGN
            offset = counters + Int64(num_tiles) * (self.split_k * lay.rows * lay.columns * PARTIAL_BYTES)
        return cute.recast_ptr(
            (workspace + cute.assume(offset, PARTIALS_ALIGN)).align(PARTIALS_ALIGN), dtype=DQ_DTYPE
        )

    def _tma_expanded(self, lay: LayoutsSm90a, expanded: cute.Pointer, m: Int32, k: Int32) -> Any:
        """Expanded activations ``[m, K']``; a box is one dq slot."""
        extent = cute.ceil_div(k, lay.k) * lay.k
        gmem = cute.make_tensor(expanded, cute.make_layout((m, extent), stride=(cute.assume(extent, 128), 1)))
        op = self._load_op(self.config.cluster_size)
        return cpasync.make_tiled_tma_atom(op, gmem, lay.dq_box, (lay.columns, DQ_K))

    @cute.kernel
    def gemm_kernel(
        self,
        atoms: Any,
        tensors: Any,
        lora_atoms: Any,
        lora_tensors: Any,
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
            for atom in (*atoms, *lora_atoms):
                if cutlass.const_expr(atom is not None):
                    cpasync.prefetch_descriptor(atom)
        buffers = self._allocate(lay)
        if cutlass.const_expr(self.has_lora):
            slots = cute.recast_ptr(
                buffers["dequantized"].iterator.align(SWIZZLE_ALIGN),
                lay.lora_b_box.inner,
                dtype=lay.lora_dtype,
            )
            buffers["LoRA columns"] = cute.make_tensor(slots, lay.lora_in_dq)
        self._init_barriers(lay, buffers, warp_idx)

        _, loader_registers, consumer_registers = self.config.expand_registers
        if warp_idx < WARPS_PER_GROUP:
            cute.arch.setmaxregister_decrease(loader_registers)
            if warp_idx == 0:
                self.weight_warp(tiles, atoms, tensors, buffers)
            if cutlass.const_expr(self.has_lora):
                if warp_idx == 1:
                    self.lora_row_warp(tiles, lora_atoms[0], lora_tensors[0], buffers)
            if warp_idx == 2:
                self.act_warp(tiles, (atoms[2], lora_atoms[1]), (tensors[2], lora_tensors[1]), buffers)
        else:
            cute.arch.setmaxregister_increase(consumer_registers)
            self.consumer_warps(tiles, (y, m, n), (wcscale, bias, workspace), n, buffers)
        if cutlass.const_expr(self.config.cluster_size > 1):
            # The other CTA may still multicast to this one's shared memory and arrive at its barriers.
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()

    @cute.jit
    def weight_warp(self, tiles: Any, atoms: Any, tensors: Any, buffers: Any):
        """Fill the ab ring with packed weights and their scale factors for every tile of this CTA."""
        lay = self._layouts()
        tma_a, tma_sfa, _ = atoms
        mA, mSFA, _ = tensors
        tAsA, tAgA = self._partition(tma_a, buffers["rows"], mA, (lay.rows, lay.k // 2))
        tAsSFA, tAgSFA = self._partition_scales(lay, tma_sfa, buffers["row scales"], mSFA, lay.sfa_row_blocks)
        full, empty = buffers["ab_full"].iterator, buffers["ab_empty"].iterator
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, self.config.num_ab_stage)
        work, stop, stride, share = self.work_range(tiles)
        while work < stop:
            tile_m, _, _, k_begin, k_count = self.segment(work, tiles, share)
            sf_m = tile_m * lay.rows // 128
            for kt in cutlass.range(k_begin, k_begin + k_count, unroll=1):
                slot = state.index
                barrier = full + slot
                cute.arch.mbarrier_wait(empty + slot, state.phase)
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive_and_expect_tx(barrier, lay.ab_bytes)
                cute.copy(tma_a, tAgA[(None, tile_m, kt)], tAsA[(None, slot)], tma_bar_ptr=barrier)
                cute.copy(tma_sfa, tAgSFA[(None, sf_m, kt)], tAsSFA[(None, slot)], tma_bar_ptr=barrier)
                state.advance()
            work += stride

    @cute.jit
    def lora_row_warp(self, tiles: Any, atom: cute.CopyAtom, tensor: cute.Tensor, buffers: Any):
        """Fill the LoRA ring with slices of lora_up, as early as the ring allows."""
        lay = self._layouts()
        tAsLA, tAgLA = self._partition(atom, buffers["LoRA rows"], tensor, (lay.rows, lay.lora_k))
        full, empty = buffers["lora_full"].iterator, buffers["lora_empty"].iterator
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, self.config.num_lora_stage)
        work, stop, stride, share = self.work_range(tiles)
        while work < stop:
            tile_m, _, split, _, _ = self.segment(work, tiles, share)
            for piece in cutlass.range(self.lora_slices(split), unroll=1):
                slot = state.index
                cute.arch.mbarrier_wait(empty + slot, state.phase)
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive_and_expect_tx(full + slot, lay.lora_row_bytes)
                cute.copy(atom, tAgLA[(None, tile_m, piece)], tAsLA[(None, slot)], tma_bar_ptr=full + slot)
                state.advance()
            work += stride

    @cute.jit
    def act_warp(self, tiles: Any, atoms: Any, tensors: Any, buffers: Any):
        """Fill the dq ring for every tile of this CTA: slices of lora_act_in, then expanded activations."""
        lay = self._layouts()
        tXsX, tXgX = self._partition(atoms[0], buffers["dequantized"], tensors[0], (lay.columns, DQ_K))
        if cutlass.const_expr(self.has_lora):
            tBsLB, tBgLB = self._partition(
                atoms[1], buffers["LoRA columns"], tensors[1], (lay.columns, lay.lora_k)
            )
        full, empty = buffers["dq_full"].iterator, buffers["dq_empty"].iterator
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, self.config.num_dq_stage)
        work, stop, stride, share = self.work_range(tiles)
        if cutlass.const_expr(self.config.use_pdl):
            if cutlass.const_expr(self.has_lora):
                if work < stop:
                    # Into the L2, where what the kernel before still writes replaces it.
                    _, first_n, first_split, _, _ = self.segment(work, tiles, share)
                    for piece in cutlass.range(self.lora_slices(first_split), unroll=1):
                        cute.prefetch(atoms[1], tBgLB[(None, first_n, piece)])
            # lora_act_in may come from the kernel before the expansion, which has waited for its end. Only then may the
            # next launch begin, which reads its weights early: they may come from any kernel but the one before it.
            cute.arch.griddepcontrol_wait()
            cute.arch.griddepcontrol_launch_dependents()
        while work < stop:
            _, tile_n, split, k_begin, k_count = self.segment(work, tiles, share)
            if cutlass.const_expr(self.has_lora):
                for piece in cutlass.range(self.lora_slices(split), unroll=1):
                    slot = state.index
                    cute.arch.mbarrier_wait(empty + slot, state.phase)
                    source, target = tBgLB[(None, tile_n, piece)], tBsLB[(None, slot)]
                    self._load_shared_slot(
                        atoms[1], source, target, full + slot, lay.lora_column_bytes, piece
                    )
                    state.advance()
            if cutlass.const_expr(not self.config.use_pdl):
                cute.arch.griddepcontrol_wait()
            first = k_begin * DQ_PER_K_TILE
            for piece in cutlass.range(first, first + k_count * DQ_PER_K_TILE, unroll=1):
                slot = state.index
                cute.arch.mbarrier_wait(empty + slot, state.phase)
                source, target = tXgX[(None, tile_n, piece)], tXsX[(None, slot)]
                self._load_shared_slot(atoms[0], source, target, full + slot, lay.dq_bytes, piece)
                state.advance()
            work += stride

    @cute.jit
    def _load_shared_slot(
        self,
        atom: cute.CopyAtom,
        source: cute.Tensor,
        target: cute.Tensor,
        barrier: cute.Pointer,
        size: cutlass.Constexpr,
        piece: Int32,
    ):
        """Announce ``size`` bytes to this CTA's barrier; in a cluster each CTA loads its share of pieces for both."""
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, size)
        sharers = self.config.cluster_size
        if cutlass.const_expr(sharers == 1):
            cute.copy(atom, source, target, tma_bar_ptr=barrier)
        else:
            rank, _, _ = cute.arch.block_idx()
            if piece % sharers == rank:
                mask = cutlass.Int16((1 << sharers) - 1)
                cute.copy(atom, source, target, tma_bar_ptr=barrier, mcast_mask=mask)

    @cute.jit
    def _release_dq(self, barrier: Any):
        """Tell every CTA that loads for this one; lane r tells CTA r of the cluster."""
        if cutlass.const_expr(self.config.cluster_size == 1):
            self._arrive(barrier)
        else:
            cute.arch.sync_warp()
            lane = cute.arch.lane_idx()
            if lane < self.config.cluster_size:
                cute.arch.mbarrier_arrive(barrier, lane)

    def _arrivals(self, lay: LayoutsSm90a) -> dict[str, int]:
        return {
            "ab_full": 1,
            "ab_empty": lay.num_reading_warps,
            "dq_full": 1,
            "dq_empty": lay.num_reading_warps * self.config.cluster_size,
            "lora_full": 1,
            "lora_empty": lay.num_reading_warps,
        }


def host_function(
    config: ExpandConfig, problem_class: ProblemClass, arch: Arch
) -> tuple[Any, tuple[Any, ...]]:
    """The function to compile and arguments that give it the types of a call, in the order of the signature."""
    return ExpandedGemmSm90a(config, problem_class), typed_arguments(problem_class)

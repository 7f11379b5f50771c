"""SVDQuant W4A4 linear layer for sm_100a and sm_103a.

``y[M,N] = (scaled_mma(act[M,K], wgt[N,K]) + lora_act_in[M,R] @ lora_up[N,R].T) * wcscale[N] + bias[N]``

act, wgt: E2M1, K-major, two elements a byte; ascales, wscales: E4M3, one per 16 K elements, in the 32x4x4 blocked
layout; lora_act_in, lora_up: fp16 or bf16, R-major; wcscale, bias: fp32; y: fp16 or bf16, row-major; accumulation
in fp32, one rounding. Below, A is act and B is wgt; ``swap_ab`` exchanges them and computes y.T into the same memory.

| warp | role |
|---|---|
| 0-3 | epilogue: TMEM -> registers, ``* wcscale + bias``, activation, SMEM, TMA store; warp 0 allocates TMEM |
| 4 | MMA: SFA/SFB SMEM -> TMEM, NVFP4 and LoRA MMAs; in the leader CTA of a pair only |
| 5 | TMA loads |

| pipeline | producer -> consumer | slots | full barrier | empty barrier |
|---|---|---|---|---|
| ab | TMA warp -> MMA warp | num_ab_stage | bytes of A, B, SFA, SFB of the CTA group | a commit of every sharer |
| lora | TMA warp -> MMA warp | num_lora_stage | bytes of one slice of both operands | a commit of every sharer |
| acc | MMA warp -> epilogue | num_acc_stage | tcgen05.commit | 128 threads per CTA of the group |
| c | epilogue -> TMA store | num_c_stage | bulk groups | bulk groups |

With ``lora_buffer=ab_stage`` a LoRA slice takes a slot of the ab ring: 64 fp16 columns are the bytes of 256 E2M1
columns, and the full barrier of that turn expects no scale factors.

The K loop of one tile is cut into segments with one unit of LoRA MMAs after each but the last (``interleave``), or
runs whole with all units after it (``tail``). TMA and MMA warp walk the same sequence, so LoRA loads are in flight as
early as their A/B neighbours.

``split_k`` CTA groups share a tile: each writes its fp32 partial sums to the workspace and counts itself in; the last
to arrive adds all partials in the order of the split index, so the result does not depend on who was last.

Not supported: batches, other scale-factor vector sizes, K-major operands other than packed E2M1.
"""

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.memory as memory
import cutlass.pipeline as pipeline
import cutlass.utils.blackwell_helpers as sm100_utils
import cutlass.utils.blockscaled_layout as blockscaled_utils
from cutlass import Boolean, Float32, Int32, cute
from cutlass.cute.nvgpu import cpasync, tcgen05

from kernel_space.core.arch import Arch
from kernel_space.core.problem import ProblemClass
from kernel_space.operators.svdquant_gemm.parts.allocations import ACC_DTYPE, HALF_DTYPES
from kernel_space.operators.svdquant_gemm.signature import SIGNATURE
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from kernel_space.operators.svdquant_gemm.sm100a.epilogue import (
    EPILOGUE_THREADS,
    EPILOGUE_WARPS,
    WARP_SIZE,
    EpilogueSm100a,
    accumulators,
)
from kernel_space.operators.svdquant_gemm.sm100a.layouts import (
    AB_DTYPE,
    SF_DTYPE,
    SF_VEC_SIZE,
    Layouts,
)

MMA_WARP = 4
TMA_WARP = 5
THREADS_PER_CTA = WARP_SIZE * 6
TMEM_POINTER_BARRIER = 2


class SvdquantGemmSm100a(EpilogueSm100a):
    """Generator of one kernel: a resolved config (no ``auto``) and a problem class."""

    def __init__(self, config: KernelConfigSm100a, problem_class: ProblemClass):
        self.config = config
        self.problem_class = problem_class
        self.cta_group_size = config.cta_group
        self.split_k = config.split_k
        self.has_lora = problem_class.r > 0
        self.interleave = config.lora_schedule == "interleave"
        self.lora_in_ab_stage = self.has_lora and config.lora_buffer == "ab_stage"

    def _layouts(self) -> Layouts:
        return Layouts(self.config, self.problem_class)

    # ---------------------------------------------------------------- host

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
        """Build TMA descriptors for M, N, K and launch. ``max_active_clusters`` bounds the persistent grid."""
        lay = self._layouts()
        if cutlass.const_expr(self.config.swap_ab):
            mC = cute.make_tensor(y, cute.make_layout((n, m, 1), stride=(1, cute.assume(n, 8), 0)))
        else:
            columns_of_y = n
            if cutlass.const_expr(lay.loads_per_subtile == 2):
                columns_of_y = n // 2
            stride = (cute.assume(columns_of_y, 8), 1, 0)
            mC = cute.make_tensor(y, cute.make_layout((m, columns_of_y, 1), stride=stride))
        operands = (act, ascales, wgt, wscales, lora_act_in, lora_up)
        vectors = (wcscale, bias, workspace)
        self._launch(lay, operands, mC, vectors, None, (m, n, k), max_active_clusters, stream)

    def _launch(
        self,
        lay: Layouts,
        operands: Any,
        mC: cute.Tensor,
        vectors: Any,
        beside: Any,
        sizes: Any,
        max_active_clusters: Int32,
        stream: cuda.CUstream,
    ) -> None:
        """Descriptors of ``operands`` and of the output ``mC``. ``beside``: what an epilogue of another operator takes
        besides ``vectors``, or None."""
        act, ascales, wgt, wscales, lora_act_in, lora_up = operands
        wcscale, bias, workspace = vectors
        m, n, k = sizes
        if cutlass.const_expr(self.config.swap_ab):
            a_ptr, sfa_ptr, la_ptr, rows_a = wgt, wscales, lora_up, n
            b_ptr, sfb_ptr, lb_ptr, rows_b = act, ascales, lora_act_in, m
        else:
            a_ptr, sfa_ptr, la_ptr, rows_a = act, ascales, lora_act_in, m
            b_ptr, sfb_ptr, lb_ptr, rows_b = wgt, wscales, lora_up, n
        tma_a, mA = self._tma_a(lay, lay.tiled_mma, lay.mma_tiler, lay.a, self._k_major(a_ptr, rows_a, k))
        tma_b, mB = self._tma_b(lay, lay.tiled_mma, lay.mma_tiler, lay.b, self._k_major(b_ptr, rows_b, k))
        tma_sfa, mSFA = self._tma_sfa(lay, sfa_ptr, rows_a, k)
        tma_sfb, mSFB = self._tma_sfb(lay, sfb_ptr, rows_b, k)
        tma_la, mLA, tma_lb, mLB = None, None, None, None
        if cutlass.const_expr(self.has_lora):
            r = self.problem_class.r
            gLA = cute.make_tensor(la_ptr, cute.make_layout((rows_a, r, 1), stride=(r, 1, 0)))
            gLB = cute.make_tensor(lb_ptr, cute.make_layout((rows_b, r, 1), stride=(r, 1, 0)))
            tma_la, mLA = self._tma_a(lay, lay.lora_mma, lay.lora_tiler, lay.lora_a, gLA)
            tma_lb, mLB = self._tma_b(lay, lay.lora_mma, lay.lora_tiler, lay.lora_b, gLB)
        tma_c, mC_tma = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileS2GOp(), mC, cute.slice_(lay.c, (None, None, 0)), lay.store_tile
        )

        cluster_m, cluster_n = self.config.cluster_shape_mn
        tiles_per_cluster_m = cluster_m // self.cta_group_size
        clusters_m = cute.ceil_div(rows_a, lay.mma_tiler[0] * tiles_per_cluster_m)
        clusters_n = cute.ceil_div(rows_b, lay.mma_tiler[1] * cluster_n)
        num_work = clusters_m * clusters_n * self.split_k
        self.kernel(
            tma_a,
            mA,
            tma_b,
            mB,
            tma_sfa,
            mSFA,
            tma_sfb,
            mSFB,
            tma_la,
            mLA,
            tma_lb,
            mLB,
            tma_c,
            mC_tma,
            wcscale,
            bias,
            workspace,
            clusters_m,
            clusters_n,
            cute.ceil_div(k, lay.mma_tiler[2]),
            n,
            beside,
        ).launch(
            grid=(cluster_m, cluster_n, cutlass.min(num_work, max_active_clusters)),
            block=[THREADS_PER_CTA, 1, 1],
            cluster=(cluster_m, cluster_n, 1),
            stream=stream,
            min_blocks_per_mp=1,
            use_pdl=self.config.use_pdl,
        )

    @staticmethod
    def _k_major(ptr: cute.Pointer, rows: Int32, k: Int32) -> cute.Tensor:
        k = cute.assume(k, 32)
        return cute.make_tensor(ptr, cute.make_layout((rows, k, 1), stride=(k, 1, 0)))

    def _tma_a(self, lay: Layouts, mma: Any, tiler: Any, smem: Any, gmem: cute.Tensor) -> Any:
        op = sm100_utils.cluster_shape_to_tma_atom_A(self.config.cluster_shape_mn, mma.thr_id)
        layout = cute.slice_(smem, (None, None, None, 0))
        return cute.nvgpu.make_tiled_tma_atom_A(op, gmem, layout, tiler, mma, lay.cluster_vmnk.shape)

    def _tma_b(self, lay: Layouts, mma: Any, tiler: Any, smem: Any, gmem: cute.Tensor) -> Any:
        op = sm100_utils.cluster_shape_to_tma_atom_B(self.config.cluster_shape_mn, mma.thr_id)
        layout = cute.slice_(smem, (None, None, None, 0))
        return cute.nvgpu.make_tiled_tma_atom_B(op, gmem, layout, tiler, mma, lay.cluster_vmnk.shape)

    def _tma_sfa(self, lay: Layouts, ptr: cute.Pointer, rows: Int32, k: Int32) -> Any:
        gmem = cute.make_tensor(ptr, blockscaled_utils.tile_atom_to_shape_SF((rows, k, 1), SF_VEC_SIZE))
        return cute.nvgpu.make_tiled_tma_atom_A(
            sm100_utils.cluster_shape_to_tma_atom_A(self.config.cluster_shape_mn, lay.tiled_mma.thr_id),
            gmem,
            cute.slice_(lay.sfa, (None, None, None, 0)),
            lay.mma_tiler,
            lay.tiled_mma,
            lay.cluster_vmnk.shape,
            internal_type=cutlass.Int16,
        )

    def _tma_sfb(self, lay: Layouts, ptr: cute.Pointer, rows: Int32, k: Int32) -> Any:
        gmem = cute.make_tensor(ptr, blockscaled_utils.tile_atom_to_shape_SF((rows, k, 1), SF_VEC_SIZE))
        atom, coords = cute.nvgpu.make_tiled_tma_atom_B(
            sm100_utils.cluster_shape_to_tma_atom_SFB(self.config.cluster_shape_mn, lay.tiled_mma.thr_id),
            gmem,
            cute.slice_(lay.sfb, (None, None, None, 0)),
            lay.mma_tiler_sfb,
            lay.tiled_mma_sfb,
            lay.cluster_sfb_vmnk.shape,
            internal_type=cutlass.Int16,
        )
        if cutlass.const_expr(self.config.mma_tiler_mn[1] == 192):
            coords = self._sfb_tiles_of_192(coords)
        return atom, coords

    @staticmethod
    def _sfb_tiles_of_192(coords: cute.Tensor) -> cute.Tensor:
        """Tiles of 192 rows start at atom 0, 1 (second half), 3, 4, ...: every pair of tiles spans three atoms.

        A tile loads two atoms; rows are renumbered so that 256-row tile i covers atoms 3*(i//2) + i%2 and the next.
        """
        (shape_mn, shape_k, shape_l) = coords.shape
        (stride_mn, stride_k, stride_l) = coords.stride
        atom = stride_mn[1]
        pairs = cute.ceil_div(shape_mn[1], 4)
        shape = ((shape_mn[0], ((2, 2), pairs)), shape_k, shape_l)
        stride = ((stride_mn[0], ((atom, atom), 3 * atom)), stride_k, stride_l)
        return cute.make_tensor(coords.iterator, cute.make_layout(shape, stride=stride))

    # -------------------------------------------------------------- kernel

    @cute.kernel
    def kernel(
        self,
        tma_a: cute.CopyAtom,
        mA: cute.Tensor,
        tma_b: cute.CopyAtom,
        mB: cute.Tensor,
        tma_sfa: cute.CopyAtom,
        mSFA: cute.Tensor,
        tma_sfb: cute.CopyAtom,
        mSFB: cute.Tensor,
        tma_la: Any,
        mLA: Any,
        tma_lb: Any,
        mLB: Any,
        tma_c: cute.CopyAtom,
        mC: cute.Tensor,
        wcscale: cute.Pointer,
        bias: cute.Pointer,
        workspace: cute.Pointer,
        clusters_m: Int32,
        clusters_n: Int32,
        k_tiles: Int32,
        n: Int32,
        beside: Any,
    ):
        lay = self._layouts()
        warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        tidx, _, _ = cute.arch.thread_idx()
        if warp_idx == TMA_WARP:
            for atom in (tma_a, tma_b, tma_sfa, tma_sfb, tma_la, tma_lb, tma_c):
                if cutlass.const_expr(atom is not None):
                    cpasync.prefetch_descriptor(atom)

        smem = memory.SmemAllocator()
        buffers = {}
        for region in lay.allocations():
            layout, swizzle = region.layout, None
            if cutlass.const_expr(isinstance(layout, cute.ComposedLayout)):
                layout, swizzle = layout.outer, layout.inner
            buffers[region.name] = smem.allocate_tensor(region.dtype, layout, region.align, swizzle)

        ab_pipeline = self._load_pipeline(
            lay, buffers["ab_full"], self.config.num_ab_stage, self._ab_stage_bytes(lay)
        )
        lora_pipeline = None
        if cutlass.const_expr(self.has_lora and not self.lora_in_ab_stage):
            lora_pipeline = self._load_pipeline(
                lay, buffers["lora_full"], self.config.num_lora_stage, self._lora_slice_bytes(lay)
            )
        acc_pipeline = pipeline.PipelineUmmaAsync.create(
            barrier_storage=buffers["acc_full"].iterator,
            num_stages=lay.num_acc_barriers,
            producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
            consumer_group=pipeline.CooperativeGroup(
                pipeline.Agent.Thread, EPILOGUE_THREADS * self.cta_group_size
            ),
            cta_layout_vmnk=lay.cluster_vmnk,
            defer_sync=True,
        )
        tmem = memory.TmemAllocator(
            buffers["TMEM pointer"].iterator,
            barrier_for_retrieve=pipeline.NamedBarrier(
                barrier_id=TMEM_POINTER_BARRIER, num_threads=EPILOGUE_THREADS + WARP_SIZE
            ),
            allocator_warp_id=EPILOGUE_WARPS[0],
            is_two_cta=self.cta_group_size == 2,
            two_cta_tmem_dealloc_mbar_ptr=(
                buffers["tmem_dealloc"].iterator if self.cta_group_size == 2 else None
            ),
        )
        pipeline.pipeline_init_arrive(cluster_shape_mn=self.config.cluster_shape_mn, is_relaxed=True)
        pipeline.pipeline_init_wait(cluster_shape_mn=self.config.cluster_shape_mn)
        if cutlass.const_expr(self.config.use_pdl):
            # Everything above overlaps the previous kernel; from here on its writes are visible.
            cute.arch.griddepcontrol_wait()

        tiles = (clusters_m, clusters_n, k_tiles)
        if warp_idx == TMA_WARP:
            self.tma_warp(
                tiles,
                ab_pipeline,
                lora_pipeline,
                (tma_a, tma_b, tma_sfa, tma_sfb),
                (mA, mB, mSFA, mSFB),
                (tma_la, tma_lb),
                (mLA, mLB),
                buffers,
            )
        if warp_idx == MMA_WARP:
            self.mma_warp(tiles, ab_pipeline, lora_pipeline, acc_pipeline, tmem, buffers)
        if warp_idx < MMA_WARP:
            pointers = (wcscale, bias, workspace, beside)
            self.epilogue_warps(tiles, acc_pipeline, tmem, tma_c, mC, pointers, n, buffers, tidx, warp_idx)

    def _load_pipeline(self, lay: Layouts, full: cute.Tensor, stages: int, tx_bytes: int) -> Any:
        """TMA warp -> MMA warp ring; its empty barriers follow the full ones."""
        return pipeline.PipelineTmaUmma.create(
            barrier_storage=full.iterator,
            num_stages=stages,
            producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
            consumer_group=self._mma_sharers(lay),
            tx_count=tx_bytes,
            cta_layout_vmnk=lay.cluster_vmnk,
            defer_sync=True,
        )

    @staticmethod
    def _mma_sharers(lay: Layouts) -> pipeline.CooperativeGroup:
        """Commits that free a slot: one per MMA (CTA group) that reads what this CTA loaded or multicast."""
        return pipeline.CooperativeGroup(pipeline.Agent.Thread, lay.num_mcast_a + lay.num_mcast_b - 1)

    def _ab_stage_bytes(self, lay: Layouts) -> int:
        """Bytes that arrive on one ab_full barrier: those of the whole CTA group, on the leader's barrier."""
        return self.cta_group_size * (
            self._stage_bytes(AB_DTYPE, lay.a)
            + self._stage_bytes(AB_DTYPE, lay.b)
            + self._stage_bytes(SF_DTYPE, lay.sfa)
            + self._stage_bytes(SF_DTYPE, lay.sfb)
        )

    def _lora_slice_bytes(self, lay: Layouts) -> int:
        return self.cta_group_size * (
            self._stage_bytes(lay.lora_dtype, lay.lora_a) + self._stage_bytes(lay.lora_dtype, lay.lora_b)
        )

    @staticmethod
    def _stage_bytes(dtype: Any, layout: Any) -> int:
        return cute.size_in_bytes(dtype, cute.slice_(layout, (None, None, None, 0)))

    # ------------------------------------------------------------ TMA warp

    @cute.jit
    def tma_warp(
        self,
        tiles: Any,
        ab_pipeline: pipeline.PipelineTmaUmma,
        lora_pipeline: Any,
        atoms: Any,
        tensors: Any,
        lora_atoms: Any,
        lora_tensors: Any,
        buffers: Any,
    ):
        """Fill the ab ring (and the LoRA ring) for every tile of this CTA, in the order in which the MMA warp reads."""
        lay = self._layouts()
        config = self.config
        bidx, _, bidz = cute.arch.block_idx()
        _, _, num_clusters = cute.arch.grid_dim()
        rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
        coord = lay.cluster_vmnk.get_flat_coord(rank)
        coord_sfb = lay.cluster_sfb_vmnk.get_flat_coord(rank)
        thr_mma = lay.tiled_mma.get_slice(bidx % self.cta_group_size)
        thr_mma_sfb = lay.tiled_mma_sfb.get_slice(bidx % self.cta_group_size)
        tma_a, tma_b, tma_sfa, tma_sfb = atoms
        mA, mB, mSFA, mSFB = tensors
        tAsA, tAgA = self._partition_a(lay, tma_a, mA, lay.mma_tiler, thr_mma, coord, buffers["A"])
        tBsB, tBgB = self._partition_b(
            tma_b, mB, lay.mma_tiler, thr_mma, lay.cluster_vmnk, coord, buffers["B"]
        )
        tAsSFA, tAgSFA = self._partition_a(lay, tma_sfa, mSFA, lay.mma_tiler, thr_mma, coord, buffers["SFA"])
        tBsSFB, tBgSFB = self._partition_b(
            tma_sfb, mSFB, lay.mma_tiler_sfb, thr_mma_sfb, lay.cluster_sfb_vmnk, coord_sfb, buffers["SFB"]
        )
        tAsSFA, tAgSFA = cute.filter_zeros(tAsSFA), cute.filter_zeros(tAgSFA)
        tBsSFB, tBgSFB = cute.filter_zeros(tBsSFB), cute.filter_zeros(tBgSFB)
        mask_a, mask_b, mask_sfb = None, None, None
        if cutlass.const_expr(config.cluster_size > 1):
            mask_a = cpasync.create_tma_multicast_mask(lay.cluster_vmnk, coord, mcast_mode=2)
            mask_b = cpasync.create_tma_multicast_mask(lay.cluster_vmnk, coord, mcast_mode=1)
            mask_sfb = cpasync.create_tma_multicast_mask(lay.cluster_sfb_vmnk, coord_sfb, mcast_mode=1)
        if cutlass.const_expr(self.has_lora):
            tma_la, tma_lb = lora_atoms
            sLA, sLB = self._lora_smem(lay, buffers)
            thr_lora = lay.lora_mma.get_slice(bidx % self.cta_group_size)
            tAsLA, tAgLA = self._partition_a(
                lay, tma_la, lora_tensors[0], lay.lora_tiler, thr_lora, coord, sLA
            )
            tBsLB, tBgLB = self._partition_b(
                tma_lb, lora_tensors[1], lay.lora_tiler, thr_lora, lay.cluster_vmnk, coord, sLB
            )

        ab_state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.num_ab_stage)
        lora_state = pipeline.make_pipeline_state(
            pipeline.PipelineUserType.Producer, max(1, config.num_lora_stage)
        )
        work = bidz
        num_work = tiles[0] * tiles[1] * self.split_k
        while work < num_work:
            tile_m, tile_n, split = self.tile_coord(work, tiles)
            k_begin, k_count = self.k_range(split, tiles[2])
            units = self.lora_units(split)
            sfb_tile = tile_n
            if cutlass.const_expr(config.mma_tiler_mn[1] == 64):
                sfb_tile = tile_n // 2
            gA, gB = tAgA[(None, tile_m, None, 0)], tBgB[(None, tile_n, None, 0)]
            gSFA, gSFB = tAgSFA[(None, tile_m, None, 0)], tBgSFB[(None, sfb_tile, None, 0)]
            if cutlass.const_expr(config.prefetch_dist > 0):
                for ahead in cutlass.range(
                    k_begin, k_begin + cutlass.min(Int32(config.prefetch_dist), k_count), unroll=1
                ):
                    self._prefetch(atoms, (gA, gB, gSFA, gSFB), ahead)
                if cutlass.const_expr(self.has_lora):
                    # All of the tile's LoRA: its loads stand too late in the sequence to hide a miss of L2.
                    for ahead in cutlass.range(0, units // lay.lora_units_per_slice, unroll=1):
                        self._prefetch(
                            (tma_la, tma_lb),
                            (tAgLA[(None, tile_m, None, 0)], tBgLB[(None, tile_n, None, 0)]),
                            ahead,
                        )
            k_tile = k_begin
            for segment in cutlass.range(0, units + 1, unroll=1):
                end = self.segment_end(segment, k_begin, k_count, units)
                for kt in cutlass.range(k_tile, end, unroll=1):
                    ab_pipeline.producer_acquire(ab_state)
                    barrier = ab_pipeline.producer_get_barrier(ab_state)
                    slot = ab_state.index
                    cute.copy(
                        tma_a, gA[(None, kt)], tAsA[(None, slot)], tma_bar_ptr=barrier, mcast_mask=mask_a
                    )
                    cute.copy(
                        tma_b, gB[(None, kt)], tBsB[(None, slot)], tma_bar_ptr=barrier, mcast_mask=mask_b
                    )
                    cute.copy(
                        tma_sfa,
                        gSFA[(None, kt)],
                        tAsSFA[(None, slot)],
                        tma_bar_ptr=barrier,
                        mcast_mask=mask_a,
                    )
                    cute.copy(
                        tma_sfb,
                        gSFB[(None, kt)],
                        tBsSFB[(None, slot)],
                        tma_bar_ptr=barrier,
                        mcast_mask=mask_sfb,
                    )
                    ab_state.advance()
                    if cutlass.const_expr(config.prefetch_dist > 0):
                        ahead = kt + config.prefetch_dist
                        if ahead < k_begin + k_count:
                            self._prefetch(atoms, (gA, gB, gSFA, gSFB), ahead)
                k_tile = end
                if cutlass.const_expr(self.has_lora):
                    if segment < units and segment % lay.lora_units_per_slice == 0:
                        lora_slice = segment // lay.lora_units_per_slice
                        gLA = tAgLA[(None, tile_m, lora_slice, 0)]
                        gLB = tBgLB[(None, tile_n, lora_slice, 0)]
                        if cutlass.const_expr(self.lora_in_ab_stage):
                            ab_pipeline.producer_acquire(ab_state, expected_tx=self._lora_slice_bytes(lay))
                            barrier = ab_pipeline.producer_get_barrier(ab_state)
                            slot = ab_state.index
                            ab_state.advance()
                        else:
                            lora_pipeline.producer_acquire(lora_state)
                            barrier = lora_pipeline.producer_get_barrier(lora_state)
                            slot = lora_state.index
                            lora_state.advance()
                        cute.copy(tma_la, gLA, tAsLA[(None, slot)], tma_bar_ptr=barrier, mcast_mask=mask_a)
                        cute.copy(tma_lb, gLB, tBsLB[(None, slot)], tma_bar_ptr=barrier, mcast_mask=mask_b)
            work += num_clusters
        if cutlass.const_expr(config.use_pdl):
            cute.arch.griddepcontrol_launch_dependents()
        # A CTA may not exit while commits of its sharers are still to arrive on its barriers.
        ab_pipeline.producer_tail(ab_state)
        if cutlass.const_expr(self.has_lora and not self.lora_in_ab_stage):
            lora_pipeline.producer_tail(lora_state)

    @staticmethod
    def _prefetch(atoms: Any, slices: Any, index: Int32) -> None:
        """L2 prefetch of k-tile ``index`` of A, B, SFA and SFB, or of that slice of both LoRA operands."""
        for atom, gmem in zip(atoms, slices, strict=True):
            cute.prefetch(atom, gmem[(None, index)])

    @staticmethod
    def _partition_a(lay: Layouts, atom: Any, mA: Any, tiler: Any, thr_mma: Any, coord: Any, sA: Any) -> Any:
        """TMA partitions: SMEM ((atom_v, rest_v), slot), global ((atom_v, rest_v), tile m, tile k, 1)."""
        gA = cute.local_tile(mA, cute.slice_(tiler, (None, 0, None)), (None, None, None))
        tCgA = thr_mma.partition_A(gA)
        return cpasync.tma_partition(
            atom,
            coord[2],
            cute.make_layout(cute.slice_(lay.cluster_vmnk, (0, 0, None, 0)).shape),
            cute.group_modes(sA, 0, 3),
            cute.group_modes(tCgA, 0, 3),
        )

    @staticmethod
    def _partition_b(atom: Any, mB: Any, tiler: Any, thr_mma: Any, cluster: Any, coord: Any, sB: Any) -> Any:
        gB = cute.local_tile(mB, cute.slice_(tiler, (0, None, None)), (None, None, None))
        tCgB = thr_mma.partition_B(gB)
        return cpasync.tma_partition(
            atom,
            coord[1],
            cute.make_layout(cute.slice_(cluster, (0, None, 0, 0)).shape),
            cute.group_modes(sB, 0, 3),
            cute.group_modes(tCgB, 0, 3),
        )

    def _lora_smem(self, lay: Layouts, buffers: Any) -> Any:
        """LoRA operands in SMEM: rings of their own, or the A/B ring seen as half-precision slices."""
        if cutlass.const_expr(not self.lora_in_ab_stage):
            return buffers["LoRA act"], buffers["LoRA up"]
        views = []
        for name, layout in (("A", lay.lora_a), ("B", lay.lora_b)):
            ptr = cute.recast_ptr(buffers[name].iterator, layout.inner, dtype=lay.lora_dtype)
            views.append(cute.make_tensor(ptr, layout.outer))
        return views[0], views[1]

    # ------------------------------------------------------------ MMA warp

    @cute.jit
    def mma_warp(
        self,
        tiles: Any,
        ab_pipeline: pipeline.PipelineTmaUmma,
        lora_pipeline: Any,
        acc_pipeline: pipeline.PipelineUmmaAsync,
        tmem: memory.TmemAllocator,
        buffers: Any,
    ):
        """Issue the NVFP4 and LoRA MMAs of every tile into the accumulator ring."""
        lay = self._layouts()
        config = self.config
        tmem.wait_for_alloc()
        tmem_ptr = tmem.retrieve_ptr(ACC_DTYPE)
        bidx, _, bidz = cute.arch.block_idx()
        _, _, num_clusters = cute.arch.grid_dim()
        is_leader = bidx % self.cta_group_size == 0
        if is_leader:
            tiled_mma = lay.tiled_mma
            tCrA = tiled_mma.make_fragment_A(buffers["A"])
            tCrB = tiled_mma.make_fragment_B(buffers["B"])
            tCtAcc_stages = accumulators(lay, tmem_ptr)
            sfa_ptr = cute.recast_ptr(tmem_ptr + lay.acc_cols, dtype=SF_DTYPE)
            sfb_col = lay.acc_cols + lay.sfa_cols
            tCtSFA = cute.make_tensor(sfa_ptr, lay.tmem_sfa)
            tCtSFB = cute.make_tensor(cute.recast_ptr(tmem_ptr + sfb_col, dtype=SF_DTYPE), lay.tmem_sfb)
            copy_sfa, tCsSFA, tCtSFA_dst = self._s2t_partition(lay, buffers["SFA"], tCtSFA)
            copy_sfb, tCsSFB, tCtSFB_dst = self._s2t_partition(lay, buffers["SFB"], tCtSFB)
            if cutlass.const_expr(self.has_lora):
                lora_mma = lay.lora_mma
                sLA, sLB = self._lora_smem(lay, buffers)
                tCrLA = lora_mma.make_fragment_A(sLA)
                tCrLB = lora_mma.make_fragment_B(sLB)
                lora_mma.set(tcgen05.Field.ACCUMULATE, True)

            ab_state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.num_ab_stage)
            lora_state = pipeline.make_pipeline_state(
                pipeline.PipelineUserType.Consumer, max(1, config.num_lora_stage)
            )
            acc_state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, lay.num_acc_barriers)
            work = bidz
            num_work = tiles[0] * tiles[1] * self.split_k
            while work < num_work:
                _, tile_n, split = self.tile_coord(work, tiles)
                k_begin, k_count = self.k_range(split, tiles[2])
                units = self.lora_units(split)
                acc_index = acc_state.index
                if cutlass.const_expr(lay.overlapping_acc):
                    acc_index = acc_state.phase ^ 1
                tCtAcc = tCtAcc_stages[(None, None, None, acc_index)]
                tCtSFB_mma = tCtSFB
                if cutlass.const_expr(config.mma_tiler_mn[1] in (64, 192)):
                    # Odd tiles begin in the middle of a 128-row scale-factor atom: two 32-row columns further.
                    shift = (tile_n % 2) * 2
                    tCtSFB_mma = cute.make_tensor(
                        cute.recast_ptr(tmem_ptr + sfb_col + shift, dtype=SF_DTYPE), lay.tmem_sfb
                    )
                acc_pipeline.producer_acquire(acc_state)
                accumulate = Boolean(False)
                k_tile = k_begin
                for segment in cutlass.range(0, units + 1, unroll=1):
                    end = self.segment_end(segment, k_begin, k_count, units)
                    for _ in cutlass.range(k_tile, end, unroll=1):
                        ab_pipeline.consumer_wait(ab_state)
                        slot = (None, None, None, None, ab_state.index)
                        cute.copy(copy_sfa, tCsSFA[slot], tCtSFA_dst)
                        cute.copy(copy_sfb, tCsSFB[slot], tCtSFB_dst)
                        for k_block in cutlass.range_constexpr(lay.num_k_blocks):
                            sf_block = (None, None, k_block)
                            ab_block = (None, None, k_block, ab_state.index)
                            tiled_mma.set(tcgen05.Field.ACCUMULATE, accumulate)
                            tiled_mma.set(tcgen05.Field.SFA, tCtSFA[sf_block].iterator)
                            tiled_mma.set(tcgen05.Field.SFB, tCtSFB_mma[sf_block].iterator)
                            cute.gemm(tiled_mma, tCtAcc, tCrA[ab_block], tCrB[ab_block], tCtAcc)
                            accumulate = Boolean(True)
                        ab_pipeline.consumer_release(ab_state)
                        ab_state.advance()
                    k_tile = end
                    if cutlass.const_expr(self.has_lora):
                        if segment < units:
                            unit = segment % lay.lora_units_per_slice
                            if cutlass.const_expr(self.lora_in_ab_stage):
                                slot_index = ab_state.index
                                ab_pipeline.consumer_wait(ab_state)
                            else:
                                slot_index = lora_state.index
                                if unit == 0:
                                    lora_pipeline.consumer_wait(lora_state)
                            for block in cutlass.range_constexpr(lay.lora_blocks_per_unit):
                                lora_block = (None, None, unit * lay.lora_blocks_per_unit + block, slot_index)
                                cute.gemm(lora_mma, tCtAcc, tCrLA[lora_block], tCrLB[lora_block], tCtAcc)
                            if cutlass.const_expr(self.lora_in_ab_stage):
                                ab_pipeline.consumer_release(ab_state)
                                ab_state.advance()
                            else:
                                if unit == lay.lora_units_per_slice - 1:
                                    lora_pipeline.consumer_release(lora_state)
                                    lora_state.advance()
                acc_pipeline.producer_commit(acc_state)
                acc_state.advance()
                work += num_clusters
            acc_pipeline.producer_tail(acc_state)

    @staticmethod
    def _s2t_partition(lay: Layouts, sSF: cute.Tensor, tSF: cute.Tensor) -> Any:
        """tcgen05.cp of one slot of scale factors: (tiled copy, SMEM descriptors per slot, TMEM destination)."""
        source, destination = cute.filter_zeros(sSF), cute.filter_zeros(tSF)
        atom = cute.make_copy_atom(tcgen05.Cp4x32x128bOp(lay.cta_group), SF_DTYPE)
        tiled_copy = tcgen05.make_s2t_copy(atom, destination)
        thr_copy = tiled_copy.get_slice(0)
        descriptors = tcgen05.get_s2t_smem_desc_tensor(tiled_copy, thr_copy.partition_S(source))
        return tiled_copy, descriptors, thr_copy.partition_D(destination)


ARGUMENTS = SIGNATURE.abi


def host_function(
    config: KernelConfigSm100a, problem_class: ProblemClass, arch: Arch
) -> tuple[Any, tuple[Any, ...]]:
    """The function to compile and arguments that give it the types of a call, in the order of ``ARGUMENTS``.

    ``config`` must be resolved and legal (``rules.legalize``). Addresses and sizes are run-time values: those given
    here only carry types.
    """
    return SvdquantGemmSm100a(config, problem_class), _typed_arguments(problem_class)


def _typed_arguments(problem_class: ProblemClass) -> tuple[Any, ...]:
    lora_dtype, out_dtype = HALF_DTYPES[problem_class.lora_dtype], HALF_DTYPES[problem_class.out_dtype]
    dtypes = {
        "act": AB_DTYPE,
        "ascales": SF_DTYPE,
        "wgt": AB_DTYPE,
        "wscales": SF_DTYPE,
        "lora_act_in": lora_dtype,
        "lora_up": lora_dtype,
        "wcscale": Float32,
        "bias": Float32,
        "y": out_dtype,
        "workspace": cutlass.Uint8,
    }
    pointers = [
        cute.runtime.make_ptr(dtypes[name], 256, cute.AddressSpace.gmem, assumed_align=16)
        for name in SIGNATURE.pointers
    ]
    return (*pointers, *(Int32(256) for _ in SIGNATURE.integers), cuda.CUstream(0))

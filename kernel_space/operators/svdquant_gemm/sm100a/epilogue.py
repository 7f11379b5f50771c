"""Epilogue warps of ``svdquant_gemm_sm100a``: TMEM -> ``* wcscale + bias`` -> activation -> one rounding -> TMA store;
split-K.
"""

from typing import Any

import cutlass
import cutlass.memory as memory
import cutlass.pipeline as pipeline
import cutlass.utils.blackwell_helpers as sm100_utils
from cutlass import Boolean, Float32, Int32, cute
from cutlass.cute.nvgpu import cpasync, tcgen05

from kernel_space.operators.svdquant_gemm.partials import COUNTER_BYTES, PARTIALS_ALIGN
from kernel_space.operators.svdquant_gemm.parts.activation import GATE_COLUMNS, activate_pair
from kernel_space.operators.svdquant_gemm.parts.allocations import ACC_DTYPE
from kernel_space.operators.svdquant_gemm.parts.tile_walk import TileWalk
from kernel_space.operators.svdquant_gemm.sm100a.layouts import Layouts

WARP_SIZE = 32
EPILOGUE_WARPS = (0, 1, 2, 3)
EPILOGUE_THREADS = WARP_SIZE * len(EPILOGUE_WARPS)
EPILOGUE_BARRIER = 1


def accumulators(lay: Layouts, tmem_ptr: cute.Pointer) -> cute.Tensor:
    """(MMA, MMA_M, MMA_N, num_acc_stage) at the base of TMEM; overlapped ones share some columns."""
    layout = lay.tiled_mma.make_fragment_C(cute.append(lay.acc_shape, lay.config.num_acc_stage)).layout
    if lay.overlapping_acc:
        column = layout.stride[0][1]
        stage = (lay.acc_cols_each - lay.overlap_cols) * column
        layout = cute.make_layout(layout.shape, stride=(*layout.stride[:3], stage))
    return cute.make_tensor(tmem_ptr, layout)


class EpilogueSm100a(TileWalk):
    """Mixin with the epilogue role."""

    @cute.jit
    def epilogue_warps(
        self,
        tiles: Any,
        acc_pipeline: pipeline.PipelineUmmaAsync,
        tmem: memory.TmemAllocator,
        tma_c: cute.CopyAtom,
        mC: cute.Tensor,
        pointers: Any,
        n: Int32,
        buffers: Any,
        tidx: Int32,
        warp_idx: Int32,
    ):
        """Drain the accumulator ring: scale, add bias, round once, store."""
        lay = self._layouts()
        config = self.config
        wcscale, bias, workspace, beside = pointers
        tmem.allocate(self._tmem_columns(lay))
        tmem.wait_for_alloc()
        tmem_ptr = tmem.retrieve_ptr(ACC_DTYPE)
        bidx, _, bidz = cute.arch.block_idx()
        _, _, num_clusters = cute.arch.grid_dim()
        sync = pipeline.NamedBarrier(barrier_id=EPILOGUE_BARRIER, num_threads=EPILOGUE_THREADS)

        gC_epi = self._tiles_of_y(lay, mC, bidx)
        tAcc_epi = cute.flat_divide(accumulators(lay, tmem_ptr)[((None, None), 0, 0, None)], lay.epi_tile)
        load_op = sm100_utils.get_tmem_load_op(
            lay.cta_tile_mnk, lay.c_layout, lay.c_dtype, ACC_DTYPE, lay.epi_tile, self.cta_group_size == 2
        )
        copy_t2r = tcgen05.make_tmem_copy(load_op, tAcc_epi[(None, None, 0, 0, 0)])
        thr_t2r = copy_t2r.get_slice(tidx)
        tTR_tAcc = thr_t2r.partition_S(tAcc_epi)
        registers = self._register_shape(lay, thr_t2r, gC_epi)
        tTR_rAccs = [cute.make_rmem_tensor(registers, ACC_DTYPE) for _ in range(lay.loads_per_subtile)]
        tTR_rC, tRS_rC, copy_r2s, tRS_sC = self._store_partition(lay, copy_t2r, registers, buffers["C"], tidx)
        bSG_sC, bSG_gC = cpasync.tma_partition(
            tma_c,
            0,
            cute.make_layout(1),
            cute.group_modes(buffers["C"], 0, 2),
            cute.group_modes(gC_epi, 0, 2),
        )
        tTR_sScale = self._affine_partition(lay, thr_t2r, buffers["wcscale"])
        tTR_sBias = self._affine_partition(lay, thr_t2r, buffers["bias"])
        c_pipeline = pipeline.PipelineTmaStore.create(
            num_stages=config.num_c_stage,
            producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, EPILOGUE_THREADS),
        )

        acc_state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, lay.num_acc_barriers)
        c_slot = Int32(0)
        work = bidz
        num_work = tiles[0] * tiles[1] * self.split_k
        while work < num_work:
            tile_m, tile_n, split = self.tile_coord(work, tiles)
            self._load_affine(lay, wcscale, bias, buffers, tile_m, tile_n, n, tidx, bidx)
            place = self._load_beside(lay, beside, buffers, tile_m, tile_n, n, tidx, bidx)
            sync.arrive_and_wait()
            acc_index = acc_state.index
            reverse = Boolean(False)
            if cutlass.const_expr(lay.overlapping_acc):
                acc_index = acc_state.phase
                # The lower accumulator shares its last columns with the other one: free those first.
                reverse = acc_index == 0
            tAcc = cute.group_modes(tTR_tAcc[(None, None, None, None, None, acc_index)], 3, 5)
            row_of_tiles = tile_m
            if cutlass.const_expr(lay.tiles_of_ctas):
                row_of_tiles = tile_m * self.cta_group_size + bidx % self.cta_group_size
            gC_tile = cute.group_modes(bSG_gC[(None, None, None, row_of_tiles, tile_n, 0)], 1, 3)
            partials = None
            if cutlass.const_expr(self.split_k > 1):
                partials, counter = self._workspace(lay, tTR_rAccs[0], workspace, tiles, tile_m, tile_n, tidx)
            acc_pipeline.consumer_wait(acc_state)
            for step in cutlass.range(lay.num_epi_subtiles, unroll=1):
                subtile = step
                if cutlass.const_expr(lay.overlapping_acc):
                    if reverse:
                        subtile = lay.num_epi_subtiles - 1 - step
                for part in cutlass.range_constexpr(lay.loads_per_subtile):
                    load = subtile * lay.loads_per_subtile + part
                    cute.copy(copy_t2r, tAcc[(None, None, None, load)], tTR_rAccs[part])
                if step == self._release_step(lay):
                    # The MMA warp may overwrite what all subtiles up to here held.
                    cute.arch.fence_view_async_tmem_load()
                    acc_pipeline.consumer_release(acc_state)
                    acc_state.advance()
                if cutlass.const_expr(self.split_k > 1):
                    for part in cutlass.range_constexpr(lay.loads_per_subtile):
                        load = subtile * lay.loads_per_subtile + part
                        cute.autovec_copy(tTR_rAccs[part], partials[(None, None, None, load, split)])
                else:
                    self._store_subtile(
                        lay,
                        (tTR_rAccs, tTR_rC, tRS_rC),
                        (tTR_sScale, tTR_sBias),
                        copy_r2s,
                        tRS_sC,
                        (tma_c, bSG_sC, gC_tile, place),
                        c_pipeline,
                        sync,
                        subtile,
                        c_slot,
                        warp_idx,
                    )
                    c_slot = (c_slot + 1) % config.num_c_stage
            if cutlass.const_expr(self.split_k > 1):
                if self._is_last_split(counter, buffers["split-K flag"], sync, tidx):
                    for subtile in cutlass.range(lay.num_epi_subtiles, unroll=1):
                        for part in cutlass.range_constexpr(lay.loads_per_subtile):
                            self._sum_partials(
                                partials, tTR_rAccs[part], subtile * lay.loads_per_subtile + part
                            )
                        self._store_subtile(
                            lay,
                            (tTR_rAccs, tTR_rC, tRS_rC),
                            (tTR_sScale, tTR_sBias),
                            copy_r2s,
                            tRS_sC,
                            (tma_c, bSG_sC, gC_tile, place),
                            c_pipeline,
                            sync,
                            subtile,
                            c_slot,
                            warp_idx,
                        )
                        c_slot = (c_slot + 1) % config.num_c_stage
                # wcscale, bias and the flag are overwritten by the next tile.
                sync.arrive_and_wait()
            work += num_clusters

        tmem.relinquish_alloc_permit()
        sync.arrive_and_wait()
        tmem.free(tmem_ptr)
        c_pipeline.producer_tail()

    @staticmethod
    def _release_step(lay: Layouts) -> int:
        """Step after whose TMEM load the accumulator is free: the last, or the one that clears the overlap."""
        if lay.overlapping_acc:
            return -(-lay.overlap_cols // (lay.config.epi_tile_n * lay.loads_per_subtile)) - 1
        return lay.num_epi_subtiles - 1

    @staticmethod
    def _tiles_of_y(lay: Layouts, mC: cute.Tensor, bidx: Int32) -> cute.Tensor:
        """(EPI_M, EPI_N, subtiles along M, N, tile m, tile n, 1); ``tiles_of_ctas``: tile m is a CTA's."""
        if cutlass.const_expr(lay.tiles_of_ctas):
            columns = cute.size(lay.store_tile[1]) * lay.num_epi_subtiles
            return cute.flat_divide(
                cute.local_tile(mC, (lay.cta_tile_mnk[0], columns), (None, None, None)), lay.store_tile
            )
        gC = cute.local_tile(mC, cute.slice_(lay.mma_tiler, (None, None, 0)), (None, None, None))
        tCgC = lay.tiled_mma.get_slice(bidx % lay.config.cta_group).partition_C(gC)
        return cute.flat_divide(tCgC[((None, None), 0, 0, None, None, None)], lay.epi_tile)

    @staticmethod
    def _register_shape(lay: Layouts, thr_t2r: Any, gC_epi: cute.Tensor) -> Any:
        """What a thread loads of a subtile at a time."""
        return thr_t2r.partition_D(gC_epi)[(None, None, None, 0, 0, 0, 0, 0)].shape

    @staticmethod
    def _store_partition(lay: Layouts, copy_t2r: Any, registers: Any, sC: cute.Tensor, tidx: Int32) -> Any:
        """(what a thread stores, the same as its copy to SMEM sees it, that copy, where to, of every slot)."""
        tTR_rC = cute.make_rmem_tensor(registers, lay.c_dtype)
        store_op = sm100_utils.get_smem_store_op(lay.c_layout, lay.c_dtype, ACC_DTYPE, copy_t2r)
        copy_r2s = cute.make_tiled_copy_D(store_op, copy_t2r)
        return tTR_rC, copy_r2s.retile(tTR_rC), copy_r2s, copy_r2s.get_slice(tidx).partition_D(sC)

    def _load_beside(self, *_: Any) -> Any:
        """Bring what else this tile's epilogue needs, and say where it is; here nothing."""
        return None

    @staticmethod
    def _tmem_columns(lay: Layouts) -> int:
        """The smallest legal allocation: a power of two of at least 32 columns."""
        columns = 32
        while columns < lay.tmem_cols_used:
            columns *= 2
        return columns

    def _affine_partition(self, lay: Layouts, thr_t2r: Any, vector: cute.Tensor) -> cute.Tensor:
        """A per-column (under swap_ab per-row) vector in SMEM, seen as this thread sees the accumulator subtiles."""
        stride = (1, 0) if self.config.swap_ab else (0, 1)
        tile = cute.make_tensor(vector.iterator, cute.make_layout(lay.cta_tile_mnk[:2], stride=stride))
        return cute.group_modes(thr_t2r.partition_D(cute.flat_divide(tile, lay.epi_tile)), 3, 5)

    @cute.jit
    def _load_affine(
        self,
        lay: Layouts,
        wcscale: cute.Pointer,
        bias: cute.Pointer,
        buffers: Any,
        tile_m: Int32,
        tile_n: Int32,
        n: Int32,
        tidx: Int32,
        bidx: Int32,
    ):
        """Bring this tile's wcscale and bias to SMEM; past the end of N they are never stored, so never read."""
        extent = cute.size(lay.affine)
        first = tile_n * extent
        if cutlass.const_expr(self.config.swap_ab):
            first = tile_m * lay.mma_tiler[0] + (bidx % self.cta_group_size) * extent
        gScale = cute.make_tensor(wcscale, cute.make_layout(n))
        gBias = cute.make_tensor(bias, cute.make_layout(n))
        for chunk in cutlass.range_constexpr((extent + EPILOGUE_THREADS - 1) // EPILOGUE_THREADS):
            index = chunk * EPILOGUE_THREADS + tidx
            scale_value = Float32(0.0)
            bias_value = Float32(0.0)
            if first + index < n:
                scale_value = gScale[first + index]
                bias_value = gBias[first + index]
            if index < extent:
                buffers["wcscale"][index] = scale_value
                buffers["bias"][index] = bias_value

    @cute.jit
    def _store_subtile(
        self,
        lay: Layouts,
        registers: Any,
        affine: Any,
        copy_r2s: Any,
        tRS_sC: cute.Tensor,
        store: Any,
        c_pipeline: pipeline.PipelineTmaStore,
        sync: pipeline.NamedBarrier,
        subtile: Int32,
        c_slot: Int32,
        warp_idx: Int32,
    ):
        """``acc * wcscale + bias`` and its activation in fp32, one rounding, SMEM, TMA store."""
        tTR_rAccs, tTR_rC, tRS_rC = registers
        tTR_sScale, tTR_sBias = affine
        tma_c, bSG_sC, gC_tile, place = store
        for part in cutlass.range_constexpr(lay.loads_per_subtile):
            tTR_rAcc = tTR_rAccs[part]
            load = subtile * lay.loads_per_subtile + part
            rScale = cute.make_rmem_tensor(tTR_rAcc.shape, ACC_DTYPE)
            rBias = cute.make_rmem_tensor(tTR_rAcc.shape, ACC_DTYPE)
            cute.autovec_copy(tTR_sScale[(None, None, None, load)], rScale)
            cute.autovec_copy(tTR_sBias[(None, None, None, load)], rBias)
            for i in cutlass.range_constexpr(0, cute.size(tTR_rAcc), 2):
                tTR_rAcc[i], tTR_rAcc[i + 1] = cute.arch.fma_packed_f32x2(
                    (tTR_rAcc[i], tTR_rAcc[i + 1]), (rScale[i], rScale[i + 1]), (rBias[i], rBias[i + 1])
                )
        if cutlass.const_expr(lay.activation != "none"):
            self._activate(lay, tTR_rAccs)
        self._convert(lay, tTR_rAccs, tTR_rC, subtile, place)
        cute.copy(copy_r2s, tRS_rC, tRS_sC[(None, None, None, c_slot)])
        cute.arch.fence_proxy("async.shared", space="cta")
        sync.arrive_and_wait()
        if warp_idx == EPILOGUE_WARPS[0]:
            cute.copy(tma_c, bSG_sC[(None, c_slot)], gC_tile[(None, subtile)])
            c_pipeline.producer_commit()
            c_pipeline.producer_acquire()
        sync.arrive_and_wait()

    def _convert(self, lay: Layouts, rAccs: list[Any], rC: cute.Tensor, subtile: Any, place: Any) -> None:
        """fp32 columns of y to what is stored."""
        rC.store(rAccs[0].load().to(lay.c_dtype))

    @staticmethod
    def _activate(lay: Layouts, rAccs: list[Any]) -> None:
        """In place; gated, columns of y go to the first of both tensors: a gate is read before its place is written."""
        size = cute.size(rAccs[0])
        for i in range(0, size, 2):
            if lay.loads_per_subtile == 1:
                rAccs[0][i], rAccs[0][i + 1] = activate_pair(rAccs[0][i], rAccs[0][i + 1], lay.activation)
                continue
            gate = i // GATE_COLUMNS * 2 * GATE_COLUMNS + i % GATE_COLUMNS
            gates, ups = (
                [_at(rAccs, size, first + e) for e in range(2)] for first in (gate, gate + GATE_COLUMNS)
            )
            low, high = activate_pair(*gates, lay.activation)
            rAccs[0][i], rAccs[0][i + 1] = low * ups[0], high * ups[1]

    # -------------------------------------------------------------- split-K

    def _workspace(
        self, lay: Layouts, tTR_rAcc: Any, workspace: Any, tiles: Any, tile_m: Any, tile_n: Any, tidx: Any
    ) -> Any:
        """(fp32 partial sums of this thread (value, 1, 1, subtile, split), arrival counter) of one CTA tile.

        The workspace holds one int32 counter per CTA tile, then the partials; a warp's 16-byte accesses are contiguous.
        """
        bidx, _, _ = cute.arch.block_idx()
        shape_m, shape_n = self.config.cluster_shape_mn
        tiles_n = tiles[1] * shape_n
        num_tiles = tiles[0] * shape_m * tiles_n
        cta_m = tile_m * self.cta_group_size + bidx % self.cta_group_size
        index = cta_m * tiles_n + tile_n
        values = cute.size(tTR_rAcc.shape)
        subtile_size = EPILOGUE_THREADS * values
        loads = lay.num_epi_subtiles * lay.loads_per_subtile
        split_size = subtile_size * loads
        counters = cute.recast_ptr(workspace, dtype=Int32)
        first = (num_tiles * COUNTER_BYTES + PARTIALS_ALIGN - 1) // PARTIALS_ALIGN * PARTIALS_ALIGN
        base = cute.recast_ptr(workspace + cute.assume(first, PARTIALS_ALIGN), dtype=Float32)
        offset = cutlass.Int64(index) * (split_size * self.split_k) + tidx * 4
        layout = cute.make_layout(
            (cute.make_layout((4, values // 4)).shape, 1, 1, loads, self.split_k),
            stride=((1, 4 * EPILOGUE_THREADS), 0, 0, subtile_size, split_size),
        )
        partials = cute.make_tensor((base + cute.assume(offset, 4)).align(16), layout)
        return partials, counters + index

    @cute.jit
    def _is_last_split(
        self, counter: cute.Pointer, flag: cute.Tensor, sync: pipeline.NamedBarrier, tidx: Int32
    ):
        """Count this split in; true in every epilogue thread of the CTA that completes the tile.

        The barrier before the atomic makes the other threads' partials part of what thread 0 releases; the one after
        makes what it acquired visible to them.
        """
        sync.arrive_and_wait()
        if tidx == 0:
            cute.arch.fence_acq_rel_gpu()
            arrived = cute.arch.atomic_add(counter, Int32(1), sem="acq_rel", scope="gpu")
            flag[0] = arrived
            if arrived == self.split_k - 1:
                # Ready for the next launch: every split of this tile has arrived.
                cute.make_tensor(counter, cute.make_layout(1))[0] = Int32(0)
            cute.arch.fence_acq_rel_gpu()
        sync.arrive_and_wait()
        return flag[0] == self.split_k - 1

    @cute.jit
    def _sum_partials(self, partials: cute.Tensor, tTR_rAcc: cute.Tensor, subtile: Int32):
        """Sum in the order of the split index, whoever arrived last."""
        cute.autovec_copy(partials[(None, None, None, subtile, 0)], tTR_rAcc)
        rPartial = cute.make_rmem_tensor(tTR_rAcc.shape, ACC_DTYPE)
        for split in cutlass.range_constexpr(1, self.split_k):
            cute.autovec_copy(partials[(None, None, None, subtile, split)], rPartial)
            tTR_rAcc.store(tTR_rAcc.load() + rPartial.load())


def _at(rAccs: list[Any], size: int, column: int) -> Any:
    """A column of a thread's row, of which each tensor holds ``size``."""
    return rAccs[column // size][column % size]

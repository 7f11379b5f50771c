"""Epilogue of the kernel ``sm90a_ring``: accumulators through staged boxes in SMEM to y, by TMA."""

from typing import Any

import cutlass
from cutlass import Float32, Int32, cute
from cutlass.cute.nvgpu import cpasync

from kernel_space.operators.svdquant_gemm.sm90a_parts.dequant import (
    FROM_DEQUANT_SCALE,
    finish_gated_pair,
    finish_pair,
    load_shared,
    store_matrices,
)
from kernel_space.operators.svdquant_gemm.sm90a_parts.layouts import WARP_ROWS, LayoutsSm90a
from kernel_space.operators.svdquant_gemm.sm90a_parts.pingpong import FIRST_BARRIER
from kernel_space.operators.svdquant_gemm.sm90a_parts.split_k import GROUP_THREADS


def stores_behind(part: int, config: Any) -> int:
    """Stores that were begun after the last one from the slot of ``part`` and may still read their own.

    Parts of a tile take slots in turn and each tile begins with the first, so in a ring that does not divide them the
    last use of a slot may be nearer than a round.
    """
    slots, parts = config.num_c_stage, config.staged_parts
    if part >= slots:
        return slots - 1
    last_of_tile_before = parts - 1 - (parts - 1 - part) % slots
    return part + parts - last_of_tile_before - 1


def gated_rows(acc: cute.Tensor, octet: int, scales: Any, biases: Any, is_bf16: bool) -> Any:
    """Two columns of ``octet`` of a lane's gate, which is its row, and of the row 8 below, that it is for. ``scales``
    and ``biases``: of both rows.
    """
    rows = [[acc[(e, half, octet), 0, 0] for e in range(2)] for half in range(2)]
    affine = [((scales[half],) * 2, (biases[half],) * 2) for half in range(2)]
    return finish_gated_pair(*rows, *affine, is_bf16)


class EpilogueSm90a:
    """Mixin of the consumer role."""

    config: Any

    @cute.jit
    def _load_affine(
        self,
        lay: LayoutsSm90a,
        vectors: Any,
        buffers: Any,
        tile_m: Int32,
        tile_n: Int32,
        n: Int32,
        thread: Int32,
        group: Int32,
    ):
        """This tile's wcscale (times what dequantized operands lack) and bias, in a copy for each warpgroup."""
        extent = lay.affine_extent
        first = tile_n * extent
        if cutlass.const_expr(self.config.swap_ab):
            first = tile_m * extent
        sources = [cute.make_tensor(vector, cute.make_layout(n)) for vector in vectors]
        for chunk in cutlass.range_constexpr((extent + GROUP_THREADS - 1) // GROUP_THREADS):
            index = chunk * GROUP_THREADS + thread
            scale_value, bias_value = Float32(0.0), Float32(0.0)
            if index < extent:
                if first + index < n:
                    scale_value = sources[0][first + index] * (1.0 / FROM_DEQUANT_SCALE)
                    bias_value = sources[1][first + index]
                buffers["wcscale"][group * extent + index] = scale_value
                buffers["bias"][group * extent + index] = bias_value

    @cute.jit
    def _store(
        self,
        lay: LayoutsSm90a,
        accs: Any,
        buffers: Any,
        store: Any,
        tile_m: Int32,
        tile_n: Int32,
        thread: Int32,
        group: Int32,
    ):
        """``acc * wcscale + bias`` and its activation in fp32, one rounding, SMEM, TMA store: every warp on its own, 16
        rows at a time.
        """
        tma_c, mC = store
        config = self.config
        cute.arch.barrier(barrier_id=FIRST_BARRIER + group, number_of_threads=GROUP_THREADS)
        lane = cute.arch.lane_idx()
        warp = cute.arch.make_warp_uniform(thread // 32)
        box_bytes = lay.c_box_elements * 2
        region = lay.boxes_per_slot * box_bytes
        base = buffers["C"].iterator.toint() + (group * 4 + warp) * (region * config.num_c_stage)
        gC = cute.local_tile(mC, lay.store_shape, (None, None))
        scales, biases = buffers["wcscale"].iterator.toint(), buffers["bias"].iterator.toint()
        vectors = (scales + group * lay.affine_extent * 4, biases + group * lay.affine_extent * 4)
        for part in cutlass.range_constexpr(config.staged_parts):
            block, piece = part // lay.slots_per_row, part % lay.slots_per_row
            cute.arch.cp_async_bulk_wait_group(stores_behind(part, config), read=True)
            cute.arch.sync_warp()
            slot = base + part % config.num_c_stage * region
            self._write_slot(lay, accs[block], vectors, slot, block, piece, warp, lane, group)
            cute.arch.fence_proxy("async.shared", space="cta")
            cute.arch.sync_warp()
            row = (
                tile_m * lay.rows // WARP_ROWS
                + group * (lay.rows_between_groups // WARP_ROWS)
                + block * 4
                + warp
            )
            for box in cutlass.range_constexpr(lay.boxes_per_slot):
                offset = (
                    (group * 4 + warp) * config.num_c_stage + part % config.num_c_stage
                ) * lay.boxes_per_slot
                sC = self._c_box(lay, buffers, offset + box)
                boxes = lay.slots_per_row * lay.boxes_per_slot
                coord = (row, tile_n * boxes + (piece * lay.boxes_per_slot + box))
                if cutlass.const_expr(config.swap_ab):
                    coord = (coord[1], row)
                source, target = cpasync.tma_partition(
                    tma_c, 0, cute.make_layout(1), cute.group_modes(sC, 0, 2), cute.group_modes(gC, 0, 2)
                )
                cute.copy(tma_c, source, target[(None, *coord)])
            cute.arch.cp_async_bulk_commit_group()

    @staticmethod
    def _c_box(lay: LayoutsSm90a, buffers: Any, index: Any) -> cute.Tensor:
        ptr = buffers["C"].iterator + index * lay.c_box_elements
        if cutlass.const_expr(lay.store_span):
            ptr = cute.recast_ptr(ptr.align(lay.c_align), lay.c_box.inner, dtype=lay.c_dtype)
            return cute.make_tensor(ptr, lay.c_box.outer)
        return cute.make_tensor(ptr.align(lay.c_align), lay.c_box)

    @cute.jit
    def _write_slot(
        self,
        lay: LayoutsSm90a,
        acc: cute.Tensor,
        vectors: Any,
        slot: Int32,
        block: cutlass.Constexpr,
        piece: cutlass.Constexpr,
        warp: Int32,
        lane: Int32,
        group: Int32,
    ):
        """16 rows of ``staged_columns`` of the accumulator, finished, to SMEM: 8x8 matrices, two or four at a time."""
        begin, count = piece * (self.config.staged_columns // 8), self.config.staged_columns // 8
        scales, biases = vectors
        is_bf16 = lay.c_dtype is cutlass.BFloat16
        if cutlass.const_expr(self.config.swap_ab):
            row = (block * 64 + group * lay.rows_between_groups + warp * WARP_ROWS + lane // 4) * 4
            row_scale = [load_shared(scales + row, 1)[0], load_shared(scales + row + 32, 1)[0]]
            row_bias = [load_shared(biases + row, 1)[0], load_shared(biases + row + 32, 1)[0]]
        if cutlass.const_expr(lay.gated and not self.config.swap_ab):
            for first in cutlass.range_constexpr(0, count // 2, 2):
                values = []
                for octet in cutlass.range_constexpr(
                    begin // 2 + first, begin // 2 + min(first + 2, count // 2)
                ):
                    values += self._gated_columns(acc, vectors, octet, lane, is_bf16)
                self._store_octets(lay, slot, first, values, lane)
        else:
            for first in cutlass.range_constexpr(0, count, 2):
                values = []
                for octet in cutlass.range_constexpr(begin + first, begin + min(first + 2, count)):
                    if cutlass.const_expr(not self.config.swap_ab):
                        column = (octet * 8 + lane % 4 * 2) * 4
                        scale, bias = load_shared(scales + column, 2), load_shared(biases + column, 2)
                    if cutlass.const_expr(lay.gated):
                        values.append(gated_rows(acc, octet, row_scale, row_bias, is_bf16))
                    else:
                        for half in cutlass.range_constexpr(2):
                            if cutlass.const_expr(self.config.swap_ab):
                                scale, bias = (row_scale[half],) * 2, (row_bias[half],) * 2
                            low, high = acc[(0, half, octet), 0, 0], acc[(1, half, octet), 0, 0]
                            values.append(finish_pair(low, high, scale, bias, is_bf16, lay.activation))
                self._store_octets(lay, slot, first, values, lane)

    @staticmethod
    def _gated_columns(acc: cute.Tensor, vectors: Any, octet: int, lane: Any, is_bf16: bool) -> list[Any]:
        """Octet ``octet`` of columns of y, both halves of its rows: its gates are that of the product two by two."""
        affine = []
        for source in (2 * octet, 2 * octet + 1):
            column = (source * 8 + lane % 4 * 2) * 4
            affine.append(tuple(load_shared(vector + column, 2) for vector in vectors))
        return [
            finish_gated_pair(
                *([acc[(e, half, 2 * octet + which), 0, 0] for e in range(2)] for which in range(2)),
                *affine,
                is_bf16,
            )
            for half in range(2)
        ]

    @staticmethod
    def _store_octets(lay: LayoutsSm90a, slot: Any, first: int, values: list[Any], lane: Any) -> None:
        """Matrices (rows 0-7, octet), (rows 8-15, octet), and the same of the next octet if there is one."""
        row, half, octet = lane % 8, lane // 8 % 2, lane // 16
        swap_ab = lay.config.swap_ab
        if lay.gated and swap_ab:
            address = slot + ((first + half) * 8 + row) * 16  # matrices are octets
        elif swap_ab:
            address = slot + ((first + octet) * 8 + row) * 32 + half * 16
        elif lay.store_span:
            chunks = lay.store_span // 16
            box = slot + first // chunks * (lay.c_box_elements * 2)
            shift = {8: 0, 4: 1, 2: 2}[chunks]
            swizzled = (first % chunks + octet) ^ (row >> shift if shift else row)
            address = box + (row + half * 8) * lay.store_span + (swizzled << 4)
        else:
            address = slot + (row + half * 8) * (lay.store_columns * 2) + (first + octet) * 16
        store_matrices(address, values, transpose=swap_ab)

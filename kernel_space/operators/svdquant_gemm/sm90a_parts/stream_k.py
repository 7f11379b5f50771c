"""Stream-K: tiles of the last, ragged waves are dealt out in equal shares of k-tiles.

Of T cluster tiles on C clusters, F whole waves stay as they are (F = T / C where that is whole, else one less than
floor(T / C), but not below 0). The S = T - F C tiles before them make S U units, U = k-tiles + what LoRA weighs in
k-tiles, and cluster c gets the c-th of C contiguous shares, which differ by a unit at most; a share that would begin or
end among LoRA's units is moved to the first k-tile, so LoRA is never divided. A cluster walks its share *backwards* and
then its whole tiles:

| part of the share | k-tiles of its tile | what becomes of it |
|---|---|---|
| first visited, unless it ends its tile | the first or inner ones | sums to the workspace, flag set |
| whole tiles | all | stored |
| last visited | the last ones | the owner: adds the other parts, stores |

So a cluster publishes at most one part, before anything that it waits for, and the parts an owner waits for are those
that clusters of lower index work on at the same time. No wait depends on a wait: no cycle. Progress needs only that
clusters of lower index run when one of higher index does; all of them run at once (the grid is one wave), and where
other kernels hold SMs the hardware starts a grid in the order of its index. Bits are the same in every launch on chips
of as many clusters: which parts a tile has follows from the sizes; the owner adds them to its own in order of cluster.

Every warp has its own flag and its own part of the sums, since the same warp of the owner's CTA reads them: warps wait
for no other. An owner clears each flag once it has read the part: the next launch, or replay of a graph, finds zeros.
"""

from typing import Any

import cutlass
from cutlass import Float32, Int32, Int64, Uint32, cute

from kernel_space.operators.svdquant_gemm.partials import COUNTER_BYTES, PARTIAL_BYTES, PARTIALS_ALIGN
from kernel_space.operators.svdquant_gemm.parts.allocations import ACC_DTYPE
from kernel_space.operators.svdquant_gemm.sm90a_parts.config import STREAM_CTAS, STREAM_PARTS
from kernel_space.operators.svdquant_gemm.sm90a_parts.dequant import (
    load_acquire,
    store_relaxed,
    store_release,
)
from kernel_space.operators.svdquant_gemm.sm90a_parts.layouts import WARPS_PER_GROUP
from kernel_space.operators.svdquant_gemm.sm90a_parts.split_k import GROUP_THREADS, SplitKSm90a

LORA_COLUMNS_OF_K_TILE = 128  # columns of R whose wgmma take as long as a k-tile


class StreamKSm90a(SplitKSm90a):
    """Mixin of every role: what a cluster works on next; of the consumers: parts of a tile through the workspace."""

    stream_k: bool
    problem_class: Any

    @cute.jit
    def lora_slices(self, split: Int32):
        """LoRA slices of this split: all belong to split 0."""
        count = Int32(self._layouts().num_lora_slices)
        if cutlass.const_expr(self.split_k > 1 or self.stream_k):
            if split != 0:
                count = Int32(0)
        return count

    # ------------------------------------------------------------ what comes next

    @cute.jit
    def deal(self, num_tiles: Int32, k_tiles: Int32, num_clusters: Int32):
        """(tiles dealt out, whole waves behind them, units each cluster gets, clusters that get one more).

        Host code runs this, for divisions are slow on the card; no tiles are dealt out without ``stream_k``.
        """
        dealt, waves, each, rest = Int32(0), Int32(0), Int32(0), Int32(0)
        if cutlass.const_expr(self.stream_k):
            waves = num_tiles // num_clusters
            if waves * num_clusters < num_tiles:
                waves = cutlass.max(waves - 1, Int32(0))
            dealt = num_tiles - waves * num_clusters
            units = dealt * (k_tiles + self._lora_units())
            each = units // num_clusters
            rest = units - each * num_clusters
        return dealt, waves, each, rest

    @cute.jit
    def work_range(self, tiles: Any):
        """First index, end and step of this cluster's work, and its share; ``segment`` describes each index.

        ``tiles``: clusters along rows, along columns, k-tiles, and what ``deal`` gave. A share is the tile and k-tile
        in it at which it begins, those at which it ends, and the last tile that it visits.
        """
        _, _, cluster = cute.arch.block_idx()
        _, _, num_clusters = cute.arch.grid_dim()
        if cutlass.const_expr(not self.stream_k):
            return cluster, tiles[0] * tiles[1] * self.split_k, num_clusters, ()
        _, waves, each, rest = tiles[3]
        first = cluster * each + cutlass.min(cluster, rest)
        begin_tile, begin = self._place_of(first, tiles)
        end_tile, end = self._place_of(first + each + Int32(cluster < rest), tiles)
        last_tile = end_tile - 1 + cutlass.min(end, Int32(1))
        if end_tile == begin_tile and end == begin:
            last_tile = begin_tile - 1
        parts = last_tile - begin_tile + 1
        return Int32(0), parts + waves, Int32(1), (begin_tile, begin, end_tile, end, last_tile)

    @cute.jit
    def segment(self, work: Int32, tiles: Any, share: Any):
        """(MMA tile m, MMA tile n, split, first k-tile, k-tiles) of one index; LoRA belongs to split 0."""
        if cutlass.const_expr(not self.stream_k):
            tile_m, tile_n, split = self.tile_coord(work, tiles[:3])
            k_begin, k_count = self.k_range(split, tiles[2])
            return tile_m, tile_n, split, k_begin, k_count
        _, _, cluster = cute.arch.block_idx()
        _, _, num_clusters = cute.arch.grid_dim()
        begin_tile, begin, end_tile, end, last_tile = share
        tile = last_tile - work
        k_begin, k_end = Int32(0), tiles[2]
        if tile == begin_tile:
            k_begin = begin
        if tile == end_tile:
            k_end = end
        if tile < begin_tile:
            tile = tiles[3][0] + (begin_tile - 1 - tile) * num_clusters + cluster
        tile_m, tile_n, _ = self.tile_coord(tile, tiles[:3])
        return tile_m, tile_n, cutlass.min(k_begin, Int32(1)), k_begin, k_end - k_begin

    def _lora_units(self) -> int:
        return (self.problem_class.r + LORA_COLUMNS_OF_K_TILE // 2) // LORA_COLUMNS_OF_K_TILE

    @cute.jit
    def _place_of(self, unit: Int32, tiles: Any):
        """Tile of a unit, and the k-tile in it at which a share that begins or ends here does."""
        units = tiles[2] + self._lora_units()
        tile = quotient(unit, units)
        return tile, cutlass.max(unit - tile * units - self._lora_units(), Int32(0))

    @cute.jit
    def _first_helper(self, tiles: Any, share: Any):
        """The cluster that works on the first k-tile of the tile in which ``share`` begins."""
        _, _, each, rest = tiles[3]
        unit = share[0] * (tiles[2] + self._lora_units()) + self._lora_units()
        larger = rest * (each + 1)
        before, above, size = Int32(0), unit, each + 1
        if unit >= larger:
            before, above, size = rest, unit - larger, each
        return before + quotient(above, size)

    # ------------------------------------------------------------ parts of a tile

    def _part_of(self, accs: Any, workspace: Any, cta: Any, thread: Any) -> Any:
        """fp32 sums (4, value / 4, row block) of this thread in the part of CTA ``cta``; a warp's are contiguous."""
        threads = GROUP_THREADS * self.config.consumer_warpgroups
        values, blocks = cute.size(accs[0]), self.config.row_blocks
        base = cute.recast_ptr(workspace + stream_flag_bytes(self.config), dtype=Float32)
        offset = Int64(cta) * (threads * values * blocks) + thread * 4
        layout = cute.make_layout((4, values // 4, blocks), stride=(1, 4 * threads, threads * values))
        return cute.make_tensor((base + cute.assume(offset, 4)).align(16), layout)

    def _flag_of(self, workspace: Any, cta: Any, thread: Any) -> Any:
        """Address of the flag of this warp in CTA ``cta``."""
        warps = WARPS_PER_GROUP * self.config.consumer_warpgroups
        warp = cute.arch.make_warp_uniform(thread // 32)
        return workspace.toint() + Int64(cta * warps + warp) * COUNTER_BYTES

    def _cta(self, cluster: Any) -> Any:
        rank, _, _ = cute.arch.block_idx()
        return cluster * self.config.cluster_size + rank

    @cute.jit
    def _publish_part(self, accs: Any, workspace: cute.Pointer, thread: Int32):
        """This warp's sums to the workspace, then its flag."""
        _, _, cluster = cute.arch.block_idx()
        cta = self._cta(cluster)
        # Outside the branch of one lane: the warp's index comes from a shuffle.
        flag = self._flag_of(workspace, cta, thread)
        part = self._part_of(accs, workspace, cta, thread)
        for b in cutlass.range_constexpr(self.config.row_blocks):
            flat = cute.make_tensor(accs[b].iterator, cute.make_layout((4, cute.size(accs[b]) // 4)))
            cute.autovec_copy(flat, part[(None, None, b)])
        # What the other lanes wrote is before this barrier, so before what lane 0 releases.
        cute.arch.sync_warp()
        if cute.arch.lane_idx() == 0:
            store_release(flag, Int32(1))

    @cute.jit
    def _add_parts(self, accs: Any, workspace: cute.Pointer, tiles: Any, share: Any, thread: Int32):
        """Add the parts of the tile in which this cluster's share begins, in order of cluster."""
        _, _, cluster = cute.arch.block_idx()
        piece = cute.make_rmem_tensor((4,), ACC_DTYPE)
        first = self._first_helper(tiles, share)
        other = first
        while other < cluster:
            flag = self._flag_of(workspace, self._cta(other), thread)
            is_set = load_acquire(flag)
            while is_set == 0:
                is_set = load_acquire(flag)
            other += 1
        # Every lane has seen every flag.
        cute.arch.sync_warp()
        other = first
        while other < cluster:
            cta = self._cta(other)
            flag = self._flag_of(workspace, cta, thread)
            if cute.arch.lane_idx() == 0:
                store_relaxed(flag, Int32(0))
            part = self._part_of(accs, workspace, cta, thread)
            for b in cutlass.range_constexpr(self.config.row_blocks):
                flat = cute.make_tensor(accs[b].iterator, cute.make_layout((4, cute.size(accs[b]) // 4)))
                for vector in cutlass.range_constexpr(cute.size(accs[b]) // 4):
                    cute.autovec_copy(part[(None, vector, b)], piece)
                    for i in cutlass.range_constexpr(4):
                        flat[i, vector] = flat[i, vector] + piece[i]
            other += 1


def quotient(value: Any, by: Any) -> Any:
    """Of numbers that are not negative: fewer instructions than a signed division that rounds down."""
    return Int32(Uint32(value) // Uint32(by))


def stream_flag_bytes(config: Any) -> int:
    """Bytes of all flags: a multiple of what partial sums are aligned to."""
    flags = STREAM_CTAS * WARPS_PER_GROUP * config.consumer_warpgroups * COUNTER_BYTES
    return -(-flags // PARTIALS_ALIGN) * PARTIALS_ALIGN


def stream_bytes(config: Any) -> int:
    """Bytes of flags and parts: what the workspace holds before the expanded activations."""
    rows, columns, _ = config.tile_mnk
    return stream_flag_bytes(config) + STREAM_CTAS * rows * columns * PARTIAL_BYTES


def stream_clusters(config: Any, num_tiles: Any, max_active_clusters: Any) -> Any:
    """Clusters of the grid: no more than places, than parts that pay, than flags."""
    most = cutlass.min(num_tiles * STREAM_PARTS, max_active_clusters)
    return cutlass.min(most, Int32(STREAM_CTAS // config.cluster_size))

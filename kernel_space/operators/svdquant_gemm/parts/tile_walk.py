"""The persistent tile loop: which tile, which part of K and which LoRA units come next. Shared by all warp roles."""

from typing import Any

import cutlass
from cutlass import Int32, cute

from kernel_space.core.config import KernelConfig


class TileWalk:
    """Mixin of a kernel class with ``config``, ``cta_group_size``, ``split_k``, ``has_lora`` and ``interleave``."""

    config: KernelConfig
    cta_group_size: int
    split_k: int
    has_lora: bool
    interleave: bool

    @cute.jit
    def tile_coord(self, work: Int32, tiles: Any):
        """Work index -> (MMA tile m, MMA tile n, split index) of this CTA.

        Consecutive indices are the splits of one cluster tile; cluster tiles walk the raster's major axis in bands
        of ``swizzle_size`` along the minor one; the last band is as narrow as what is left.
        """
        clusters_m, clusters_n, _ = tiles
        tile, split = work, Int32(0)
        if cutlass.const_expr(self.split_k > 1):
            tile = work // self.split_k
            split = work % self.split_k
        major_extent, minor_extent = clusters_m, clusters_n
        if cutlass.const_expr(self.config.raster_order == "n"):
            major_extent, minor_extent = clusters_n, clusters_m
        swizzle = self.config.swizzle_size
        if cutlass.const_expr(swizzle == 1):
            minor = tile // major_extent
            major = tile - minor * major_extent
        else:
            band = tile // (major_extent * swizzle)
            in_band = tile - band * major_extent * swizzle
            width = cutlass.min(minor_extent - band * swizzle, Int32(swizzle))
            major = in_band // width
            minor = band * swizzle + in_band - major * width
        cluster_m, cluster_n = major, minor
        if cutlass.const_expr(self.config.raster_order == "n"):
            cluster_m, cluster_n = minor, major
        bidx, bidy, _ = cute.arch.block_idx()
        shape_m, shape_n = self.config.cluster_shape_mn
        tile_m = cluster_m * (shape_m // self.cta_group_size) + bidx // self.cta_group_size
        tile_n = cluster_n * shape_n + bidy
        return tile_m, tile_n, split

    @cute.jit
    def k_range(self, split: Int32, k_tiles: Int32):
        """First k-tile and number of k-tiles of one split; the first splits take the remainder."""
        if cutlass.const_expr(self.split_k == 1):
            return Int32(0), k_tiles
        each = k_tiles // self.split_k
        rest = k_tiles - each * self.split_k
        begin = split * each + cutlass.min(split, rest)
        count = each
        if split < rest:
            count = each + 1
        return begin, count

    @cute.jit
    def lora_units(self, split: Int32):
        """LoRA units of this split: all belong to split 0."""
        units = Int32(self._layouts().num_lora_units)
        if cutlass.const_expr(self.split_k > 1):
            if split != 0:
                units = Int32(0)
        return units

    @cute.jit
    def segment_end(self, segment: Int32, k_begin: Int32, k_count: Int32, units: Int32):
        """k-tile at which segment ``segment`` of ``units`` + 1 ends.

        Rounded up, so the first segment is never empty and the first MMA of a tile, the one that overwrites the
        accumulator, is always an NVFP4 one.
        """
        end = k_begin + k_count
        if cutlass.const_expr(self.has_lora and self.interleave):
            segments = units + 1
            end = k_begin + ((segment + 1) * k_count + segments - 1) // segments
        return end

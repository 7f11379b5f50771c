"""What the roles of ``sm90a_expand`` work on, written out: per cluster a count, its first helper, five an item."""

# ruff: noqa: ANN201, ANN204 - the DSL reads return annotations as C types

from typing import Any

import cutlass
from cutlass import Int32, cute

from kernel_space.operators.svdquant_gemm.sm90a_parts.stream_k import StreamKSm90a

HEAD, ITEM = 2, 5


class Deal(StreamKSm90a):
    def __init__(self, config: Any, problem_class: Any, items: int) -> None:
        self.config, self.problem_class, self.items = config, problem_class, items
        self.cta_group_size, self.split_k, self.stream_k = 1, config.split_k, config.stream_k
        self.has_lora, self.interleave = problem_class.r > 0, False

    @cute.jit
    def __call__(self, out: cute.Pointer, clusters_m: Int32, clusters_n: Int32, k_tiles: Int32):
        self.kernel(out, clusters_m, clusters_n, k_tiles).launch(grid=(1, 1, 1), block=(32, 1, 1))

    @cute.kernel
    def kernel(self, out: cute.Pointer, clusters_m: Int32, clusters_n: Int32, k_tiles: Int32):
        _, _, cluster = cute.arch.block_idx()
        _, _, num_clusters = cute.arch.grid_dim()
        tiles = (
            clusters_m,
            clusters_n,
            k_tiles,
            self.deal(clusters_m * clusters_n, k_tiles, num_clusters),
        )
        width = HEAD + ITEM * self.items
        row = cute.make_tensor(out + cluster * width, cute.make_layout(width))
        work, stop, stride, share = self.work_range(tiles)
        count = Int32(0)
        while work < stop:
            item = self.segment(work, tiles, share)
            for i in cutlass.range_constexpr(ITEM):
                row[HEAD + count * ITEM + i] = item[i]
            count += 1
            work += stride
        row[0] = count
        row[1] = self._first_helper(tiles, share)

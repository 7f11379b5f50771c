"""Expansion of the activations for ``sm90a_expand``: packed codes and scales -> fp16 in the workspace.

A small kernel that runs before the GEMM of the same launch. It writes ``[M, K']`` fp16, row-major, K' = K rounded up to
128 with zeros, every element times 2^-DEQUANT_SHIFT (exact, see ``dequant_sm90a``), in the K order of the main loop: in
a k-tile of 128, chunk q = 4w + 2(i mod 2) + i div 2 of half s (16 bytes, chunks 8s..8s+7 of the 256-byte piece) has
the pair (n_i, n_(i+4)) of word 2s + w of each of the four quads, quad c owning elements 32c..32c+31.

| what | value |
|---|---|
| thread | one 16-byte chunk of ``rows_per_thread`` rows; its four source words lie 16 bytes apart |
| block | ``THREADS`` chunks side by side, ``rows_per_thread`` rows |

For few rows of act a block with ``use_pdl`` asks for its sources in the L2 before it waits for the kernel before.
"""

from typing import Any

import cutlass
from cutlass import Int32, Int64, cute

from kernel_space.operators.svdquant_gemm.sm90a_parts.dequant import (
    broadcast_factor,
    gather_bytes,
    load_global_if,
    pair_of_word,
    prefetch_global_if,
    scale_pairs,
    store_global,
)
from kernel_space.operators.svdquant_gemm.sm90a_parts.layouts import SF_BLOCK_BYTES

THREADS = 256
ROWS_PER_THREAD = 8
# Tiles of so many columns are for few rows of act: what one thread takes counts, not instructions in all.
FEW_COLUMNS, ROWS_OF_FEW = 128, 2
CHUNKS_PER_TILE = 16  # 16-byte chunks of a k-tile of 128 in fp16
QUADS = 4


class ExpandSm90a:
    """Mixin with the expanding kernel."""

    config: Any

    @property
    def rows_per_thread(self) -> int:
        return ROWS_OF_FEW if self.config.tile_mnk[1] <= FEW_COLUMNS else ROWS_PER_THREAD

    @cute.jit
    def launch_expand(
        self,
        act: cute.Pointer,
        ascales: cute.Pointer,
        expanded: cute.Pointer,
        m: Int32,
        k: Int32,
        stream: Any,
    ):
        """Start the expansion of ``act`` ``[m, k]``; with ``use_pdl`` its launch overlaps the kernel before it."""
        chunks = cute.ceil_div(k, 128) * CHUNKS_PER_TILE
        self.expand_kernel(act, ascales, expanded, m, k).launch(
            # One dimension: the others end at 65535.
            grid=(cute.ceil_div(chunks, THREADS) * cute.ceil_div(m, self.rows_per_thread), 1, 1),
            block=[THREADS, 1, 1],
            stream=stream,
            # As the GEMM: an SM that has to change it must be empty first.
            preferred_smem_carveout=100,
            use_pdl=self.config.use_pdl,
        )

    @cute.kernel
    def expand_kernel(
        self, act: cute.Pointer, ascales: cute.Pointer, expanded: cute.Pointer, m: Int32, k: Int32
    ):
        # The GEMM may be launched now: it waits for the end of this grid before it reads the workspace.
        cute.arch.griddepcontrol_launch_dependents()
        tidx, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        chunks = (k + 127) // 128 * CHUNKS_PER_TILE
        per_row = (chunks + THREADS - 1) // THREADS
        chunk = block % per_row * THREADS + tidx
        if chunk < chunks:
            self._expand_rows(act, ascales, expanded, chunk, block // per_row * self.rows_per_thread, m, k)

    @cute.jit
    def _expand_rows(
        self,
        act: cute.Pointer,
        ascales: cute.Pointer,
        expanded: cute.Pointer,
        chunk: Int32,
        first: Int32,
        m: Int32,
        k: Int32,
    ):
        """Chunk ``chunk`` of rows ``first`` ..; a row beyond the last one is the last one once more."""
        k_tile, j = chunk // CHUNKS_PER_TILE, chunk % CHUNKS_PER_TILE
        half, w, i = j // 8, j % 8 // 4, j % 2 * 2 + j % 4 // 2
        word = k_tile * 16 + 2 * half + w
        blocks, k_block = (k + 63) // 64, k_tile * 2
        chunks_per_row = (k + 127) // 128 * CHUNKS_PER_TILE
        codes = act.toint() + Int64(first) * (k // 2) + word * 4
        # rows_per_thread divides 32, so scales of consecutive rows lie 16 bytes apart.
        scales = ascales.toint() + (Int64(first // 128) * blocks + k_block) * SF_BLOCK_BYTES
        scales = scales + (first % 32 * 16 + first % 128 // 32 * 4)
        target = expanded.toint() + (Int64(first) * chunks_per_row + chunk) * 16
        # Words beyond K and scales beyond the last block of 64 elements are zero.
        has_word = [Int32((word + quad * 4) * 8 < k) for quad in range(QUADS)]
        has_block = [Int32(1), Int32(k_block + 1 < blocks)]
        rows = [Int64(cutlass.min(Int32(r), m - 1 - first)) for r in range(self.rows_per_thread)]
        if cutlass.const_expr(self.config.use_pdl and self.rows_per_thread == ROWS_OF_FEW):
            self._prefetch([(codes + row * (k // 2), scales + row * 16) for row in rows], has_word, has_block)
        if cutlass.const_expr(self.config.use_pdl):
            # The GEMM of the launch before reads the workspace until it ends, and act may come from the kernel before.
            cute.arch.griddepcontrol_wait()
        loaded = []
        for row in rows:
            row_codes, row_scales = codes + row * (k // 2), scales + row * 16
            loaded.append(
                (
                    [load_global_if(row_codes + quad * 16, has_word[quad]) for quad in range(QUADS)],
                    [load_global_if(row_scales + b * SF_BLOCK_BYTES, has_block[b]) for b in range(2)],
                )
            )
        # The scale of quad c, half s is byte 2c + s of the k-tile's eight.
        selector, shift = half * Int32(0x1111) + Int32(0x6420), i * 4
        for row, (words, two) in zip(rows, loaded, strict=True):
            factors = scale_pairs(gather_bytes(*two, selector))
            pairs = [
                pair_of_word(words[quad], shift, broadcast_factor(factors[quad // 2], quad % 2))
                for quad in range(QUADS)
            ]
            store_global(target + row * (chunks_per_row * 16), pairs)

    @staticmethod
    def _prefetch(rows: list[Any], has_word: list[Any], has_block: list[Any]) -> None:
        """Bring the sectors that ``_expand_rows`` reads of each row (codes, scales) into the L2.

        What the kernel before still writes replaces them there.
        """
        for codes, scales in rows:
            for quad in range(0, QUADS, 2):
                prefetch_global_if(codes + quad * 16, has_word[quad])
            for block in range(2):
                prefetch_global_if(scales + block * SF_BLOCK_BYTES, has_block[block])

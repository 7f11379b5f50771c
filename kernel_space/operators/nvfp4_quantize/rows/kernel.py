"""Activations to NVFP4 on sm_90a and sm_100a: one launch, no shared memory.

``act, ascales = nvfp4(x * (1 / smooth))``, one E4M3 scale per 16 elements along K, E2M1 codes; R = 0

x: fp16, bf16 or fp32 ``[M, K]``, row-major; smooth: fp32 ``[K]``; act: two codes a byte, the even k in the low nibble,
``[M, K/2]``; ascales: the 32x4x4 blocked layout, whole 512-byte blocks: rows up to a multiple of 128 and scales up to
a multiple of 4 are written as zeros, because GEMMs read them.

| what | value |
|---|---|
| CTA | ``tile_mk`` of x; K runs fastest, so neighbours read neighbouring pieces of the same rows |
| pass along K | ``threads_per_row`` vectors side by side; their smooth is prepared once for all rows of the tile |
| step along M | ``row_loads`` vectors of a thread are loaded, then converted and stored one by one |
| thread | ``vector_width`` elements of a row: half a block of 16, one block or two |
| scales | 64 / vector_width neighbours hold the four of a word; shuffles gather them, one thread stores 4 bytes |

A block of 16 with NaN or infinity in it gets the scale NaN (0x7F) and codes that may be anything. Where ``smooth`` is
out of the ordinary (``arithmetic``), a thread divides.

Not supported: a second-level scale, other scale-factor vector sizes, batches.
"""

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Float32, Int32, Int64, Uint32, cute

from kernel_space.core.arch import Arch
from kernel_space.core.problem import ProblemClass
from kernel_space.numerics.blocked import SF_BLOCK_BYTES, SF_BLOCK_K, SF_ROWS
from kernel_space.operators.nvfp4_quantize.parts import arithmetic, ptx
from kernel_space.operators.nvfp4_quantize.rows.config import RowsConfig
from kernel_space.operators.nvfp4_quantize.signature import SIGNATURE

DTYPES = {"fp16": cutlass.Float16, "bf16": cutlass.BFloat16, "fp32": cutlass.Float32}
ONE = 0x3F800000  # 1.0


class QuantizeRows:
    """Generator of one kernel: a config, a problem class and whether the chip converts to E2M1 by itself."""

    def __init__(self, config: RowsConfig, problem_class: ProblemClass, *, has_fp4: bool) -> None:
        self.config = config
        self.x_dtype = problem_class.x_dtype
        self.has_smooth = problem_class.smooth == "fp32"
        self.has_fp4 = has_fp4
        self.x_bytes = DTYPES[self.x_dtype].width // 8
        self.vector = config.vector_width
        self.sharers = SF_BLOCK_K // self.vector  # threads whose scales make one word

    @cute.jit
    def __call__(
        self,
        x: cute.Pointer,
        smooth: cute.Pointer,
        lora_down: cute.Pointer,
        act: cute.Pointer,
        ascales: cute.Pointer,
        lora_act_in: cute.Pointer,
        m: Int32,
        k: Int32,
        max_active_clusters: Int32,
        stream: cuda.CUstream,
    ):
        """Launch over all tiles. ``max_active_clusters`` bounds the persistent grid; LoRA's tensors are empty."""
        tile_m, tile_k = self.config.tile_mk
        k_tiles = cute.ceil_div(k, tile_k)
        tiles = cute.ceil_div(m, SF_ROWS) * (SF_ROWS // tile_m) * k_tiles
        ctas = tiles
        if cutlass.const_expr(self.config.persistent):
            ctas = cutlass.min(tiles, max_active_clusters)
        self.kernel(x, smooth, act, ascales, m, k, tiles, k_tiles).launch(
            grid=(ctas, 1, 1),  # one dimension: the others end at 65535
            block=[self.config.threads_per_cta, 1, 1],
            stream=stream,
            min_blocks_per_mp=self.config.ctas_per_sm,
            # As the GEMM that follows: an SM that has to change it must be empty first.
            preferred_smem_carveout=100,
            use_pdl=self.config.use_pdl,
        )

    @cute.kernel
    def kernel(
        self,
        x: cute.Pointer,
        smooth: cute.Pointer,
        act: cute.Pointer,
        ascales: cute.Pointer,
        m: Int32,
        k: Int32,
        tiles: Int32,
        k_tiles: Int32,
    ):
        block, _, _ = cute.arch.block_idx()
        if cutlass.const_expr(self.config.use_pdl):
            cute.arch.griddepcontrol_wait()
            cute.arch.griddepcontrol_launch_dependents()
        tensors = (x.toint(), smooth.toint(), act.toint(), ascales.toint())
        if cutlass.const_expr(self.config.persistent):
            ctas, _, _ = cute.arch.grid_dim()
            tile = block
            while tile < tiles:
                self.convert_tile(tensors, m, k, tile // k_tiles, tile % k_tiles)
                tile += ctas
        else:
            self.convert_tile(tensors, m, k, block // k_tiles, block % k_tiles)

    @cute.jit
    def convert_tile(self, tensors: Any, m: Int32, k: Int32, tile_row: Int32, tile_column: Int32):
        """One tile; no thread leaves early, because neighbours gather their scales together."""
        cfg = self.config
        tidx, _, _ = cute.arch.thread_idx()
        tile_m, tile_k = cfg.tile_mk
        row = tile_row * tile_m + tidx // cfg.threads_per_row
        for number in cutlass.range_constexpr(tile_k // cfg.columns_per_pass):
            vector = number * cfg.threads_per_row + tidx % cfg.threads_per_row
            column = tile_column * tile_k + vector * self.vector
            inverse = None
            if cutlass.const_expr(self.has_smooth):
                inverse = self._inverse_smooth(tensors[1], column, k)
            step_rows = cfg.row_loads * cfg.rows_per_pass
            for step in cutlass.range(tile_m // step_rows, unroll=1):
                self.convert_step(tensors, inverse, m, k, row + step * step_rows, column)

    @cute.jit
    def convert_step(self, tensors: Any, inverse: Any, m: Int32, k: Int32, first: Int32, column: Int32):
        """``row_loads`` vectors below each other, ``rows_per_pass`` rows apart."""
        x, _, act, ascales = tensors
        rows = [first + i * self.config.rows_per_pass for i in range(self.config.row_loads)]
        inside = [(row < m) & (column < k) for row in rows]
        loaded = [self._load(x, row, column, k, wanted) for row, wanted in zip(rows, inside, strict=True)]
        for row, wanted, values in zip(rows, inside, loaded, strict=True):
            z = self._values(values)
            if cutlass.const_expr(self.has_smooth):
                z = ptx.multiply_each(z, _list(inverse), paired=self.has_fp4)
            maxima = [arithmetic.largest(block) for block in _blocks(z)]
            codes, scales = self._quantized(z, maxima, wanted)
            ptx.store_if(act + ((Int64(row) * k + column) >> 1), codes, wanted)
            self._store_scales(ascales, scales, row, column, k)

    @cute.jit
    def _inverse_smooth(self, smooth: Any, column: Int32, k: Int32):
        """1 / smooth of the columns of this thread."""
        by = self._load_smooth(smooth, column, k)
        rounded, usual = arithmetic.reciprocals(by, paired=self.has_fp4)
        inverse = _array(rounded)
        if not usual:
            _fill(inverse, [ptx.divide(Float32(1.0), one) for one in by])
        return inverse

    def _load_smooth(self, smooth: Any, column: Any, k: Any) -> list[Any]:
        """Of the columns of this thread; beyond K 1.0, so that no thread there divides."""
        words = []
        for i in range(0, self.vector, 4):
            words += ptx.load_four_if(smooth + Int64(column + i) * 4, column < k, ONE)
        return [ptx.of_bits(word) for word in words]

    def _load(self, x: Any, row: Any, column: Any, k: Any, wanted: Any) -> list[Any]:
        """Words of one vector of x; zeros outside."""
        address = x + (Int64(row) * k + column) * self.x_bytes
        words = []
        for offset in range(0, self.vector * self.x_bytes, 16):
            words += ptx.load_four_if(address + offset, wanted)
        return words

    def _values(self, words: list[Any]) -> list[Any]:
        if self.x_dtype == "fp32":
            return [ptx.of_bits(word) for word in words]
        kind = "bf16" if self.x_dtype == "bf16" else "f16"
        return [value for word in words for value in ptx.two_halves(word, kind)]

    def _quantized(self, z: list[Any], maxima: list[Any], wanted: Any) -> tuple[list[Any], Any]:
        """(words of codes, scale bytes of this thread's blocks from the low byte up, 0 outside), of one vector."""
        if self.vector < arithmetic.BLOCK:
            other = cute.arch.shuffle_sync_bfly(maxima[0], 1)
            maxima = [ptx.larger_magnitude(maxima[0], other)]
        sixths = [arithmetic.sixth(amax) for amax in maxima]
        scales = ptx.e4m3_bytes(sixths[0], sixths[1] if len(sixths) > 1 else Float32(0.0))
        words = []
        for number, block in enumerate(_blocks(z)):
            scale = (scales >> Uint32(8 * number)) & Uint32(0xFF) if len(maxima) > 1 else scales
            words += arithmetic.codes(block, scale, has_fp4=self.has_fp4)
        return words, ptx.unless_zero(Int32(wanted), scales)

    def _store_scales(self, ascales: Any, scales: Any, row: Any, column: Any, k: Any) -> None:
        """The four scales of a row and 64 columns as one word, from the first of the threads that hold them."""
        within = column & (SF_BLOCK_K - 1)
        word = scales << Uint32((within >> 4) * 8)
        distance = max(1, arithmetic.BLOCK // self.vector)
        while distance < self.sharers:
            word = word | cute.arch.shuffle_sync_bfly(word, distance)
            distance *= 2
        blocks = Int64(row >> 7) * ((k + (SF_BLOCK_K - 1)) >> 6) + (column >> 6)
        place = (row & 31) * 16 + ((row & 127) >> 5) * 4
        ptx.store_if(ascales + blocks * SF_BLOCK_BYTES + place, [word], (within == 0) & (column < k))


def _blocks(values: list[Any]) -> list[list[Any]]:
    return [values[i : i + arithmetic.BLOCK] for i in range(0, len(values), arithmetic.BLOCK)]


def _array(values: list[Any]) -> cute.Tensor:
    """Registers that a branch may change."""
    array = cute.make_rmem_tensor(len(values), Float32)
    _fill(array, values)
    return array


def _fill(array: cute.Tensor, values: list[Any]) -> None:
    for i, value in enumerate(values):
        array[i] = value


def _list(array: cute.Tensor) -> list[Any]:
    return [array[i] for i in range(cute.size(array))]


ARGUMENTS = SIGNATURE.abi


def host_function(config: RowsConfig, problem_class: ProblemClass, arch: Arch) -> tuple[Any, tuple[Any, ...]]:
    """The function to compile and arguments that give it the types of a call, in the order of ``ARGUMENTS``.

    ``config`` must be legal. Addresses and sizes are run-time values: those given here only carry types.
    """
    has_fp4 = arch.compute_capability >= (10, 0)
    return QuantizeRows(config, problem_class, has_fp4=has_fp4), _typed_arguments(problem_class)


def _typed_arguments(problem_class: ProblemClass) -> tuple[Any, ...]:
    dtypes = {
        "x": DTYPES[problem_class.x_dtype],
        "smooth": Float32,
        "lora_down": DTYPES[problem_class.x_dtype],
        "lora_act_in": DTYPES[problem_class.x_dtype],
        "act": cutlass.Uint8,
        "ascales": cutlass.Uint8,
    }
    pointers = [
        cute.runtime.make_ptr(dtypes[name], 256, cute.AddressSpace.gmem, assumed_align=16)
        for name in SIGNATURE.pointers
    ]
    return (*pointers, *(Int32(256) for _ in SIGNATURE.integers), cuda.CUstream(0))

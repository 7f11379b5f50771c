"""Activations smoothed and put in order on sm_90a: one launch, no shared memory; R = 0.

``xs = quad_order(round16(fp32(x) * (1 / smooth)))``

| what | value |
|---|---|
| CTA | ``rows`` rows and 16 ``threads_per_row`` columns; K runs fastest |
| thread | 16 elements of a row; 1 / smooth of its columns serves all its rows |
| quad | a span of 64 elements; four lanes transpose pairs, then each stores two pieces of 16 bytes (``lane_order``) |

Loads and 1 / smooth are those of ``nvfp4_quantize``'s kernel ``rows``. With ``use_pdl`` smooth is read before the
previous kernel has ended (``griddepcontrol.wait``): that kernel must not be the one that writes it.
"""

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Int32, Int64, cute

from kernel_space.core.arch import Arch
from kernel_space.core.problem import ProblemClass
from kernel_space.numerics.quad_order import SPAN
from kernel_space.operators.nvfp4_quantize.parts import ptx
from kernel_space.operators.nvfp4_quantize.rows.kernel import QuantizeRows
from kernel_space.operators.smooth_lora_down.parts import lane_order, ordered
from kernel_space.operators.smooth_lora_down.smooth_rows.config import SmoothRowsConfig


class SmoothRows(QuantizeRows):
    """Generator of one kernel: a config and a problem class."""

    def __init__(self, config: SmoothRowsConfig, problem_class: ProblemClass) -> None:
        super().__init__(config, problem_class, has_fp4=False)

    @cute.jit
    def __call__(
        self,
        x: cute.Pointer,
        smooth: cute.Pointer,
        lora_down: cute.Pointer,
        xs: cute.Pointer,
        lora_act_in: cute.Pointer,
        m: Int32,
        k: Int32,
        stream: cuda.CUstream,
    ):
        """Launch over all tiles. LoRA's tensors are empty."""
        tile_m, tile_k = self.config.tile_mk
        k_tiles = cute.ceil_div(k, tile_k)
        self.kernel(x, smooth, xs, m, k, k_tiles).launch(
            grid=(cute.ceil_div(m, tile_m) * k_tiles, 1, 1),  # one dimension: the others end at 65535
            block=[self.config.threads_per_cta, 1, 1],
            stream=stream,
            min_blocks_per_mp=self.config.ctas_per_sm,
            # As the GEMM that follows: an SM that has to change it must be empty first.
            preferred_smem_carveout=100,
            use_pdl=self.config.use_pdl,
        )

    @cute.kernel
    def kernel(
        self, x: cute.Pointer, smooth: cute.Pointer, xs: cute.Pointer, m: Int32, k: Int32, k_tiles: Int32
    ):
        cfg = self.config
        block, _, _ = cute.arch.block_idx()
        thread, _, _ = cute.arch.thread_idx()
        tile_m, tile_k = cfg.tile_mk
        row = block // k_tiles * tile_m + thread // cfg.threads_per_row
        column = block % k_tiles * tile_k + thread % cfg.threads_per_row * self.vector
        inverse = None
        if cutlass.const_expr(self.has_smooth):
            inverse = self._inverse_smooth(smooth.toint(), column, k)
        if cutlass.const_expr(cfg.use_pdl):
            cute.arch.griddepcontrol_wait()
            cute.arch.griddepcontrol_launch_dependents()
        step_rows = cfg.row_loads * cfg.rows_per_pass
        for step in cutlass.range(tile_m // step_rows, unroll=1):
            self.convert_step((x.toint(), xs.toint()), inverse, m, k, row + step * step_rows, column)

    @cute.jit
    def convert_step(self, tensors: Any, inverse: Any, m: Int32, k: Int32, first: Int32, column: Int32):
        """``row_loads`` vectors below each other, ``rows_per_pass`` rows apart; no thread leaves its quad."""
        x, xs = tensors
        rows = [first + i * self.config.rows_per_pass for i in range(self.config.row_loads)]
        loaded = [self._load(x, row, column, k, (row < m) & (column < k)) for row in rows]
        spans = (k + (SPAN - 1)) // SPAN
        for row, words in zip(rows, loaded, strict=True):
            pairs = self._pairs(words, inverse)
            line = xs + (Int64(row) * spans + column // SPAN) * ordered.SPAN_BYTES
            self._store(line, pairs, column, (row < m) & (column // SPAN < spans))

    def _pairs(self, words: list[Any], inverse: Any) -> list[Any]:
        """16 elements times 1 / smooth, as pairs; zeros stay zeros, as 1 / smooth is 1 beyond K."""
        if not self.has_smooth:
            return lane_order.moved_pairs(words)
        factors = [inverse[i] for i in range(self.vector)]
        scaled = ptx.multiply_each(self._values(words), factors, paired=False)
        return lane_order.rounded_pairs(scaled, is_bf16=self.x_dtype == "bf16")

    def _store(self, line: Any, pairs: list[Any], column: Any, wanted: Any) -> None:
        """This lane's pieces of its quad's span."""
        quarter = column // self.vector % 4
        for w in range(2):
            piece = lane_order.transposed(pairs[4 * w : 4 * w + 4], quarter)
            offset = quarter * ordered.PIECE_BYTES + w * (ordered.SPAN_BYTES // 2)
            ptx.store_if(line + Int64(offset), piece, wanted)


ARGUMENTS = ordered.ARGUMENTS


def host_function(
    config: SmoothRowsConfig, problem_class: ProblemClass, arch: Arch
) -> tuple[Any, tuple[Any, ...]]:
    """The function to compile and arguments that give it the types of a call, in the order of ``ARGUMENTS``.

    ``config`` must be legal. Addresses and sizes are run-time values: those given here only carry types.
    """
    return SmoothRows(config, problem_class), ordered.typed_arguments(problem_class)

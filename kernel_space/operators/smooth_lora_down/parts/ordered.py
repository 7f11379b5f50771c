"""What ``lora_mma`` of ``nvfp4_quantize`` does otherwise here: arguments, and what is made of a row.

Walk along K, copies, products and sums are its own. It knows ``xs`` by the names of the outputs that it stands for.
"""

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Float32, Int32, Int64, cute

from kernel_space.core.problem import ProblemClass
from kernel_space.numerics.quad_order import SPAN
from kernel_space.operators.nvfp4_quantize.lora_mma import ptx as mma_ptx
from kernel_space.operators.nvfp4_quantize.lora_mma.stream import INVERSE_BYTES, ROW_STEP
from kernel_space.operators.nvfp4_quantize.parts import arithmetic, ptx
from kernel_space.operators.smooth_lora_down.parts import lane_order
from kernel_space.operators.smooth_lora_down.signature import SIGNATURE

DTYPES = {"fp16": cutlass.Float16, "bf16": cutlass.BFloat16}
SPAN_BYTES = 2 * SPAN
PIECE_BYTES = 16  # of one lane of a quad


class Ordered:
    """Mixin over a kernel of ``nvfp4_quantize`` with LoRA-down."""

    config: Any
    layouts: Any

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
        """Launch a cluster for every tile of rows and part of R; not persistent, no workspace."""
        lay = self.layouts
        ctas = cute.ceil_div(m, lay.tile_m) * (lay.parts_r * lay.splits)
        self.kernel((x, smooth, lora_down, xs, xs, lora_act_in), m, k).launch(
            grid=(ctas, 1, 1),  # one dimension: the others end at 65535
            block=[lay.threads, 1, 1],
            cluster=(lay.splits, 1, 1),
            stream=stream,
            min_blocks_per_mp=self.config.ctas_per_sm,
            # As the GEMM that follows: an SM that has to change it must be empty first.
            preferred_smem_carveout=100,
            use_pdl=self.config.use_pdl,
        )

    def _place(self, pointers: Any, regions: dict[str, Any], m: Int32, k: Int32) -> dict[str, Any]:
        """Besides what the kernel knows: where this lane's pieces of its first row go, and bytes to its next row."""
        place = super()._place(pointers, regions, m, k)
        row_bytes = Int64(place["k_blocks"]) * SPAN_BYTES
        place["xs_row"] = place["act"] + place["row"] * row_bytes + Int64(place["quarter"] * PIECE_BYTES)
        place["xs_step"] = row_bytes * ROW_STEP
        return place

    def store_row(self, place: Any, words: list[Any], i: Any, chunk: Any, octet: int) -> None:
        """This quad's span of a row, from each lane's 16 elements of it; zeros beyond K. All lanes take part."""
        pairs = self._pairs(place, words, i)
        # K ends with a span or in its middle: there the last two lanes have other columns, whatever they hold.
        is_whole = Int32(chunk * SPAN + SPAN // 2 < place["k"])
        wanted = place["row"] + octet * ROW_STEP < place["m"]
        address = place["xs_row"] + Int64(chunk) * SPAN_BYTES + place["xs_step"] * octet
        for w in range(2):
            piece = lane_order.transposed(pairs[4 * w : 4 * w + 4], place["quarter"])
            piece[2:] = [ptx.unless_zero(is_whole, word) for word in piece[2:]]
            ptx.store_if(address + w * (SPAN_BYTES // 2), piece, wanted)

    def _pairs(self, place: Any, words: list[Any], i: Any) -> list[Any]:
        """16 elements times 1 / smooth of the ``i``-th chunk, as pairs."""
        lay = self.layouts
        if not lay.has_smooth:
            return lane_order.moved_pairs(words)
        values = [value for word in words for value in ptx.two_halves(word, "bf16" if lay.is_bf16 else "f16")]
        address = place["inverse"] + (i & 1) * INVERSE_BYTES + place["quarter"] * (arithmetic.BLOCK * 4)
        inverse = [one for offset in range(0, 64, 16) for one in mma_ptx.load_shared(address + offset)]
        scaled = ptx.multiply_each(values, inverse, paired=False)
        return lane_order.rounded_pairs(scaled, is_bf16=lay.is_bf16)

    def _store_scales(self, place: Any, bytes_: Any, chunk: Any) -> None:
        """There are none."""

    def clear_padding(self, place: Any) -> None:
        """There are no rows beyond M."""


ARGUMENTS = SIGNATURE.abi


def typed_arguments(problem_class: ProblemClass) -> tuple[Any, ...]:
    """Arguments with the types of a call, in the order of ``ARGUMENTS``."""
    half = DTYPES[problem_class.x_dtype]
    pointers = [
        cute.runtime.make_ptr(
            Float32 if name == "smooth" else half, 256, cute.AddressSpace.gmem, assumed_align=16
        )
        for name in SIGNATURE.pointers
    ]
    return (*pointers, *(Int32(256) for _ in SIGNATURE.integers), cuda.CUstream(0))

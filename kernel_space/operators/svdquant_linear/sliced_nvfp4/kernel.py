"""The kernel ``sliced_nvfp4``: a layer on few rows of NVFP4 activations in one launch, for sm_90a.

``act, ascales = nvfp4(x[M,K] / smooth[K])``, ``lora_act_in[M,R] = x @ lora_down[K,R]``,
``y[M,N] = f((dequantized act @ wgt[N,K].T + lora_act_in @ lora_up[N,R].T) * wcscale[N] + bias[N])``

It is ``sliced`` of ``svdquant_linear_16bit``, whose CTAs, rings and barriers it has, and x is quantized as in
``staged_nvfp4``: once, by the CTAs that multiply weights, to the values of its codes, 16 bits each in the workspace,
exact. All of a CTA's weights are on their way meanwhile. Eight neighbours along K lie as ``unpack_word`` gives eight
codes of a weight, so what a warp reads of x are operands as they are.

| warps | beside their role in ``sliced`` |
|---|---|
| 1, 3 | none: smooth is in x |
| 2 | waits until all of the tile's x is quantized, in CTAs that multiply weights |
| multiplying warpgroups | quantize the CTA's part of x first, then those that nobody comes to |

| counter, of each tile of rows of x | counted up by | waited for by |
|---|---|---|
| taken | CTAs that multiply weights, when all warps have lora_act_in and have seen that x is quantized | nobody |
| done | a CTA that has quantized a part (release) | warp 2, and whoever might take another part (acquire) |
| bits of parts | the CTA that takes one | nobody; the last one that is ``taken`` sets all of them to 0 |
"""

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Int32, cute

from kernel_space.core.arch import Arch
from kernel_space.core.problem import ProblemClass
from kernel_space.operators.svdquant_gemm_16bit.narrow.ptx import unpack_word
from kernel_space.operators.svdquant_linear.sliced_nvfp4.budget import zeroed_bytes
from kernel_space.operators.svdquant_linear.sliced_nvfp4.config import SlicedNvfp4Config
from kernel_space.operators.svdquant_linear.sliced_nvfp4.layouts import SlicedNvfp4Layouts
from kernel_space.operators.svdquant_linear.staged_nvfp4.budget import WORDS
from kernel_space.operators.svdquant_linear.staged_nvfp4.quantize import Quantizer
from kernel_space.operators.svdquant_linear.staged_nvfp4.rows import QuantizedRows
from kernel_space.operators.svdquant_linear_16bit.host import typed_arguments
from kernel_space.operators.svdquant_linear_16bit.sliced.kernel import SlicedLayer
from kernel_space.operators.svdquant_linear_16bit.whole.eights import VECTOR

DONE, TAKEN_PARTS = 2, 4  # words of a tile's counters: parts that are done, bits of parts that are taken


class SlicedNvfp4Layer(Quantizer, QuantizedRows, SlicedLayer):
    """Generator of one kernel: a resolved config (no ``auto``) and a problem class."""

    over_smooth, quantizes = False, True
    counters = WORDS
    to_values = 2.0**14  # products of two dequantized operands lack that

    def _layouts(self) -> SlicedNvfp4Layouts:
        return SlicedNvfp4Layouts(self.config, self.problem_class)

    @cute.jit
    def __call__(
        self,
        x: cute.Pointer,
        smooth: cute.Pointer,
        lora_down: cute.Pointer,
        wgt: cute.Pointer,
        wscales: cute.Pointer,
        lora_up: cute.Pointer,
        wcscale: cute.Pointer,
        bias: cute.Pointer,
        act: cute.Pointer,
        ascales: cute.Pointer,
        lora_act_in: cute.Pointer,
        y: cute.Pointer,
        workspace: cute.Pointer,
        m: Int32,
        k: Int32,
        n: Int32,
        max_active_clusters: Int32,
        stream: cuda.CUstream,
    ):
        """Launch as ``sliced`` does. ``act`` and ``ascales``, which the links of a chain hand on, are not written."""
        lay = self._layouts()
        tma_w, mW = self._tma_halves(lay, wgt, n, k)
        tma_sf, mSF = self._tma_blocks(lay, wscales, n, k)
        tma_x, mX = self._tma_rows(lay, x, m, k)
        quantized, tma_q, mQ = self._tma_quantized(lay, workspace, zeroed_bytes(m, lay.r), m, k)
        resident = max_active_clusters * self.split_k
        pointers = (
            smooth,
            lora_down,
            lora_up,
            wcscale,
            bias,
            lora_act_in,
            y,
            workspace,
            x,
            quantized,
            resident,
        )
        atoms, tensors = (tma_w, tma_sf, *tma_x, *tma_q), (mW, mSF, *mX, *mQ)
        self._start(lay, atoms, tensors, pointers, (m, n, k), stream)

    @cute.jit
    def _place(self, lay: SlicedNvfp4Layouts, pointers: Any, buffers: Any, m: Int32, n: Int32, k: Int32):
        """Beside what ``sliced`` knows: ``parts`` of x, no more than there are CTAs at once that multiply weights;
        ``own``: the number of this one among these, whose part it is first.
        """
        place = SlicedLayer._place(self, lay, pointers, buffers, m, n, k)
        _, tiles, _ = cute.arch.grid_dim()
        multiplying = (tiles - lay.down_tiles) * self.split_k
        at_once = cutlass.max(pointers[10] - lay.down_tiles * self.split_k, Int32(1))
        return {
            **place,
            "x": pointers[8].toint(), "smooth": pointers[0].toint(), "quantized": pointers[9].toint(),
            "own": place["column_tile"] * self.split_k + place["rank"],
            "parts": cutlass.min(cutlass.min(multiplying, at_once), Int32(self.config.quantize_parts)),
            "done": place["taken"] + DONE, "taken_parts": place["taken"] + TAKEN_PARTS,
        }  # fmt: skip

    def _quantized(self, lay: Any, words: Any) -> tuple[Any, ...]:
        """Four words of pairs (i, i + 4), of four of x and eight of smooth; both lanes of a block at once."""
        inverse = self.inverse(words[VECTOR // 2 :])
        codes, factor = self.codes_and_factor(lay, words[: VECTOR // 2], inverse)
        return unpack_word(codes, factor, is_bf16=lay.is_bf16)

    def _over_smooth(self, lay: Any, buffers: Any, slot: Any, half: Any) -> list[list[Any]]:
        """x is, and quantized."""
        return self.pieces_of_x(lay, buffers, slot, half)

    def _arrivals(self, lay: Any) -> dict[str, int]:
        return {**super()._arrivals(lay), "ab_full": 1}


def host_function(
    config: SlicedNvfp4Config, problem_class: ProblemClass, arch: Arch
) -> tuple[Any, tuple[Any, ...]]:
    """The function to compile and arguments that give it the types of a call, in the order of the signature."""
    return SlicedNvfp4Layer(config, problem_class), typed_arguments(problem_class)

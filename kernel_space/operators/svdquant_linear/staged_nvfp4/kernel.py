"""The kernel ``staged_nvfp4``: a layer on up to a few hundred rows of NVFP4 activations in one launch, for sm_90a.

``act, ascales = nvfp4(x[M,K] / smooth[K])``, ``lora_act_in[M,R] = x @ lora_down[K,R]``,
``y[M,N] = f((dequantized act @ wgt[N,K].T + lora_act_in @ lora_up[N,R].T) * wcscale[N] + bias[N])``

Where there is no FP4 tensor core, codes are made 16-bit numbers before they are multiplied. So no codes are written:
x is quantized to the values of its codes (``quantize.py``), 16 bits each in the workspace, exact. What multiplies is
``staged``, whose roles, rings and barriers this kernel has, with weights as they are in place of weights over smooth.

| clusters of a tile of rows of x | A operand | B operand | result |
|---|---|---|---|
| the first: a tile's columns are columns of lora_down | x | lora_down | lora_act_in |
| the others | x as it is quantized | weights, dequantized | y |

| warps | beside their role in ``staged`` |
|---|---|
| 1, 3 | none but it |
| 2 | waits until all of the tile's x is quantized, where it is that which it loads |
| dequantizing, multiplying warpgroups | quantize the CTA's part of x first |
| multiplying warpgroups | then those that nobody comes to |

| counter, of each tile of rows of x | counted up by | waited for by |
|---|---|---|
| ready | as of ``staged`` | as of ``staged`` |
| taken | CTAs that multiply weights, when y is stored: none of their warps looks at a counter then | nobody |
| done | a CTA that has quantized a part (release) | warp 2, and whoever might take another part (acquire) |
| bits of parts | the CTA that takes one | nobody; the last one that is ``taken`` sets all of them to 0 |

Nobody waits for a CTA that may not run: a part is waited for only until somebody else may take it, and one that is
taken is quantized by a CTA that runs and waits for nobody meanwhile. So two launches that share the SMs end, too.
"""

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Int32, cute

from kernel_space.core.arch import Arch
from kernel_space.core.problem import ProblemClass
from kernel_space.operators.svdquant_linear.staged_nvfp4.budget import COUNTERS, WORDS, zeroed_bytes
from kernel_space.operators.svdquant_linear.staged_nvfp4.config import StagedNvfp4Config
from kernel_space.operators.svdquant_linear.staged_nvfp4.layouts import StagedNvfp4Layouts
from kernel_space.operators.svdquant_linear.staged_nvfp4.quantize import Quantizer
from kernel_space.operators.svdquant_linear.staged_nvfp4.rows import QuantizedRows
from kernel_space.operators.svdquant_linear_16bit.host import typed_arguments
from kernel_space.operators.svdquant_linear_16bit.staged.kernel import StagedLayer

DONE, TAKEN = 2, 4  # words of a tile's counters: parts that are done, bits of parts that are taken


class StagedNvfp4Layer(Quantizer, QuantizedRows, StagedLayer):
    """Generator of one kernel: a resolved config (no ``auto``) and a problem class."""

    over_smooth, quantizes = False, True
    counters = WORDS

    def _layouts(self) -> StagedNvfp4Layouts:
        return StagedNvfp4Layouts(self.config, self.problem_class)

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
        """Launch as ``staged`` does. ``act`` and ``ascales``, which the links of a chain hand on, are not written."""
        lay = self._layouts()
        tma_w, mW = self._tma_halves(lay, wgt, n, k)
        tma_sf, mSF = self._tma_blocks(lay, wscales, n, k)
        tma_x, mX = self._tma_rows(lay, x, m, k)
        counted = zeroed_bytes(cute.ceil_div(m, lay.rows), COUNTERS)
        quantized, tma_q, mQ = self._tma_quantized(lay, workspace, counted, m, k)
        resident = max_active_clusters * (self.split_k * self.share)
        tma_b, mB = self._tma_branch(lay, lora_act_in, lora_up, m, n) if self.has_lora else ((), ())
        pointers = (smooth, lora_down, wcscale, bias, lora_act_in, y, workspace, x, quantized, resident)
        atoms, tensors = (tma_w, tma_sf, *tma_x, *tma_q, *tma_b), (mW, mSF, *mX, *mQ, *mB)
        self._start(lay, atoms, tensors, pointers, (m, n, k), stream)

    @cute.jit
    def _place(self, lay: StagedNvfp4Layouts, pointers: Any, k: Int32):
        """Beside what ``staged`` knows: ``parts`` of x, no more than there are CTAs at once that multiply weights;
        ``own``: the number of this one among these, whose part it is first.
        """
        place = StagedLayer._place(self, lay, pointers, k)
        _, tiles, _ = cute.arch.grid_dim()
        multiplying = (tiles - lay.down_tiles) * self.split_k
        at_once = cutlass.max(pointers[9] - lay.down_tiles * self.split_k, Int32(1))
        return {
            **place,
            "k": k, "x": pointers[7].toint(), "smooth": pointers[0].toint(), "quantized": pointers[8].toint(),
            "own": (place["tile"] - lay.down_tiles) * self.split_k + place["rank"],
            "parts": cutlass.min(cutlass.min(multiplying, at_once), Int32(self.config.quantize_parts)),
            "done": place["ready"] + DONE, "taken_parts": place["ready"] + TAKEN,
        }  # fmt: skip

    def _arrivals(self, lay: Any) -> dict[str, int]:
        return {**super()._arrivals(lay), "ab_full": 1}


def host_function(
    config: StagedNvfp4Config, problem_class: ProblemClass, arch: Arch
) -> tuple[Any, tuple[Any, ...]]:
    """The function to compile and arguments that give it the types of a call, in the order of the signature."""
    return StagedNvfp4Layer(config, problem_class), typed_arguments(problem_class)

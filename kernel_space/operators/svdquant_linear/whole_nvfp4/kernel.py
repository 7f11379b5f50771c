"""The kernel ``whole_nvfp4``: a layer on few rows of NVFP4 activations in one launch, for sm_90a.

``act, ascales = nvfp4(x[M,K] / smooth[K])``, ``lora_act_in[M,R] = x @ lora_down[K,R]``,
``y[M,N] = f((dequantized act @ wgt[N,K].T + lora_act_in @ lora_up[N,R].T) * wcscale[N] + bias[N])``

It is ``whole`` of ``svdquant_linear_16bit``, whose CTAs, counters and copies it has. There the warps that share a part
of K replace each unit of x in its slot by x / smooth, rounded; here by the values of its codes, 16 bits each, exact:
two lanes a block of 16. So no codes are written, and nobody waits for another CTA but for lora_act_in, whose CTAs
multiply x as it is.

Every tile of rows of weights quantizes its part of x again. With a row or two that is one turn of a warp's lanes for a
unit of K; ``staged_nvfp4`` quantizes x once, and waits for that.
"""

from typing import Any

import cuda.bindings.driver as cuda
from cutlass import Int32, cute

from kernel_space.core.arch import Arch
from kernel_space.core.problem import ProblemClass
from kernel_space.operators.svdquant_gemm_16bit.narrow.ptx import unpack_word
from kernel_space.operators.svdquant_linear.staged_nvfp4.half_blocks import HalfBlocks
from kernel_space.operators.svdquant_linear.whole_nvfp4.config import WholeNvfp4Config
from kernel_space.operators.svdquant_linear_16bit.host import typed_arguments
from kernel_space.operators.svdquant_linear_16bit.whole.kernel import WholeLayer
from kernel_space.operators.svdquant_linear_16bit.whole.layouts import WholeLayouts


class WholeNvfp4Layer(HalfBlocks, WholeLayer):
    """Generator of one kernel: a resolved config (no ``auto``) and a problem class."""

    to_values = 2.0**14  # products of two dequantized operands lack that

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
        """Launch as ``whole`` does. ``act`` and ``ascales``, which the links of a chain hand on, are not written."""
        pointers = (x, smooth, lora_down, wgt, wscales, lora_up, wcscale, bias, lora_act_in, y, workspace)
        self._start(pointers, m, n, k, stream)

    def made_of(self, lay: WholeLayouts, words: Any, inverse: Any) -> tuple[Any, ...]:
        """Values of the codes of four words of x; its neighbour lane has the block's other half."""
        codes, factor = self.codes_and_factor(lay, words, inverse)
        return unpack_word(codes, factor, is_bf16=lay.is_bf16)


def host_function(
    config: WholeNvfp4Config, problem_class: ProblemClass, arch: Arch
) -> tuple[Any, tuple[Any, ...]]:
    """The function to compile and arguments that give it the types of a call, in the order of the signature."""
    return WholeNvfp4Layer(config, problem_class), typed_arguments(problem_class)

"""A layer's GEMM on sm_100a and sm_103a that writes the next layer's NVFP4 activations.

The kernel ``sm100a`` of ``svdquant_gemm`` with another epilogue: a thread holds whole blocks of 16 columns of one row,
so it makes their scales alone. y is rounded to 16 bits first; then as ``nvfp4_quantize`` does it, to the bit.

    next_act, next_ascales = nvfp4(y * (1 / next_smooth))

next_smooth: fp32, one per column of y; next_act: two E2M1 codes a byte, the even column in the low nibble, by TMA;
next_ascales: the 32x4x4 blocked layout, whole 512-byte blocks: rows up to a multiple of 128 and scales up to a multiple
of 4 are written as zeros, because GEMMs read them.

Not supported: the next layer's LoRA-down, whose sums go over all tiles of a row; ``swap_ab``.
"""

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Float32, Int32, cute

from kernel_space.core.arch import Arch
from kernel_space.core.problem import ProblemClass
from kernel_space.operators.svdquant_gemm.parts.allocations import HALF_DTYPES
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from kernel_space.operators.svdquant_gemm.sm100a.kernel import SvdquantGemmSm100a
from kernel_space.operators.svdquant_gemm.sm100a.layouts import AB_DTYPE, SF_DTYPE
from kernel_space.operators.svdquant_gemm_nvfp4.signature import SIGNATURE
from kernel_space.operators.svdquant_gemm_nvfp4.sm100a.epilogue import QuantizingEpilogue
from kernel_space.operators.svdquant_gemm_nvfp4.sm100a.layouts import CODES, QuantizingLayouts


class SvdquantGemmNvfp4(QuantizingEpilogue, SvdquantGemmSm100a):
    """Generator of one kernel: a resolved config (no ``auto``) and a problem class."""

    def _layouts(self) -> QuantizingLayouts:
        return QuantizingLayouts(self.config, self.problem_class)

    @cute.jit
    def __call__(
        self,
        act: cute.Pointer,
        ascales: cute.Pointer,
        wgt: cute.Pointer,
        wscales: cute.Pointer,
        lora_act_in: cute.Pointer,
        lora_up: cute.Pointer,
        wcscale: cute.Pointer,
        bias: cute.Pointer,
        next_smooth: cute.Pointer,
        next_act: cute.Pointer,
        next_ascales: cute.Pointer,
        workspace: cute.Pointer,
        m: Int32,
        n: Int32,
        k: Int32,
        max_active_clusters: Int32,
        stream: cuda.CUstream,
    ):
        """Build TMA descriptors for M, N, K and launch. ``max_active_clusters`` bounds the persistent grid."""
        lay = self._layouts()
        columns = n
        if cutlass.const_expr(lay.loads_per_subtile == 2):
            columns = n // 2
        packed = columns // CODES
        layout = cute.make_layout((m, packed, 1), stride=(cute.assume(packed, 16), 1, 0))
        mC = cute.make_tensor(next_act, layout)
        operands = (act, ascales, wgt, wscales, lora_act_in, lora_up)
        vectors = (wcscale, bias, workspace)
        beside = (next_smooth, next_ascales, m, columns)
        self._launch(lay, operands, mC, vectors, beside, (m, n, k), max_active_clusters, stream)


ARGUMENTS = SIGNATURE.abi


def host_function(
    config: KernelConfigSm100a, problem_class: ProblemClass, arch: Arch
) -> tuple[Any, tuple[Any, ...]]:
    """The function to compile and arguments that give it the types of a call, in the order of ``ARGUMENTS``.

    ``config`` must be resolved and legal (``rules.legalize``). Addresses and sizes are run-time values: those given
    here only carry types.
    """
    return SvdquantGemmNvfp4(config, problem_class), _typed_arguments(problem_class)


def _typed_arguments(problem_class: ProblemClass) -> tuple[Any, ...]:
    dtypes = {
        "act": AB_DTYPE,
        "ascales": SF_DTYPE,
        "wgt": AB_DTYPE,
        "wscales": SF_DTYPE,
        "lora_act_in": HALF_DTYPES[problem_class.lora_dtype],
        "lora_up": HALF_DTYPES[problem_class.lora_dtype],
        "wcscale": Float32,
        "bias": Float32,
        "next_smooth": Float32,
        "next_act": cutlass.Uint8,
        "next_ascales": cutlass.Uint8,
        "workspace": cutlass.Uint8,
    }
    pointers = [
        cute.runtime.make_ptr(dtypes[name], 256, cute.AddressSpace.gmem, assumed_align=16)
        for name in SIGNATURE.pointers
    ]
    return (*pointers, *(Int32(256) for _ in SIGNATURE.integers), cuda.CUstream(0))

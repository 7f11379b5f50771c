"""Arguments of the host functions of the operator's own kernels that only carry types, for the compiler."""

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Float32, Int32, cute

from kernel_space.core.problem import ProblemClass
from kernel_space.core.registry import operator
from kernel_space.operators.svdquant_gemm.parts.allocations import HALF_DTYPES


def typed_arguments(problem_class: ProblemClass) -> tuple[Any, ...]:
    """One of each in the order of the signature."""
    signature = operator(problem_class.operator).signature
    dtypes = {"wgt": cutlass.Float4E2M1FN, "wscales": cutlass.Float8E4M3FN, "workspace": cutlass.Uint8}
    dtypes |= dict.fromkeys(("smooth", "wcscale", "bias", "wpeak"), Float32)
    half = HALF_DTYPES[problem_class.dtype]
    pointers = [
        cute.runtime.make_ptr(dtypes.get(name, half), 256, cute.AddressSpace.gmem, assumed_align=16)
        for name in signature.pointers
    ]
    return (*pointers, *(Int32(256) for _ in signature.integers), cuda.CUstream(0))

"""One warp a row: lanes stride over it, ``vec`` elements at once, and add their counts at its end.

x fp16 [M, K] -> y fp16 [M, K] = 2 x, count int32 [M] = positive elements. Grid: CTAs of ``rows`` warps; no SMEM.
"""

# ruff: noqa: ANN201, ANN204 - the DSL reads return annotations as C types

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float16, Float32, Int32
from cutlass.cute.runtime import make_ptr

WARP = 32


def host_function(config: Any, problem_class: Any, arch: Any) -> tuple[Any, tuple[Any, ...]]:
    half, whole = (make_ptr(dtype, 0, cute.AddressSpace.gmem, assumed_align=16) for dtype in (Float16, Int32))
    return Rows(config), (half, half, whole, Int32(1), Int32(2), cuda.CUstream(0))


class Rows:
    def __init__(self, config: Any) -> None:
        self.config = config

    @cute.jit
    def __call__(
        self,
        x: cute.Pointer,
        y: cute.Pointer,
        count: cute.Pointer,
        m: Int32,
        k: Int32,
        stream: cuda.CUstream,
    ):
        for doubles, counts in ((True, True),) if self.config.fused else ((True, False), (False, True)):
            self.kernel(x, y, count, m, k, doubles, counts).launch(
                grid=(cute.ceil_div(m, self.config.rows), 1, 1),
                block=(WARP * self.config.rows, 1, 1),
                stream=stream,
                use_pdl=self.config.use_pdl,
            )

    @cute.kernel
    def kernel(
        self,
        x: cute.Pointer,
        y: cute.Pointer,
        count: cute.Pointer,
        m: Int32,
        k: Int32,
        doubles: cutlass.Constexpr,
        counts: cutlass.Constexpr,
    ):
        vec = self.config.vec
        if cutlass.const_expr(self.config.use_pdl):
            cute.arch.griddepcontrol_wait()
            cute.arch.griddepcontrol_launch_dependents()
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        row, lane = block * self.config.rows + thread // WARP, thread % WARP
        if row < m:
            found = Int32(0)
            for column in cutlass.range(lane * vec, k, WARP * vec):
                here = cute.assume(cutlass.Int64(row) * k + column, vec)
                values = cute.make_rmem_tensor((vec,), Float16)
                cute.autovec_copy(cute.make_tensor(x + here, cute.make_layout(vec)), values)
                for i in cutlass.range_constexpr(vec):
                    value = Float32(values[i])
                    found += Int32(value > 0.0)
                    values[i] = Float16(value + value)
                if cutlass.const_expr(doubles):
                    cute.autovec_copy(values, cute.make_tensor(y + here, cute.make_layout(vec)))
            if cutlass.const_expr(counts):
                found = cute.arch.warp_reduction(found, lambda a, b: a + b)
                if lane == 0:
                    cute.make_tensor(count, cute.make_layout(m))[row] = found

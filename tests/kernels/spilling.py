"""A kernel that keeps more values alive than there are registers, so that ptxas spills."""

# ruff: noqa: ANN201 - the DSL reads return annotations as C types

import cutlass
import cutlass.cute as cute

VALUES = 400


@cute.kernel
def mix_kernel(y: cute.Tensor, x: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    values = cute.make_rmem_tensor(cute.make_layout(VALUES), cutlass.Float32)
    for i in cutlass.range_constexpr(VALUES):
        values[i] = x[thread + 32 * i]
    for _ in cutlass.range(10, unroll=1):
        for i in cutlass.range_constexpr(VALUES):
            values[i] = values[i] * values[(i * 7 + 3) % VALUES] + 1.0
    for i in cutlass.range_constexpr(VALUES):
        y[thread + 32 * i] = values[i]


@cute.jit
def mix(y: cute.Tensor, x: cute.Tensor):
    mix_kernel(y, x).launch(grid=(1, 1, 1), block=(32, 1, 1))

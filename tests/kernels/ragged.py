"""Vectors of four with a predicate per element: lanes past the edge load nothing, compute all the same and store
nothing. With shared memory between, what was not loaded is read from there as well."""

# ruff: noqa: ANN201 - the DSL reads return annotations as C types

import cutlass
import cutlass.cute as cute
from cutlass.memory import SmemAllocator

THREADS, VECTOR = 32, 4


@cute.kernel
def ragged_kernel(x: cute.Tensor, y: cute.Tensor, n: cutlass.Int32, through: cutlass.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    first = (block * THREADS + thread) * VECTOR
    values = cute.make_rmem_tensor(cute.make_layout(VECTOR), cutlass.Float32)
    for i in cutlass.range_constexpr(VECTOR):
        if first + i < n:
            values[i] = x[first + i]
    if cutlass.const_expr(through):
        smem = SmemAllocator()
        rows = smem.allocate_tensor(cutlass.Float32, cute.make_layout(THREADS * VECTOR), byte_alignment=16)
        for i in cutlass.range_constexpr(VECTOR):
            if first + i < n:
                rows[thread * VECTOR + i] = values[i]
        cute.arch.sync_threads()
        for i in cutlass.range_constexpr(VECTOR):
            values[i] = rows[thread * VECTOR + i]
    doubled = values.load() * 2.0
    values.store(doubled)
    for i in cutlass.range_constexpr(VECTOR):
        if first + i < n:
            y[first + i] = values[i]


@cute.jit
def doubled(x: cute.Tensor, y: cute.Tensor, n: cutlass.Int32, through: cutlass.Constexpr):
    """y[:n] = 2 x[:n]"""
    grid = (cute.ceil_div(n, THREADS * VECTOR), 1, 1)
    ragged_kernel(x, y, n, through).launch(grid=grid, block=(THREADS, 1, 1))

"""Host functions of tensors and numbers that launch several kernels, without shared memory."""

# ruff: noqa: ANN201 - the DSL reads return annotations as C types

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute


@cute.kernel
def fill_kernel(y: cute.Tensor, value: cutlass.Float32):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    width, _, _ = cute.arch.block_dim()
    i = block * width + thread
    if i < cute.size(y):
        y[i] = value


@cute.kernel
def add_kernel(y: cute.Tensor, x: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    width, _, _ = cute.arch.block_dim()
    i = block * width + thread
    if i < cute.size(y):
        y[i] = y[i] + x[i]


@cute.jit
def three_launches(
    y: cute.Tensor, x: cute.Tensor, value: cutlass.Float32, repeats: cutlass.Int64, stream: cuda.CUstream
):
    """Fill y (128 threads a block), add x (64 threads, cooperative), fill x (32 threads)."""
    n = cute.size(y)
    fill_kernel(y, value).launch(grid=(cute.ceil_div(n, 128), 1, 1), block=(128, 1, 1), stream=stream)
    add_kernel(y, x).launch(
        grid=(cute.ceil_div(n, 64), 1, 1), block=(64, 1, 1), stream=stream, cooperative=True
    )
    fill_kernel(x, value).launch(grid=(cute.ceil_div(n, 32), 1, 1), block=(32, 1, 1), stream=stream)


@cute.jit
def fill_shape(y: cute.Tensor, shape: Any):
    """``shape`` is a tuple whose second entry is a run-time number: the grid."""
    fill_kernel(y, 1.0).launch(grid=(shape[1], 1, 1), block=(128, 1, 1))

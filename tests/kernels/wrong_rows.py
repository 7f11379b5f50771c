"""``rowstats``, one thread for each row: right, and wrong in one thing.

x fp16 [M, K] -> y fp16 [M, K] = 2 x, count int32 [M] = positive elements of each row.
"""

# ruff: noqa: ANN201, ANN204 - the DSL reads return annotations as C types

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float16, Float32, Int32
from cutlass.cute.runtime import make_ptr

WAYS = (
    "right",
    "counts_zeros",
    "counts_on",  # from what count held
    "count_behind",  # one more count than there are rows
    "leaves_column",  # the last one of y
    "reads_early",  # counts before it waits for the launch ahead; alone it is right
)
THREADS = 32


def host_function(way: str) -> tuple[Any, tuple[Any, ...]]:
    if way not in WAYS:
        raise ValueError(f"no way {way!r}")
    half, whole = (make_ptr(dtype, 0, cute.AddressSpace.gmem, assumed_align=4) for dtype in (Float16, Int32))
    return WrongRows(way), (half, half, whole, Int32(1), Int32(2), cuda.CUstream(0))


class WrongRows:
    def __init__(self, way: str) -> None:
        self.way = way

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
        self.kernel(x, y, count, m, k).launch(
            grid=(cute.ceil_div(m, THREADS), 1, 1),
            block=(THREADS, 1, 1),
            stream=stream,
            use_pdl=self.way == "reads_early",
        )

    @cute.kernel
    def kernel(self, x: cute.Pointer, y: cute.Pointer, count: cute.Pointer, m: Int32, k: Int32):
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        row = block * THREADS + thread
        if cutlass.const_expr(self.way == "reads_early"):
            cute.arch.griddepcontrol_launch_dependents()
        if row < m:
            start = cutlass.Int64(row) * k
            values = cute.make_tensor(x + start, cute.make_layout(k))
            doubled = cute.make_tensor(y + start, cute.make_layout(k))
            counts = cute.make_tensor(count + row, cute.make_layout(1))
            found = Int32(0)
            for column in cutlass.range(k):
                value = Float32(values[column])
                if cutlass.const_expr(self.way == "counts_zeros"):
                    found += Int32(value >= 0.0)
                else:
                    found += Int32(value > 0.0)
            if cutlass.const_expr(self.way == "reads_early"):
                cute.arch.griddepcontrol_wait()
            last = k - 1 if cutlass.const_expr(self.way == "leaves_column") else k
            for column in cutlass.range(last):
                value = Float32(values[column])
                doubled[column] = Float16(value + value)
            if cutlass.const_expr(self.way == "counts_on"):
                found += counts[0]
            counts[0] = found
            if cutlass.const_expr(self.way == "count_behind"):
                cute.make_tensor(count + m, cute.make_layout(1))[0] = Int32(1)

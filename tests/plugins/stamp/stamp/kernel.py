"""y[0..31] = a constant that is in the config: candidates that differ in one immediate of their PTX.

``value`` makes the constant, ``behaviour`` says how compilation behaves: see the codes below.
"""

# ruff: noqa: ANN201, ANN204 - the DSL reads return annotations as C types

import ctypes
import os
import time
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import make_ptr

FINE, HANG, EXIT, SEGFAULT, PTXAS_ERROR, TRACE_ERROR, WRONG_ARGUMENTS = 1, 101, 102, 103, 104, 105, 106


def constant(config: Any) -> int:
    return 10_000_000 + config.value


def host_function(config: Any, problem_class: Any, arch: Any) -> tuple[Any, tuple[Any, ...]]:
    pointer = make_ptr(cutlass.Int32, 0, cute.AddressSpace.gmem, assumed_align=16)
    stamp = Stamp(constant(config), config.behaviour)
    if config.behaviour == WRONG_ARGUMENTS:
        return stamp.with_count, (pointer, cutlass.Int32(1), cuda.CUstream(0))
    return stamp, (pointer, cuda.CUstream(0))


def behave(code: int) -> None:
    if code == HANG:
        time.sleep(3600)
    if code == EXIT:
        os.write(2, b"the last words\n")
        os._exit(3)
    if code == SEGFAULT:
        ctypes.string_at(0)
    if code == TRACE_ERROR:
        raise ZeroDivisionError("no tile of width 0")


class Stamp:
    def __init__(self, value: int, code: int) -> None:
        self.value = value
        self.code = code

    @cute.jit
    def __call__(self, y: cute.Pointer, stream: cuda.CUstream):
        behave(self.code)
        self.kernel(y).launch(grid=(1, 1, 1), block=(32, 1, 1), stream=stream)

    @cute.jit
    def with_count(self, y: cute.Pointer, count: cutlass.Int32, stream: cuda.CUstream):
        self.kernel(y).launch(grid=(count, 1, 1), block=(32, 1, 1), stream=stream)

    @cute.kernel
    def kernel(self, y: cute.Pointer):
        thread, _, _ = cute.arch.thread_idx()
        if cutlass.const_expr(self.code == PTXAS_ERROR):
            from cutlass._mlir.dialects import llvm

            llvm.inline_asm(None, [], "no.such.instruction 1;", "", has_side_effects=True)
        cute.make_tensor(y, cute.make_layout(32))[thread] = cutlass.Int32(self.value)

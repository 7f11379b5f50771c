"""Kernels that go wrong on a card, with the arguments of the operator: what goes wrong is in their name.

They are compiled and exported like candidates, so that a GPU worker meets them through the same path. ``lifeless`` only
leaves y as it is.
"""

# ruff: noqa: ANN201, ANN204 - the DSL reads return annotations as C types

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass._mlir.dialects import llvm

from kernel_space.operators.svdquant_gemm.sm90a_parts.host import typed_arguments

FAULTS = (
    "lifeless",
    "spins",  # a loop that never ends
    "waits",  # in every thread of a full chip, for an mbarrier that nobody arrives at
    "traps",
    "asserts",
    "stores_behind_y",  # one element past the end: mapped memory, not its own
    "stores_before_y",
    "stores_into_wgt",
    "stores_to_null",
    "stores_far_away",
    "misaligned",
    "leaves_counters",  # the zeroed part of the workspace
    "octets",  # nothing, in clusters of eight CTAs that have an SM each
)

OPTIONS = {"asserts": "--enable-assertions"}  # of the compiler, which leaves assertions out otherwise
FULL_GRID, FULL_BLOCK = 1024, 256  # more than any chip has places for
OCTET, MOST_OF_SMEM = 8, 160 * 1024


def host_function(fault: str, problem_class: Any, arch: Any) -> tuple[Any, tuple[Any, ...]]:
    if fault not in FAULTS:
        raise ValueError(f"no fault {fault!r}")
    return Faulty(fault), typed_arguments(problem_class)


@cute.jit
def store_bytes(address: cutlass.Int64, value: int):
    """Two bytes, whatever lies there."""
    llvm.inline_asm(
        None,
        [address.ir_value(), cutlass.Int16(value).ir_value()],
        "st.global.b16 [$0], $1;",
        "l,h",
        has_side_effects=True,
    )


class Faulty:
    def __init__(self, fault: str) -> None:
        self.fault = fault

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
        y: cute.Pointer,
        workspace: cute.Pointer,
        m: Int32,
        n: Int32,
        k: Int32,
        max_active_clusters: Int32,
        stream: cuda.CUstream,
    ):
        kernel = self.kernel(wgt, y, workspace, m, n)
        if cutlass.const_expr(self.fault == "octets"):
            kernel.launch(
                grid=(OCTET, 1, 1), block=(32, 1, 1), cluster=(OCTET, 1, 1), smem=MOST_OF_SMEM, stream=stream
            )
        elif cutlass.const_expr(self.fault == "waits"):
            kernel.launch(grid=(FULL_GRID, 1, 1), block=(FULL_BLOCK, 1, 1), stream=stream)
        else:
            kernel.launch(grid=(1, 1, 1), block=(32, 1, 1), stream=stream)

    @cute.kernel
    def kernel(self, wgt: cute.Pointer, y: cute.Pointer, workspace: cute.Pointer, m: Int32, n: Int32):
        start = y.toint()
        if cutlass.const_expr(self.fault == "spins"):
            llvm.inline_asm(
                None, [], "{ LOOP_FOREVER: nanosleep.u32 1000; bra LOOP_FOREVER; }", "", has_side_effects=True
            )
        elif cutlass.const_expr(self.fault == "waits"):
            self.wait()
        elif cutlass.const_expr(self.fault == "traps"):
            llvm.inline_asm(None, [], "trap;", "", has_side_effects=True)
        elif cutlass.const_expr(self.fault == "asserts"):
            cute.testing.assert_(m < 0, "M is negative")
        elif cutlass.const_expr(self.fault == "stores_behind_y"):
            store_bytes(start + cutlass.Int64(m) * cutlass.Int64(n) * 2, 0x1234)
        elif cutlass.const_expr(self.fault == "stores_before_y"):
            store_bytes(start - 2, 0x1234)
        elif cutlass.const_expr(self.fault == "stores_into_wgt"):
            store_bytes(wgt.toint() + 6, 0x1234)
        elif cutlass.const_expr(self.fault == "stores_to_null"):
            store_bytes(start - start + 16, 0x1234)
        elif cutlass.const_expr(self.fault == "stores_far_away"):
            store_bytes(start + (1 << 46), 0x1234)
        elif cutlass.const_expr(self.fault == "misaligned"):
            store_bytes(start + 1, 0x1234)
        elif cutlass.const_expr(self.fault == "leaves_counters"):
            store_bytes(workspace.toint(), 1)

    @cute.jit
    def wait(self):
        """Phase 0 of a barrier that expects an arrival and gets none."""
        text = (
            "{ .shared .align 8 .b64 barrier; .reg .pred done; .reg .b32 place;"
            " mov.u32 place, barrier; mbarrier.init.shared.b64 [place], 1;"
            " AGAIN: mbarrier.try_wait.parity.shared.b64 done, [place], 0; @done bra OVER; bra AGAIN; OVER: }"
        )
        llvm.inline_asm(None, [], text, "", has_side_effects=True)

"""The operator, one thread for each element of y, with programmatic dependent launch: right, and waiting wrongly.

Alone each launch is right; only launches that overlap tell. fp16 out, without LoRA; M x N a multiple of ``THREADS``.
"""

# ruff: noqa: ANN201, ANN204 - the DSL reads return annotations as C types

from typing import Any

import cuda.bindings.driver as cuda
import cutlass.cute as cute
from cutlass import Int32
from cutlass._mlir.dialects import llvm

from kernel_space.operators.svdquant_gemm.sm90a_parts.host import typed_arguments

WAYS = (
    "waits",  # before it reads or writes
    "reads_early",  # everything, then waits, then stores
    "never_waits",
    "shares_workspace",  # reads early, and keeps its sum there until it has waited
)
THREADS = 64

WAIT, RELEASE = "griddepcontrol.wait;\n", "griddepcontrol.launch_dependents;\n"

DECLARE = """{
.reg .pred p; .reg .b16 h, s; .reg .b64 at;
.reg .b32 i, row, col, t, u, byte, group, groups, codea, codeb, a, b;
.reg .f32 f, g, va, vb, sa, sb, acc, scale, shift;
mov.u32 i, %ctaid.x; mov.u32 t, %tid.x; mad.lo.u32 i, i, THREADS, t;
div.u32 row, i, N; rem.u32 col, i, N;
add.u32 groups, K, 63; shr.u32 groups, groups, 6;
mov.f32 acc, 0f00000000; mov.u32 byte, 0;
"""
# Byte ``byte`` of row ROW, and its scale: byte % 8 holds 16 codes with one scale.
LOAD = """shr.u32 t, K, 1; mad.lo.u32 t, t, ROW, byte; cvt.u64.u32 at, t; add.u64 at, at, CODES; ld.global.u8 OUT, [at];
shr.u32 group, byte, 3;
shr.u32 t, ROW, 7; shr.u32 u, group, 2; mad.lo.u32 t, t, groups, u; shl.b32 t, t, 9;
and.b32 u, ROW, 31; mad.lo.u32 t, u, 16, t;
shr.u32 u, ROW, 5; and.b32 u, u, 3; mad.lo.u32 t, u, 4, t;
and.b32 u, group, 3; add.u32 t, t, u;
cvt.u64.u32 at, t; add.u64 at, at, SCALES; ld.global.u8 t, [at];
cvt.u16.u32 s, t; cvt.rn.f16x2.e4m3x2 t, s; mov.b32 {h, s}, t; cvt.f32.f16 FACTOR, h;
"""
# Bits eem of a code at 11..9 of a half are its value times 2^-14.
VALUE = """and.b32 t, CODE, 7; shl.b32 t, t, 9; and.b32 u, CODE, 8; shl.b32 u, u, 12; or.b32 t, t, u;
cvt.u16.u32 h, t; cvt.f32.f16 OUT, h; mul.f32 OUT, OUT, 0f46800000; mul.f32 OUT, OUT, FACTOR;
"""
KEEP = "cvt.u64.u32 at, i; shl.b64 at, at, 2; add.u64 at, at, $6; st.volatile.global.f32 [at], acc;\n"
FETCH = "ld.volatile.global.f32 acc, [at];\n"
FINISH = """cvt.u64.u32 at, col; shl.b64 at, at, 2; add.u64 at, at, WCSCALE; ld.global.f32 scale, [at];
cvt.u64.u32 at, col; shl.b64 at, at, 2; add.u64 at, at, BIAS; ld.global.f32 shift, [at];
fma.rn.f32 acc, acc, scale, shift; cvt.rn.f16.f32 h, acc;
"""
STORE = "cvt.u64.u32 at, i; shl.b64 at, at, 1; add.u64 at, at, Y; st.global.b16 [at], h;\n}"


def _replaced(text: str, **words: str) -> str:
    for word, by in words.items():
        text = text.replace(word, by)
    return text


def program(way: str) -> str:
    """PTX of one thread. $0..$7 are the pointers of ``kernel``, $8 is N, $9 is K."""
    load = _replaced(LOAD, ROW="row", CODES="$0", SCALES="$1", OUT="codea", FACTOR="sa")
    load += _replaced(LOAD, ROW="col", CODES="$2", SCALES="$3", OUT="codeb", FACTOR="sb")
    values = _replaced(VALUE, CODE="codea", OUT="va", FACTOR="sa")
    values += _replaced(VALUE, CODE="codeb", OUT="vb", FACTOR="sb") + "fma.rn.f32 acc, va, vb, acc;\n"
    shift = "shr.u32 codea, codea, 4; shr.u32 codeb, codeb, 4;\n"
    step = "add.u32 byte, byte, 1; shr.u32 t, K, 1; setp.lt.u32 p, byte, t; @p bra NEXT_BYTE;\n"
    work = f"NEXT_BYTE:\n{load}{values}{shift}{values}{step}"
    finish = _replaced(FINISH, WCSCALE="$4", BIAS="$5")
    order = {
        "waits": WAIT + RELEASE + work + finish,
        "reads_early": RELEASE + work + finish + WAIT,
        "never_waits": RELEASE + work + finish,
        "shares_workspace": RELEASE + work + KEEP + WAIT + FETCH + finish,
    }[way]
    text = DECLARE + order + STORE.replace("Y;", "$7;")
    return _replaced(text, THREADS=str(THREADS)).replace(" N;", " $8;").replace(" K,", " $9,")


def host_function(way: str, problem_class: Any, arch: Any) -> tuple[Any, tuple[Any, ...]]:
    return Overlapping(way), typed_arguments(problem_class)


class Overlapping:
    def __init__(self, way: str) -> None:
        self.way = way

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
        self.kernel(act, ascales, wgt, wscales, wcscale, bias, workspace, y, n, k).launch(
            grid=(m * n // THREADS, 1, 1), block=(THREADS, 1, 1), stream=stream, use_pdl=True
        )

    @cute.kernel
    def kernel(
        self,
        act: cute.Pointer,
        ascales: cute.Pointer,
        wgt: cute.Pointer,
        wscales: cute.Pointer,
        wcscale: cute.Pointer,
        bias: cute.Pointer,
        workspace: cute.Pointer,
        y: cute.Pointer,
        n: Int32,
        k: Int32,
    ):
        pointers = (act, ascales, wgt, wscales, wcscale, bias, workspace, y)
        operands = [pointer.toint().ir_value() for pointer in pointers]
        operands += [n.ir_value(), k.ir_value()]
        constraints = ",".join(["l"] * len(pointers) + ["r", "r"])
        llvm.inline_asm(None, operands, program(self.way), constraints, has_side_effects=True)

"""One C function that calls any object's host function, so that a launch is one cheap ctypes call.

The host functions of exported objects take a vector of addresses of values. Filling that vector from Python costs
several microseconds; here LLVM compiles a function that keeps values and vector on its stack, which also makes it
safe to call from several threads at once:

    int32 launch(const Static *, act, ascales, wgt, wscales, lora_act_in, lora_up, wcscale, bias, y, workspace, stream)
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import llvmlite.binding as llvm

from kernel_space.arguments import Argument
from kernel_space.errors import InputError

POINTERS = (
    "act",
    "ascales",
    "wgt",
    "wscales",
    "lora_act_in",
    "lora_up",
    "wcscale",
    "bias",
    "y",
    "workspace",
)
INTEGERS = ("m", "n", "k", "max_active_clusters")
SIGNATURE = (
    *(Argument(name, "pointer") for name in POINTERS),
    *(Argument(name, "int32") for name in INTEGERS),
    Argument("stream", "stream"),
)
"""The arguments of every ``svdquant_gemm`` object (docs/architecture.md)."""

Launch = Callable[..., int]


class Static(ctypes.Structure):
    """What stays the same from launch to launch of one problem. ``entry``: address of the host function."""

    _fields_ = [("entry", ctypes.c_uint64), *((name, ctypes.c_int32) for name in INTEGERS)]


def check_signature(arguments: tuple[Argument, ...] | None) -> None:
    """Raises ``InputError`` for an object that takes other arguments: calling it would read stray memory."""
    if arguments != SIGNATURE:
        came = "none" if arguments is None else ", ".join(f"{item.name} {item.kind}" for item in arguments)
        raise InputError(f"an object must take the arguments of svdquant_gemm, this one takes {came}")


@functools.cache
def trampoline() -> Launch:
    """``launch(address of Static, ten pointers, stream)`` -> error code of the CUDA runtime, 0 when it went well."""
    engine = _compile(_source())
    address = engine.get_function_address("launch")
    # ctypes releases the interpreter's lock during the call: a full launch queue must not stop other threads.
    function = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_uint64] * (len(POINTERS) + 2))(address)
    function.engine = engine  # the code lives as long as the function
    return function


def _compile(source: str) -> llvm.ExecutionEngine:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(source)
    module.verify()
    target = llvm.Target.from_default_triple().create_target_machine(codemodel="large", reloc="pic", opt=2)
    engine = llvm.create_mcjit_compiler(module, target)
    engine.finalize_object()
    return engine


def _source() -> str:
    """LLVM assembly. The vector holds the address of each value and, last, that of the returned code."""
    addresses = [*POINTERS, "stream"]
    parameters = ", ".join(["i64 %static", *(f"i64 %{name}" for name in addresses)])
    lines = [f"define i32 @launch({parameters}) {{", "%code = alloca i32", "store i32 0, ptr %code"]
    lines += [f"%vector = alloca [{len(SIGNATURE) + 1} x ptr]", "%fixed = inttoptr i64 %static to ptr"]
    for name in addresses:
        lines += [f"%{name}.value = alloca i64", f"store i64 %{name}, ptr %{name}.value"]
    for name in INTEGERS:
        offset = getattr(Static, name).offset
        lines.append(f"%{name}.value = getelementptr i8, ptr %fixed, i64 {offset}")
    for index, name in enumerate([*(item.name for item in SIGNATURE), "code"]):
        value = "%code" if name == "code" else f"%{name}.value"
        lines.append(f"%slot{index} = getelementptr ptr, ptr %vector, i64 {index}")
        lines.append(f"store ptr {value}, ptr %slot{index}")
    lines += [
        "%entry.bits = load i64, ptr %fixed",
        "%entry = inttoptr i64 %entry.bits to ptr",
        f"call void %entry(ptr %vector, i32 {len(SIGNATURE) + 1})",
        "%result = load i32, ptr %code",
        "ret i32 %result",
        "}",
    ]
    return "\n".join(lines)

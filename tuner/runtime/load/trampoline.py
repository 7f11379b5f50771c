"""The launch as a Python builtin that LLVM compiles: from tensors to an object's host function in 0.2 us.

The host functions of exported objects take a vector of addresses of values. Filling that vector from Python and
passing it through ctypes costs more host time than the launch itself, so LLVM compiles a function of CPython's fast
calling convention (``METH_FASTCALL``) that takes tensors, reads their addresses with the accessor that torch exports
for its own generated code, checks that they are there and aligned, and calls the host function with vector and values
on its stack, without the interpreter's lock:

    launch(act, ascales, wgt, wscales, lora_act_in, lora_up, wcscale, bias, y, workspace or None, mutex, stream) -> code

A host function may launch two kernels that hand data over in a workspace. ``mutex`` (the address of a ``Mutex``, or 0)
is held while it runs, so that two threads on one stream cannot launch between each other's two kernels. It is taken
after the interpreter's lock was dropped and dropped before that is taken again: whoever waits for either holds neither.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import llvmlite.binding as llvm
import torch

from kernel_space.core.arguments import Argument
from kernel_space.core.errors import InputError
from kernel_space.operators.svdquant_gemm.operands import ARGUMENT_ORDER

POINTERS = (*ARGUMENT_ORDER, "workspace")
INTEGERS = ("m", "n", "k", "max_active_clusters")
SIGNATURE = (
    *(Argument(name, "pointer") for name in POINTERS),
    *(Argument(name, "int32") for name in INTEGERS),
    Argument("stream", "stream"),
)
"""The arguments of every ``svdquant_gemm`` object (docs/architecture.md)."""

_BRANCH = ("lora_act_in", "lora_up")  # both are empty where there is no low-rank branch

ALIGN = 16  # what TMA asks of a global address
MISALIGNED = (
    -1
)  # instead of a code of the CUDA runtime: an address is no multiple of ALIGN or is 0, nothing was launched
WRONG_CALL = -2  # not twelve arguments

Launch = Callable[..., int]
_METH_FASTCALL = 0x0080
_MUTEX_BYTES = 64  # sizeof(pthread_mutex_t) is 40 on x86-64, 48 on aarch64
_LIBC = ctypes.CDLL(None)


class Mutex:
    """A POSIX mutex, held by ``launch`` while a host function runs. It must outlive every launch that is given it."""

    __slots__ = ("_memory", "address")

    def __init__(self) -> None:
        self._memory = ctypes.create_string_buffer(_MUTEX_BYTES)
        self.address = ctypes.addressof(self._memory)
        if code := _LIBC.pthread_mutex_init(ctypes.c_void_p(self.address), None):
            raise AssertionError(f"pthread_mutex_init must succeed, got {code}")


class Static(ctypes.Structure):
    """What stays the same from launch to launch of one problem. ``entry``: address of the host function."""

    _fields_ = [("entry", ctypes.c_uint64), *((name, ctypes.c_int32) for name in INTEGERS)]


class _MethodDef(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


def check_signature(arguments: tuple[Argument, ...] | None) -> None:
    """Raises ``InputError`` for an object that takes other arguments: calling it would read stray memory."""
    if arguments != SIGNATURE:
        came = "none" if arguments is None else ", ".join(f"{item.name} {item.kind}" for item in arguments)
        raise InputError(f"an object must take the arguments of svdquant_gemm, this one takes {came}")


def make_launch(static: Static) -> Launch:
    """The builtin for ``static``, which must outlive it. Operands must be real tensors: that is not checked.

    Returns the error code of the CUDA runtime (0: launched), ``MISALIGNED`` or ``WRONG_CALL``.
    """
    new = ctypes.pythonapi.PyCFunction_NewEx
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    definition, _ = _method()
    return new(ctypes.addressof(definition), ctypes.addressof(static), None)


@functools.cache
def _method() -> tuple[_MethodDef, llvm.ExecutionEngine]:
    engine = compile_ir(_source())
    address = engine.get_function_address("launch")
    return _MethodDef(b"launch", address, _METH_FASTCALL, b"Launch a kernel."), engine


def compile_ir(source: str) -> llvm.ExecutionEngine:
    """Machine code of LLVM assembly; the functions live as long as the engine."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(source)
    module.verify()
    target = llvm.Target.from_default_triple().create_target_machine(codemodel="large", reloc="pic", opt=2)
    engine = llvm.create_mcjit_compiler(module, target)
    engine.finalize_object()
    return engine


def _python(name: str) -> int:
    return ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0


def _functions() -> str:
    """Addresses as constants: this process compiles them for itself."""
    addresses = {
        "data": torch._C._dynamo.guards._torchinductor_pyobject_tensor_data_ptr,
        "to_long": _python("PyLong_FromLong"),
        "as_pointer": _python("PyLong_AsVoidPtr"),
        "release": _python("PyEval_SaveThread"),
        "acquire": _python("PyEval_RestoreThread"),
        "enter": ctypes.cast(_LIBC.pthread_mutex_lock, ctypes.c_void_p).value or 0,
        "leave": ctypes.cast(_LIBC.pthread_mutex_unlock, ctypes.c_void_p).value or 0,
        "none": id(None),
    }
    return "\n".join(f"%{name} = inttoptr i64 {address} to ptr" for name, address in addresses.items())


def _source() -> str:
    count = len(POINTERS) + 2
    return "\n".join(
        [
            "define ptr @launch(ptr %self, ptr %arguments, i64 %count) {",
            "entry:",
            _functions(),
            f"%right = icmp eq i64 %count, {count}",
            "br i1 %right, label %read, label %wrong",
            "wrong:",
            f"%wrong.code = call ptr %to_long(i64 {WRONG_CALL})",
            "ret ptr %wrong.code",
            "read:",
            *_read_operands(),
            "br i1 %misaligned, label %refuse, label %go",
            "refuse:",
            f"%refused = call ptr %to_long(i64 {MISALIGNED})",
            "ret ptr %refused",
            "go:",
            *_call_entry(),
            "}",
        ]
    )


def _read_operands() -> list[str]:
    """Addresses of all tensors, the mutex, the stream, and whether an address is misaligned or missing."""
    lines = []
    for index, name in enumerate([*POINTERS, "mutex", "stream"]):
        lines.append(f"%{name}.at = getelementptr ptr, ptr %arguments, i64 {index}")
        lines.append(f"%{name}.object = load ptr, ptr %{name}.at")
    lines += [f"%{name} = call i64 %data(ptr %{name}.object)" for name in ARGUMENT_ORDER]
    lines += [
        "%mutex = call ptr %as_pointer(ptr %mutex.object)",
        "%stream = call i64 %as_pointer(ptr %stream.object)",
        "%static = call ptr %as_pointer(ptr %self)",
        "%no.workspace = icmp eq ptr %workspace.object, %none",
        "br i1 %no.workspace, label %together, label %with",
        "with:",
        "%workspace.data = call i64 %data(ptr %workspace.object)",
        "br label %together",
        "together:",
        "%workspace = phi i64 [0, %read], [%workspace.data, %with]",
        "%or.0 = or i64 %workspace, 0",
    ]
    lines += [f"%or.{index + 1} = or i64 %or.{index}, %{name}" for index, name in enumerate(ARGUMENT_ORDER)]
    needed = [name for name in ARGUMENT_ORDER if name not in _BRANCH]
    lines += [f"%{name}.gone = icmp eq i64 %{name}, 0" for name in ARGUMENT_ORDER]
    lines.append("%gone.0 = xor i1 " + ", ".join(f"%{name}.gone" for name in _BRANCH))
    lines += [f"%gone.{index + 1} = or i1 %gone.{index}, %{name}.gone" for index, name in enumerate(needed)]
    return [
        *lines,
        f"%low = and i64 %or.{len(ARGUMENT_ORDER)}, {ALIGN - 1}",
        "%odd = icmp ne i64 %low, 0",
        f"%misaligned = or i1 %odd, %gone.{len(needed)}",
    ]


def _call_entry() -> list[str]:
    """Vector and values on the stack; the vector ends with the address of the code that comes back."""
    lines = ["%code = alloca i32", "store i32 0, ptr %code", f"%vector = alloca [{len(SIGNATURE) + 1} x ptr]"]
    for name in [*POINTERS, "stream"]:
        lines += [f"%{name}.value = alloca i64", f"store i64 %{name}, ptr %{name}.value"]
    for name in INTEGERS:
        offset = getattr(Static, name).offset
        lines.append(f"%{name}.value = getelementptr i8, ptr %static, i64 {offset}")
    for index, name in enumerate([*(item.name for item in SIGNATURE), "code"]):
        value = "%code" if name == "code" else f"%{name}.value"
        lines.append(f"%slot{index} = getelementptr ptr, ptr %vector, i64 {index}")
        lines.append(f"store ptr {value}, ptr %slot{index}")
    return [
        *lines,
        "%host.function.at = load i64, ptr %static",
        "%host.function = inttoptr i64 %host.function.at to ptr",
        "%held = icmp ne ptr %mutex, null",
        "%thread = call ptr %release()",  # a full launch queue must not stop other threads
        "br i1 %held, label %lock, label %call",
        "lock:",
        "%locked = call i32 %enter(ptr %mutex)",
        "br label %call",
        "call:",
        f"call void %host.function(ptr %vector, i32 {len(SIGNATURE) + 1})",
        "br i1 %held, label %unlock, label %back",
        "unlock:",
        "%unlocked = call i32 %leave(ptr %mutex)",
        "br label %back",
        "back:",
        "call void %acquire(ptr %thread)",
        "%result = load i32, ptr %code",
        "%wide = sext i32 %result to i64",
        "%answer = call ptr %to_long(i64 %wide)",
        "ret ptr %answer",
    ]

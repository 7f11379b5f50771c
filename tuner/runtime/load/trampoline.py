"""The launch as a Python builtin that LLVM compiles: from tensors to an object's host function in 0.2 us.

The host functions of exported objects take a vector of addresses of values. Filling that vector from Python and
passing it through ctypes costs more host time than the launch itself, so LLVM compiles a function of CPython's fast
calling convention (``METH_FASTCALL``) that takes tensors, reads their addresses with the accessor that torch exports
for its own generated code, checks that they are there and aligned, and calls the host function with vector and values
on its stack, without the interpreter's lock. There is one for each signature, of its tensors in its order:

    launch(*tensors, workspace or None, mutex, stream) -> code        with a workspace
    launch(*tensors, stream) -> code                                  without

A host function may launch two kernels that hand data over in a workspace. ``mutex`` (the address of a ``Mutex``, or 0)
is held while it runs, so that two threads on one stream cannot launch between each other's two kernels. It is taken
after the interpreter's lock was dropped and dropped before that is taken again: whoever waits for either holds neither.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import torch

from kernel_space.core import registry
from kernel_space.core.arguments import Argument
from kernel_space.core.errors import InputError
from kernel_space.core.signature import Signature
from tuner.runtime.load.launch_source import launch_source

ALIGN = 16  # what TMA asks of a global address
MISALIGNED = (
    -1
)  # instead of a code of the CUDA runtime: an address is no multiple of ALIGN or is 0, nothing was launched
WRONG_CALL = -2  # another number of arguments

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


class _MethodDef(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


class Trampoline:
    """How kernels of ``signature`` are launched. ``static(entry, **integers)`` makes what stays the same from launch to
    launch of one problem: the address of the host function and the signature's sizes and grid.
    """

    def __init__(self, operator: str, signature: Signature) -> None:
        self.operator = operator
        self.arguments = signature.abi
        fields = [("_entry", ctypes.c_uint64), *((name, ctypes.c_int32) for name in signature.integers)]
        self.static: Any = type("Static", (ctypes.Structure,), {"_fields_": fields})
        offsets = {name: getattr(self.static, name).offset for name in signature.integers}
        codes = {"wrong": WRONG_CALL, "misaligned": MISALIGNED}
        self._source = launch_source(signature, offsets, _addresses(), align=ALIGN, codes=codes)

    def check(self, arguments: tuple[Argument, ...] | None) -> None:
        """Raises ``InputError`` for an object that takes other arguments: calling it would read stray memory."""
        if arguments != self.arguments:
            listed = (f"{item.name} {item.kind}" for item in arguments or ())
            came = "none" if arguments is None else ", ".join(listed)
            raise InputError(f"an object must take the arguments of {self.operator}, this one takes {came}")

    def launch(self, static: ctypes.Structure) -> Launch:
        """The builtin for ``static``, which must outlive it. Operands must be real tensors: that is not checked.

        Returns the error code of the CUDA runtime (0: launched), ``MISALIGNED`` or ``WRONG_CALL``.
        """
        new = ctypes.pythonapi.PyCFunction_NewEx
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
        definition, _ = _method(self._source)
        return new(ctypes.addressof(definition), ctypes.addressof(static), None)


@functools.cache
def trampoline_of(operator: str) -> Trampoline:
    return Trampoline(operator, registry.operator(operator).signature)


_compiled: dict[str, tuple[_MethodDef, llvm.ExecutionEngine]] = {}
_compiling = threading.Lock()


def _method(source: str) -> tuple[_MethodDef, llvm.ExecutionEngine]:
    """Compiled once for all signatures of one form, and kept: builtins hold addresses in both. Of threads that come at
    once one compiles; a cache without a lock would drop what another has made, under a builtin.
    """
    with _compiling:
        found = _compiled.get(source)
        if found is None:
            engine = compile_ir(source)
            address = engine.get_function_address("launch")
            found = _MethodDef(b"launch", address, _METH_FASTCALL, b"Launch a kernel."), engine
            _compiled[source] = found
        return found


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


def _addresses() -> dict[str, int]:
    """Of what the launch calls; constants, because this process compiles it for itself."""
    return {
        "data": torch._C._dynamo.guards._torchinductor_pyobject_tensor_data_ptr,  # type: ignore[attr-defined]  # no stub
        "to_long": _python("PyLong_FromLong"),
        "as_pointer": _python("PyLong_AsVoidPtr"),
        "release": _python("PyEval_SaveThread"),
        "acquire": _python("PyEval_RestoreThread"),
        "enter": ctypes.cast(_LIBC.pthread_mutex_lock, ctypes.c_void_p).value or 0,
        "leave": ctypes.cast(_LIBC.pthread_mutex_unlock, ctypes.c_void_p).value or 0,
        "none": id(None),
    }

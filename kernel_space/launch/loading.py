"""Load an exported object into this process, bind its CUDA runtime symbols, call its host function.

The object is plain host code for this machine plus the cubin as data; LLVM's MCJIT links it in memory, so
neither the DSL nor a compiler is needed where it runs.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Container, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import llvmlite.binding as llvm

from kernel_space.core.arguments import Argument, arguments_from_header, pack
from kernel_space.core.errors import InputError
from kernel_space.launch.elf import Elf, read_elf
from kernel_space.launch.runtime_symbols import Runtime

# Symbols are added to one table per process and looked up when an object is finalized.
_BINDING = threading.Lock()
_PROCESS = ctypes.CDLL(None)  # LLVM finds nothing of the process before the first engine is made
_HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32)
_MODULE_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class UnsupportedCall(InputError):
    """The host code calls functions that no runtime here has."""


class HostCallError(RuntimeError):
    """The host code of an object returned ``code``, an error of the CUDA runtime."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class LoadedObject:
    """Host code in memory, bound to one runtime. Close it (or use ``with``) to free the code.

    Made by ``load``.
    """

    def __init__(
        self,
        engine: llvm.ExecutionEngine,
        *,
        prefix: str,
        entry: str,
        runtime: Runtime,
        arguments: tuple[Argument, ...] | None,
    ) -> None:
        self.arguments = arguments
        self.prefix = prefix
        self._engine: llvm.ExecutionEngine | None = engine
        self._runtime = runtime
        self._entry = _HOST_FUNCTION(engine.get_function_address(entry))
        self._library = ctypes.c_void_p()
        self._load_module()

    def call(self, *values: Any) -> None:
        """Runs the host function on ``values``, in the order of ``arguments``.

        Raises ``InputError`` for values that do not fit, ``HostCallError`` for an error code, and what the
        runtime recorded.
        """
        if self.arguments is None:
            raise InputError(
                f"object {self.prefix} was loaded without an argument description; use call_pointers"
            )
        if len(values) != len(self.arguments):
            names = ", ".join(argument.name for argument in self.arguments)
            raise InputError(f"{len(self.arguments)} values are needed ({names}), got {len(values)}")
        packed = [pack(argument, value) for argument, value in zip(self.arguments, values, strict=True)]
        self.call_pointers([ctypes.addressof(item) for item in packed])

    def call_pointers(self, pointers: Sequence[int]) -> None:
        """Runs the host function on addresses of values that the caller keeps alive."""
        if self._engine is None:
            raise InputError(f"object {self.prefix} is closed")
        code = ctypes.c_int32(0)
        vector = (ctypes.c_void_p * (len(pointers) + 1))(*pointers, ctypes.addressof(code))
        self._entry(ctypes.addressof(vector), len(vector))
        self._check("the host function", code)

    @property
    def entry_address(self) -> int:
        """Address of the host function, callable until ``close``: for those who pass its vector themselves."""
        return ctypes.cast(self._entry, ctypes.c_void_p).value or 0

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _load_module(self) -> None:
        """Hands the cubin to the runtime and lets the host code look up its kernels, once per device.

        An object of a function that launches nothing has no code for that.
        """
        assert self._engine is not None
        if not self._engine.get_function_address(f"_mlir_{self.prefix}_cuda_init"):
            return
        library = ctypes.pointer(self._library)
        self._module_call("cuda_init", ctypes.pointer(library))
        for device in self._runtime.device_ids:
            self._module_call(
                "cuda_load_to_device", ctypes.pointer(library), ctypes.pointer(ctypes.c_int32(device))
            )

    def _module_call(self, name: str, *arguments: Any) -> None:
        assert self._engine is not None
        code = ctypes.c_int32(0)
        pointers = [ctypes.cast(argument, ctypes.c_void_p).value for argument in arguments]
        vector = (ctypes.c_void_p * (len(pointers) + 1))(*pointers, ctypes.addressof(code))
        function = _MODULE_FUNCTION(self._engine.get_function_address(f"_mlir_{self.prefix}_{name}"))
        function(ctypes.addressof(vector))
        self._check(name, code)

    def _check(self, what: str, code: ctypes.c_int32) -> None:
        self._runtime.check()
        if code.value:
            message = f"{what} of object {self.prefix} returned CUDA error {code.value}"
            raise HostCallError(message, code.value)


def load(
    object_path: Path | str,
    prefix: str,
    runtime: Runtime,
    *,
    arguments: tuple[Argument, ...] | None = None,
) -> LoadedObject:
    """Loads the object that the DSL exported under ``prefix``, bound to ``runtime``.

    ``arguments``: the values of its host function; by default read from the C header beside it
    (``kernel.h`` for ``kernel.o``), if there is one. Raises ``InputError`` for a file that is no such object.
    """
    path = Path(object_path)
    header = path.with_suffix(".h")
    if arguments is None and header.is_file():
        arguments = arguments_from_header(header.read_text())
    return load_bytes(path.read_bytes(), prefix, runtime, arguments=arguments)


def load_bytes(
    data: bytes, prefix: str, runtime: Runtime, *, arguments: tuple[Argument, ...] | None = None
) -> LoadedObject:
    """``load`` for an object in memory."""
    addresses = runtime.addresses()
    entry = _entry_name(read_elf(data), prefix, addresses)
    engine = _link(data, addresses)
    return LoadedObject(engine, prefix=prefix, entry=entry, runtime=runtime, arguments=arguments)


def _entry_name(elf: Elf, prefix: str, provided: Container[str]) -> str:
    """The host function's symbol. It also spells the argument types, so it is read from the object."""
    stem = f"_mlir_{prefix}__mlir_ciface_"
    names = [symbol.name for symbol in elf.symbols if symbol.is_function and symbol.name.startswith(stem)]
    if len(names) != 1:
        raise InputError(
            f"the object must define one function {stem}..., found {len(names)}; is the prefix right?"
        )
    unknown = [
        symbol.name
        for symbol in elf.symbols
        if symbol.is_undefined and symbol.name not in provided and not _is_of_the_process(symbol.name)
    ]
    if unknown:  # LLVM ends the process on a symbol it cannot resolve
        raise UnsupportedCall(f"the object calls CUDA functions that are not supported: {', '.join(unknown)}")
    return names[0]


def _is_of_the_process(name: str) -> bool:
    """Is it what the linker makes, or a function of the C library? CUDA's are not taken from wherever they are."""
    if not name or name == "_GLOBAL_OFFSET_TABLE_":
        return True
    return not name.lstrip("_").startswith("cu") and hasattr(_PROCESS, name)


def _link(data: bytes, addresses: dict[str, int]) -> llvm.ExecutionEngine:
    target = _target_machine()
    with _BINDING:
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target)
        for symbol, address in addresses.items():
            llvm.add_symbol(symbol, address)
        engine.add_object_file(llvm.ObjectFileRef.from_data(data))
        engine.finalize_object()
    return engine


@functools.cache
def _initialize() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


def _target_machine() -> llvm.TargetMachine:
    """Large code model: the object, the runtime and the callbacks may lie more than 2 GiB apart."""
    _initialize()
    return llvm.Target.from_default_triple().create_target_machine(codemodel="large", reloc="pic")

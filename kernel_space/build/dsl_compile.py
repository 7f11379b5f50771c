"""One call of the CuTe DSL compiler: a function in, PTX, cubin and self-contained object out. Needs no GPU.

The DSL is imported when a function is called, not when this module is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import platform
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from kernel_space.build.dsl_env import import_dsl, refuse_steered
from kernel_space.core.arguments import Argument, arguments_from_header
from kernel_space.core.errors import InputError
from kernel_space.launch.capture import CaptureRuntime, Launch
from kernel_space.launch.loading import LoadedObject, load_bytes
from kernel_space.launch.runtime_symbols import Runtime

# The log names serialized wgmma, which only Hopper has. There the cubin is the same with and without; on sm_100a asking
# for the log changes it.
KEEP_PTXAS_LOG = ("sm_90a",)
REMARKS = "remarks.yaml"


class CompileError(Exception):
    """The DSL or ptxas refused a kernel; the message is one line."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Artifacts:
    """What one compilation leaves. ``object_code`` contains ``cubin``; ``header`` is the C header or None.

    ``ptxas_notes``: the numbered messages of ptxas, such as ``C7512 Potential Performance Loss: ...``; only for
    architectures of ``KEEP_PTXAS_LOG``.
    """

    ptx: str
    cubin: bytes
    object_code: bytes
    header: str | None
    prefix: str
    ptxas_notes: tuple[str, ...] = ()


def compile_function(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    keywords: dict[str, Any],
    *,
    arch: str,
    prefix: str,
    options: str = "",
) -> tuple[Any, Artifacts]:
    """``cute.compile(function, *arguments, **keywords)`` for ``arch``, with all that can be exported of it.

    ``prefix`` starts every symbol of the object. Returns the DSL's compiled function and the artifacts.
    Raises ``CompileError`` with the compiler's reason, ``InputError`` for a DSL that is not in its default settings.
    """
    cute = import_dsl(arch)
    refuse_steered()
    # The DSL names its dump files after the function, not after what it was compiled for: two compilations
    # that share a directory read back each other's PTX and cubin.
    with tempfile.TemporaryDirectory(prefix="compile-") as dump:
        flags = f"--gpu-arch {arch} --keep-ptx --keep-cubin --dump-dir {dump} {_host_target()} {options}"
        if arch in KEEP_PTXAS_LOG:
            flags += f" remarks{{ptx}} --remark-output {dump}/{REMARKS}"
        with compile_errors(), _no_source_locations():
            # No engine: nothing is called through the DSL's own loader, and the exported object has code of its own.
            compiled = cute.compile(function, *arguments, options=flags, no_jit_engine=True, **keywords)
            object_code, header = _export(compiled, Path(dump), prefix)
        ptx, cubin = compiled.__ptx__, compiled.__cubin__
        notes = _ptxas_notes(Path(dump) / REMARKS) if arch in KEEP_PTXAS_LOG else ()
    if not ptx or not cubin:
        raise CompileError("the function launches no kernel: the compiler left no PTX and cubin")
    if cubin not in object_code:
        raise AssertionError(f"the object of {prefix} does not contain the cubin the compiler dumped for it")
    artifacts = Artifacts(
        ptx=ptx, cubin=cubin, object_code=object_code, header=header, prefix=prefix, ptxas_notes=notes
    )
    return compiled, artifacts


@contextlib.contextmanager
def compile_errors() -> Iterator[None]:
    """Whatever the body raises becomes a ``CompileError``: tracing a kernel runs arbitrary Python of the kernel."""
    try:
        yield
    except Exception as error:
        raise CompileError(_reason(error)) from error


@contextlib.contextmanager
def _no_source_locations() -> Iterator[None]:
    """Keep the DSL from looking up the Python line of each operation, which asking for the log of ptxas turns on and
    which takes half of the time of tracing a kernel (0.4 of 1.7 s CPU). PTX and cubin are the same.
    """
    from cutlass.base_dsl import dsl

    switch = dsl._set_enable_frame_filtering
    dsl._set_enable_frame_filtering = lambda _: switch(False)
    try:
        yield
    finally:
        dsl._set_enable_frame_filtering = switch


def _export(compiled: Any, directory: Path, prefix: str) -> tuple[bytes, str | None]:
    """Object and header; no header for arguments that C cannot describe (the object needs none)."""
    if compiled.c_header_arguments.error_msg is not None:
        return compiled.dump_to_object(prefix), None
    compiled.export_to_c(str(directory), "export", prefix)
    return (directory / "export.o").read_bytes(), (directory / "export.h").read_text()


def _ptxas_notes(remarks: Path) -> tuple[str, ...]:
    """From the log of ptxas, which the DSL leaves as one remark of a YAML file; each once, in order.

    Raises ``AssertionError`` when there is no log: a silent compiler must not pass for one without complaints.
    """
    text = remarks.read_text() if remarks.is_file() else ""
    if "ptxas output" not in text:
        raise AssertionError("the compiler left no log of ptxas")
    return tuple(dict.fromkeys(f"{code} {what}" for code, what in _PTXAS_NOTE.findall(text)))


def _host_target() -> str:
    """The oldest CPU of this machine's kind: by default the DSL uses every instruction of the CPU it runs on
    (AVX and more), and an object compiled on one machine would not run on another.
    """
    machine = platform.machine()
    cpu = {"x86_64": " -mcpu=x86-64"}.get(machine, "")
    return f"--host-target 'llvm -mtriple={machine}-unknown-linux-gnu{cpu}'"


_PTXAS_NOTE = re.compile(r"\((C\d{4})\) (.+?)(?: (?:in|for) (?:the )?function\b.*)?$", re.MULTILINE)
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_PTXAS_POSITION = re.compile(r"^ptxas application ptx input, (line \d+); error\s*: ")


def _reason(error: Exception) -> str:
    """The first line that tells what is wrong; compilers put it below banners and above pages of IR."""
    ptxas = getattr(error, "ptxas_error", "")
    if ptxas:
        return "ptxas: " + _PTXAS_POSITION.sub(r"\1: ", _first_line(ptxas))
    message = getattr(error, "message", None)
    if isinstance(message, str) and message.strip():
        return _first_line(message) + _place(error)
    lines = [line.strip() for line in _ANSI.sub("", str(error)).splitlines() if line.strip()]
    marked = [line.removeprefix("error:").strip() for line in lines if line.startswith("error:")]
    text = (marked or lines or ["no message"])[0].removeprefix("unknown: ")
    return f"{type(error).__name__}: {text}"


def _first_line(text: str) -> str:
    lines = [line.strip() for line in _ANSI.sub("", text).splitlines()]
    return next(line for line in lines if line)


def _place(error: Exception) -> str:
    filename, line = getattr(error, "filename", None), getattr(error, "line", None)
    return f" ({Path(filename).name}:{line})" if filename and line else ""


# -- any CuTe DSL function, for the simulator --------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompiledFunction:
    """A compiled CuTe DSL function in this process.

    ``arguments``: its C arguments, or None when C cannot describe them. ``dsl_function``: what
    ``cute.compile`` returned; it turns DSL arguments into pointers.
    """

    artifacts: Artifacts
    arguments: tuple[Argument, ...] | None
    dsl_function: Any

    @property
    def ptx(self) -> str:
        return self.artifacts.ptx

    @property
    def cubin(self) -> bytes:
        return self.artifacts.cubin

    @property
    def prefix(self) -> str:
        return self.artifacts.prefix

    def load(self, runtime: Runtime) -> LoadedObject:
        return load_bytes(self.artifacts.object_code, self.prefix, runtime, arguments=self.arguments)

    def call(self, loaded: LoadedObject, *args: Any, **kwargs: Any) -> None:
        """Runs ``loaded`` on run-time arguments as the DSL takes them (no ``Constexpr``)."""
        pointers, keep_alive = self.dsl_function.execution_args.generate_execution_args(args, kwargs)
        loaded.call_pointers([_address(pointer) for pointer in pointers])
        del keep_alive


def compile_for_capture(
    function: Callable[..., Any], *args: Any, arch: str = "sm_100a", options: str = "", **kwargs: Any
) -> CompiledFunction:
    """``cute.compile(function, *args, **kwargs)``, into something that can be captured.

    Raises ``CompileError``.
    """
    dsl_function, artifacts = compile_function(
        function, args, kwargs, arch=arch, prefix="function", options=options
    )
    arguments = arguments_from_header(artifacts.header) if artifacts.header is not None else None
    return CompiledFunction(artifacts=artifacts, arguments=arguments, dsl_function=dsl_function)


def capture_function(compiled: CompiledFunction, *args: Any, **kwargs: Any) -> list[Launch]:
    """The launches of ``compiled`` called with ``args``: DSL pointers, tensors, numbers. No GPU.

    A tensor's address is that of its data, so tensors of this process's memory can be simulated in place.
    """
    runtime = CaptureRuntime(compiled.ptx)
    with compiled.load(runtime) as loaded:
        compiled.call(loaded, *args, **kwargs)
    return runtime.launches


def _address(pointer: Any) -> int:
    address = getattr(pointer, "value", pointer)
    if not isinstance(address, int):
        raise InputError(f"the DSL passes an argument by {pointer!r}, which is no address")
    return address

"""Every launch of a CuTe DSL program goes into the machine, whatever way the program calls it.

The hooks sit where the DSL has compiled: no engine is made, and a call hands its marshalled arguments to
``run_compiled``. TVM-FFI is left out, as its calls need a card. Its compile-time tensors tell how a torch tensor is
packed.
"""

from __future__ import annotations

import ctypes
import dataclasses
import platform
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.foreign.card import Card
from kernel_space.core.arguments import Argument, TensorValue, pack
from kernel_space.launch.capture import CaptureRuntime, load_bytes
from kernel_space.machine.run.run import SimResult, run_compiled


@dataclasses.dataclass
class Machine:
    """Runs launches on ``card``'s memory under each schedule, and keeps the results.

    Every schedule starts from the same memory and must leave the same bytes; where not, ``differences`` says so. After
    a finding the call runs again from that memory without race checking, which stops at no race: its numbers are
    compared too.
    """

    card: Card
    sms: int
    schedules: tuple[str, ...]
    results: list[SimResult] = dataclasses.field(default_factory=list)
    differences: list[str] = dataclasses.field(default_factory=list)
    kernels: list[str] = dataclasses.field(default_factory=list)

    def run(self, call: _Call) -> None:
        memory = self.card.memory()
        with self.card.paused():
            before = [part.clone() for part in memory]
            first: list[torch.Tensor] | None = None
            for schedule in self.schedules:
                for part, old in zip(memory, before, strict=True):
                    part.copy_(old)
                result = run_compiled(call, memory=memory, sms=self.sms, schedule=schedule, seed=1)
                self.results.append(result)
                if not result.ok:
                    for part, old in zip(memory, before, strict=True):
                        part.copy_(old)
                    run_compiled(
                        call, memory=memory, sms=self.sms, schedule=schedule, seed=1, check_races=False
                    )
                    return
                if first is None:
                    first = [part.clone() for part in memory]
                elif not all(bool((part == old).all()) for part, old in zip(memory, first, strict=True)):
                    self.differences.append(f"other bytes under {schedule} than under {self.schedules[0]}")


class _Call:
    """A compiled function with its marshalled arguments, as ``run_compiled`` takes it."""

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled
        self.arguments: Sequence[Any] = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compiled, name)

    def generate_execution_args(self) -> tuple[Sequence[Any], None]:
        return self.arguments, None


def install(machine: Machine) -> None:
    """Patch the DSL of this process."""
    from cutlass.base_dsl.compiler import CompileOptions, HostTarget
    from cutlass.base_dsl.jit_executor import ExecutionArgs
    from cutlass.cutlass_dsl.cuda_jit_executor import CudaDialectJitCompiledFunction
    from cutlass.cutlass_dsl.cutlass import CuTeDSL

    CompileOptions.enable_tvm_ffi = property(lambda _: False)
    _without_engine(CuTeDSL)
    _keep_compile_arguments(ExecutionArgs)
    _card_tensors(machine.card)
    calls: dict[int, _Call] = {}

    def run_compiled_program(self: Any, exe_args: list[Any]) -> None:
        if id(self) not in calls:
            # Named, the host's target is a cross-compilation, which links nothing: without an engine nothing is found.
            self.host_target = HostTarget(f"llvm -mtriple={platform.machine()}-unknown-linux-gnu")
            calls[id(self)] = _Call(self)
        call = calls[id(self)]
        call.arguments = exe_args
        if self.has_gpu_module:
            machine.run(call)
        else:
            _run_on_host(call)

    def called(self: Any, *args: Any, **kwargs: Any) -> None:
        exe_args, keep = marshalled(self.execution_args, args, kwargs)
        run_compiled_program(self, exe_args)
        del keep

    CudaDialectJitCompiledFunction.run_compiled_program = run_compiled_program
    CudaDialectJitCompiledFunction.__call__ = called


def _run_on_host(call: _Call) -> None:
    """A function without kernels: NVIDIA's block-scaled GEMM reorders its scale factors by one."""
    with load_bytes(call.dump_to_object("host"), "host", CaptureRuntime("")) as loaded:
        loaded.call_pointers([getattr(pointer, "value", pointer) for pointer in call.arguments])


def marshalled(execution: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], Any]:
    """Pointers to the values of a call, with torch tensors packed as the compile-time arguments say."""
    spec = getattr(execution, "compile_values", None)
    if spec is None:
        return execution.generate_execution_args(args, kwargs)
    names = execution._meta.all_names
    streams = [name for name, value in zip(names, spec, strict=True) if type(value).__name__ == "_FakeStream"]
    if len(args) + len(kwargs) + len(streams) == len(names):  # TVM-FFI takes the stream from its environment
        at = {names.index(name) for name in streams}
        rest = iter(args)
        args = tuple(_stream() if i in at else next(rest) for i in range(len(args) + len(at)))
    values = execution.get_rectified_args(args, kwargs)
    packed = [like(value, model) for value, model in zip(values, spec, strict=True)]
    pointers, keep = execution.generate_execution_args(tuple(packed), {})
    return pointers, (packed, keep)


class PackedTensor:
    """A torch tensor in the layout of a compile-time tensor: its address, and what that one left dynamic."""

    def __init__(self, tensor: torch.Tensor, model: Any) -> None:
        shape, strides = tuple(tensor.shape), tuple(tensor.stride())
        if tensor.dtype == torch.float4_e2m1fn_x2:  # two elements a byte
            shape = (*shape[:-1], 2 * shape[-1])
            strides = (*(2 * step for step in strides[:-1]), 1)
        shapes = _chosen(shape, model.dynamic_shapes_mask)
        steps = _chosen(strides, model.dynamic_strides_mask)
        argument = Argument(
            "tensor", "tensor", len(shapes), len(steps),
            shape_bits=_bits(getattr(model, "shape", ()), 32), stride_bits=_bits(getattr(model, "stride", ()), 64),
        )  # fmt: skip
        self._packed = pack(argument, TensorValue(tensor.data_ptr(), shapes, steps))
        self._tensor = tensor

    def __c_pointers__(self) -> list[int]:
        return [ctypes.addressof(self._packed)]


def like(value: Any, model: Any) -> Any:
    """``value`` as the DSL marshals what ``model``, the argument at compile time, has told it."""
    if isinstance(value, torch.Tensor) and hasattr(model, "dynamic_shapes_mask"):
        return PackedTensor(value, model)
    if isinstance(value, int | float) and isinstance(model, _numeric()):
        return type(model)(value)  # inside a tuple the DSL takes a number of Python's for a constant
    if isinstance(value, tuple | list) and isinstance(model, tuple | list) and len(value) == len(model):
        parts = [like(part, other) for part, other in zip(value, model, strict=True)]
        return type(model)(*parts) if hasattr(model, "_fields") else type(value)(parts)
    return value


def _numeric() -> Any:
    from cutlass.base_dsl.typing import Numeric

    return Numeric


def _chosen(values: Sequence[int], mask: Sequence[int]) -> tuple[int, ...]:
    return tuple(value for value, dynamic in zip(values, mask, strict=True) if dynamic)


def _bits(extents: Any, default: int) -> int:
    return next((item.width for item in extents if hasattr(item, "width")), default)


def _stream() -> Any:
    import cuda.bindings.driver as cuda

    return cuda.CUstream(0)


def _without_engine(dsl: Any) -> None:
    compile_and_cache: Callable[..., Any] = dsl.compile_and_cache
    at = 6  # of no_jit_engine, behind module, hash, name, pipeline, signature, no_cache

    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        return compile_and_cache(self, *args[:at], True, *args[at + 1 :], **kwargs)

    dsl.compile_and_cache = wrapped


def _keep_compile_arguments(execution_args: Any) -> None:
    record = execution_args.record_arg_specs_from_compile_args

    def wrapped(self: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        record(self, args, kwargs)
        if args or kwargs:
            self.compile_values = self.get_rectified_args(tuple(args), kwargs)

    execution_args.record_arg_specs_from_compile_args = wrapped


def _card_tensors(card: Card) -> None:
    """``from_dlpack`` of a tensor on the card says device CUDA, so that the DSL takes it for global memory; and it is
    the same tensor with ``enable_tvm_ffi`` and without.
    """
    from cutlass.cute import runtime

    tensor: Any = runtime._Tensor
    initialize = tensor.__init__
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]

    def wrapped(self: Any, source: Any, *args: Any, **kwargs: Any) -> None:
        initialize(self, source, *args, **{**kwargs, "enable_tvm_ffi": False})
        if isinstance(source, torch.Tensor) and card.holds(source):
            managed = pointer(self._dlpack_data, b"dltensor")
            ctypes.c_int32.from_address(
                managed + 8
            ).value = 2  # DLTensor: data, then the device's type: kDLCUDA

    tensor.__init__ = wrapped

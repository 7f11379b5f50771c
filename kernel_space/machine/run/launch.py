"""Arguments of a compiled function -> captured launches and the memory they may touch."""

from __future__ import annotations

import dataclasses
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernel_space.core.arguments import Argument, TensorValue, arguments_from_header
from kernel_space.core.errors import InputError
from kernel_space.launch.capture import CaptureRuntime, Launch, capture, load
from kernel_space.machine.memory.global_memory import GlobalMemory


@dataclasses.dataclass(frozen=True)
class Exported:
    """An exported object with what capturing it needs (see ``kernel_space.launch.capture.Capturable``)."""

    ptx: str
    object_path: Path
    prefix: str
    arguments: tuple[Argument, ...]


def export(compiled: Any, directory: Path | None = None) -> Exported:
    """A function compiled by ``cute.compile(..., options="--keep-ptx ...")`` as an object on disk.

    Raises ``InputError`` when the compiled function kept no PTX.
    """
    ptx = getattr(compiled, "__ptx__", None)
    if not ptx:
        raise InputError("the compiled function has no PTX; compile it with the option --keep-ptx")
    where = directory or Path(tempfile.mkdtemp(prefix="sm100a_"))
    if compiled.c_header_arguments is None or compiled.c_header_arguments.error_msg is None:
        compiled.export_to_c(file_path=str(where), file_name="kernel", function_prefix="kernel")
        header = (where / "kernel.h").read_text()
        return Exported(ptx, where / "kernel.o", "kernel", arguments_from_header(header))
    # C cannot describe an argument (a plain int or bool): the object needs no header when the DSL marshals.
    (where / "kernel.o").write_bytes(compiled.dump_to_object("kernel"))
    return Exported(ptx, where / "kernel.o", "kernel", ())


def prepare(
    compiled: Any, args: Sequence[Any], memory: Sequence[Any]
) -> tuple[str, list[Launch], GlobalMemory]:
    """(PTX, launches of one call, accessible memory). Raises ``InputError``."""
    regions = GlobalMemory()
    for number, item in enumerate(memory):
        add_tensor(regions, item, f"memory[{number}]")
    if hasattr(compiled, "generate_execution_args"):
        exported, launches = _call_dsl_function(compiled, args, regions)
    elif hasattr(compiled, "object_path"):
        exported, launches = compiled, capture(compiled, *bind(compiled, args, regions))
    else:
        raise InputError(
            f"need a CompiledKernel or a compiled CuTe DSL function, got {type(compiled).__name__}"
        )
    if not launches:
        raise InputError("the host code launched no kernel")
    return exported.ptx, launches, regions


_EXPORTS: weakref.WeakKeyDictionary[Any, Exported] = weakref.WeakKeyDictionary()


def _call_dsl_function(
    compiled: Any, args: Sequence[Any], regions: GlobalMemory
) -> tuple[Exported, list[Launch]]:
    """The DSL marshals the arguments; the exported host code runs on callbacks instead of a GPU."""
    exported = _EXPORTS.get(compiled)
    if exported is None:
        exported = _EXPORTS[compiled] = export(compiled)
    pointers, keep = compiled.generate_execution_args(*args)
    for number, item in enumerate(args):
        _add_nested(regions, item, f"argument {number}")
    runtime = CaptureRuntime(exported.ptx)
    with load(exported.object_path, exported.prefix, runtime) as loaded:
        loaded.call_pointers([getattr(pointer, "value", pointer) for pointer in pointers])
    del keep
    return exported, runtime.launches


def _add_nested(regions: GlobalMemory, item: Any, name: str) -> None:
    for part in item if isinstance(item, tuple | list) else (item,):
        if isinstance(part, tuple | list):
            _add_nested(regions, part, name)
        else:
            add_tensor(regions, part, name)


def add_tensor(regions: GlobalMemory, item: Any, name: str) -> None:
    """Make the bytes of a tensor or array accessible; other things are left alone."""
    extent = tensor_extent(item)
    if extent is not None:
        regions.add(*extent, name)


def bind(compiled: Any, args: Sequence[Any], memory: GlobalMemory) -> list[Any]:
    """The values to call the host code with, for tensors, arrays and numbers.

    A tensor or array stands for its address; its bytes, first to last element, become accessible. A plain integer
    for a pointer makes nothing accessible. Raises ``InputError``.
    """
    flat = [item for arg in args for item in (arg if isinstance(arg, tuple | list) else (arg,))]
    arguments = compiled.arguments
    if len(flat) == len(arguments) - 1 and arguments[-1].kind == "stream":
        flat.append(0)
    if len(flat) != len(arguments):
        names = ", ".join(f"{argument.name} ({argument.kind})" for argument in arguments)
        raise InputError(f"{len(arguments)} arguments are needed, got {len(flat)}: {names}")
    return [_value(argument, item, memory) for argument, item in zip(arguments, flat, strict=True)]


def _value(argument: Argument, item: Any, memory: GlobalMemory) -> Any:
    extent = tensor_extent(item)
    if extent is None:
        return 0 if item is None else item
    address, size = extent
    memory.add(address, size, argument.name)
    if argument.kind != "tensor":
        return address
    shapes, strides = tuple(item.shape), _element_strides(item)
    dynamic = tuple(stride for stride in strides if stride != 1)
    if argument.dynamic_strides == len(strides):
        dynamic = strides
    if argument.dynamic_shapes not in (0, len(shapes)) or argument.dynamic_strides not in (0, len(dynamic)):
        raise InputError(f"tensor {argument.name}: pass a TensorValue, its dynamic sizes are not all or none")
    return TensorValue(
        address, shapes if argument.dynamic_shapes else (), dynamic if argument.dynamic_strides else ()
    )


def tensor_extent(item: Any) -> tuple[int, int] | None:
    """(address, bytes from the first to the last element) of a torch tensor or numpy array; None for others."""
    if hasattr(item, "load_dltensor"):
        return _cute_extent(item)
    if hasattr(item, "data_ptr"):
        if item.device.type != "cpu":
            raise InputError(f"tensors must be on the CPU, got one on {item.device}")
        address, size = item.data_ptr(), item.element_size()
    elif hasattr(item, "__array_interface__"):
        address, size = item.__array_interface__["data"][0], item.itemsize
    else:
        return None
    last = sum((n - 1) * s for n, s in zip(item.shape, _element_strides(item), strict=True))
    return address, (last + 1) * size if 0 not in item.shape else 0


def _cute_extent(item: Any) -> tuple[int, int]:
    """Of a ``cute.runtime`` tensor made by ``from_dlpack``."""
    item.load_dltensor()
    wrapper = item._dltensor_wrapper
    last = sum((n - 1) * s for n, s in zip(wrapper.shape, wrapper.stride, strict=True))
    return wrapper.data_ptr, ((last + 1) * item.element_type.width + 7) // 8


def _element_strides(item: Any) -> tuple[int, ...]:
    if hasattr(item, "data_ptr"):
        return tuple(item.stride())
    return tuple(stride // item.itemsize for stride in item.strides)

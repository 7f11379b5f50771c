"""Arguments of a compiled function -> captured launches and the memory they may touch."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernel_space.arguments import Argument, TensorValue, arguments_from_header
from kernel_space.capture import Launch, capture
from kernel_space.errors import InputError
from kernel_space.sim.global_memory import GlobalMemory


@dataclasses.dataclass(frozen=True)
class Exported:
    """An exported object with what capturing it needs (see ``kernel_space.capture.Capturable``)."""

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
    compiled.export_to_c(file_path=str(where), file_name="kernel", function_prefix="kernel")
    header = (where / "kernel.h").read_text()
    return Exported(ptx, where / "kernel.o", "kernel", arguments_from_header(header))


def as_capturable(compiled: Any) -> Any:
    """``CompiledKernel`` and ``Exported`` as they are; a CuTe DSL function is exported first."""
    if hasattr(compiled, "object_path"):
        return compiled
    if hasattr(compiled, "export_to_c"):
        return export(compiled)
    raise InputError(f"need a CompiledKernel or a compiled CuTe DSL function, got {type(compiled).__name__}")


def bind(compiled: Any, args: Sequence[Any]) -> tuple[list[Any], GlobalMemory]:
    """(values to call the host code with, memory regions) for tensors, arrays and numbers.

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
    memory = GlobalMemory()
    values = [_value(argument, item, memory) for argument, item in zip(arguments, flat, strict=True)]
    return values, memory


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


def _element_strides(item: Any) -> tuple[int, ...]:
    if hasattr(item, "data_ptr"):
        return tuple(item.stride())
    return tuple(stride // item.itemsize for stride in item.strides)


def captured(compiled: Any, values: Sequence[Any]) -> list[Launch]:
    """The launches of one call of the host code. Raises ``InputError`` when there is none."""
    launches = capture(compiled, *values)
    if not launches:
        raise InputError("the host code launched no kernel")
    return launches

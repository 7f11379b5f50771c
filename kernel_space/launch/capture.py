"""Capture: what an object's host code would launch, without a GPU.

The object's CUDA runtime symbols are bound to callbacks. Each kernel launch becomes a ``Launch``: grid,
cluster, block, shared memory, the bytes of every kernel parameter, and the TMA descriptors among them,
decoded.
"""

from __future__ import annotations

import ctypes
import dataclasses
import struct
from collections.abc import Callable
from typing import Any, Protocol

from kernel_space.core.arguments import Argument
from kernel_space.core.errors import InputError
from kernel_space.launch.encode_tiled import encode_tiled
from kernel_space.launch.loading import HostCallError, LoadedObject, load, load_bytes
from kernel_space.launch.ptx_entries import Parameter, entries
from kernel_space.launch.runtime_symbols import RUNTIME_SYMBOLS
from kernel_space.launch.tensor_map import (
    TENSOR_MAP_ALIGNMENT,
    TENSOR_MAP_BYTES,
    TensorMap,
    decode_tensor_map,
)

__all__ = [
    "CaptureError",
    "CaptureRuntime",
    "HostCallError",
    "Launch",
    "LoadedObject",
    "capture",
    "load",
    "load_bytes",
]

SMEM_OPTIN_BYTES = 227 * 1024
"""Dynamic shared memory a CTA may ask for on 9.0, 10.0 and 10.3 (device attribute 97)."""


class CaptureError(RuntimeError):
    """The host code did something that the capture does not model."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Launch:
    """One kernel launch. Triples are x, y, z.

    ``cluster``      CTAs per cluster, (1, 1, 1) without the attribute
    ``smem_bytes``   dynamic shared memory
    ``params``       bytes of each kernel parameter, in order; sizes are those of the PTX ``.param`` list
    ``tensor_maps``  parameter index -> decoded TMA descriptor; bytes 64.. of such a parameter are noise
    ``attributes``   other launch attributes by name, such as ``programmatic_stream_serialization``
    ``stream``       the stream handle that was passed
    """

    kernel_name: str
    grid: tuple[int, int, int]
    cluster: tuple[int, int, int]
    block: tuple[int, int, int]
    smem_bytes: int
    params: tuple[bytes, ...]
    tensor_maps: dict[int, TensorMap]
    attributes: dict[str, Any]
    stream: int


class Capturable(Protocol):
    """What ``capture`` needs of a compiled kernel."""

    @property
    def ptx(self) -> str: ...
    @property
    def object_path(self) -> Any: ...
    @property
    def prefix(self) -> str: ...
    @property
    def arguments(self) -> tuple[Argument, ...]: ...


def capture(compiled: Capturable, *values: Any) -> list[Launch]:
    """Runs the host code of ``compiled`` once and returns its launches in order. Needs no GPU.

    ``values``: one per argument of ``compiled``; pointers are integers that nobody dereferences.
    Raises ``InputError`` for values that do not fit, ``CaptureError`` or ``HostCallError`` from host code.
    """
    runtime = CaptureRuntime(compiled.ptx)
    with load(compiled.object_path, compiled.prefix, runtime, arguments=compiled.arguments) as loaded:
        loaded.call(*values)
    return runtime.launches


# -- the runtime of callbacks ------------------------------------------------------------------------------

_SUCCESS = 0
_ERROR_UNKNOWN = 999
_ATTRIBUTE_SMEM_OPTIN = 97  # cudaDevAttrMaxSharedMemoryPerBlockOptin
_KERNEL_STATIC_SMEM = 1  # CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
_U64 = ctypes.c_uint64
_I32 = ctypes.c_int32
_OUT_U64 = ctypes.POINTER(ctypes.c_uint64)
_OUT_I32 = ctypes.POINTER(ctypes.c_int32)
_OUT_U32 = ctypes.POINTER(ctypes.c_uint32)
# Parameters of each function in the CUDA headers; the result is an error code.
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "_cudaLibraryLoadData": (_OUT_U64, _U64, _U64, _U64, ctypes.c_uint32, _U64, _U64, ctypes.c_uint32),
    "_cudaLibraryGetKernel": (_OUT_U64, _U64, ctypes.c_char_p),
    "_cudaGetDevice": (_OUT_I32,),
    "_cudaDeviceGetAttribute": (_OUT_I32, _I32, _I32),
    "_cuKernelGetAttribute": (_OUT_I32, _I32, _U64, _I32),
    "_cudaFuncSetAttribute": (_U64, _I32, _I32),
    "_cudaKernelSetAttributeForDevice": (_U64, _I32, _I32, _I32),
    "_cudaLaunchKernelEx": (_U64, _U64, _U64),
}
assert set(_SIGNATURES) == set(RUNTIME_SYMBOLS)
# What other objects call, that this project's do not: CuTe DSL's own wrappers, which a card's runtime need not have.
_FURTHER: dict[str, tuple[Any, ...]] = {
    "_cuTensorMapEncodeTiled": (
        _U64, _I32, ctypes.c_uint32, _U64, _OUT_U64, _OUT_U64, _OUT_U32, _OUT_U32, _I32, _I32, _I32, _I32,
    ),
    "cuda_dialect_assert_success": (_I32,),
}  # fmt: skip


class CaptureRuntime:
    """Callbacks for the CUDA runtime symbols. ``launches`` grows with every launch.

    ``ptx``: text with every kernel that the object launches; it tells the sizes of their parameters.
    An exception inside a callback cannot cross the host code: it is kept, the host code sees an error code,
    and ``check`` raises it.
    """

    device_ids: tuple[int, ...] = (0,)

    def __init__(self, ptx: str) -> None:
        self.launches: list[Launch] = []
        self._parameters = entries(ptx)
        self._kernels: dict[int, str] = {}
        self._error: Exception | None = None
        self._callbacks = {
            symbol: ctypes.CFUNCTYPE(_I32, *signature)(self._guard(getattr(self, f"_on{symbol}")))
            for symbol, signature in {**_SIGNATURES, **_FURTHER}.items()
        }

    def addresses(self) -> dict[str, int]:
        return {
            symbol: ctypes.cast(callback, ctypes.c_void_p).value or 0
            for symbol, callback in self._callbacks.items()
        }

    def check(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _guard(self, function: Callable[..., None]) -> Callable[..., int]:
        def guarded(*arguments: Any) -> int:
            try:
                function(*arguments)
            except Exception as error:
                self._error = self._error or error
                return _ERROR_UNKNOWN
            return _SUCCESS

        return guarded

    def _on_cudaLibraryLoadData(self, library: Any, *_: Any) -> None:
        library[0] = 1

    def _on_cudaLibraryGetKernel(self, kernel: Any, _library: int, name: bytes) -> None:
        handle = len(self._kernels) + 1
        self._kernels[handle] = name.decode()
        kernel[0] = handle

    def _on_cudaGetDevice(self, device: Any) -> None:
        device[0] = 0

    def _on_cudaDeviceGetAttribute(self, value: Any, attribute: int, _device: int) -> None:
        if attribute != _ATTRIBUTE_SMEM_OPTIN:
            raise CaptureError(f"the host code asks for device attribute {attribute}, which is not modelled")
        value[0] = SMEM_OPTIN_BYTES

    def _on_cuKernelGetAttribute(self, value: Any, attribute: int, _kernel: int, _device: int) -> None:
        if attribute != _KERNEL_STATIC_SMEM:
            raise CaptureError(f"the host code asks for kernel attribute {attribute}, which is not modelled")
        value[0] = 0  # it is only subtracted from the dynamic shared memory that is asked permission for

    def _on_cudaFuncSetAttribute(self, *_: Any) -> None:
        """Permissions (dynamic shared memory, non-portable cluster sizes); a capture grants them all."""

    def _on_cudaKernelSetAttributeForDevice(self, *_: Any) -> None:
        """As ``_on_cudaFuncSetAttribute``."""

    def _on_cuTensorMapEncodeTiled(
        self, out: int, data_type: int, rank: int, address: int, dims: Any, strides: Any, box: Any, steps: Any,
        interleave: int, swizzle: int, l2_promotion: int, oob_fill: int,
    ) -> None:  # fmt: skip
        data = encode_tiled(
            data_type, address, dims[:rank], strides[: rank - 1], box[:rank], steps[:rank], interleave=interleave,
            swizzle=swizzle, l2_promotion=l2_promotion, oob_fill=oob_fill,
        )  # fmt: skip
        ctypes.memmove(out, data, len(data))

    def _oncuda_dialect_assert_success(self, code: int) -> None:
        if code != _SUCCESS:
            raise CaptureError(f"the host code stops on CUDA error {code}")

    def _on_cudaLaunchKernelEx(self, config: int, kernel: int, arguments: int) -> None:
        name = self._kernels.get(kernel)
        if name is None:
            raise CaptureError(f"the host code launches kernel handle {kernel:#x}, which was never looked up")
        if name not in self._parameters:
            raise CaptureError(f"kernel {name} is not in the PTX; it has {', '.join(self._parameters)}")
        self.launches.append(_read_launch(name, self._parameters[name], config, arguments))


# -- decoding a launch -------------------------------------------------------------------------------------

_CONFIG = struct.Struct(
    "<6IQQQI"
)  # cudaLaunchConfig_t: grid, block, smem bytes, stream, attributes, their count
_ATTRIBUTE_BYTES = 72  # cudaLaunchAttribute: id, padding, 64-byte union
_ATTRIBUTE_VALUE = 8
_CLUSTER_DIMENSION = 4
_TRIPLE = struct.Struct("<3I")
_FLAG = struct.Struct("<i")
# cudaLaunchAttributeID -> name and layout of the value
_ATTRIBUTES = {
    2: ("cooperative", _FLAG),
    _CLUSTER_DIMENSION: ("cluster_dimension", _TRIPLE),
    6: ("programmatic_stream_serialization", _FLAG),
    8: ("priority", _FLAG),
    11: ("preferred_cluster_dimension", _TRIPLE),
}


def cluster_of(config: int) -> tuple[int, int, int]:
    """CTAs per cluster of the launch that a ``cudaLaunchConfig_t`` at address ``config`` describes."""
    fields = _CONFIG.unpack(ctypes.string_at(config, _CONFIG.size))
    return _read_attributes(fields[8], fields[9]).get("cluster_dimension", (1, 1, 1))


def _read_launch(name: str, parameters: tuple[Parameter, ...], config: int, arguments: int) -> Launch:
    fields = _CONFIG.unpack(ctypes.string_at(config, _CONFIG.size))
    attributes = _read_attributes(fields[8], fields[9])
    params = _read_params(parameters, arguments)
    return Launch(
        kernel_name=name,
        grid=fields[0:3],
        block=fields[3:6],
        cluster=attributes.pop("cluster_dimension", (1, 1, 1)),
        smem_bytes=fields[6],
        params=params,
        tensor_maps=_tensor_maps(name, parameters, params),
        attributes=attributes,
        stream=fields[7],
    )


def _read_attributes(address: int, count: int) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    for i in range(count):
        data = ctypes.string_at(address + i * _ATTRIBUTE_BYTES, _ATTRIBUTE_BYTES)
        (code,) = struct.unpack_from("<I", data)
        if code not in _ATTRIBUTES:
            raise CaptureError(f"launch attribute {code} is not modelled")
        name, layout = _ATTRIBUTES[code]
        value = layout.unpack_from(data, _ATTRIBUTE_VALUE)
        attributes[name] = value[0] if layout is _FLAG else value
    return attributes


def _read_params(parameters: tuple[Parameter, ...], arguments: int) -> tuple[bytes, ...]:
    addresses = (ctypes.c_uint64 * len(parameters)).from_address(arguments) if parameters else ()
    return tuple(
        ctypes.string_at(address, parameter.size)
        for address, parameter in zip(addresses, parameters, strict=True)
    )


def _tensor_maps(
    kernel: str, parameters: tuple[Parameter, ...], params: tuple[bytes, ...]
) -> dict[int, TensorMap]:
    """A descriptor is a parameter of its own with 128 bytes and the alignment that only descriptors need."""
    maps: dict[int, TensorMap] = {}
    for i, (parameter, data) in enumerate(zip(parameters, params, strict=True)):
        if parameter.size != TENSOR_MAP_BYTES or parameter.alignment < TENSOR_MAP_ALIGNMENT:
            continue
        try:
            maps[i] = decode_tensor_map(data)
        except InputError as error:
            raise CaptureError(f"parameter {i} of {kernel} is not a tensor map: {error}") from error
    return maps

"""The first executor of probes: a real card, through the CUDA driver library and nothing else."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
from collections.abc import Iterator
from typing import Any

from kernel_space.core.errors import InputError
from kernel_space.selfcheck.text.probe import Ending, MapSpec, Probe, Result, Target
from kernel_space.selfcheck.text.tensor_maps import DTYPES, INTERLEAVES, SWIZZLES, steps

_LIBRARY = "libcuda.so.1"
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
_DYNAMIC_SMEM = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_LOG_BUFFER, _LOG_SIZE = 5, 6  # CU_JIT_ERROR_LOG_BUFFER, _SIZE_BYTES
_CLUSTER_DIMENSION = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
_LOG_BYTES = 4096
_MAP_BYTES, _MAP_ALIGNMENT = 128, 64
_GUARD = 4096  # bytes of each allocation behind the buffer, so that a stray access cannot hit another buffer


class DriverError(Exception):
    """A call of the driver failed. ``code``: its CUresult."""

    def __init__(self, call: str, code: int, detail: str) -> None:
        self.call, self.code = call, code
        super().__init__(f"{call}: {detail}")


class _Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_uint32), ("pad", ctypes.c_uint32), ("value", ctypes.c_uint32 * 16)]


class _LaunchConfig(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("smem_bytes", ctypes.c_uint32),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint32),
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CardInfo:
    """``driver``: the CUDA version it supports, as ``13.0``."""

    name: str
    major: int
    minor: int
    driver: str

    def runs(self, target: Target) -> bool:
        """Whether this card can run probes of ``target``: sm_90 from Hopper on, sm_100a on 10.x data-centre parts."""
        if target is Target.SM90:
            return self.major >= 9
        return (self.major, self.minor) == (10, 0)


class Card:
    """The first GPU of this process. A fault in a kernel makes it useless: end the process."""

    def __init__(self) -> None:
        """Raises ``InputError`` when there is no driver or no GPU."""
        try:
            self._cuda = ctypes.CDLL(_LIBRARY)
            self._call("cuInit", 0)
        except (OSError, DriverError) as error:
            raise InputError(
                f"selfcheck needs an NVIDIA GPU and its driver on this machine ({error})"
            ) from None
        count = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        if count.value == 0:
            raise InputError("selfcheck needs an NVIDIA GPU; the driver is there but sees none")
        self._context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), 0)
        self._call("cuCtxSetCurrent", self._context)

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorString(code, ctypes.byref(text))
            raise DriverError(name, code, (text.value or b"unknown error").decode() + f" ({code})")

    def info(self) -> CardInfo:
        name = ctypes.create_string_buffer(128)
        self._call("cuDeviceGetName", name, 128, 0)
        version = ctypes.c_int()
        self._call("cuDriverGetVersion", ctypes.byref(version))
        driver = f"{version.value // 1000}.{version.value % 1000 // 10}"
        major, minor = (self._device_attribute(number) for number in (_MAJOR, _MINOR))
        return CardInfo(name=name.value.decode(), major=major, minor=minor, driver=driver)

    def _device_attribute(self, number: int) -> int:
        value = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(value), number, 0)
        return value.value

    # -- one probe ---------------------------------------------------------------------------------------------
    def run(self, probe: Probe) -> Result:
        """Execute ``probe``. A fault leaves the process unable to run anything else; a hang never returns."""
        with contextlib.ExitStack() as stack:
            try:
                function = stack.enter_context(self._function(probe))
                buffers = {
                    "in": stack.enter_context(self._buffer(probe.inputs)),
                    "out": stack.enter_context(self._buffer(probe.output)),
                }
                maps = [self._tensor_map(spec, buffers[spec.buffer]) for spec in probe.maps]
            except DriverError as error:
                return Result(ending=Ending.REFUSED, detail=str(error))
            found = tuple(bytes(8) + bytes(item)[8:64] for item in maps)
            try:
                self._launch(function, probe, buffers, maps)
                self._call("cuCtxSynchronize")
                data = self._read(buffers["out"], len(probe.output))
            except DriverError as error:
                stack.pop_all()  # the context is lost; freeing would fail too
                return Result(ending=Ending.FAULT, detail=str(error), descriptors=found)
            return Result(ending=Ending.BYTES, data=data, descriptors=found)

    @contextlib.contextmanager
    def _function(self, probe: Probe) -> Iterator[ctypes.c_void_p]:
        log = ctypes.create_string_buffer(_LOG_BYTES)
        options = (ctypes.c_int * 2)(_LOG_BUFFER, _LOG_SIZE)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), _LOG_BYTES)
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        text = ctypes.c_char_p(probe.ptx.encode())
        try:
            self._call("cuModuleLoadDataEx", ctypes.byref(module), text, 2, options, values)
        except DriverError as error:
            raise DriverError(
                error.call, error.code, f"{error}: {' '.join(log.value.decode().split())}"
            ) from None
        self._call("cuModuleGetFunction", ctypes.byref(function), module, b"probe")
        if probe.smem_bytes:
            self._call("cuFuncSetAttribute", function, _DYNAMIC_SMEM, probe.smem_bytes)
        yield function
        self._call("cuModuleUnload", module)

    @contextlib.contextmanager
    def _buffer(self, data: bytes) -> Iterator[int]:
        pointer = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(len(data) + _GUARD))
        self._call("cuMemcpyHtoD_v2", pointer, ctypes.c_char_p(data), ctypes.c_size_t(len(data)))
        yield pointer.value
        self._call("cuMemFree_v2", pointer)

    def _read(self, address: int, count: int) -> bytes:
        room = ctypes.create_string_buffer(count)
        self._call("cuMemcpyDtoH_v2", room, ctypes.c_uint64(address), ctypes.c_size_t(count))
        return room.raw

    def _tensor_map(self, spec: MapSpec, address: int) -> ctypes.Array:
        room = ctypes.create_string_buffer(_MAP_BYTES + _MAP_ALIGNMENT)
        start = -ctypes.addressof(room) % _MAP_ALIGNMENT
        item = (ctypes.c_ubyte * _MAP_BYTES).from_buffer(room, start)
        rank = len(spec.dims)
        self._call(
            "cuTensorMapEncodeTiled", item, DTYPES[spec.dtype][2], rank, ctypes.c_uint64(address + spec.offset),
            (ctypes.c_uint64 * rank)(*spec.dims), (ctypes.c_uint64 * max(1, rank - 1))(*spec.strides),
            (ctypes.c_uint32 * rank)(*spec.box), (ctypes.c_uint32 * rank)(*steps(spec)),
            INTERLEAVES[spec.interleave], SWIZZLES[spec.swizzle][2], 0, int(spec.oob_nan),
        )  # fmt: skip
        return item

    def _launch(self, function: Any, probe: Probe, buffers: dict[str, int], maps: list[ctypes.Array]) -> None:
        values = [ctypes.c_uint64(address) for address in buffers.values()] + maps
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        attribute = _Attribute(id=_CLUSTER_DIMENSION, value=(ctypes.c_uint32 * 16)(probe.cluster, 1, 1))
        config = _LaunchConfig(
            grid=(probe.grid, 1, 1), block=(probe.block, 1, 1), smem_bytes=probe.smem_bytes,
            attributes=ctypes.pointer(attribute), attribute_count=int(probe.cluster > 1),
        )  # fmt: skip
        self._call("cuLaunchKernelEx", ctypes.byref(config), function, pointers, None)

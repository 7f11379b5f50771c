"""The state of a card while it is timed: clocks, temperature, power and why the clock is held, through NVML.

NVML comes with the driver (``libnvidia-ml.so.1``), so it is called directly and no package is needed. Where it is
missing or refuses, states are blank and ``Telemetry.missing`` says why: evidence repeats it.
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from tuner.card.samples.samples import State

PERIOD_S = 0.004  # between two looks: a few within the shortest timing
_LIBRARY = "libnvidia-ml.so.1"
# Values of nvml.h (CUDA 13): nvmlClockType_t, nvmlTemperatureSensors_t, nvmlClocksEventReasons.
_CLOCK_SM, _CLOCK_MEMORY = 1, 2
_SENSOR_GPU = 0
REASONS = {
    0x001: "gpu_idle",
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
# The name since NVML 12 first; older drivers have the second only.
_REASON_CALLS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")


_POWER_INSTANT = 186  # NVML_FI_DEV_POWER_INSTANT
_UNSIGNED_INT = 1  # NVML_VALUE_TYPE_UNSIGNED_INT


class _FieldValue(ctypes.Structure):
    """nvmlFieldValue_t; ``value`` is a union of 8 bytes."""

    _fields_ = (
        ("field_id", ctypes.c_uint),
        ("scope_id", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency_us", ctypes.c_longlong),
        ("kind", ctypes.c_int),
        ("code", ctypes.c_int),
        ("value", ctypes.c_ulonglong),
    )


class NvmlError(RuntimeError):
    """NVML is not there, or it refused a call."""


class Telemetry:
    """Reads the card with ``uuid`` (``GPU-...``, as CUDA names it). ``missing``: empty, or why nothing can be read.

    ``uuid``: as given. ``open_library`` raises ``OSError`` when a library cannot be loaded; tests replace it.
    """

    def __init__(self, uuid: str, *, open_library: Callable[[str], Any] = ctypes.CDLL) -> None:
        self.uuid = uuid
        self.missing = ""
        self.driver = ""
        self._handle = ctypes.c_void_p()
        try:
            self._nvml = _open(open_library)
            self._call("nvmlInit_v2")
            name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
            self._call("nvmlDeviceGetHandleByUUID", name.encode(), ctypes.byref(self._handle))
            self.driver = self._driver()
            self._reason_call = self._first_of(_REASON_CALLS)
        except NvmlError as error:
            self.missing = f"clocks and power not recorded: {error}"

    def read(self) -> State:
        """The state now; what this card does not tell is None."""
        if self.missing:
            return State()
        milliwatts = self._instant_power()
        if milliwatts is None:  # a mean over a second on recent cards, far behind a short timing
            milliwatts = self._number("nvmlDeviceGetPowerUsage")
        reasons = self._number(self._reason_call, kind=ctypes.c_ulonglong) or 0
        return State(
            sm_mhz=self._number("nvmlDeviceGetClockInfo", _CLOCK_SM),
            memory_mhz=self._number("nvmlDeviceGetClockInfo", _CLOCK_MEMORY),
            celsius=self._number("nvmlDeviceGetTemperature", _SENSOR_GPU),
            watts=None if milliwatts is None else milliwatts / 1000,
            reasons=reason_names(reasons),
        )

    def policy(self) -> str:
        """What bounds the clocks, in words; it is left as it is found. Times under another policy are other times."""
        if self.missing:
            return "unknown"
        milliwatts = self._number("nvmlDeviceGetPowerManagementLimit")
        highest = self._number("nvmlDeviceGetMaxClockInfo", _CLOCK_SM)
        application = self._number("nvmlDeviceGetApplicationsClock", _CLOCK_SM)
        power = "unknown" if milliwatts is None else f"{milliwatts / 1000:g} W"
        return f"power limit {power}, SM clock up to {highest} MHz, application clock {application} MHz"

    @contextlib.contextmanager
    def watching(self, *, period_s: float = PERIOD_S) -> Iterator[Watch]:
        """Reads again and again in a thread of its own until the block ends; at least once before it begins."""
        watch = Watch(self)
        stop = threading.Event()

        def look() -> None:
            while not stop.wait(period_s):
                watch.look()

        watch.look()
        thread = threading.Thread(target=look, name="telemetry", daemon=True)
        if not self.missing:
            thread.start()
        try:
            yield watch
        finally:
            stop.set()
            if thread.is_alive():
                thread.join()

    def _number(self, function: str, *arguments: int, kind: Any = ctypes.c_uint) -> int | None:
        """The number that a query writes through its last parameter; None when this card does not support it."""
        value = kind()
        try:
            self._call(function, self._handle, *arguments, ctypes.byref(value))
        except NvmlError:
            return None
        return int(value.value)

    def _instant_power(self) -> int | None:
        """Milliwatts at this moment; None where the driver or the card does not tell."""
        field = _FieldValue(field_id=_POWER_INSTANT)
        try:
            self._call("nvmlDeviceGetFieldValues", self._handle, 1, ctypes.byref(field))
        except (NvmlError, AttributeError):
            return None
        return None if field.code or field.kind != _UNSIGNED_INT else int(field.value & 0xFFFFFFFF)

    def _first_of(self, names: tuple[str, ...]) -> str:
        for name in names:
            if hasattr(self._nvml, name):
                return name
        raise NvmlError(f"NVML has no {names[0]}")

    def _driver(self) -> str:
        text = ctypes.create_string_buffer(96)
        self._call("nvmlSystemGetDriverVersion", text, ctypes.c_uint(len(text)))
        return text.value.decode(errors="replace")

    def _call(self, function: str, *arguments: Any) -> None:
        code = getattr(self._nvml, function)(*arguments)
        if code:
            raise NvmlError(f"{function} returned NVML error {code}")


class Watch:
    """States with the times (``time.monotonic()``) at which they were read, oldest first."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._times: list[float] = []
        self._states: list[State] = []

    def look(self) -> None:
        """Read once."""
        state = self._telemetry.read()
        self._states.append(state)
        self._times.append(time.monotonic())

    def between(self, start_s: float, end_s: float) -> State:
        """The state of what ran from ``start_s`` to ``end_s``: the last look within, with every reason seen within.

        Where nobody looked meanwhile, the last look before (or the first of all).
        """
        count = len(self._times)  # the thread appends the time last
        first, last = (bisect.bisect_left(self._times, when, hi=count) for when in (start_s, end_s))
        within = self._states[first:last]
        if not within:
            return self._states[max(0, last - 1)]
        seen = {reason for state in within for reason in state.reasons}
        latest = within[-1]
        return State(
            sm_mhz=latest.sm_mhz,
            memory_mhz=latest.memory_mhz,
            celsius=latest.celsius,
            watts=latest.watts,
            reasons=tuple(sorted(seen)),
        )


def reason_names(bits: int) -> tuple[str, ...]:
    """Names of the bits, sorted; a bit that nvml.h did not have yet is named by its value."""
    found = [bit for bit in (1 << position for position in range(64)) if bits & bit]
    return tuple(sorted(REASONS.get(bit, f"reason_0x{bit:x}") for bit in found))


def _open(open_library: Callable[[str], Any]) -> Any:
    try:
        return open_library(_LIBRARY)
    except OSError as error:
        raise NvmlError(f"{_LIBRARY} cannot be loaded ({error})") from None

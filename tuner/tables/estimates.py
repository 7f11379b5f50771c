"""What a kernel takes for a problem that nobody timed, and which of a table's kernels is launched for it.

An estimate is of constants that ``calibrate`` fitted on a device's measured times, in
``results/<device>/estimates.json``, or of the kernel's own formula (``core.traits``). A kernel with neither has none;
then the nearest row stands.

    {"schema": 1, "device": "h200", "operators": {OPERATOR: {"date": "2026-11-23", "problems": 24, "layers": 7,
     "loss": 1.06, "worst_loss": 1.7, "kernels": {KERNEL: {"trials": 682, "error": 0.09, "factors": {NEED: FACTOR},
     "shares": {CHOICE: SHARE}}}}}}

``factors`` and ``shares`` as in ``Effort.us``; ``error``: what estimates are off where their whole layer was left out
of the fit, a share; ``loss``: how many times as slow as the best trial is the one that such estimates choose.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernel_space.core.config import KernelConfig
from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from kernel_space.core.registry import kernel_of
from kernel_space.core.traits import traits_of
from tuner.devices.classes import DeviceClass
from tuner.files.record_checks import check_plain, shown
from tuner.files.store import CorruptFile, atomic_write, make_folder, read_json

FILE_NAME = "estimates.json"
SCHEMA = 1
MOST_KNOWN = 16384  # estimates that are remembered
MOST, MOST_SHARE = 1e9, 10.0  # of a constant; beyond them a product is no number any more


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """Microseconds; ``error``: what it may be off, as a share, None if nobody knows. ``basis``: for people."""

    us: float
    error: float | None
    basis: str

    def __str__(self) -> str:
        sure = "" if self.error is None else f" within {self.error:.0%}"
        return f"estimated {self.us:.4g} us{sure} ({self.basis})"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fitted:
    """Of one kernel."""

    factors: Mapping[str, float]
    shares: Mapping[str, float]
    error: float | None
    basis: str


class Estimates:
    """Of one device: ``fitted`` by operator and kernel."""

    def __init__(self, device: DeviceClass, fitted: Mapping[tuple[str, str], Fitted] | None = None) -> None:
        self.device = device
        self._fitted = fitted or {}
        self._known: dict[tuple[KernelConfig, Problem], Estimate | None] = {}

    @classmethod
    def over(cls, folders: Sequence[Path], device: DeviceClass) -> Estimates:
        """From the files in ``folders``: constants shadow those of the same kernel in later folders.

        ``device``: which one is asked about; the constants may be those of a sibling. Raises ``InputError`` for a
        damaged file.
        """
        fitted: dict[tuple[str, str], Fitted] = {}
        for folder in reversed(folders):
            fitted |= read_estimates(folder / FILE_NAME)
        return cls(device, fitted)

    def of(self, config: KernelConfig, problem: Problem) -> Estimate | None:
        """Of a resolved config that is legal for ``problem``."""
        key = config, problem
        if key not in self._known:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[key] = self._of(config, problem)
        return self._known[key]

    def _of(self, config: KernelConfig, problem: Problem) -> Estimate | None:
        found = self.fitted_of(config, problem)
        traits = traits_of(kernel_of(config, problem))
        if found is None and traits.model is not None and self.device.arch.name in traits.modelled:
            time = traits.model(config, problem, self.device)
            error = max(time.high_us / time.us, time.us / time.low_us) - 1
            return Estimate(us=time.us, error=error, basis="modelled")
        return found

    def fitted_of(self, config: KernelConfig, problem: Problem) -> Estimate | None:
        """By constants that were fitted to measured times; None without those."""
        effort = traits_of(kernel_of(config, problem)).effort
        fitted = self._fitted.get((problem.operator, config.kernel))
        if effort is None or fitted is None or self.device.dram_bytes_s is None:
            return None
        needs = effort(config, problem, self.device)
        if not (set(needs.needs) <= fitted.factors.keys() and needs.choices.keys() <= fitted.shares.keys()):
            return None
        return Estimate(us=needs.us(fitted.factors, fitted.shares), error=fitted.error, basis=fitted.basis)


# ------------------------------------------------------------------ the file


def read_estimates(path: Path) -> dict[tuple[str, str], Fitted]:
    """By operator and kernel; nothing when there is no such file. Raises ``InputError`` for one that is damaged."""
    record = _record(path)
    try:
        return {
            (operator, kernel): _fitted(one, found["date"], record["device"])
            for operator, found in record["operators"].items()
            for kernel, one in found["kernels"].items()
        }
    except (KeyError, TypeError, AttributeError, InputError) as error:
        raise _damaged(path, error) from None


def write_estimates(folder: Path, device: str, operators: Mapping[str, Any]) -> Path:
    """``operators``: their records; those of others in the file stay. Raises ``InputError`` for a damaged file and
    ``StoreError`` when the disk refuses.
    """
    path = make_folder(folder) / FILE_NAME
    read_estimates(path)
    both = {**_record(path)["operators"], **operators}
    record = {"schema": SCHEMA, "device": device, "operators": dict(sorted(both.items()))}
    atomic_write(path, json.dumps(record, indent=1) + "\n")
    return path


def _record(path: Path) -> dict[str, Any]:
    try:
        record = read_json(path)
        if record is None:
            return {"device": "", "operators": {}}
        check_plain(record)
        if record["schema"] != SCHEMA:
            raise InputError(f"it has schema {shown(record['schema'])}, this version reads {SCHEMA}")
    except (CorruptFile, KeyError, TypeError, InputError) as error:
        raise _damaged(path, error) from None
    return dict(record)


def _damaged(path: Path, error: Exception) -> InputError:
    return InputError(f"{path} holds no estimates: {error}; fit them again, or remove it")


def _fitted(one: Any, date: Any, device: Any) -> Fitted:
    error = one["error"]
    return Fitted(
        factors={name: _number(name, value, least=0) for name, value in one["factors"].items()},
        shares={name: _number(name, value, least=-MOST_SHARE) for name, value in one["shares"].items()},
        error=None if error is None else _number("error", error, least=0),
        basis=f"fitted on {_number('trials', one['trials'], least=1):.0f} trials measured on {device}, {date}",
    )


def _number(name: str, value: Any, *, least: float) -> float:
    most = MOST_SHARE if least < 0 else MOST
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise InputError(f"{name} must be a number from {least:g} to {most:g}, got {shown(value)}")
    return float(value)

"""Simulated times of configs, kept in files: what a search would be told, without compiling anything again.

One file a problem, named like ``svdquant_gemm-128x7168x4096x0.tsv``. The first line says whose clock it was. Then a
line ``# KERNEL KNOB ...`` for each kernel, and for each config that was ever asked for ``KERNEL VALUE ... TAB TIME``:
microseconds, or ``-`` for one that has no time. A config that is missing is compiled and simulated when it is asked
for, and appended. Times of another clock are never mixed with today's: such a file only answers what it holds.
"""

from __future__ import annotations

import fcntl
from pathlib import Path

from kernel_space.build.build import CompileError, build
from kernel_space.core.config import KernelConfig
from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from kernel_space.core.rules import Legal
from tuner.devices.classes import DeviceClass
from tuner.devices.simulated import Chip, simulated_outcome
from tuner.simulated.constants.hash import simulation_hash

FOLDER = Path(__file__).resolve().parent / "data" / "search_times"
NO_TIME = "-"


class NotKnown(Exception):
    """A time that no file holds was asked for, and nothing may be compiled, or the clock has changed since."""


class Times:
    """Of one problem. ``us`` answers for a legal config; ``known``: what may be asked without compiling. ``renew``: a
    file of another clock is begun anew. Raises ``InputError`` for a file that is damaged.
    """

    def __init__(
        self,
        problem: Problem,
        device: DeviceClass,
        folder: Path = FOLDER,
        *,
        closed: bool = False,
        renew: bool = False,
    ) -> None:
        self.problem, self._chip = problem, Chip(name=device.name, arch=device.arch, sm_count=device.sm_count)
        self.path = folder / f"{problem.operator}-{str(problem).replace(',', 'x')}.tsv"
        self._today = f"# simulated on {device.name}, clock {simulation_hash()}"
        self._knobs: dict[str, str] = {}
        self.known: dict[str, float | None] = {}
        self.clock = self._today
        if self.path.exists():
            self._read()
        if renew and self.clock != self._today:
            self.path.unlink()
            self.known, self._knobs, self.clock = {}, {}, self._today
        self.closed = closed or self.clock != self._today

    def us(self, legal: Legal) -> float | None:
        """Microseconds, None for a config without a time. Raises ``NotKnown``."""
        key = _key(legal.config)
        if key not in self.known:
            if self.closed:
                raise NotKnown(f"{self.path.name} does not hold {key}")
            self._keep(legal.config, key, self._simulated(legal))
        return self.known[key]

    @property
    def best_us(self) -> float:
        """Of all that is known."""
        return min(us for us in self.known.values() if us is not None)

    def _simulated(self, legal: Legal) -> float | None:
        try:
            compiled = build(legal.config, self.problem.problem_class, self._chip.arch)
        except CompileError:
            return None
        timing = simulated_outcome(compiled, legal, self.problem, self._chip).timing
        return float(f"{timing.us:.5g}") if timing else None

    def _keep(self, config: KernelConfig, key: str, us: float | None) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as lines:
            fcntl.flock(lines, fcntl.LOCK_EX)  # several searches may fill one file
            if not lines.tell():
                lines.write(f"{self._today}\n")
            names = " ".join((config.kernel, *config.knob_names()))
            if self._knobs.setdefault(config.kernel, "") != names:
                self._knobs[config.kernel] = names
                lines.write(f"# {names}\n")
            lines.write(f"{key}\t{NO_TIME if us is None else f'{us:.5g}'}\n")
        self.known[key] = us

    def _read(self) -> None:
        self.clock, *lines = self.path.read_text().splitlines()
        for number, line in enumerate(lines, 2):
            if line.startswith("# "):
                self._knobs[line.split()[1]] = line[2:]
                continue
            key, tab, us = line.partition("\t")
            try:
                self.known[key] = None if us == NO_TIME else float(us)
            except ValueError:
                raise InputError(f"{self.path}, line {number}: no time of a config: {line[:80]!r}") from None


def _key(config: KernelConfig) -> str:
    return " ".join((config.kernel, *config.fields().values()))

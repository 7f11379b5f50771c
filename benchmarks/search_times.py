"""Simulated times of configs, kept in files: what a search would be told, without compiling anything again.

One file a problem, named like ``svdquant_gemm-128x7168x4096x0.tsv``. The first line says whose clock it was. Then a
line ``# KERNEL KNOB ...`` for each kernel, and for each config that was ever asked for ``KERNEL VALUE ... TAB TIME``:
microseconds, or ``-`` for one that has no time. A config that is missing is compiled and simulated when it is asked
for, and appended at once: a run that is killed loses what was being compiled and nothing else. Times of another clock
are never mixed with today's: such a file only answers what it holds.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from benchmarks.search_ways import NotKnown
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
        self.problem = problem
        self.chip = Chip(name=device.name, arch=device.arch, sm_count=device.sm_count)
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
        key = key_of(legal.config)
        if key not in self.known:
            if self.closed:
                raise NotKnown(f"{self.path.name} does not hold {key}")
            self.keep(legal.config, self._simulated(legal))
        return self.known[key]

    def begin(self, legal: Legal) -> Callable[[], float | None]:
        """``us`` when it is waited for: here nothing is done ahead."""
        return lambda: self.us(legal)

    @property
    def best_us(self) -> float:
        """Of all that is known; infinite where nothing has a time."""
        return min((us for us in self.known.values() if us is not None), default=float("inf"))

    def keep(self, config: KernelConfig, us: float | None) -> None:
        """Remembers a time that was found, here and in the file."""
        names = " ".join((config.kernel, *config.knob_names()))
        lines = f"{key_of(config)}\t{NO_TIME if us is None else f'{us:.5g}'}\n"
        if self._knobs.get(config.kernel) != names:
            self._knobs[config.kernel] = names
            lines = f"# {names}\n{lines}"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # several runs may fill one file
            if not file.tell():
                lines = f"{self._today}\n{lines}"
            file.write(lines.encode())
        self.known[key_of(config)] = us

    def _simulated(self, legal: Legal) -> float | None:
        return simulated_us(legal, self.problem, self.chip)

    def _read(self) -> None:
        self._cut_off_torn_line()
        self.clock, *lines = self.path.read_text().splitlines() or [self._today]
        for number, line in enumerate(lines, 2):
            if line.startswith("# "):
                self._knobs[line.split()[1]] = line[2:]
                continue
            key, tab, us = line.partition("\t")
            try:
                self.known[key] = None if us == NO_TIME else float(us)
            except ValueError:
                raise InputError(f"{self.path}, line {number}: no time of a config: {line[:80]!r}") from None

    def _cut_off_torn_line(self) -> None:
        """What a killed machine left of its last line could be read as another time."""
        text = self.path.read_bytes()
        if text and not text.endswith(b"\n"):
            os.truncate(self.path, text.rfind(b"\n") + 1)


def simulated_us(legal: Legal, problem: Problem, chip: Chip) -> float | None:
    """Compiled and simulated now, to five digits; None for what has no time."""
    try:
        compiled = build(legal.config, problem.problem_class, chip.arch)
    except CompileError:
        return None
    timing = simulated_outcome(compiled, legal, problem, chip).timing
    return float(f"{timing.us:.5g}") if timing else None


def key_of(config: KernelConfig) -> str:
    """As the files name a config: its kernel and the values of its knobs."""
    return " ".join((config.kernel, *config.fields().values()))

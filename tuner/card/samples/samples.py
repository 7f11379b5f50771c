"""What one timing on a card gives: a time per replay with the card's state beside each, and which of them count."""

from __future__ import annotations

import collections
import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any, Self

from kernel_space.core.errors import InputError
from tuner.card.samples.statistics import Interval, median_interval
from tuner.trials.outcome import Kind, Timing

# What a card at its full power or at rest says as well. A large GEMM on an H200 draws 690 of 700 W: being held there is
# the state in which a model runs, not an accident of the measurement.
HARMLESS = frozenset({"gpu_idle", "sw_power_cap"})
# Times of one object on two days, or on two cards of a kind, differ by more than the rounds of one visit say.
BETWEEN_VISITS = 0.01
LEAST_UNMARKED = 5  # below this many samples without a mark, all are used, and the evidence says so


@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    """The card at one moment. None where it could not be read. ``reasons``: why its clock is not at its highest."""

    sm_mhz: int | None = None
    memory_mhz: int | None = None
    celsius: int | None = None
    watts: float | None = None
    reasons: tuple[str, ...] = ()

    @property
    def throttled(self) -> bool:
        """For a reason that is no part of the usual state."""
        return not HARMLESS.issuperset(self.reasons)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Samples:
    """``us[i]``: microseconds per launch in replay i of a graph of ``launches`` launches over ``sets`` operand sets;
    ``states[i]``: the card during that replay.

    ``protocol``: version of ``bench``. ``warm_up_ms``: replays before the first sample; ``settled``: whether times and
    clock had stopped moving by then, None if that was not waited for. ``gpu_ms``: all replays, warm-up included.
    ``telemetry``: empty, or why the states are blank. ``driver``: of the card; ``card``: its UUID;
    ``host``: of a fleet that has it, empty on this machine.
    """

    protocol: str
    us: tuple[float, ...]
    states: tuple[State, ...]
    launches: int
    sets: int
    warm_up_ms: float
    settled: bool | None
    gpu_ms: float
    telemetry: str = ""
    driver: str = ""
    card: str = ""
    host: str = ""

    def __post_init__(self) -> None:
        if not self.us or len(self.us) != len(self.states):
            raise ValueError(
                f"samples need a state each, got {len(self.us)} times and {len(self.states)} states"
            )

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """From ``dataclasses.asdict`` after JSON. Raises ``InputError`` for anything else."""
        try:
            states = tuple(
                State(**{**state, "reasons": tuple(state["reasons"])}) for state in record["states"]
            )
            return cls(**{**record, "us": tuple(record["us"]), "states": states})
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"not the record of samples: {error}") from None

    @property
    def used(self) -> tuple[int, ...]:
        """Positions of the samples that count: those without a mark, or all when they are too few."""
        unmarked = tuple(index for index, state in enumerate(self.states) if not state.throttled)
        return unmarked if len(unmarked) >= min(LEAST_UNMARKED, len(self.us)) else tuple(range(len(self.us)))

    @property
    def interval(self) -> Interval:
        """Median and interval of the used samples, microseconds."""
        return median_interval([self.us[index] for index in self.used])

    def timing(self) -> Timing:
        """The measured time of one launch; ``evidence`` holds scalars.

        ``noise_us``: the difference below which this time and one of another visit cannot be told apart.
        """
        found = self.interval
        own = max(found.high - found.median, found.median - found.low)
        noise = math.hypot(own, BETWEEN_VISITS * found.median)
        return Timing(
            kind=Kind.MEASURED,
            us=found.median,
            low_us=found.low,
            high_us=found.high,
            evidence={"noise_us": round(noise, 6), **self.evidence()},
        )

    def evidence(self) -> dict[str, Any]:
        """What stands behind the time: counts, clocks, temperature, power, marks."""
        states = [self.states[index] for index in self.used]
        return {
            "timing_protocol": self.protocol,
            "samples": len(self.us),
            "samples_used": len(self.used),
            "coverage": round(self.interval.coverage, 6),
            "effective_samples": round(self.interval.effective, 1),
            "launches_per_sample": self.launches,
            "operand_sets": self.sets,
            "warm_up_ms": round(self.warm_up_ms, 3),
            "settled": self.settled,
            "gpu_ms": round(self.gpu_ms, 3),
            "sm_mhz": _median(state.sm_mhz for state in states),
            "memory_mhz": _median(state.memory_mhz for state in states),
            "celsius": _greatest(state.celsius for state in states),
            "watts": _greatest(state.watts for state in states),
            "clock_reasons": self._reasons(),
            "throttled_samples": sum(state.throttled for state in self.states),
            "throttled_used": any(state.throttled for state in states),
            **({"driver": self.driver} if self.driver else {}),
            **({"card": self.card} if self.card else {}),
            **({"host": self.host} if self.host else {}),
            **({"telemetry": self.telemetry} if self.telemetry else {}),
        }

    def _reasons(self) -> str:
        """``sw_power_cap 12 of 15``: how many samples were taken under each reason."""
        counts = collections.Counter(reason for state in self.states for reason in state.reasons)
        return ", ".join(f"{reason} {count} of {len(self.us)}" for reason, count in sorted(counts.items()))


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _greatest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)

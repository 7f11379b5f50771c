"""The few candidates that a report compares, run with a clock: from their PTX in the build cache, without compiling.

Every time is simulated. What cannot be had is a sentence in the report, not an error.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kernel_space.core.errors import InputError
from kernel_space.core.registry import kernel_of, operator_of, parse_config
from kernel_space.core.rules import Legal, legalize
from tuner.devices.select import has_simulator
from tuner.report.data.sweep import Sweep, default_trial, ranked, time_terms, timed, winner_and_runner_up
from tuner.report.data.tail_wave import schedule_of, tail_wave
from tuner.report.data.timeline import Timeline, timeline_of
from tuner.report.data.words import words_of
from tuner.space.published import Published, published_config
from tuner.trials.rank_stability import faster_in

if TYPE_CHECKING:
    from kernel_space.build.build import CompiledKernel
    from kernel_space.machine.clock.clock import Times
    from tuner.simulated.time import SimulatedTime
    from tuner.trials.outcome import Trial

WINNER, RUNNER_UP, NEXT, PUBLISHED, DEFAULT = "winner", "runner-up", "next best", "published", "default"
LAUNCH = "launch"  # the cause that is no part of a cluster's course
SAME = 1e-3  # of the time: a few instructions more or less, as programmatic launch needs, are the same course


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clocked:
    """One candidate. ``roles``: winner, runner-up, next best, published, default; one config may be several.

    ``config`` is resolved and printed; ``tail_us``: what the average cluster idles in the last wave, which ``waves``
    describes: 0 and empty for a kernel that does not say how it deals out its work. ``agreed``: under which share of
    the constants the winner was the faster one when both were trials, None where they do not compare.
    """

    roles: tuple[str, ...]
    config: str
    time: SimulatedTime
    timeline: Timeline
    tail_us: float
    waves: str
    agreed: float | None = None

    @property
    def label(self) -> str:
        return " and ".join(self.roles)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clocks:
    """``shown``: the winner first, each config once; empty without the winner.

    ``missing``: who has no timeline and why, one sentence per reason. ``possible``: there is a clock for this machine.
    """

    shown: tuple[Clocked, ...] = ()
    missing: tuple[str, ...] = ()
    possible: bool = True

    def of(self, role: str) -> Clocked | None:
        return next((one for one in self.shown if role in one.roles), None)

    @property
    def rivals(self) -> tuple[Clocked, ...]:
        """Those whose clusters run another course than the winner's: a knob without effect leaves it as it is, and
        programmatic launch changes the launch alone."""
        return tuple(one for one in self.shown[1:] if not same_course(one, self.shown[0]))


def same_course(one: Clocked, other: Clocked) -> bool:
    """The same cycles under every set of constants, but for ``SAME``."""
    return _equal(one.time.run.cycles, other.time.run.cycles, SAME)


def same_time(one: Clocked, other: Clocked) -> bool:
    """The same course, and the same launch."""
    return _equal(one.time.sets_us, other.time.sets_us, 1e-6)


def _equal(one: Times, other: Times, share: float) -> bool:
    return len(one) == len(other) and bool((abs(one - other) <= share * other).all())


def faster_share(winner: Clocked, other: Clocked) -> float:
    """Share of the admissible sets of constants under which ``winner`` is the faster one: that of the trials, which
    decided, where there is one."""
    if other.agreed is not None:
        return other.agreed
    from tuner.simulated.time import agreement  # SciPy: a machine that only measures may have none

    return agreement(winner.time, other.time)


def resolved_published(sweep: Sweep) -> tuple[Published, str] | None:
    """(entry, its resolved config) for the problem; None where nothing is published or a rule rejects it."""
    if (entry := published_config(sweep.problem, sweep.arch)) is None:
        return None
    legal = legalize(entry.config, sweep.problem, sweep.arch)
    return (entry, str(legal.config)) if isinstance(legal, Legal) else None


def clock(sweep: Sweep) -> Clocks:
    """Run winner, runner-up, published and default configuration with a clock, 0.1 s each; also the next best one that
    takes another course, where the runner-up does not."""
    if not has_simulator(sweep.arch):
        return Clocks(
            missing=(f"Timelines are simulated for sm_100a and sm_103a, not for {sweep.arch.name}.",),
            possible=False,
        )
    roles: dict[str, list[str]] = {}
    for role, config in _candidates(sweep):
        roles.setdefault(config, []).append(role)
    shown: list[Clocked] = []
    missing: dict[str, list[str]] = {}
    for config, named in roles.items():
        try:
            shown.append(_clocked(tuple(named), config, sweep))
        except _NoClock as error:
            missing.setdefault(str(error), []).extend(named)
    if shown and WINNER not in shown[0].roles:
        shown = []  # nothing to compare the others with
    sentences = (f"No timeline of {', '.join(named)}: {reason}." for reason, named in missing.items())
    return Clocks(shown=tuple(shown), missing=tuple(sentences))


class _NoClock(Exception):
    """Why there is no timeline."""


def _candidates(sweep: Sweep) -> Iterator[tuple[str, str]]:
    winner, runner_up = winner_and_runner_up(sweep)
    default = default_trial(sweep.trials)
    if winner:
        yield WINNER, winner.resolved
    if runner_up:
        yield RUNNER_UP, runner_up.resolved
    if winner and runner_up and _looks_same(runner_up, winner):
        others = (trial for trial in ranked(sweep.trials) if not _looks_same(trial, winner))
        yield from ((NEXT, trial.resolved) for trial in itertools.islice(others, 1))
    if winner and (found := resolved_published(sweep)):
        yield PUBLISHED, found[1]
    if default:
        yield DEFAULT, default.resolved


def _looks_same(one: Trial, other: Trial) -> bool:
    """Do two trials run the same course, as far as the breakdown of their simulated times tells?"""
    first, second = time_terms(one), time_terms(other)
    if not first or not second:
        return one.resolved == other.resolved
    causes = {*first, *second} - {LAUNCH}
    apart = sum(abs(first.get(cause, 0.0) - second.get(cause, 0.0)) for cause in causes)
    return apart <= SAME * sum(second.values())


def _clocked(roles: tuple[str, ...], config: str, sweep: Sweep) -> Clocked:
    from kernel_space.launch.capture import CaptureError
    from kernel_space.machine.values.faults import Fault, Unsupported
    from tuner.simulated.time import simulate

    parsed = parse_config(sweep.problem.operator, sweep.arch, config)
    compiled = _from_cache(config, sweep)
    try:
        time = simulate(compiled, parsed, sweep.problem, sweep, record=True)
    except (Unsupported, Fault, CaptureError) as error:
        raise _NoClock(f"the clock cannot run it: {error}") from error
    schedule = schedule_of(parsed, sweep.problem, sweep.sm_count)
    run = time.run
    timeline = timeline_of(
        run.record or [],
        words=words_of(operator_of(sweep.problem), kernel_of(parsed, sweep.problem)),
        us_per_cycle=(time.us - time.terms[LAUNCH]) / float(run.cycles[0]),
        launch_us=time.terms[LAUNCH],
        end_us=time.us,
        pieces=schedule.waves if schedule and run.rounds == 1 else 0,
        turns=schedule.steps if schedule else 0,
    )
    tail_us, waves = tail_wave(time, parsed, sweep.problem, sweep.sm_count) or (0.0, "")
    agreed = _agreed(config, sweep)
    return Clocked(
        roles=roles, config=config, time=time, timeline=timeline, tail_us=tail_us, waves=waves, agreed=agreed
    )


def _agreed(config: str, sweep: Sweep) -> float | None:
    winner = winner_and_runner_up(sweep)[0]
    trial = next((one for one in timed(sweep.trials) if one.resolved == config), None)
    return faster_in(winner, trial) if winner and trial and trial.resolved != winner.resolved else None


def _from_cache(config: str, sweep: Sweep) -> CompiledKernel:
    from kernel_space.build.build import cached_build

    try:
        parsed = parse_config(sweep.problem.operator, sweep.arch, config)
        found = cached_build(parsed, sweep.problem.problem_class, sweep.arch, cache_dir=sweep.cache_dir)
    except InputError as error:
        raise _NoClock(str(error)) from error
    if found is None:
        raise _NoClock(
            "not in the build cache (built by another version or on another machine, or cleaned up)"
        )
    return found

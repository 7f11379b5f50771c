"""``svdquant_autotune``: what a model meets at run time is tuned, within a budget, and the model runs with it.

For who has a card and the compiler in one place. It is ``record_problems``, ``tune.py --shapes`` and a reload of the
tables in one: the model runs once with what serves it now, then its problems are tuned, most valuable first.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import torch

from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from kernel_space.core.registry import kernels_of
from kernel_space.places import TO_TUNE, user_results
from tuner.runtime import state
from tuner.runtime.record import Seen, record_problems

if TYPE_CHECKING:
    from tuner.devices.device import Device
    from tuner.stages.compile import Pool
    from tuner.tables.gain import Gain
    from tuner.tune.driver import TuneOptions

LEAST_S = 20.0  # of a problem: less finds nothing beyond the default
RESERVE_S = 8.0  # of a problem's seconds: the final, the winner's check, the files


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tuned:
    """One problem of the model: its calls, what was expected of a row, and the time of its row (``us``); None where
    nothing was found, and ``reason`` says why."""

    problem: Problem
    calls: int
    gain: Gain
    us: float | None = None
    reason: str = ""

    def __str__(self) -> str:
        found = (
            self.reason
            if self.us is None
            else f"{self.us:.2f} us, {self.gain.fallback_us:.4g} us modelled before"
        )
        return f"{self.calls:7d} x {self.problem.operator} {self.problem}  {found}"


class Autotuned:
    """``seen``: what the model met. ``tuned``: filled when the block ends, most valuable first. ``str()``: a table."""

    def __init__(self, seen: Seen) -> None:
        self.seen = seen
        self.tuned: list[Tuned] = []

    def __str__(self) -> str:
        return "\n".join(map(str, self.tuned)) if self.tuned else "nothing was left to tune"


@contextmanager
def svdquant_autotune(budget_s: float, *, trials: int | None = None) -> Iterator[Autotuned]:
    """``with svdquant_autotune(budget_s=600): model(x)``: when the block ends, the problems that were met and have no
    row of their own are tuned on torch's current card for about ``budget_s`` seconds together, ``trials`` candidates
    each at most (200). Rows go to your results; the next ``model(x)`` launches them.

    Record an eager run: a replayed CUDA graph makes no calls, and one that was captured before keeps its kernels.
    Nothing is tuned when the block raises. Raises ``InputError`` on entry without a card, without the compiler, within
    ``use_table``, and for a budget that is no number of seconds.
    """
    if not (isinstance(budget_s, int | float) and math.isfinite(budget_s) and budget_s > 0):
        raise InputError(f"budget_s must be a number of seconds above 0, got {budget_s!r}")
    device = _device()
    if state.active()[0].path != user_results():
        raise InputError(
            "svdquant_autotune adds rows to your results, but use_table launches from elsewhere; leave it"
        )
    with record_problems() as seen:
        found = Autotuned(seen)
        yield found
    try:
        for one in _tune_all(seen, device, budget_s, trials):
            found.tuned.append(one)
    finally:
        state.reload_tables()


def _device() -> Device:
    """torch's current card, with all that a tune needs. Raises ``InputError``."""
    from tuner.devices.select import select_device
    from tuner.tune.needs import missing_to_tune

    if not torch.cuda.is_available():
        raise InputError(
            "svdquant_autotune needs a card, and torch sees none; record_problems and tune.py --shapes tune without one"
        )
    if missing := missing_to_tune():
        raise InputError(f"svdquant_autotune compiles candidates, but {missing} here: pip install {TO_TUNE}")
    return select_device(f"cuda:{torch.cuda.current_device()}", otherwise="the torch reference runs")


def _tune_all(seen: Seen, device: Device, budget_s: float, trials: int | None) -> Iterator[Tuned]:
    """Of each problem without a row what came of it, most valuable first. Of several processes, say one per card, each
    takes what no other is at."""
    from tuner.compile.pool import CompilePool
    from tuner.files.notice import notice
    from tuner.tune.driver import TuneOptions
    from tuner.tune.turns import in_turn

    deadline = time.monotonic() + budget_s
    waiting = {one.problem: one for one in _most_gain_first(seen, device)}
    if not waiting:
        return
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # the card's worker is a process of its own and needs room beside the model
    options = TuneOptions(trials=trials, out=user_results(), count_space=False)
    turns = in_turn(list(waiting), options.out, device.name, say=notice, deadline=deadline)
    first = True
    with CompilePool(options.jobs, options.compile_timeout_s, options.cache_dir) as pool, closing(turns):
        for problem in turns:
            left_s = deadline - time.monotonic()
            one, many = waiting.pop(problem), len(waiting)
            if left_s < LEAST_S and not first:  # the first has all there is
                yield dataclasses.replace(one, reason="no time was left for it")
                continue
            first = False
            share_s = max(min(left_s, LEAST_S), left_s / (many + 1))
            timeout_s = max(share_s - RESERVE_S, 1.0)
            yield _tuned(one, device, dataclasses.replace(options, timeout_s=timeout_s), pool)
    for one in waiting.values():
        yield dataclasses.replace(one, reason="another tuner was at it until the time was over")


def _most_gain_first(seen: Seen, device: Device) -> list[Tuned]:
    """What was met and has no row, and what calls may become with one, by calls x the microseconds that a row is
    expected to save."""
    from tuner.devices.select import class_of_device
    from tuner.tables.borrow import table_of
    from tuner.tables.gain import gain_of

    device_class = class_of_device(device, user_results())
    table = table_of(user_results(), device_class, checked_only=True).table
    calls = {problem: one.calls for problem, one in seen.problems.items()}
    others = {one: count for one, count in seen.alternatives.items() if kernels_of(one.operator, device.arch)}
    every = [
        Tuned(problem=problem, calls=count, gain=gain_of(problem, table, device_class))
        for problem, count in {**others, **calls}.items()
    ]
    return sorted((one for one in every if one.gain.us > 0), key=lambda one: -one.calls * one.gain.us)


def _tuned(one: Tuned, device: Device, options: TuneOptions, pool: Pool) -> Tuned:
    """Raises ``KeyboardInterrupt`` when the user interrupted; what was found by then is in the table."""
    from tuner.tune.driver import INTERRUPTED, tune

    result = tune(one.problem, device, options, pool=pool)
    if result.stopped == INTERRUPTED:
        raise KeyboardInterrupt
    if result.winner is None:
        return dataclasses.replace(one, reason=result.failure_summary())
    return dataclasses.replace(one, us=result.winner.us)

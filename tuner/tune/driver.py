"""Tune one problem on one device: search, compile, judge, write down, until the budget is spent.

However the search ends (all trials, ``timeout_s``, Ctrl-C), the best of everything found enters the dispatch table and
the report; every finished trial is in the journal already.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kernel_space.core.arch import Arch
from kernel_space.core.config import KernelConfig
from kernel_space.core.errors import InputError
from kernel_space.core.plain_files import below
from kernel_space.core.registry import parse_config
from kernel_space.core.rules import Legal, legalize
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tuner.devices.device import BeginsAhead, Device
from tuner.devices.select import require_times
from tuner.files.store import StoreError, make_folder
from tuner.search.compile_ahead import compile_ahead
from tuner.search.evaluate import illegal_trial
from tuner.search.loop import IN_FLIGHT_PER_JOB, Loop, OutOfTime, Pool
from tuner.search.prefilter import Prefilter, prefilter_fact
from tuner.search.progress import Progress
from tuner.space.candidate import Asks
from tuner.space.published import published_config
from tuner.space.space import SearchSpace
from tuner.tables.dispatch import FILE_NAME, DispatchTable, record
from tuner.tables.merge import Decision
from tuner.trials.outcome import Kind, Trial
from tuner.trials.study import Study
from tuner.tune import results
from tuner.tune.tune_result import COMPILE_TIMEOUT_S, TuneOptions, TuneResult

if TYPE_CHECKING:
    from tuner.compile.pool import CompileResult

__all__ = ["COMPILE_TIMEOUT_S", "TuneOptions", "TuneResult", "tune"]

NEIGHBOURS = 5  # winners of other problems that are tried first
TIMED_OUT, INTERRUPTED = "timeout", "interrupted"


def tune(
    problem: GemmProblem,
    device: Device,
    options: TuneOptions | None = None,
    *,
    pool: Pool | None = None,
    space: SearchSpace | None = None,
    search: Asks | None = None,
    progress: Progress | None = None,
) -> TuneResult:
    """Find the best config for ``problem`` on ``device``.

    ``pool`` compiles (and stays open; without one, workers live as long as this call), ``space`` takes the place of the
    kernel's, ``search`` that of the search through it. Raises ``InputError`` for what the user can mend and
    ``StoreError`` when the disk refuses.
    """
    require_times(device)
    options = options or TuneOptions()
    progress = progress or Progress(str(problem))
    start = time.monotonic()
    space = space or SearchSpace.load(GemmProblem.operator, device.arch)
    make_folder(below(options.out, device.name))
    with _pool(pool, options) as compile_pool:
        waiting = device.begin() if isinstance(device, BeginsAhead) else True
        _mend_table(options.out, device, progress)
        ahead = {} if search else _compile_ahead(compile_pool, space, options, problem, device)
        study = results.open_study(options.out, problem, device)
        ready = start if waiting else time.monotonic()
        search = search or _search(space, _first(study, options, problem, device), options, problem, device)
        loop = Loop(
            problem=problem,
            device=device,
            search=search,
            study=study,
            pool=compile_pool,
            jobs=options.jobs,
            legalize=legalize,
            progress=progress,
            resume=options.resume,
            deadline=None if options.timeout_s is None else start + options.timeout_s,
            default=_default_config(space, problem, device),
            ahead=ahead,
        )
        with loop.usage.idle_between(ready):
            stopped = _run(loop, keep=functools.partial(_keep, options.out, device, study, loop, progress))
        progress.finish(loop.state)
        order = results.ranked(study.trials.values())
        decision = _record(options.out, device, order, loop, progress)
    finished = _Finished(
        problem=problem,
        device=device,
        options=options,
        space=space,
        search=search,
        study=study,
        loop=loop,
        order=order,
        stopped=stopped,
        seconds=time.monotonic() - start,
        decision=decision,
    )
    return _result(finished)


class _Finished(NamedTuple):
    """A search that has ended."""

    problem: GemmProblem
    device: Device
    options: TuneOptions
    space: SearchSpace
    search: Asks
    study: Study
    loop: Loop
    order: list[Trial]
    stopped: str
    seconds: float
    decision: Decision | None


def _result(finished: _Finished) -> TuneResult:
    """Count, report, and say what was found."""
    problem, device, order = finished.problem, finished.device, finished.order
    count_space = finished.options.count_space and not finished.stopped
    counted = results.count_space(finished.study, finished.space, problem, device) if count_space else None
    trials = tuple(finished.study.trials.values())
    illegal = tuple(illegal_trial(*point, problem, device) for point in finished.search.rejected.items())
    facts = _facts(finished)
    if finished.loop.final is not None:
        results.write_final(finished.options.out, problem, device, finished.loop.final)
    report = results.write_sweep(
        finished.options.out, problem, device, [*trials, *illegal], space=counted, facts=facts,
        cache_dir=finished.options.cache_dir,
    )  # fmt: skip
    return TuneResult(
        problem=problem,
        device=device,
        trials=trials,
        illegal=illegal,
        winner=order[0] if order else None,
        runner_up=order[1] if len(order) > 1 else None,
        default=_default_trial(finished.space, problem, device, finished.study.trials),
        legal=_legal(order[0], problem, device) if order else None,
        space=counted,
        planned=finished.search.planned,
        fresh=len(finished.loop.fresh),
        known=len(finished.loop.known),
        stopped=finished.stopped,
        seconds=finished.seconds,
        journal=finished.study.path,
        decision=finished.decision,
        facts=facts,
        report=report,
    )


def _run(loop: Loop, keep: Callable[[], object]) -> str:
    """Why the search ended before its time, or nothing. A final is held also then: only it tells who is the winner.

    A lost card or a bug goes on its way after ``keep``; where the disk refuses, nothing can be kept.
    """
    stopped = ""
    try:
        try:
            loop.search()
            loop.validate_leaders()
        except OutOfTime:
            stopped = TIMED_OUT
        loop.rank_leaders()
        if not stopped:
            loop.validate_winner()
    except OutOfTime:
        return TIMED_OUT
    except KeyboardInterrupt:
        return INTERRUPTED
    except StoreError:
        raise
    except Exception:
        keep()
        raise
    finally:
        loop.cancel()
    return stopped


def _keep(out: Path, device: Device, study: Study, loop: Loop, progress: Progress) -> None:
    _record(out, device, results.ranked(study.trials.values()), loop, progress)


def _compile_ahead(
    pool: Pool, space: SearchSpace, options: TuneOptions, problem: GemmProblem, device: Device
) -> dict[str, concurrent.futures.Future[CompileResult]]:
    """While a card gets ready, its first candidates go to the compilers. The journal, which cannot be opened before the
    card is known, may say that the search begins with other neighbours: then some are compiled for nothing."""
    if device.kind is not Kind.MEASURED:
        return {}
    neighbours = readable_configs(_neighbours(options, problem, device), device.arch)
    scout = _search(space, neighbours, options, problem, device)
    return compile_ahead(pool, scout, problem, device.arch, IN_FLIGHT_PER_JOB * options.jobs)


def _search(
    space: SearchSpace,
    first: Iterable[KernelConfig],
    options: TuneOptions,
    problem: GemmProblem,
    device: Device,
) -> Asks:
    from tuner.search.search import (  # Optuna: a machine that only measures has none
        CARD_WINDOW,
        WINDOW,
        Search,
    )

    published = published_config(problem, device.arch)
    return Search(
        space,
        problem,
        device.arch,
        seed=options.seed,
        trials=options.trials,
        first=first,
        window=CARD_WINDOW if device.kind is Kind.MEASURED else WINDOW,
        published=published and published.config,
        prefilter=Prefilter(problem, device) if device.kind is Kind.SIMULATED else None,
    )


def _mend_table(out: Path, device: Device, progress: Progress) -> None:
    """Learn before the search, not after it, that the table cannot take rows; a damaged one is set aside."""
    path = below(out, device.name, FILE_NAME)
    if path.is_file():
        record(path, [], results.current(device), say=progress.say)


def _record(out: Path, device: Device, order: list[Trial], loop: Loop, progress: Progress) -> Decision | None:
    if not order:
        progress.say("no candidate could be used, so the dispatch table stays as it is")
        return None
    row = results.winning_row(device, order, loop.compiled(order[0]))
    path, current = below(out, device.name, FILE_NAME), results.current(device)
    return record(path, [row], current, refuted=loop.refuted(), say=progress.say)[0]


def _first(
    study: Study, options: TuneOptions, problem: GemmProblem, device: Device
) -> Iterator[KernelConfig]:
    """Winners of this problem and the nearest ones in the table, or those that the first run of this search began with.

    The table changes from run to run. A search that started from other neighbours would take another course, and
    a resumed one would evaluate most of its candidates for the first time.
    """
    key = f"neighbours at the start of seed {options.seed}"
    there = study.recall(key, lambda: _neighbours(options, problem, device), anew=not options.resume)
    return readable_configs(there, device.arch)


def _neighbours(options: TuneOptions, problem: GemmProblem, device: Device) -> list[str]:
    """The problem's own row comes first: its journal may be of other kernel sources, or on another machine."""
    table = DispatchTable.load(below(options.out, device.name), arch=device.arch)
    return [row.config for row in (*table.own(problem), *table.neighbours(problem, NEIGHBOURS))]


def readable_configs(printed: Iterable[str], arch: Arch) -> Iterator[KernelConfig]:
    """Those that this version can read: an old row may name a knob that is gone."""
    for text in printed:
        with contextlib.suppress(InputError):
            yield parse_config(GemmProblem.operator, arch, text)


@contextlib.contextmanager
def _pool(pool: Pool | None, options: TuneOptions) -> Iterator[Pool]:
    if pool is not None:
        yield pool
        return
    from tuner.compile.pool import CompilePool

    with CompilePool(options.jobs, options.compile_timeout_s, options.cache_dir) as own:
        yield own


def _legal(trial: Trial, problem: GemmProblem, device: Device) -> Legal:
    legal = legalize(trial.resolved_config, problem, device.arch)
    if not isinstance(legal, Legal):
        raise AssertionError(f"the winner {trial.resolved} is not legal: {legal}")
    return legal


def _default_trial(
    space: SearchSpace, problem: GemmProblem, device: Device, trials: dict[str, Trial]
) -> Trial | None:
    resolved = _default_config(space, problem, device)
    return None if resolved is None else trials.get(resolved)


def _default_config(space: SearchSpace, problem: GemmProblem, device: Device) -> str | None:
    """The default rule's config, resolved and printed."""
    legal = legalize(space.default(problem), problem, device.arch)
    return str(legal.config) if isinstance(legal, Legal) else None


def _facts(finished: _Finished) -> dict[str, str]:
    options, loop, decision = finished.options, finished.loop, finished.decision
    facts = {
        "search": f"seed {options.seed}, {len(loop.fresh)} new and {len(loop.known)} known trials",
        "duration": f"{finished.seconds:.1f} s with {options.jobs} compile workers",
    }
    facts |= prefilter_fact(finished.search.rejected)
    if loop.final is not None and loop.final.verdict is not None:
        facts["final"] = f"{len(loop.final.trials)} contenders; winner: {loop.final.verdict.why}"
    if finished.device.kind is Kind.MEASURED:
        facts["card"] = str(loop.usage)
    if finished.stopped:
        facts["stopped by"] = finished.stopped
    if decision is not None:
        facts["dispatch row"] = f"{'recorded' if decision.recorded else 'not recorded'}: {decision.reason}"
    return facts

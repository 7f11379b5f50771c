"""Before a tune can begin: the card, the table, the journal, and where the search starts from."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

from kernel_space.core.arch import Arch
from kernel_space.core.config import KernelConfig
from kernel_space.core.errors import InputError
from kernel_space.core.plain_files import below
from kernel_space.core.problem import Problem
from kernel_space.core.registry import parse_config
from kernel_space.core.rules import Legal, legalize
from tuner.devices.device import Device
from tuner.devices.select import class_of_device
from tuner.search.prefilter import Prefilter
from tuner.search.progress import Progress
from tuner.search.ranked import Estimate
from tuner.search.window import CARD_WINDOW, WINDOW
from tuner.space.published import published_config
from tuner.space.space import SearchSpace
from tuner.stages.ask import IN_FLIGHT_PER_JOB
from tuner.stages.compile import Pool
from tuner.stages.journal import open_study
from tuner.stages.record import current
from tuner.stages.run import OutOfTime, Run, TuneOptions
from tuner.tables.dispatch import FILE_NAME, record
from tuner.trials.candidate import Asks
from tuner.trials.outcome import Kind
from tuner.trials.study import Study
from tuner.tune.near_rows import near_rows
from tuner.tune.promising import SMALL, estimate_for, promising

if TYPE_CHECKING:
    from tuner.compile.pool import CompileResult


def prepare(
    problem: Problem,
    device: Device,
    options: TuneOptions,
    *,
    pool: Pool,
    space: SearchSpace,
    search: Asks | None,
    progress: Progress,
    start: float,
) -> Run:
    """A tune that has not asked anything yet. ``start``: when it began, a time of ``time.monotonic()``."""
    waiting = device.begin()
    _mend_table(options.out, device, progress)
    check_time = functools.partial(_check_time, options, start)
    begins = functools.cache(lambda: _begins(space, options, problem, device, check_time))
    ahead = {} if search else _compile_ahead(pool, space, options, problem, device, begins)
    study = open_study(options.out, problem, device)
    ready = start if waiting else time.monotonic()
    return Run(
        problem=problem,
        device=device,
        options=options,
        space=space,
        search=search
        or _search(space, _first(study, options, problem, device, begins), options, problem, device),
        study=study,
        pool=pool,
        progress=progress,
        start=start,
        ready=ready,
        default=_default_config(space, problem, device),
        ahead=ahead,
        answers=dict(study.trials) if options.resume else {},
    )


def _compile_ahead(
    pool: Pool,
    space: SearchSpace,
    options: TuneOptions,
    problem: Problem,
    device: Device,
    begins: Callable[[], list[str]],
) -> dict[str, Future[CompileResult]]:
    """While a card gets ready, its first candidates go to the compilers, as far as a search asks without being told
    anything: one of the same seed, which is thrown away. What comes of each by resolved config.

    The journal, which cannot be opened before the card is known, may say that the search begins with other neighbours:
    then some are compiled for nothing."""
    if device.kind is not Kind.MEASURED:
        return {}
    try:
        neighbours = readable_configs(problem.operator, begins(), device.arch)
    except OutOfTime:
        return {}
    scout = _search(space, neighbours, options, problem, device)
    begun: dict[str, Future[CompileResult]] = {}
    while len(begun) < IN_FLIGHT_PER_JOB * options.jobs and (candidate := scout.ask()):
        begun[candidate.resolved] = pool.submit(candidate.legal.config, problem.problem_class, device.arch)
    return begun


def _search(
    space: SearchSpace,
    first: Iterable[KernelConfig],
    options: TuneOptions,
    problem: Problem,
    device: Device,
) -> Asks:
    from tuner.search.search import Search  # Optuna: a machine that only measures has none

    published = published_config(problem, device.arch)
    return Search(
        space,
        problem,
        device.arch,
        seed=options.seed,
        trials=options.trials,
        first=first,
        window=CARD_WINDOW if device.kind is Kind.MEASURED else WINDOW,
        published=published.config if published else None,
        prefilter=Prefilter(problem, device) if device.kind is Kind.SIMULATED else None,
        estimate=_estimate(space, options, problem, device),
    )


def _estimate(space: SearchSpace, options: TuneOptions, problem: Problem, device: Device) -> Estimate | None:
    """None for a space of which a search sees most anyway."""
    if space.raw_size <= SMALL:
        return None
    return estimate_for(problem, class_of_device(device, options.out), options.out)


def _mend_table(out: Path, device: Device, progress: Progress) -> None:
    """Learn before the search, not after it, that the table cannot take rows; a damaged one is set aside."""
    path = below(out, device.name, FILE_NAME)
    if path.is_file():
        record(path, [], current(device), say=progress.say)


def _first(
    study: Study, options: TuneOptions, problem: Problem, device: Device, begins: Callable[[], list[str]]
) -> Iterator[KernelConfig]:
    """What ``begins`` gives, or what the first run of this search began with.

    The table changes from run to run. A search that started from other neighbours would take another course, and
    a resumed one would evaluate most of its candidates for the first time.
    """
    key = f"neighbours at the start of seed {options.seed}"
    try:
        there = study.recall(key, begins, anew=not options.resume)
    except OutOfTime:  # nothing will be asked; the next run looks for itself
        there = []
    return readable_configs(problem.operator, there, device.arch)


def _check_time(options: TuneOptions, start: float) -> None:
    """Raises ``OutOfTime``."""
    if options.timeout_s is not None and time.monotonic() >= start + options.timeout_s:
        raise OutOfTime


def _begins(
    space: SearchSpace,
    options: TuneOptions,
    problem: Problem,
    device: Device,
    check_time: Callable[[], None],
) -> list[str]:
    """Winners of this problem and the nearest ones in the table; without a row of its own, what estimates find best.
    Raises what ``check_time`` does."""
    rows = near_rows(options.out, problem, device)
    near = [*rows.own, *rows.others]
    if rows.is_tuned:
        return near
    configs = list(readable_configs(problem.operator, near, device.arch))
    found = promising(
        space,
        problem,
        device,
        options.out,
        trials=options.trials,
        first=configs,
        seed=options.seed,
        check_time=check_time,
    )
    return [*near, *map(str, found)]


def readable_configs(operator_name: str, printed: Iterable[str], arch: Arch) -> Iterator[KernelConfig]:
    """Those that this version can read: an old row may name a knob that is gone."""
    for text in printed:
        with contextlib.suppress(InputError):
            yield parse_config(operator_name, arch, text)


def _default_config(space: SearchSpace, problem: Problem, device: Device) -> str | None:
    """The default rule's config, resolved and printed."""
    legal = legalize(space.default(problem), problem, device.arch)
    return str(legal.config) if isinstance(legal, Legal) else None

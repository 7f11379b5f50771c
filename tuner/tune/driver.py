"""Tune one problem on one device: the stages of ``stages/plan.py``, one after another, until the budget is spent.

However the search ends (all trials, ``timeout_s``, Ctrl-C), the best of everything found enters the dispatch table and
the report; every finished trial is in the journal already.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence

from kernel_space.core.plain_files import below
from kernel_space.core.problem import Problem
from tuner.devices.device import Device
from tuner.devices.select import require_times
from tuner.files.store import StoreError, make_folder
from tuner.search.progress import Progress
from tuner.space.space import SearchSpace
from tuner.stages.compile import Pool
from tuner.stages.plan import stages_of
from tuner.stages.record import Record
from tuner.stages.run import COMPILE_TIMEOUT_S, INTERRUPTED, TIMED_OUT, OutOfTime, Run, TuneOptions
from tuner.stages.stage import Stage, When
from tuner.trials.candidate import Asks
from tuner.tune.mirrored import mirrored
from tuner.tune.prepare import prepare
from tuner.tune.tune_result import TuneResult

__all__ = ["COMPILE_TIMEOUT_S", "INTERRUPTED", "TIMED_OUT", "TuneOptions", "TuneResult", "tune"]


def tune(
    problem: Problem,
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
    progress.stage("getting ready")
    space = space or SearchSpace.load(problem.operator, device.arch)
    make_folder(below(options.out, device.name))
    with _pool(pool, options) as compile_pool:
        run = prepare(
            problem, device, options, pool=compile_pool, space=space, search=search, progress=progress, start=start
        )  # fmt: skip
        stages = stages_of(device.abilities)
        with mirrored(run), run.usage.idle_between(run.ready):
            run.stopped = _find(run, [stage for stage in stages if stage.when is not When.ALWAYS])
        progress.finish(run.state)
        for stage in stages:
            if stage.when is When.ALWAYS:
                stage.run(run)
    return TuneResult.of(run)


def _find(run: Run, stages: Sequence[Stage]) -> str:
    """Why the search ended before its time, or nothing.

    A lost card or a bug goes on its way after the record is made; where the disk refuses, nothing can be kept.
    """
    stopped = ""
    try:
        for stage in stages:
            if stopped and stage.when is When.IN_TIME:
                continue
            try:
                run.progress.stage(stage.name)
                stage.run(run)
            except OutOfTime:
                stopped = TIMED_OUT
    except KeyboardInterrupt:
        return INTERRUPTED
    except StoreError:
        raise
    except Exception:
        Record().run(run)
        raise
    finally:
        run.cancel()
    return stopped


@contextlib.contextmanager
def _pool(pool: Pool | None, options: TuneOptions) -> Iterator[Pool]:
    if pool is not None:
        yield pool
        return
    from tuner.compile.pool import CompilePool

    with CompilePool(options.jobs, options.compile_timeout_s, options.cache_dir) as own:
        yield own

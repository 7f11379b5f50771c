"""The mirror of a tune's journal for Optuna's tools: kept up while it runs, and never in its way."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kernel_space.core.plain_files import below
from tuner.stages.journal import STUDY_FOLDER
from tuner.stages.run import Run
from tuner.trials.outcome import Trial

if TYPE_CHECKING:
    from tuner.search.mirror import Mirror


@contextlib.contextmanager
def mirrored(run: Run) -> Iterator[None]:
    """Trials that are written down meanwhile are mirrored, those of earlier runs at the start. Where Optuna is not
    installed there is no mirror: the next tune where it is makes up for it. A disk that refuses is told once."""
    if importlib.util.find_spec("optuna") is None:
        yield
        return
    keeper = _Keeper(run)
    keeper.keep()
    run.watchers.append(keeper.add)
    try:
        yield
    finally:
        run.watchers.remove(keeper.add)
        keeper.keep()


class _Keeper:
    def __init__(self, run: Run) -> None:
        self._run = run
        self._mirror: Mirror | None = None
        self._given_up = False

    def keep(self) -> None:
        with self._told():
            if not self._given_up:
                self._mirror = self._mirror or self._open()
                self._mirror.keep(self._run.study.trials.values())

    def add(self, trial: Trial) -> None:
        with self._told():
            if self._mirror is not None and not self._given_up:
                self._mirror.add(trial)

    def _open(self) -> Mirror:
        from tuner.search.mirror import FILE_NAME, Mirror

        run = self._run
        name = f"{run.device.name} {run.problem.operator} {run.study.path.stem}"
        path = below(run.options.out, STUDY_FOLDER, FILE_NAME)
        return Mirror(path, name, run.space, say=run.progress.say)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        from tuner.search.mirror import NOT_OURS

        try:
            yield
        except NOT_OURS as error:
            self._given_up = True
            self._run.progress.say(f"no mirror for optuna-dashboard any more: {error}")

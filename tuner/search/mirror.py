"""A copy of every trial where Optuna's own tools look for it: one ``JournalStorage`` beside the journals.

``optuna-dashboard`` opens it while a tune runs and afterwards. Nothing here ever takes a trial from it: the journals
are what counts, and a mirror that is lost or damaged is made again from them. Each journal is a study of its name. A
trial of Optuna cannot change once it is finished, ours may (a check finds a config wrong): its study is then made anew.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock, JournalStorage

from kernel_space.core.config import kernel_name
from kernel_space.core.plain_files import NotPlain, open_plain
from tuner.space.space import KERNEL, SearchSpace
from tuner.trials.outcome import Trial

# It says on stderr which study it opens, at every one.
optuna.logging.set_verbosity(optuna.logging.WARNING)

FILE_NAME = "optuna.journal"
CONFIG = "config"
_Distributions = dict[str, optuna.distributions.BaseDistribution]
_STATES = optuna.trial.TrialState


class Mirror:
    """The study ``name`` in the storage ``path``. Raises ``OSError`` when the disk refuses, like ``keep`` and ``add``.

    A storage that Optuna cannot read is renamed, ``say`` told so, and a new one begun.
    """

    def __init__(self, path: Path, name: str, space: SearchSpace, *, say: Callable[[str], None]) -> None:
        self._name = name
        self._choices = _choices(space)
        self._there: dict[str, dict[str, Any]] = {}
        self._stale = False
        lock = _Lock(path)
        with lock.held():
            _cut_torn_line(path)
        try:
            self._storage = _open(path, lock)
        except (ValueError, KeyError, TypeError, AttributeError):
            aside = path.with_name(f"{path.name}.damaged")
            os.replace(path, aside)
            say(f"{path} is none of Optuna's journals; kept as {aside.name}, a new one begins")
            self._storage = _open(path, lock)
        self._study = self._load()

    def keep(self, trials: Iterable[Trial]) -> None:
        """Have the study hold ``trials``, each as it is now, and no others."""
        wanted = {trial.resolved: trial for trial in trials if trial.resolved}
        self._study = self._load()  # another tuner may be at the same problem
        same = all(name in wanted and _facts(wanted[name]) == facts for name, facts in self._there.items())
        if self._stale or not same:
            optuna.delete_study(study_name=self._name, storage=self._storage)
            self._stale = False
            self._study = self._load()
        for trial in wanted.values():
            self.add(trial)

    def add(self, trial: Trial) -> None:
        """A trial that has just been finished; a later one of its config waits for ``keep``."""
        if not trial.resolved:
            return
        facts = _facts(trial)
        if (known := self._there.get(trial.resolved)) is not None:
            self._stale = self._stale or known != facts
            return
        try:
            self._study.add_trial(self._frozen(trial, facts))
        except KeyError:  # another tuner is making the study anew
            self._study = self._load()
            self._study.add_trial(self._frozen(trial, facts))
        self._there[trial.resolved] = facts

    def _load(self) -> optuna.Study:
        study = optuna.create_study(
            storage=self._storage, study_name=self._name, direction="minimize", load_if_exists=True
        )
        trials = study.get_trials(deepcopy=False)
        self._there = {one.user_attrs.get(CONFIG, ""): one.user_attrs for one in trials}
        twice = len(self._there) < len(trials)  # two tuners had the same candidate
        self._stale = self._stale or twice or not all(self._is_of_today(one) for one in trials)
        return study

    def _is_of_today(self, trial: optuna.trial.FrozenTrial) -> bool:
        """Of the same choices: Optuna refuses others in one study."""
        categories = {
            name: one.choices
            for name, one in trial.distributions.items()
            if isinstance(one, optuna.distributions.CategoricalDistribution)
        }
        return all(self._choices.get(name) == choices for name, choices in categories.items())

    def _frozen(self, trial: Trial, facts: dict[str, Any]) -> optuna.trial.FrozenTrial:
        params, distributions = self._params(trial)
        made = optuna.trial.create_trial(
            state=_STATES.COMPLETE if trial.ok else _STATES.FAIL,
            value=trial.us if trial.ok else None,
            params=params,
            distributions=distributions,
            user_attrs=facts,
        )
        if trial.finished:
            made.datetime_complete = _local(trial.finished)
            made.datetime_start = _local(trial.finished) - datetime.timedelta(seconds=_seconds(trial))
        return made

    def _params(self, trial: Trial) -> tuple[dict[str, Any], _Distributions]:
        """Knobs that the space has, whole numbers as such. A value that is none of its choices stands in ``config``."""
        params: dict[str, Any] = {}
        distributions: _Distributions = {}
        for name, text in _knobs(trial.resolved).items():
            choices = self._choices.get(name, ())
            if choices and all(one.isdecimal() for one in choices) and text.isdecimal():
                value = int(text)
                params[name] = value
                distributions[name] = optuna.distributions.IntDistribution(
                    min(value, *map(int, choices)), max(value, *map(int, choices))
                )
            elif text in choices:
                params[name] = text
                distributions[name] = optuna.distributions.CategoricalDistribution(choices)
        return params, distributions


class _Lock(JournalFileOpenLock):
    """Dies with its owner, which Optuna's own do not."""

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(f"{path.name}.lock")
        self._fd = -1

    def acquire(self) -> bool:
        fd = open_plain(self._path, os.O_RDWR | os.O_CREAT)
        fcntl.flock(fd, fcntl.LOCK_EX)
        self._fd = fd
        return True

    def release(self) -> None:
        os.close(self._fd)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        self.acquire()
        try:
            yield
        finally:
            self.release()


def _open(path: Path, lock: _Lock) -> JournalStorage:
    """Reads it whole."""
    storage = JournalStorage(JournalFileBackend(str(path), lock))
    storage.get_all_studies()
    return storage


def _cut_torn_line(path: Path) -> None:
    """A kill or a full disk may have left half a line, after which nobody could read on."""
    try:
        fd = open_plain(path, os.O_RDWR)
    except FileNotFoundError:
        return
    with os.fdopen(fd, "r+b") as file:
        end = file.seek(0, os.SEEK_END)
        while end and (file.seek(end - 1), file.read(1))[1] != b"\n":
            end -= 1
        file.truncate(end)


def _choices(space: SearchSpace) -> Mapping[str, tuple[str, ...]]:
    """Knob -> its choices in any kernel of the space, in order; ``auto`` is none once a config is resolved."""
    found: dict[str, dict[str, None]] = {KERNEL: dict.fromkeys(space.kernels)}
    for kernel in space.kernels.values():
        for name, knob in kernel.knobs.items():
            found.setdefault(name, {}).update(dict.fromkeys(one for one in knob.choices if one != "auto"))
    return {name: tuple(choices) for name, choices in found.items()}


def _knobs(resolved: str) -> dict[str, str]:
    """Knob -> printed value, the kernel among them."""
    items = dict(item.split("=", 1) for item in resolved.split())
    return {
        KERNEL: kernel_name(resolved),
        **{name: value for name, value in items.items() if name != "kernel"},
    }


def _facts(trial: Trial) -> dict[str, Any]:
    """User attributes: what people ask of a trial, as JSON holds it."""
    facts = {
        CONFIG: trial.resolved,
        "status": str(trial.status),
        "reason": trial.reason,
        "origin": str(trial.origin),
        "number": trial.number,
        "seed": trial.seed,
        "kind": trial.kind and str(trial.kind),
        "us": trial.us,
        "low_us": trial.low_us,
        "high_us": trial.high_us,
        "checked": trial.validation,
    }
    return {name: value for name, value in facts.items() if value not in (None, "")}


def _local(finished: str) -> datetime.datetime:
    """Optuna's times are local and naive."""
    return datetime.datetime.fromisoformat(finished).astimezone().replace(tzinfo=None)


def _seconds(trial: Trial) -> float:
    return trial.compile_seconds + trial.validate_seconds + trial.time_seconds


NOT_OURS = (OSError, NotPlain)
"""What a mirror may raise that is no bug: the disk refuses, or something else has its name."""

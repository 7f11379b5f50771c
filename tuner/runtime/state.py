"""Which dispatch tables and objects this process launches from, and what it has loaded of them.

One ``RuntimeState`` is active at a time; ``use_table`` replaces it, together with everything that was resolved from
it.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from pathlib import Path

import torch

from kernel_space.build.cache import default_cache_dir
from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from kernel_space.places import user_results
from tuner.devices.classes import DeviceClass, class_of, is_class_name
from tuner.devices.probe import card_at
from tuner.files.notice import notice
from tuner.runtime.choice.choice import Choice, Prepared
from tuner.runtime.choice.choose import Library
from tuner.runtime.choice.remembered import MAX_CALLS, Recent, forget_tables
from tuner.runtime.load.loaded import Launchable, load_launchable
from tuner.runtime.load.plan import Plan
from tuner.runtime.load.workspace import Workspaces
from tuner.tables.dispatch import FILE_NAME


class RuntimeState:
    """Tables below ``path`` and what was loaded for them. Safe to share between threads.

    ``path``: a folder with one folder per device class (``results``), or one device's folder (``results/h200``). None:
    the user's results, over those that are shipped.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lock = threading.RLock()
        self._libraries: dict[str, Library] = {}
        self._said: set[tuple[str, str]] = set()
        self._loaded: dict[tuple[int, str], Launchable] = {}
        self._plans: Recent[tuple[int, Problem], Plan] = Recent(MAX_CALLS)

    @property
    def path(self) -> Path:
        return user_results() if self._path is None else self._path

    def anew(self) -> RuntimeState:
        """The same tables, as they are now."""
        return RuntimeState(self._path)

    def choice(self, problem: Problem, device_class: DeviceClass) -> Choice:
        """What is launched for ``problem``. Raises ``InputError`` when nothing can be."""
        library = self.library(device_class)
        choice = library.choose(problem)
        if choice.borrowed and not library.borrowed:
            self._say_lent(problem.operator, device_class, choice.borrowed)
        return choice

    def _say_lent(self, operator: str, device_class: DeviceClass, borrowed: str) -> None:
        """Once for each operator, as ``library`` for a whole table."""
        with self._lock:
            known = (device_class.name, operator) in self._said
            self._said.add((device_class.name, operator))
        if not known:
            notice(
                f"kernels of {operator} for {device_class.name} are {borrowed}; tune there to have its own"
            )

    def library(self, device_class: DeviceClass) -> Library:
        """That of the class, or of a sibling that lends its own: said once on stderr, and in every ``Choice``."""
        with self._lock:
            if device_class.name not in self._libraries:
                library = Library.of_class(self.path, device_class, cache_dir=default_cache_dir())
                if library.borrowed:
                    notice(
                        f"kernels for {device_class.name} are {library.borrowed}; tune there to have its own"
                    )
                self._libraries[device_class.name] = library
            return self._libraries[device_class.name]

    def prepare(self, problem: Problem, device_class: DeviceClass) -> Choice:
        """``choice``, after compiling what the table asks for if it is nowhere to be found. Needs the DSL."""
        library = self.library(device_class)
        with self._lock:
            answer = library.table.lookup(problem)
            if not library.has_object(answer, problem):
                borrowed = library.borrowed_for(answer.row) if answer.row is not None else ""
                library.add(
                    Prepared(
                        problem=problem, config=answer.config, compiled=answer.build(), borrowed=borrowed
                    )
                )
                self._plans.clear()
                forget_calls()  # layers ask again
        return self.choice(problem, device_class)

    def plan(self, problem: Problem, device: int) -> Plan:
        """How ``problem`` is launched on ``cuda:<device>``: resolved and loaded on the first call."""
        with self._lock:
            plan = self._plans.get((device, problem))
            if plan is None:
                choice = self.choice(problem, class_of_card(device))
                plan = Plan(choice, self._launchable(choice, device), workspaces(device))
                self._plans.put((device, problem), plan)
            return plan

    def _launchable(self, choice: Choice, device: int) -> Launchable:
        key = (device, choice.object.sha256)
        if key not in self._loaded:
            self._loaded[key] = load_launchable(choice.object, device, choice.config, choice.problem)
        return self._loaded[key]


generation = 0
"""Counts changes of what is launched: what was resolved before the last one no longer holds."""
_active = (RuntimeState(), generation)
_switch = threading.Lock()
_workspaces: dict[int, Workspaces] = {}


def active() -> tuple[RuntimeState, int]:
    """The state in use and the generation it belongs to."""
    return _active


@contextlib.contextmanager
def use_table(path: Path | str) -> Iterator[None]:
    """Launch from the tables and objects in ``path`` instead of the user's and the shipped ones, in the whole process.

    ``path``: a folder like ``results``, or one device's folder like ``results/h200``. Also works as a decorator.
    What was captured into a CUDA graph keeps its kernels. Raises ``InputError`` when there is no table in it.
    """
    path = Path(path)
    if not any((folder / FILE_NAME).is_file() for folder in (path, *_folders(path))):
        raise InputError(
            f"there is no dispatch table in {path} nor in a device's folder below it; tune first"
        )
    before = _activate(RuntimeState(path))
    try:
        yield
    finally:
        _activate(before)


def _folders(path: Path) -> list[Path]:
    """Of device classes below ``path``."""
    return [one for one in path.iterdir() if is_class_name(one.name)] if path.is_dir() else []


def _activate(state: RuntimeState) -> RuntimeState:
    global _active, generation
    with _switch:
        before, _ = _active
        generation += 1
        _active = (
            state,
            generation,
        )  # one assignment, so that nobody pairs a state with another's generation
    forget_tables()
    return before


def forget_calls() -> None:
    """Let every call go the long way once more."""
    _activate(active()[0])


def reload_tables() -> None:
    """Look at tables and objects anew: rows were added since."""
    _activate(active()[0].anew())


def workspaces(device: int) -> Workspaces:
    """Of ``cuda:<device>``: they outlive a change of tables, so that memory in flight never changes hands."""
    with _switch:
        return _workspaces.setdefault(device, Workspaces(device))


def class_of_card(device: int) -> DeviceClass:
    """The class whose kernels run on ``cuda:<device>``. Raises ``InputError`` when there is none."""
    found = supported_class(device)
    if found is None:
        name = torch.cuda.get_device_name(device)
        raise InputError(f"no kernel here runs on cuda:{device} ({name}); there is only the torch reference")
    return found


@functools.cache
def supported_class(device: int) -> DeviceClass | None:
    """As ``class_of_card``; None for a card without a kernel."""
    return class_of(card_at(device))

"""Objects that are legal for every size that is not compiled in, so that one of them always is there.

Which ones is the operator's to say: ``WIDEST`` of its module ``Operator.runtime`` names compiled sizes to which the
inputs of any problem can be adapted, say by padding them with zeros to the largest one. An object of these takes the
config of the row that is nearest in the sizes that are compiled in, of those that are legal for all sizes, else the
default rule's.
"""

from __future__ import annotations

import importlib
import itertools
import platform
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from kernel_space.build.key import kernel_source_hash, toolchain
from kernel_space.core.arch import Arch
from kernel_space.core.config import KernelConfig
from kernel_space.core.errors import InputError
from kernel_space.core.problem import Form, Problem
from kernel_space.core.registry import kernel_of, operator, operator_of, parse_config
from kernel_space.core.rules import Legal, knob_rejection, legalize
from kernel_space.core.stand_in import Widest, widest_of
from tuner.files.store import is_whole
from tuner.space.space import SearchSpace
from tuner.tables.bundle import Bundle, Entry
from tuner.tables.distance import times_larger
from tuner.tables.row import Row


def widest_problems(problems: Iterable[Problem]) -> list[Problem]:
    """One problem of every widest class for each set of options among ``problems``, of the other sizes of the first of
    them; none for operators that name no ``WIDEST``."""
    found: dict[Any, Problem] = {}
    for problem in problems:
        if sizes := _widest(problem.operator):
            for wider in widest_of(problem, sizes):
                found.setdefault((problem.operator, wider.problem_class), wider)
    return list(found.values())


def widest_entry(entries: Iterable[Entry], problem: Problem, arch: Arch) -> Entry | None:
    """The first of ``entries`` that launches every size of the class of ``problem`` on this kind of machine."""
    wanted = (problem.operator, str(problem.problem_class), platform.machine())
    for entry in entries:
        here = (entry.op, entry.problem_class, entry.host) == wanted
        if here and _is_for_any_shape(entry.config, problem, arch):
            return entry
    return None


def kept_widest(old: Bundle, problem: Problem, arch: Arch) -> Entry | None:
    """``widest_entry`` of the bundle as it is, if it is whole and of today's sources."""
    return widest_entry((entry for entry in old.entries if is_of_today(entry, old)), problem, arch)


def widest_config(rows: Sequence[Row], problem: Problem, arch: Arch) -> KernelConfig:
    """Resolved, for the class of ``problem``; ``rows`` are of its operator.

    Asks the kernel's layouts: raises ``InputError`` where the DSL is not installed.
    """
    toolchain()
    compiled = [name for name in problem.size_names() if problem.forms()[name].compiled]
    nearest = sorted(
        rows,
        key=lambda row: (times_larger(problem, row.key.problem, compiled), -_work(row.key.problem), row.key),
    )
    configs = [row.config for row in nearest]
    default = SearchSpace.load(problem.operator, arch).defaults[-1].config  # the one without a condition
    for text in dict.fromkeys([*configs, str(default)]):
        if _is_for_any_shape(text, problem, arch):
            legal = legalize(parse_config(problem.operator, arch, text), problem, arch)
            if isinstance(legal, Legal):
                return legal.config
    raise InputError(f"no config is legal for every shape of {problem.problem_class} on {arch.name}")


def _widest(op: str) -> Widest:
    """``WIDEST`` of an operator, by its own word."""
    name = operator(op).runtime
    return getattr(importlib.import_module(name), "WIDEST", {}) if name else {}


def _work(problem: Problem) -> float:
    return sum(operator_of(problem).work(problem).operations.values())


def is_of_today(entry: Entry, bundle: Bundle) -> bool:
    """Whether the object in ``bundle`` is whole and was compiled from today's sources."""
    try:
        config = parse_config(entry.op, bundle.arch, entry.config)
    except InputError:  # of a version with other kernels or knobs
        return False
    fresh = entry.source_hash == kernel_source_hash(kernel_of(config, entry.problem))
    return fresh and is_whole(bundle.folder / entry.file, entry.sha256)


def _is_for_any_shape(text: str, problem: Problem, arch: Arch) -> bool:
    try:
        config = parse_config(problem.operator, arch, text)
    except InputError:  # of a version with other kernels or knobs
        return False
    return all(knob_rejection(config, corner, arch) is None for corner in _corners(problem))


MOST_STEPS = 8  # that a size is moved by its multiple


def _corners(problem: Problem) -> Iterator[Problem]:
    """The smallest and the largest of every size that is not compiled in: rules bound them from below or above."""
    free = {name: _ends(form) for name, form in problem.forms().items() if not form.compiled}
    for extents in itertools.product(*free.values()):
        yield _nearest(problem, dict(zip(free, extents, strict=True)))


def _nearest(problem: Problem, sizes: dict[str, int]) -> Problem:
    """The problem of these sizes; where an option asks for coarser ones, of the nearest inside that are."""
    forms = problem.forms()
    for steps in range(MOST_STEPS):
        moved = {
            name: size + steps * forms[name].multiple * (1 if size < forms[name].most // 2 else -1)
            for name, size in sizes.items()
        }
        try:
            return type(problem)(**problem.record() | moved)
        except InputError:
            continue
    raise InputError(f"{problem.operator} has no problem near {sizes}")


def _ends(form: Form) -> tuple[int, int]:
    step = form.multiple
    return -(-form.least // step) * step, form.most // step * step

"""An object of the largest rank for every pair of dtypes in a bundle, legal for every M, N and K.

Any rank is launched by padding it with zeros to one that has an object (runtime/ranks.py); this is the one that always
is there. It takes the config of the row that is nearest to it in rank, of those that are legal for all sizes, else the
default rule's.
"""

from __future__ import annotations

import dataclasses
import itertools
import platform
from collections.abc import Iterable, Iterator, Sequence

from kernel_space.build.key import space_source_hash, toolchain
from kernel_space.core.arch import Arch
from kernel_space.core.config import KernelConfig
from kernel_space.core.errors import InputError
from kernel_space.core.problem import MAX_EXTENT
from kernel_space.core.registry import kernels_of, parse_config
from kernel_space.core.rules import Legal, knob_rejection, legalize
from kernel_space.operators.svdquant_gemm.problem import K_MULTIPLE, MAX_R, N_MULTIPLE, GemmProblem
from tuner.files.store import is_whole
from tuner.space.space import SearchSpace
from tuner.tables.bundle import Bundle, Entry
from tuner.tables.row import Row


def widest_problems(problems: Iterable[GemmProblem]) -> list[GemmProblem]:
    """One problem of the largest rank for each pair of dtypes among ``problems``: the size of the first of a pair."""
    found: dict[tuple[str, str], GemmProblem] = {}
    for problem in problems:
        found.setdefault((problem.lora_dtype, problem.out_dtype), dataclasses.replace(problem, r=MAX_R))
    return list(found.values())


def widest_entry(entries: Iterable[Entry], problem: GemmProblem, arch: Arch) -> Entry | None:
    """The first of ``entries`` that launches every size of the class of ``problem`` on this kind of machine."""
    for entry in entries:
        here = (entry.problem_class, entry.host) == (str(problem.problem_class), platform.machine())
        if here and _is_for_any_shape(entry.config, problem, arch):
            return entry
    return None


def kept_widest(old: Bundle, problem: GemmProblem, arch: Arch) -> Entry | None:
    """``widest_entry`` of the bundle as it is, if it is whole and of today's sources."""
    current = space_source_hash(kernels_of(GemmProblem.operator, arch))
    whole = (
        entry
        for entry in old.entries
        if entry.source_hash == current and is_whole(old.folder / entry.file, entry.sha256)
    )
    return widest_entry(whole, problem, arch)


def widest_config(rows: Sequence[Row], problem: GemmProblem, arch: Arch) -> KernelConfig:
    """Resolved, for the class of ``problem``, which has the largest rank.

    Asks the kernel's layouts: raises ``InputError`` where the DSL is not installed.
    """
    toolchain()
    nearest = sorted(rows, key=lambda row: (MAX_R - row.key.r, -row.key.problem.flops, row.key))
    configs = [row.config for row in nearest]
    default = SearchSpace.load(GemmProblem.operator, arch).defaults[-1].config  # the one without a condition
    for text in dict.fromkeys([*configs, str(default)]):
        if _is_for_any_shape(text, problem, arch):
            legal = legalize(parse_config(GemmProblem.operator, arch, text), problem, arch)
            if isinstance(legal, Legal):
                return legal.config
    raise InputError(f"no config is legal for every shape of {problem.problem_class} on {arch.name}")


def _is_for_any_shape(text: str, problem: GemmProblem, arch: Arch) -> bool:
    try:
        config = parse_config(GemmProblem.operator, arch, text)
    except InputError:  # of a version with other knobs
        return False
    return all(knob_rejection(config, corner, arch) is None for corner in _corners(problem))


def _corners(problem: GemmProblem) -> Iterator[GemmProblem]:
    """The smallest and the largest of every size: rules bound them from below or above."""
    extents = ((1, MAX_EXTENT), _ends(K_MULTIPLE), _ends(N_MULTIPLE))
    for m, k, n in itertools.product(*extents):
        yield dataclasses.replace(problem, m=m, k=k, n=n)


def _ends(multiple: int) -> tuple[int, int]:
    return multiple, MAX_EXTENT // multiple * multiple

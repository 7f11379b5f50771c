"""Which single knob to change next: every neighbour of a config in its search space, compiled and simulated.

Neighbours are ordered by the kernel's timing model first, if it has one, so that only the most promising are compiled.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from kernel_space.build.build import CompileError, build
from kernel_space.core.config import KernelConfig
from kernel_space.core.problem import Problem
from kernel_space.core.rules import Legal, legalize
from kernel_space.core.traits import Chip
from kernel_space.machine.values.faults import Fault, Unsupported
from tuner.simulated.model import modelled_us
from tuner.simulated.time import SimulatedTime, agreement, simulate
from tuner.space.space import SearchSpace

_Neighbour = tuple[str, str, Legal]  # knob, choice, what comes of it


@dataclasses.dataclass(frozen=True, kw_only=True)
class Change:
    """``knob`` set to ``choice``: its simulated time, and the share of the sets under which it is faster."""

    knob: str
    choice: str
    config: str
    time: SimulatedTime
    faster_in: float


def best_changes(
    config: KernelConfig,
    time: SimulatedTime,
    problem: Problem,
    device: Chip,
    *,
    limit: int,
    begins: Callable[[str], None] = lambda what: None,
) -> list[Change]:
    """The ``limit`` most promising neighbours, by simulated time, the fastest first.

    ``config`` as asked for, with ``auto`` where the budget decides: a changed knob then finds its own stage counts.
    ``begins``: told what each is, before it is compiled.
    """
    changes = []
    chosen = _promising(_neighbours(config, problem, device), problem, device)[:limit]
    for number, (knob, choice, legal) in enumerate(chosen, start=1):
        begins(f"change {number} of {len(chosen)}, {knob}={choice}")
        changed = _simulated(legal, problem, device)
        if changed is not None:
            faster_in = agreement(changed, time)
            changes.append(
                Change(knob=knob, choice=choice, config=str(legal.config), time=changed, faster_in=faster_in)
            )
    return sorted(changes, key=lambda change: change.time.us)


def _neighbours(config: KernelConfig, problem: Problem, device: Chip) -> Iterator[_Neighbour]:
    """(knob, choice, legal config) of every other point of the same kernel one knob away, each once."""
    space = SearchSpace.load(problem.operator, device.arch).of(config)
    own = legalize(config, problem, device.arch)
    seen = {str(own.config)} if isinstance(own, Legal) else set()
    for knob, choices in (space.knobs if space else {}).items():
        for choice in choices.choices:
            legal = legalize(
                type(config).from_fields({**config.fields(), knob: choice}), problem, device.arch
            )
            if isinstance(legal, Legal) and str(legal.config) not in seen:
                seen.add(str(legal.config))
                yield knob, choice, legal


def _promising(neighbours: Iterable[_Neighbour], problem: Problem, device: Chip) -> list[_Neighbour]:
    """By the model's time. Without a model the first of each knob, then the second of each."""
    turns: Counter[str] = Counter()
    ranked: list[tuple[float, _Neighbour]] = []
    for one in neighbours:
        us = modelled_us(one[2].config, problem, device)
        ranked.append((turns[one[0]] if us is None else us, one))
        turns[one[0]] += 1
    return [one for _, one in sorted(ranked, key=lambda item: item[0])]


def _simulated(legal: Legal, problem: Problem, device: Chip) -> SimulatedTime | None:
    """None for a neighbour that does not compile or run: it is no change to recommend."""
    try:
        compiled = build(legal.config, problem.problem_class, device.arch)
        return simulate(compiled, legal.config, problem, device)
    except (CompileError, Unsupported, Fault):
        return None

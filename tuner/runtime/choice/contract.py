"""What an operator may say of itself to torch: the module that ``Operator.runtime`` names, every part optional.

    OPTIONS = ("out_dtype",)      options of the problem that the caller chooses; all else follows from the tensors
    STEADY = "wgt"                an input that is the same tensor from call to call, such as a weight
    EARLY = True                  weights (``Operator.weights``) come from nothing in a CUDA graph: captured launches
                                  may read them while the kernel in front runs
    KEYS = ("act", "wgt")         inputs whose sizes tell most calls apart; all of them if not named
    WIDEST = {"r": 256}           compiled sizes to which the inputs of any problem can be adapted; several of a size,
                                  ascending, serve small problems with less padding: {"r": (256, 512)}

    problem_of(tensors, **options) -> Problem        of input tensors by name; raises InputError for what does not fit
    stand_in(problem, known) -> StandIn | None       how a kernel compiled for the sizes of ``known`` may serve
    reference(tensors, problem) -> dict              outputs by name in plain torch, where no kernel runs

Without ``problem_of`` an operator is launched through ``tuner.runtime.launch``, which is told the problem; without
``stand_in`` by kernels of its own compiled sizes; without ``reference`` on supported cards alone.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any

from kernel_space.core import registry
from kernel_space.core.errors import InputError
from kernel_space.core.operator import Operator
from kernel_space.core.problem import Problem
from kernel_space.core.stand_in import (
    StandIn,
    Widest,
    can_hold,
    compiled_sizes,
    is_compiled,
    widest_of,
)

_PARTS = {
    "OPTIONS": "options",
    "STEADY": "steady",
    "EARLY": "early",
    "KEYS": "keys",
    "WIDEST": "widest",
    "problem_of": "problem_of",
    "stand_in": "stand_in",
    "reference": "reference",
}


def same_sizes(problem: Problem, known: Problem) -> StandIn | None:
    """``problem`` itself where a kernel for ``known`` was compiled for its sizes."""
    return StandIn(problem=problem) if compiled_sizes(problem) == compiled_sizes(known) else None


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Runtime:
    """What the module says, with defaults for what it does not."""

    options: tuple[str, ...] = ()
    steady: str = ""
    early: bool = False
    keys: tuple[str, ...] = ()
    widest: Widest = dataclasses.field(default_factory=dict)
    problem_of: Callable[..., Problem] | None = None
    stand_in: Callable[[Any, Any], StandIn | None] = same_sizes
    reference: Callable[[Mapping[str, Any], Any], dict[str, Any]] | None = None

    def widest_of(self, problem: Problem) -> list[Problem]:
        """Problems of the widest classes that may stand in for ``problem``, the smallest first; at least one."""
        every = widest_of(problem, self.widest)
        return [one for one in every if can_hold(one, problem, self.widest)] or every[-1:]


@functools.cache
def runtime_of(name: str) -> Runtime:
    """Raises ``InputError`` for a module that is not there and for one that says what cannot be."""
    operator = registry.operator(name)
    if not operator.runtime:
        return Runtime(keys=operator.signature.inputs)
    try:
        module = importlib.import_module(operator.runtime)
    except ImportError as error:
        raise InputError(
            f"operator {name} names the runtime {operator.runtime}, which fails: {error}"
        ) from error
    said = {field: getattr(module, part) for part, field in _PARTS.items() if hasattr(module, part)}
    found = Runtime(**{"keys": operator.signature.inputs, **said})
    _check(operator, found)
    return found


def _check(operator: Operator, found: Runtime) -> None:
    """Names that the module uses are names of the operator."""
    inputs, problem = operator.signature.inputs, operator.problem
    sizes = [name for name, form in problem.forms().items() if is_compiled(form)]
    for part, names, known in (
        ("OPTIONS", found.options, problem.option_names()),
        ("STEADY", [found.steady] if found.steady else [], inputs),
        ("KEYS", found.keys, inputs),
        ("WIDEST", found.widest, sizes),
    ):
        if unknown := [name for name in names if name not in known]:
            may = ", ".join(known) or "none"
            raise InputError(f"{part} of {operator.runtime} may name {may}, got {unknown[0]!r}")

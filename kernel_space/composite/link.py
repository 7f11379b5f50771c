"""Link: one operator of a chain, and how its problem and tensors follow from the chain's."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from kernel_space.core.errors import InputError
from kernel_space.core.operator import Operator
from kernel_space.core.problem import Problem, ProblemClass
from kernel_space.core.registry import operator, operator_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Link:
    """``name``      of the link: its knobs are called ``<name>_<knob>``
    ``operator``  the name of the operator that runs here
    ``fields``    field of its problem -> field of the chain's problem
    ``fixed``     field of its problem -> value, the same for every problem of the chain
    ``tensors``   its argument -> what the chain calls it; arguments that are left out keep their name

    A field that is in neither has its default. A tensor that an earlier link writes under this name is that link's.
    """

    name: str
    operator: str
    fields: Mapping[str, str]
    fixed: Mapping[str, int | str] = dataclasses.field(default_factory=dict)
    tensors: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def of(self) -> Operator:
        """The operator. Raises ``InputError`` when it cannot be loaded."""
        return operator(self.operator)

    def called(self, argument: str) -> str:
        """What the chain calls an argument of this operator."""
        return self.tensors.get(argument, argument)

    def problem(self, whole: Problem) -> Problem:
        """This operator's problem in ``whole``. Raises ``InputError`` where its contract has no such problem."""
        fields = {name: getattr(whole, outer) for name, outer in self.fields.items()}
        return self.of.problem(**fields, **self.fixed)

    def problem_class(self, whole: ProblemClass) -> ProblemClass:
        """The class of ``problem`` of every problem of the class ``whole``."""
        forms = self.of.problem.forms()
        compiled = {
            name: getattr(whole, outer) for name, outer in self.fields.items() if forms[name].compiled
        }
        constant = {name: value for name, value in self.fixed.items() if forms[name].compiled}
        return self.of.problem.class_of(**compiled, **constant)

    def widen(self, part: Problem, whole: Problem) -> Problem:
        """``whole`` with what it hands to this link as it is in ``part``. Raises ``InputError`` where there is none."""
        return dataclasses.replace(
            whole, **{outer: getattr(part, name) for name, outer in self.fields.items()}
        )

    def check(self, problem: type[Problem]) -> None:
        """Raise ``InputError`` for names that are no fields of a problem, and sizes that an object of the chain would
        not be told.
        """
        own, outer = self.of.problem.forms(), problem.forms()
        for name in (*self.fields, *self.fixed):
            if name not in own:
                raise InputError(
                    f"link {self.name}: {self.operator} has no field {name!r}; it has {' '.join(own)}"
                )
        for name, source in self.fields.items():
            if source not in outer:
                raise InputError(
                    f"link {self.name}: {problem.operator} has no field {source!r}; it has {' '.join(outer)}"
                )
            if own[name].compiled and not outer[source].compiled:
                raise InputError(
                    f"link {self.name}: {name} is compiled into an object, so {source} of {problem.operator} must be"
                )
        if missing := [
            name for name in self.of.problem.size_names() if name not in {*self.fields, *self.fixed}
        ]:
            raise InputError(f"link {self.name}: size {missing[0]} of {self.operator} must have a source")


def single_problems(problem: Problem) -> Iterator[Problem]:
    """Problems of operators that are no chains: ``problem`` itself, or what its links make of it."""
    if (composed := operator_of(problem).composed) is None:
        yield problem
        return
    for link in composed.links:
        yield from single_problems(link.problem(problem))

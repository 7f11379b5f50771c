"""Is a candidate right on this card: every element, bitwise the same each time, and nothing written elsewhere.

Each case gets fresh random operands in an ``Arena``, of every source that the operator has (``Operator.sources``). Half
of the launches run with guards, outputs and partial sums full of NaN, half with ordinary numbers there: a kernel whose
result depends on memory that is not its input differs between the halves. The oracle and its tolerances are the
operator's (``Operator.check``), of every output by its name. ``chains.py`` then lets launches overlap.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch

from kernel_space.core.config import KernelConfig
from kernel_space.core.operator import Comparison
from kernel_space.core.problem import Problem
from kernel_space.core.registry import operator_of
from kernel_space.core.signature import TensorSpec
from kernel_space.numerics.tensors import bytes_of, require_specs, view_as
from tuner.card.worker.arena import GUARD_BYTES, Arena, Damage
from tuner.card.worker.candidate import Case
from tuner.trials.outcome import Status

CHECK_VERSION = "check version 2"  # raise it when a candidate that passed might not any more
# 0xFF: NaN in fp16, bf16, fp32 and E4M3, -1 in integers. 0x3C: 1.06 in fp16, 0.0115 in bf16 and fp32, 1.5 in E4M3.
PATTERNS = (0xFF, 0x3C)
OUTPUT_GUARD_ROWS = 256  # a tile that is off by one of these along the first axis lands in a guard
MOST_GUARD_BYTES = 32 << 20
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes of an element

Launch = Callable[[], None]
Wait = Callable[[str], None]


class CheckFailed(Exception):
    """The candidate is wrong. ``status`` says how, ``str()`` says where in one line."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclasses.dataclass(frozen=True, kw_only=True)
class CaseReport:
    """One case that passed. ``elements`` of all outputs. ``max_ratio``: largest error in units of its element's
    tolerance, in any output; ``mean_error`` and ``mean_limit``: of ``OutputCheck``, of the output and the operands that
    came nearest to the limit (both 0 where no mean is judged); ``seed`` and ``sources`` of operands.

    ``launches`` one at a time; ``chained`` without waiting in between.
    """

    problem: str
    seed: int
    launches: int
    elements: int
    max_ratio: float
    mean_error: float = 0.0
    mean_limit: float = 0.0
    chained: int = 0
    sources: str = ""


def make_inputs(
    problem: Problem, seed: int, source: str, device: torch.device | str
) -> dict[str, torch.Tensor]:
    """The operator's inputs by name, in the order of its signature. Raises ``InputError`` for an operator that makes
    others than it declares."""
    operator = operator_of(problem)
    made, specs = operator.inputs(problem, seed, source, device), operator.signature.tensors(problem)
    require_specs(made, {name: specs[name] for name in operator.signature.inputs})
    return {name: made[name].contiguous() for name in operator.signature.inputs}


def check_case(
    bind: Callable[[Arena], Launch],
    case: Case,
    *,
    config: KernelConfig,
    repeats: int,
    seed: int,
    device: torch.device | str,
    wait: Wait,
    phase: Callable[[str], None] = lambda name: None,
) -> CaseReport:
    """Launch ``repeats`` times (at least once with each pattern) on ``case`` and look at everything.

    ``bind`` gives the launch on an arena's buffers, which are named as the kernel's pointers; ``wait(what)`` returns
    when it has ended and raises what became of it; ``config`` is for the oracle. The operator's last source is the one
    that is launched ``repeats`` times, each before it once with each pattern. Raises ``CheckFailed``, and what ``wait``
    and the launch raise.
    """
    operator = operator_of(case.problem)
    arena = _lay_out(case, device)
    launch: Launch | None = None
    checks: list[dict[str, Comparison]] = []
    launches = 0
    for source in operator.sources:
        phase("operands")
        inputs = make_inputs(case.problem, seed, source, device)
        _fill(arena, inputs, case)
        launch = launch or bind(arena)
        run = _Run(arena, inputs, case, launch, wait, phase)
        checks.append(run.first(PATTERNS[0], config))
        times = -(-repeats // len(PATTERNS)) if source == operator.sources[-1] else 1
        for pattern in PATTERNS:
            for _ in range(times):
                run.again(pattern)
            run.look_around(pattern)
        launches += run.launches
    return _report(case, seed, launches, checks)


def _report(case: Case, seed: int, launches: int, checks: Sequence[Mapping[str, Comparison]]) -> CaseReport:
    every = [check for of_source in checks for check in of_source.values()]
    judged = [check for check in every if check.judged] or every
    nearest = max(judged, key=lambda check: check.mean_error - check.mean_limit)
    return CaseReport(
        problem=str(case.problem),
        seed=seed,
        launches=launches,
        elements=sum(check.elements for check in checks[0].values()),
        max_ratio=max(check.max_ratio for check in every),
        mean_error=nearest.mean_error,
        mean_limit=nearest.mean_limit,
        sources=", ".join(operator_of(case.problem).sources),
    )


class _Run:
    """The launches of one case on one set of operands."""

    def __init__(
        self,
        arena: Arena,
        inputs: Mapping[str, torch.Tensor],
        case: Case,
        launch: Launch,
        wait: Wait,
        phase: Callable[[str], None],
    ) -> None:
        self._arena, self._case = arena, case
        self._launch, self._wait, self._phase = launch, wait, phase
        self._operator = operator_of(case.problem)
        signature = self._operator.signature
        specs = signature.tensors(case.problem)
        self._inputs = dict(inputs)
        self._outputs = {name: view_as(arena.bytes_of(name), specs[name]) for name in signature.outputs}
        self._before = {name: bytes_of(tensor) for name, tensor in inputs.items()}
        self._expected: dict[str, torch.Tensor] = {}
        self._pattern = 0
        self.launches = 0

    def first(self, pattern: int, config: KernelConfig) -> dict[str, Comparison]:
        """Launch once and compare every element of every output."""
        self._start(pattern)
        # before the comparison: a stray store explains a wrong element, not the reverse
        self.look_around(pattern)
        self._phase("compare")
        tensors = {**self._inputs, **self._outputs}
        checks = self._operator.compare(self._case.problem, tensors, config)
        for name, check in checks.items():
            if not check.ok:
                raise CheckFailed(Status.WRONG_RESULT, f"{self._case.problem}: {name}: {check}")
        left_out = getattr(config, "left_out", ())  # of a kernel in place of a chain: it does not write them
        self._expected = {
            name: output.clone() for name, output in self._outputs.items() if name not in left_out
        }
        self._pattern = pattern
        return dict(checks)

    def again(self, pattern: int) -> None:
        """Launch once more; every output that is written must be the first one, bit for bit."""
        self._start(pattern)
        for name, expected in self._expected.items():
            output = self._outputs[name]
            differs = as_integers(output) != as_integers(expected)
            if bool(differs.any()):
                self._tell_difference(pattern, f"{name}: {_difference(differs, expected, output)}")

    def look_around(self, pattern: int) -> None:
        """Guards, inputs and counters are as they must be."""
        problem = self._case.problem
        if outside := self._arena.damaged_guards(pattern):
            raise CheckFailed(Status.ILLEGAL_ACCESS, f"{problem}: wrote outside: {_joined(outside)}")
        if inputs := self._arena.changed(self._before):
            raise CheckFailed(Status.ILLEGAL_ACCESS, f"{problem}: wrote into an input: {_joined(inputs)}")
        if bool(self._workspace()[: self._case.zeroed_bytes].any()):
            reason = f"{problem}: the workspace's counters were not left zero, the next launch would go wrong"
            raise CheckFailed(Status.WRONG_RESULT, reason)

    def _tell_difference(self, pattern: int, what: str) -> None:
        where = f"{self._case.problem}: {what}"
        if pattern == self._pattern:
            raise CheckFailed(Status.RACE, f"launch {self.launches} differs from the first, {where}")
        outputs = " or ".join(self._outputs)
        reason = f"the result depends on memory that is no operand (behind a buffer, or what {outputs} held before)"
        raise CheckFailed(Status.WRONG_RESULT, f"{reason}, {where}")

    def _start(self, pattern: int) -> None:
        self._phase("launch")
        self._arena.fill_guards(pattern)
        for name in self._outputs:
            self._arena.bytes_of(name).fill_(pattern)
        self._workspace()[self._case.zeroed_bytes :].fill_(pattern)
        self._launch()
        self.launches += 1
        self._wait(f"launch {self.launches} on {self._case.problem}")

    def _workspace(self) -> torch.Tensor:
        return _workspace_of(self._arena, self._case)


def _workspace_of(arena: Arena, case: Case) -> torch.Tensor:
    """Its bytes; none for an operator without one."""
    name = operator_of(case.problem).signature.workspace
    return torch.empty(0, dtype=torch.uint8) if name is None else arena.bytes_of(name)


def _lay_out(case: Case, device: torch.device | str) -> Arena:
    """Every tensor and the workspace, guarded; around an output more: ``OUTPUT_GUARD_ROWS`` of its rows."""
    signature = operator_of(case.problem).signature
    specs = signature.tensors(case.problem)
    sizes = {name: spec.nbytes for name, spec in specs.items()}
    if signature.workspace is not None:
        sizes[signature.workspace] = case.workspace_bytes
    return Arena(sizes, device, guards={name: _guard_bytes(specs[name]) for name in signature.outputs})


def _guard_bytes(spec: TensorSpec) -> int:
    rows = max(1, spec.shape[0]) if spec.shape else 1
    return min(MOST_GUARD_BYTES, max(GUARD_BYTES, OUTPUT_GUARD_ROWS * (spec.nbytes // rows)))


def _fill(arena: Arena, inputs: Mapping[str, torch.Tensor], case: Case) -> None:
    for name, tensor in inputs.items():
        arena.bytes_of(name).copy_(bytes_of(tensor))
    _workspace_of(arena, case)[: case.zeroed_bytes].zero_()


def as_integers(tensor: torch.Tensor) -> torch.Tensor:
    """The bits of each element, to compare: NaN is equal to itself then."""
    return tensor.view(INTEGERS[tensor.element_size()])


def _difference(differs: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> str:
    """How many elements differ, where they lie, and the first of them."""
    places = differs.nonzero()
    low, high = places.amin(dim=0).tolist(), places.amax(dim=0).tolist()
    axes = {1: ("elements",), 2: ("rows", "columns")}.get(
        len(low), [f"axis {axis}" for axis in range(len(low))]
    )
    spans = ", ".join(f"{axis} {a}..{b}" for axis, a, b in zip(axes, low, high, strict=True))
    at = tuple(places[0].tolist())
    return (
        f"{len(places)} of {differs.numel()} elements in {spans}: "
        f"{list(at)} is {second[at].item():g} after {first[at].item():g}"
    )


def _joined(damages: Iterable[Damage]) -> str:
    return "; ".join(str(damage) for damage in damages)


def describe(reports: Sequence[CaseReport], card: str) -> str:
    """One line for a trial: what was checked."""
    first, *others = reports
    ragged = f" and {', '.join(f'({report.problem})' for report in others)}" if others else ""
    worst = max(report.max_ratio for report in reports)
    launches = f"{first.launches} launches{' each' if others else ''}"
    chained = sum(report.chained for report in reports)
    chains = f", {chained} more in chains as one at a time" if chained else ""
    mean = f", mean {first.mean_error:.2g} of at most {first.mean_limit:.2g}" if first.mean_limit else ""
    return (
        f"checked on {card} against the oracle: {first.problem}{ragged}, operands {first.sources}, {launches} bitwise "
        f"equal{chains}, guards untouched, worst error {worst:.2g} x tolerance{mean} (seed {first.seed})"
    )

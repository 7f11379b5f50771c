"""Is a candidate right on this card: every element, bitwise the same each time, and nothing written elsewhere.

Each case gets fresh random operands in an ``Arena``: first those of a layer, then operands that hold every scale factor
(``full_range.py`` of the operator). Half of the launches run with guards, output and partial sums full of NaN, half
with ordinary numbers there: a kernel whose result depends on memory that is not its input differs between the halves.
The oracle is the float64 product of the dequantized operands, with the tolerance that the operator's ``reference.py``
derives from the length of the accumulation, and the bound of the mean error. ``chains.py`` then lets launches overlap.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import torch

from kernel_space.operators.svdquant_gemm.inputs import TORCH_DTYPES
from kernel_space.operators.svdquant_gemm.operands import (
    ARGUMENT_ORDER,
    Operands,
    argument_bytes,
    make_operands,
)
from kernel_space.operators.svdquant_gemm.reference import OutputCheck, check_packed
from tuner.card.worker.arena import GUARD_BYTES, Arena, Damage
from tuner.card.worker.candidate import Case
from tuner.trials.outcome import Status

CHECK_VERSION = "check version 2"  # raise it when a candidate that passed might not any more
OUTPUT, WORKSPACE = "y", "workspace"
INPUTS = tuple(name for name in ARGUMENT_ORDER if name != OUTPUT)
# 0xFF: NaN in fp16, bf16, fp32 and E4M3. 0x3C: 1.06 in fp16, 0.0115 in bf16 and fp32, 1.5 in E4M3.
PATTERNS = (0xFF, 0x3C)
LAYER, EVERY_SCALE = (
    "gaussian",
    "scales",
)  # sources of operands; the first is launched once with each pattern more
OUTPUT_GUARD_ROWS = 256  # a tile that is off by one of these in M lands in a guard
MOST_GUARD_BYTES = 32 << 20
CHUNK_ROWS = 2048  # of the oracle: float64 [2048, 15360] is 250 MB

Launch = Callable[[], None]
Wait = Callable[[str], None]


class CheckFailed(Exception):
    """The candidate is wrong. ``status`` says how, ``str()`` says where in one line."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclasses.dataclass(frozen=True, kw_only=True)
class CaseReport:
    """One case that passed. ``max_ratio``: largest error in units of its element's tolerance; ``mean_error`` and
    ``mean_limit``: of ``OutputCheck``, of the operands that came nearest to the limit; ``seed`` of operands.

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


def check_case(
    bind: Callable[[Arena], Launch],
    case: Case,
    *,
    split_k: int,
    repeats: int,
    seed: int,
    device: torch.device | str,
    wait: Wait,
    phase: Callable[[str], None] = lambda name: None,
) -> CaseReport:
    """Launch ``repeats`` times (at least once with each pattern) on ``case`` and look at everything.

    ``bind`` gives the launch on an arena's buffers, which are named as the kernel's pointers; ``wait(what)`` returns
    when it has ended and raises what became of it. Raises ``CheckFailed``, and what ``wait`` and the launch raise.
    """
    arena = _lay_out(case, device)
    launch: Launch | None = None
    checks, launches = [], 0
    for source in (LAYER, EVERY_SCALE):
        phase("operands")
        operands = make_operands(case.problem, seed, source=source, device=device)
        _fill(arena, operands, case)
        launch = launch or bind(arena)
        run = _Run(arena, operands, case, launch, wait, phase)
        checks.append(run.first(PATTERNS[0], split_k))
        for pattern in PATTERNS:
            for _ in range(1 if source == LAYER else -(-repeats // len(PATTERNS))):
                run.again(pattern)
            run.look_around(pattern)
        launches += run.launches
    nearest = max(checks, key=lambda check: check.mean_error - check.mean_limit)
    return CaseReport(
        problem=str(case.problem),
        seed=seed,
        launches=launches,
        elements=checks[0].elements,
        max_ratio=max(check.max_ratio for check in checks),
        mean_error=nearest.mean_error,
        mean_limit=nearest.mean_limit,
    )


class _Run:
    """The launches of one case on one set of operands."""

    def __init__(
        self,
        arena: Arena,
        operands: Operands,
        case: Case,
        launch: Launch,
        wait: Wait,
        phase: Callable[[str], None],
    ) -> None:
        self._arena, self._operands, self._case = arena, operands, case
        self._launch, self._wait, self._phase = launch, wait, phase
        problem = case.problem
        self._y = arena.view(OUTPUT, TORCH_DTYPES[problem.out_dtype], (problem.m, problem.n))
        self._inputs = {name: _bytes(operands.tensors()[name]) for name in INPUTS}
        self._expected: torch.Tensor | None = None
        self._pattern = 0
        self.launches = 0

    def first(self, pattern: int, split_k: int) -> OutputCheck:
        """Launch once and compare every element."""
        self._start(pattern)
        self.look_around(
            pattern
        )  # before the comparison: a stray store explains a wrong element, not the reverse
        self._phase("compare")
        check = check_packed(self._y, self._operands, split_k=split_k, chunk_rows=CHUNK_ROWS)
        if not check.ok:
            raise CheckFailed(Status.WRONG_RESULT, f"{self._case.problem}: {check}")
        self._expected, self._pattern = self._y.clone(), pattern
        return check

    def again(self, pattern: int) -> None:
        """Launch once more; the output must be the first one, bit for bit."""
        self._start(pattern)
        assert self._expected is not None
        differs = self._y.view(torch.int16) != self._expected.view(torch.int16)
        if not bool(differs.any()):
            return
        where = f"{self._case.problem}: {_difference(differs, self._expected, self._y)}"
        if pattern == self._pattern:
            raise CheckFailed(Status.RACE, f"launch {self.launches} differs from the first, {where}")
        reason = "the result depends on memory that is no operand (behind a buffer, or what y held before)"
        raise CheckFailed(Status.WRONG_RESULT, f"{reason}, {where}")

    def look_around(self, pattern: int) -> None:
        """Guards, inputs and counters are as they must be."""
        problem = self._case.problem
        if outside := self._arena.damaged_guards(pattern):
            raise CheckFailed(Status.ILLEGAL_ACCESS, f"{problem}: wrote outside: {_joined(outside)}")
        if inputs := self._arena.changed(self._inputs):
            raise CheckFailed(Status.ILLEGAL_ACCESS, f"{problem}: wrote into an input: {_joined(inputs)}")
        zeroed = self._arena.bytes_of(WORKSPACE)[: self._case.zeroed_bytes]
        if bool(zeroed.any()):
            reason = f"{problem}: the workspace's counters were not left zero, the next launch would go wrong"
            raise CheckFailed(Status.WRONG_RESULT, reason)

    def _start(self, pattern: int) -> None:
        self._phase("launch")
        self._arena.fill_guards(pattern)
        self._arena.bytes_of(OUTPUT).fill_(pattern)
        self._arena.bytes_of(WORKSPACE)[self._case.zeroed_bytes :].fill_(pattern)
        self._launch()
        self.launches += 1
        self._wait(f"launch {self.launches} on {self._case.problem}")


def _lay_out(case: Case, device: torch.device | str) -> Arena:
    sizes = argument_bytes(case.problem) | {WORKSPACE: case.workspace_bytes}
    row_bytes = sizes[OUTPUT] // case.problem.m
    wide = min(MOST_GUARD_BYTES, max(GUARD_BYTES, OUTPUT_GUARD_ROWS * row_bytes))
    return Arena(sizes, device, guards={OUTPUT: wide})


def _fill(arena: Arena, operands: Operands, case: Case) -> None:
    tensors = operands.tensors()
    for name in INPUTS:
        arena.bytes_of(name).copy_(_bytes(tensors[name]))
    arena.bytes_of(WORKSPACE)[: case.zeroed_bytes].zero_()


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def _difference(differs: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> str:
    """How many elements differ, where they lie, and the first of them."""
    places = differs.nonzero()
    low, high = places.amin(dim=0).tolist(), places.amax(dim=0).tolist()
    row, column = places[0].tolist()
    return (
        f"{len(places)} of {differs.numel()} elements in rows {low[0]}..{high[0]}, columns {low[1]}..{high[1]}: "
        f"[{row}, {column}] is {second[row, column].item():g} after {first[row, column].item():g}"
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
    return (
        f"checked on {card} against float64: {first.problem}{ragged}, every scale factor, {launches} bitwise equal"
        f"{chains}, guards untouched, worst error {worst:.2g} x tolerance, mean {first.mean_error:.2g} of at most "
        f"{first.mean_limit:.2g} (seed {first.seed})"
    )

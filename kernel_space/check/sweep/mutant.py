"""One mutant of a kernel: what was changed, where, of which kind, and the text that runs."""

from __future__ import annotations

import dataclasses

from kernel_space.check.sweep.coverage import Seen
from kernel_space.check.sweep.text import Source, Statement

KINDS = ("removed", "weakened", "misplaced", "wrong thread", "wrong value", "wrong size", "wrong mask")
LANES = 32
_SYNCHRONISING = ("mbarrier", "bar", "barrier", "fence", "membar", "griddepcontrol", "elect", "setmaxnreg", "shfl",
                  "vote", "match", "redux", "clusterlaunchcontrol")  # fmt: skip
_ASYNCHRONOUS = ("cp", "tcgen05", "wgmma", "tensormap", "multimem")
_STORING = ("st", "red", "atom", "stmatrix")
_STRONG = ("acquire", "relaxed", "volatile")
ORDERING = ("mbarrier", "bar", "barrier", "fence", "membar", "griddepcontrol")
GROUPS = (
    "commit_group",
    "wait_group",
    "commit",
    "wait",
    "fence",
    "wait_all",
)  # words of asynchronous opcodes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mutant:
    """``what`` in a few words; ``text`` the whole PTX; ``other``: the instruction that changed places with this one.

    ``proof``: why it is harmless, if that was plain before it ran.
    """

    kind: str
    what: str
    statement: Statement
    text: str
    other: Statement | None = None
    proof: str = ""

    @property
    def line(self) -> int:
        return self.statement.line


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kernel:
    """What generators are given: the text, who executes what, and the launches' clusters."""

    source: Source
    seen: Seen

    def warps(self, statement: Statement) -> dict[int, int]:
        """Warp of the CTA -> lanes that execute it during the check; empty if nobody does."""
        return self.seen.get((statement.entry, statement.site), {})

    def lanes(self, statement: Statement) -> int:
        lanes = 0
        for mask in self.warps(statement).values():
            lanes |= mask
        return lanes

    @property
    def relevant(self) -> list[Statement]:
        return [one for one in self.source.statements if is_relevant(one)]

    def mutant(self, kind: str, what: str, statement: Statement, line: str) -> Mutant:
        """With the statement's line replaced."""
        text = self.source.with_lines({statement.line: line})
        return Mutant(kind=kind, what=what, statement=statement, text=text)


def is_relevant(statement: Statement) -> bool:
    """Does it synchronise, work asynchronously or store?"""
    tokens = statement.tokens
    if tokens[0] == "ld":
        return bool({*_STRONG} & {*tokens})
    if tokens[0] == "cp" or tokens[0] in ("st", "tcgen05"):
        return "prefetch" not in tokens and "local" not in tokens
    return tokens[0] in _SYNCHRONISING or tokens[0] in _ASYNCHRONOUS or tokens[0] in _STORING


def orders(statement: Statement) -> bool:
    """Does it order what other instructions do?"""
    tokens = statement.tokens
    if tokens[0] in ("mbarrier",) and tokens[1] in ("init", "inval"):
        return False
    if tokens[0] in ORDERING or {"release", "acquire", "acq_rel"} & {*tokens}:
        return True
    return tokens[0] in _ASYNCHRONOUS and bool(
        {*tokens} & {*GROUPS, "wait::ld", "wait::st", "alloc", "dealloc"}
    )


def is_wait(statement: Statement) -> bool:
    return statement.tokens[0] == "mbarrier" and statement.tokens[1] in ("try_wait", "test_wait")

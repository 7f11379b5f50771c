"""What an instruction costs the warp that issues it, from what ptxas keeps of it.

Rules read off nvdisasm listings of shipped cubins (``tests/machine/clock/test_timed_weights.py``
compares loop by loop):

- register copies, packs and unpacks, address-space casts and ``cvt`` between integers vanish, as do ``elect.sync``,
  the negation of its predicate and the branch around the elected instruction (they become predicates);
- integer arithmetic, comparison, selection, ``mad`` and branches stay one to one;
- a ``tcgen05.cp`` takes 1.5 (a UMOV for every other one), a ``tcgen05.mma`` 4 (three UMOV), a TMA
  instruction 3; a spin wait is SYNCS and a branch;
- ``div`` is a call of about 20 instructions; packed f32x2 arithmetic and conversions stay one to one.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TypeAlias

from kernel_space.machine.ptx.cfg import Block, Graph
from kernel_space.machine.ptx.instruction import Instr
from kernel_space.machine.ptx.operands import Special

Cost: TypeAlias = tuple[tuple[str, float], ...]
"""(field of ``Clock``, how many of it), sorted by field."""

VANISHES = frozenset({"mov", "cvta", "elect", "not", "prefetch", "prefetchu", "pragma", "nop"})
DATA = frozenset({"fma", "ex2", "rcp", "tanh", "lg2", "rsqrt", "sqrt", "stmatrix", "ldmatrix", "prmt"})
SPECIAL = frozenset({"ex2", "rcp", "tanh", "lg2", "rsqrt", "sqrt", "sin", "cos"})
FLOATS = frozenset({"f32", "f16", "bf16", "f16x2", "bf16x2", "f32x2", "f64"})
DIVISION = 20.0
SASS_OF = {"tcgen05.cp": 1.5, "tcgen05.mma": 4.0, "cp.async": 3.0, "div": DIVISION, "rem": DIVISION}
BULK_GROUPS = frozenset({"commit_group", "wait_group"})


@dataclasses.dataclass
class Tally:
    """Costs of a run of instructions; shared loads that stand together share one latency. Accesses of global memory
    cost no more than their issue here: ``plain`` knows when they come.
    """

    counts: dict[str, float] = dataclasses.field(default_factory=dict)
    shared_open: bool = False

    def add(self, field: str, amount: float = 1.0) -> None:
        self.counts[field] = self.counts.get(field, 0.0) + amount

    def instruction(self, instr: Instr, *, elects: bool) -> None:
        """Count ``instr``; ``elects``: it branches around elected code."""
        tokens = instr.tokens
        space = memory_space(tokens)
        if tokens[0] == "ld" and space == "shared":
            self._shared_load()
            return
        if tokens[0] in ("fence", "membar"):
            self._fence(tokens)
        elif tokens[0] == "atom":
            self.add("fence_gpu")
        elif is_data(tokens):
            self.add("special" if tokens[0] in SPECIAL else "vector")
        else:
            self.add("issue", sass_instructions(instr, elects=elects))

    def _shared_load(self) -> None:
        self.add("vector")
        if not self.shared_open:
            self.add("shared_load")
        self.shared_open = True

    def _fence(self, tokens: tuple[str, ...]) -> None:
        if "proxy" in tokens:
            self.add("fence_proxy")
        elif "gpu" in tokens or "sys" in tokens:
            self.add("fence_gpu")
        else:
            self.add("issue")

    def take(self) -> Cost:
        """The costs so far; starts again."""
        cost = tuple(sorted((field, amount) for field, amount in self.counts.items() if amount))
        self.counts, self.shared_open = {}, False
        return cost


def sass_instructions(instr: Instr, *, elects: bool) -> float:
    """SASS instructions that ``instr`` becomes."""
    name = instr.tokens[0]
    if name == "bra" and (elects or instr.guard is None):
        return 0.0
    if name == "mov" and any(isinstance(operand, Special) for operand in instr.operands):
        return 1.0
    return _sass_of(instr.tokens)


@functools.lru_cache(maxsize=4096)
def _sass_of(tokens: tuple[str, ...]) -> float:
    if not BULK_GROUPS.isdisjoint(tokens):
        return 1.0
    for length in (2, 1):
        found = SASS_OF.get(".".join(tokens[:length]))
        if found is not None:
            return found
    if tokens[0] in VANISHES or tokens[0] == "cvt" and FLOATS.isdisjoint(tokens):
        return 0.0
    return 1.0


@functools.lru_cache(maxsize=4096)
def is_data(tokens: tuple[str, ...]) -> bool:
    """Does an instruction with this opcode work on a warp's data rather than on addresses and counters?"""
    if tokens[0] in DATA or tokens[0] in ("st", "ld") and tokens[1] != "param":
        return True
    return tokens[0] not in ("mov", "setp") and not FLOATS.isdisjoint(tokens)


@functools.lru_cache(maxsize=4096)
def memory_space(tokens: tuple[str, ...]) -> str:
    for token in tokens[1:]:
        space = token.split("::")[0]
        if space in ("shared", "global", "param", "local", "const"):
            return space
    return ""


def elected_branches(graph: Graph) -> set[int]:
    """Blocks whose final branch only skips what one elected lane does."""
    return {block.index for block in graph.blocks if _follows_elect(block)}


def _follows_elect(block: Block) -> bool:
    guard = block.guard
    if guard is None:
        return False
    names = {guard.slot}
    for instr in reversed(block.instrs[:-1]):
        if not any(register.slot in names for register in instr.definitions):
            continue
        if instr.tokens[0] == "elect":
            return True
        if instr.tokens[0] != "not":
            return False
        names = {getattr(operand, "slot", -1) for operand in instr.operands[1:]}
    return False

"""What is run as several instructions.

``@p bar.sync 0``, which may wait, is a branch around ``bar.sync 0``. ``bar.red`` is a deposit of each lane's predicate,
``bar.sync``, and a look at what the deposits of all threads make.
"""

from __future__ import annotations

import dataclasses

from kernel_space.machine.ptx.instruction import Instr
from kernel_space.machine.ptx.operands import Symbol

_WAITS = (
    ("bar", "sync"), ("barrier", "sync"), ("barrier", "cta", "sync"), ("barrier", "cluster", "wait"),
    ("cp", "async", "bulk", "wait_group"), ("tcgen05", "alloc"), ("setmaxnreg", "inc"), ("nanosleep",),
)  # fmt: skip
_REDUCED = ("popc", "and", "or", "pred", "u32")


def split_reductions(instrs: list[Instr], labels: dict[str, int]) -> tuple[list[Instr], dict[str, int]]:
    """The same program without ``bar.red``, whose operands are destination, barrier, threads if not all, predicate."""
    if not any(_reduces(instr) for instr in instrs):
        return instrs, labels
    result: list[Instr] = []
    moved = []
    for instr in instrs:
        moved.append(len(result))
        if not _reduces(instr):
            result.append(instr)
            continue
        target, number, *threads, predicate = instr.operands
        sync = ["sync" if word == "red" else word for word in instr.tokens if word not in _REDUCED]
        how = next((word for word in instr.tokens if word in _REDUCED), "none")
        for opcode, operands in (
            (f"deposit.{how}", (number, predicate)),
            (".".join(sync), (number, *threads)),
            (f"deposited.{how}", (target,)),
        ):
            result.append(dataclasses.replace(instr, opcode=opcode, operands=operands))
    moved.append(len(result))
    return result, {name: moved[at] for name, at in labels.items()}


def _reduces(instr: Instr) -> bool:
    return instr.tokens[0] in ("bar", "barrier") and "red" in instr.tokens[:3]


def branch_around(instrs: list[Instr], labels: dict[str, int]) -> tuple[list[Instr], dict[str, int]]:
    """The same program without guards on what may wait."""
    if not any(_guards_a_wait(instr) for instr in instrs):
        return instrs, labels
    result: list[Instr] = []
    moved, around = [], dict[str, int]()
    for number, instr in enumerate(instrs):
        moved.append(len(result))
        if not _guards_a_wait(instr):
            result.append(instr)
            continue
        over = f"around instruction {number}"
        branch = dataclasses.replace(
            instr, opcode="bra", operands=(Symbol(over),), negated=not instr.negated, text=instr.text
        )
        result += [branch, dataclasses.replace(instr, guard=None, negated=False)]
        around[over] = len(result)
    moved.append(len(result))
    return result, {**{name: moved[at] for name, at in labels.items()}, **around}


def _guards_a_wait(instr: Instr) -> bool:
    return instr.guard is not None and any(instr.tokens[: len(words)] == words for words in _WAITS)

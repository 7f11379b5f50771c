"""The PTX text as a sweep edits it: statements with their lines, straight stretches, units that can change places."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from kernel_space.machine.ptx.instruction import Instr
from kernel_space.machine.ptx.operands import Reg, split_top
from kernel_space.machine.ptx.parse import parse_ptx

ELECT_REACH = 4  # statements between elect.sync and the branch that its predicate decides
_ENTRY = re.compile(r"^[^/\n]*\.entry\s+([\w$]+)", re.M)
_JUMPS = ("bra", "ret", "exit", "trap")
_LABEL = re.compile(r"\s*([\w$]+)\s*:(?!:)")


@dataclasses.dataclass(frozen=True)
class Unit:
    """Lines [``first``, ``last``] that stay together: an instruction, an elected lane's branch, or a wait's loop."""

    first: int
    last: int


@dataclasses.dataclass(frozen=True)
class Statement:
    """An instruction that stands on a line of its own, of the kernel ``entry``; ``site``: its number in the kernel."""

    entry: str
    site: int
    instr: Instr

    @property
    def line(self) -> int:
        return self.instr.line

    @property
    def text(self) -> str:
        return " ".join(self.instr.text.split())

    @property
    def tokens(self) -> tuple[str, ...]:
        return self.instr.tokens

    @property
    def head(self) -> str:
        """Guard and opcode."""
        guard = self.instr.text[: self.instr.text.index(self.instr.opcode)]
        return guard + self.instr.opcode

    @property
    def operands(self) -> list[str]:
        text = self.instr.text
        return split_top(text[text.index(self.instr.opcode) + len(self.instr.opcode) :].strip())

    def spelled(self, operands: list[str], head: str = "") -> str:
        return f"{head or self.head} {', '.join(operands)};"


class Source:
    """A PTX text of one kernel or several. ``statements``: those alone on a line; ``at``: all of a line."""

    def __init__(self, ptx: str) -> None:
        self.lines = ptx.split("\n")
        self.statements: list[Statement] = []
        self.at: dict[int, list[Instr]] = {}
        self.threads: dict[str, int] = {}
        for name in _ENTRY.findall(ptx):
            kernel = parse_ptx(ptx, name)
            x, y, z = kernel.reqntid or kernel.maxntid or (0, 1, 1)
            self.threads[name] = x * y * z
            for site, instr in enumerate(kernel.instrs):
                self.at.setdefault(instr.line, []).append(instr)
                if instr.text and self._alone(instr) and instr.opcode in instr.text:
                    self.statements.append(Statement(name, site, instr))
        self.by_line = {one.line: one for one in self.statements}

    def _alone(self, instr: Instr) -> bool:
        line = self.lines[instr.line - 1].split("//")[0].strip()
        return " ".join(line.rstrip("; ").split()) == " ".join(instr.text.split())

    # -- structure -----------------------------------------------------------------------------------------------
    def is_straight(self, first: int, last: int) -> bool:
        """No label, jump or scope on the lines [``first``, ``last``]."""
        for number in range(first, last + 1):
            line = self.lines[number - 1].split("//")[0].strip()
            if _LABEL.match(line) or line in ("{", "}") or line.startswith(".loc"):
                return False
            if any(_jumps(instr) for instr in self.at.get(number, ())):
                return False
        return True

    def unit(self, line: int) -> Unit:
        """What has to move when the instruction on ``line`` changes places with others."""
        return self._loop(line) or self.elected(line) or Unit(line, line)

    def _loop(self, line: int) -> Unit | None:
        """The scope of inline assembly around a wait."""
        if not any(instr.tokens[1:2] in (("try_wait",), ("test_wait",)) for instr in self.at.get(line, ())):
            return None
        first, last = line, line
        while first > 1 and self.lines[first - 1].strip() != "{":
            first -= 1
            if line - first > 6:
                return None
        while last < len(self.lines) and self.lines[last - 1].strip() != "}":
            last += 1
            if last - line > 6:
                return None
        return Unit(first, last)

    def elected(self, line: int) -> Unit | None:
        """The branch around a straight stretch that holds ``line``, with what elects its lane, its label included."""
        first, last = line, line
        while self.is_straight(first - 1, first - 1) and first > 2:
            first -= 1
        while self.is_straight(last + 1, last + 1) and last < len(self.lines):
            last += 1
        branch = self.by_line.get(first - 1)
        label = _LABEL.match(self.lines[last]) if last < len(self.lines) else None
        if branch is None or label is None or branch.tokens[0] != "bra" or branch.instr.guard is None:
            return None
        if branch.text.split()[-1] != label[1]:
            return None
        begin = self._election(first - 1)
        return Unit(begin, last + 1) if begin else None

    def _election(self, branch: int) -> int:
        """The line of the ``elect.sync`` just before a branch; 0 if there is none."""
        for number in range(branch - 1, branch - ELECT_REACH, -1):
            if any(instr.tokens[0] == "elect" for instr in self.at.get(number, ())):
                return number
            if not self.is_straight(number, number):
                break
        return 0

    def around(self, line: int) -> Statement | None:
        """The guarded branch that leads around the straight stretch which holds ``line``."""
        first = line
        while self.is_straight(first - 1, first - 1) and first > 2:
            first -= 1
        branch = self.by_line.get(first - 1)
        good = branch is not None and branch.tokens[0] == "bra" and branch.instr.guard is not None
        return branch if good else None

    # -- registers -----------------------------------------------------------------------------------------------
    def instrs(self, first: int, last: int) -> list[Instr]:
        return [instr for number in range(first, last + 1) for instr in self.at.get(number, ())]

    def may_pass(self, moved: list[Instr], others: list[Instr]) -> bool:
        """Do registers let ``moved`` change places with ``others``?"""
        written, read = _written(moved), _read(moved)
        if any("@" in one.name for one in _outside(moved, written | read)):
            return False
        return not (written & (_read(others) | _written(others)) or read & _written(others))

    # -- editing -------------------------------------------------------------------------------------------------
    def with_lines(self, changed: Mapping[int, str]) -> str:
        """The text with some lines replaced."""
        lines = [changed.get(number, line) for number, line in enumerate(self.lines, 1)]
        return "\n".join(lines)

    def moved(self, unit: Unit, behind: int) -> str:
        """The text with the lines of ``unit`` behind line ``behind``; 0 is the start."""
        block = self.lines[unit.first - 1 : unit.last]
        if behind >= unit.last:
            between = self.lines[unit.last : behind]
            return "\n".join([*self.lines[: unit.first - 1], *between, *block, *self.lines[behind:]])
        between = self.lines[behind : unit.first - 1]
        return "\n".join([*self.lines[:behind], *block, *between, *self.lines[unit.last :]])


def _jumps(instr: Instr) -> bool:
    """In the text, that is: the parser puts branches around guarded waits."""
    return instr.tokens[0] in _JUMPS and instr.tokens[0] in instr.text


def _written(instrs: list[Instr]) -> set[Reg]:
    return {register for instr in instrs for register in instr.definitions}


def _read(instrs: list[Instr]) -> set[Reg]:
    return {register for instr in instrs for register in instr.uses}


def _outside(moved: list[Instr], registers: set[Reg]) -> set[Reg]:
    """Registers of inner scopes, unless the whole scope moves (a wait's loop brings its own)."""
    scoped = any(instr.tokens[0] == "bra" for instr in moved)
    return set() if scoped else registers


def in_scope(declared: str, code: str) -> str:
    """One line with a register of its own, ``mutant``."""
    return f"\t{{ .reg .{declared} mutant; {code} }}"

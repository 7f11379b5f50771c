"""Find instructions of this project's PTX by what they are, and edit the text.

An instruction is named by its opcode, its order among its kind and the shared-memory region or barrier array that it
addresses; addresses are followed back through ``add``, ``mov``, ``mapa`` and casts to the start of shared memory.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

from kernel_space.core.errors import InputError
from kernel_space.machine.ptx.instruction import Instr
from kernel_space.machine.ptx.operands import Imm, Mem, Operand, Pair, Reg, Symbol, Vec, split_top
from kernel_space.machine.ptx.parse import parse_ptx
from kernel_space.operators.svdquant_gemm.mutations.layout import MutationContext

_FOLLOWED = ("mov", "mapa", "and", "shfl", "cvt", "cvta")
_NO_RESULT = ("st", "bra", "bar", "barrier", "fence", "ret", "prefetch", "red")
_WAIT_TAIL = 2  # "@P bra DONE" and "bra LAB_WAIT" behind a try_wait


class NotApplicable(InputError):
    """The kernel has no such instruction: the mutation means nothing to it."""


class PtxEditor:
    """One PTX text with pending edits. ``text()`` gives the edited one."""

    def __init__(self, ptx: str, context: MutationContext) -> None:
        self.context = context
        self.lines = ptx.split("\n")
        self.instrs, self._defined = _index(ptx)
        self.place = {id(instr): number for number, instr in enumerate(self.instrs)}
        self.replaced: dict[int, str] = {}
        self.before: dict[int, list[str]] = {}
        self.after: dict[int, list[str]] = {}

    # -- finding ---------------------------------------------------------------------------------------------------
    def find(
        self, opcode: str, where: str = "", *, least: int = 1, within: Callable[[Instr], bool] | None = None
    ) -> list[Instr]:
        """Instructions whose opcode matches the regular expression, on the region or barrier array ``where``.

        Raises ``NotApplicable`` when there are fewer than ``least``.
        """
        found = [
            instr
            for instr in self.instrs
            if re.match(opcode, instr.opcode)
            and (not where or self.region_of(instr) == where)
            and (within is None or within(instr))
        ]
        if len(found) < least:
            place = f" on {where}" if where else ""
            need = "no instruction" if least == 1 else f"fewer than {least} instructions"
            raise NotApplicable(f"this kernel has {need} {opcode}{place}; choose another config")
        return found

    def waits(self, barrier: str) -> list[Instr]:
        return self.find(r"mbarrier\.try_wait", barrier)

    def commits(self, barrier: str) -> list[Instr]:
        return self.find(r"tcgen05\.commit", barrier)

    def inits(self, barrier: str) -> list[Instr]:
        return self.find(r"mbarrier\.init", barrier)

    def expects(self, barrier: str) -> list[Instr]:
        return self.find(r"mbarrier\.arrive\.expect_tx", barrier)

    def arrivals(self, barrier: str) -> list[Instr]:
        return self.find(r"mbarrier\.arrive\.shared", barrier)

    def loads(self, region: str) -> list[Instr]:
        """TMA loads into a region."""
        return self.find(r"cp\.async\.bulk\.tensor\.\dd\.shared", region)

    def region_of(self, instr: Instr) -> str | None:
        """Region of the first shared-memory operand."""
        for operand in instr.operands:
            if isinstance(operand, Mem) and operand.coords is None:
                return self.context.region_at(self.offset_of(operand, instr))
        return None

    def offset_of(self, operand: Mem, at: Instr) -> int:
        """Constant part of an address, from the start of dynamic shared memory."""
        return operand.offset + self._constant_part(operand.base, at, 12)

    def _constant_part(self, operand: Operand, at: Instr, depth: int) -> int:
        if isinstance(operand, Imm):
            return operand.value
        definition = self.definition(operand, at) if isinstance(operand, Reg) else None
        if definition is None or depth == 0:
            return 0
        kind, sources = definition.tokens[0], definition.operands[1:]
        if kind == "add":
            return sum(self._constant_part(source, definition, depth - 1) for source in sources)
        if kind in _FOLLOWED and not isinstance(sources[0], Imm | Symbol):
            return self._constant_part(sources[0], definition, depth - 1)
        return 0

    # -- registers -------------------------------------------------------------------------------------------------
    def definitions(self, register: Operand) -> list[Instr]:
        """Every instruction that sets a register, in the order of the text."""
        return self._defined.get(register, [])

    def definition(self, register: Operand, at: Instr) -> Instr | None:
        """The last one before ``at`` in the text."""
        place = self.place[id(at)]
        earlier = [instr for instr in self.definitions(register) if self.place[id(instr)] < place]
        return earlier[-1] if earlier else None

    def source(self, instr: Instr, operand: int) -> Instr:
        """The definition of a register operand. Raises ``NotApplicable``."""
        found = self.definition(_base(instr.operands[operand]), instr)
        if found is None:
            raise NotApplicable(f"cannot follow operand {operand} of {instr.text!r}")
        return found

    def constant(self, instr: Instr, operand: int) -> int:
        """Value of an immediate operand, or of the ``mov`` that loads it."""
        value = instr.operands[operand]
        if isinstance(value, Reg):
            value = self.source(instr, operand).operands[1]
        if not isinstance(value, Imm):
            raise NotApplicable(f"operand {operand} of {instr.text!r} is not a constant")
        return value.value

    def next(self, instr: Instr, count: int = 1) -> Instr:
        return self.instrs[self.place[id(instr)] + count]

    def following(self, instr: Instr, opcode: str) -> Instr:
        """The first instruction behind ``instr`` whose opcode matches."""
        return self._scan(instr, opcode, 1)

    def preceding(self, instr: Instr, opcode: str) -> Instr:
        return self._scan(instr, opcode, -1)

    def _scan(self, instr: Instr, opcode: str, step: int) -> Instr:
        at = self.place[id(instr)] + step
        while 0 <= at < len(self.instrs):
            if re.match(opcode, self.instrs[at].opcode):
                return self.instrs[at]
            at += step
        raise NotApplicable(f"no {opcode} {'behind' if step > 0 else 'before'} {instr.text!r}")

    # -- editing ---------------------------------------------------------------------------------------------------
    def drop(self, instr: Instr) -> None:
        self.replaced[instr.line] = ""

    def drop_wait(self, instr: Instr) -> None:
        """A try_wait with its loop."""
        for step in range(_WAIT_TAIL + 1):
            self.drop(self.next(instr, step))

    def replace(self, instr: Instr, text: str) -> None:
        self.replaced[instr.line] = f"\t{text};"

    def set_operand(self, instr: Instr, operand: int, text: str | int) -> None:
        """One operand spelled anew."""
        parts = operand_texts(instr)
        parts[operand] = str(text)
        self.replace(instr, f"{head(instr)} {', '.join(parts)}")

    def set_opcode(self, instr: Instr, old: str, new: str) -> None:
        """One part of the opcode spelled anew."""
        if old not in instr.opcode:
            raise NotApplicable(f"{instr.text!r} has no {old}")
        self.replace(instr, instr.text.replace(old, new, 1))

    def insert_before(self, instr: Instr, text: str) -> None:
        self.before.setdefault(instr.line, []).append(f"\t{text}")

    def insert_after(self, instr: Instr, text: str) -> None:
        self.after.setdefault(instr.line, []).append(f"\t{text}")

    def insert_behind_wait(self, wait: Instr, text: str) -> None:
        """Behind the scope that holds a try_wait and its loop."""
        line = wait.line
        while self.lines[line - 1].strip() != "}":
            line += 1
        self.after.setdefault(line, []).append(f"\t{text}")

    def add_to(self, instr: Instr, operand: int, amount: int) -> None:
        """Shift a register operand, or the address of a memory operand, by a constant."""
        parts = operand_texts(instr)
        old = instr.operands[operand]
        if isinstance(old, Mem):
            base = parts[operand][1:-1].split("+")[0].strip()
            return self.set_operand(instr, operand, f"[{base}+{old.offset + amount}]")
        self.compute(instr, operand, f"add.s32 {{new}}, {parts[operand]}, {amount};")

    def compute(self, instr: Instr, operand: int, code: str, kind: str = "b32") -> None:
        """Replace an operand by a new register ``{new}`` that ``code`` sets just before."""
        parts = operand_texts(instr)
        parts[operand] = "[mutant]" if isinstance(instr.operands[operand], Mem) else "mutant"
        body = f"{code.format(new='mutant')} {head(instr)} {', '.join(parts)};"
        self.replaced[instr.line] = f"\t{{ .reg .{kind} mutant; {body} }}"

    def flip_at_start(self, wait: Instr) -> None:
        """Invert the parity with which the loop around a wait begins."""
        parity = wait.operands[2]
        updates = [d for d in self.definitions(parity) if d.tokens[0] == "xor"]
        start = [d for d in self.definitions(parity) if d.tokens[0] == "mov" and d.line < wait.line]
        if not updates or not start:
            raise NotApplicable(f"cannot find where the parity of {wait.text!r} begins")
        line = start[-1].line
        while not re.match(r"\s*\$\w+:", self.lines[line]):
            line += 1
        name = operand_texts(wait)[2]
        self.before.setdefault(line + 1, []).append(f"\txor.b32 {name}, {name}, 1;")

    def text(self) -> str:
        """The edited text. Raises ``NotApplicable`` when nothing was changed."""
        if not (self.replaced or self.before or self.after):
            raise NotApplicable("the mutation changed nothing")
        out: list[str] = []
        for number, line in enumerate(self.lines, 1):
            out += self.before.get(number, [])
            out.append(self.replaced.get(number, line))
            out += self.after.get(number, [])
        return "\n".join(out)


@functools.lru_cache(maxsize=8)
def _index(ptx: str) -> tuple[list[Instr], dict[Operand, list[Instr]]]:
    """Instructions, and those that set each register; many mutations of one text are made in a row."""
    instrs = parse_ptx(ptx).instrs
    defined: dict[Operand, list[Instr]] = {}
    for instr in instrs:
        for register in _results(instr):
            defined.setdefault(register, []).append(instr)
    return instrs, defined


def head(instr: Instr) -> str:
    """Guard and opcode."""
    guard = f"@{'!' if instr.negated else ''}{instr.guard.name} " if instr.guard is not None else ""
    return guard + instr.opcode


def operand_texts(instr: Instr) -> list[str]:
    tail = instr.text[instr.text.index(instr.opcode) + len(instr.opcode) :]
    return split_top(tail.strip())


def _moved(text: str, amount: int) -> str:
    base, offset = text[1:-1].split("+")
    return f"[{base}+{int(offset) + amount}]"


def _base(operand: Operand) -> Operand:
    return operand.base if isinstance(operand, Mem) else operand


def _results(instr: Instr) -> tuple[Operand, ...]:
    if instr.tokens[0] in _NO_RESULT or not instr.operands:
        return ()
    first = instr.operands[0]
    if isinstance(first, Vec):
        return first.items
    return (first.first, first.second) if isinstance(first, Pair) else (first,)

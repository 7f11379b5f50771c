"""PTX text -> one ``Kernel``: parameters, variables, registers and a flat list of instructions.

Scoped inline assembly (``{ .reg .pred P; LAB: ... }``) is flattened: registers and labels of an inner scope get
names of their own. Source lines come from ``.loc``. PTX ISA 8.8, "Syntax" and "State Spaces, Types, and Variables".
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

from kernel_space.machine.ptx.guards import branch_around, split_reductions
from kernel_space.machine.ptx.instruction import Instr
from kernel_space.machine.ptx.operands import WIDTHS, Operand, Reg, Symbol, Vec, parse_operand, split_top
from kernel_space.machine.values.faults import Unsupported


@dataclasses.dataclass(frozen=True, slots=True)
class Param:
    name: str
    size: int
    align: int


@dataclasses.dataclass(frozen=True, slots=True)
class Variable:
    """A ``.shared``, ``.global`` or ``.const`` variable; ``size`` 0 for the dynamic shared array."""

    name: str
    space: str
    size: int
    align: int
    extern: bool
    initial: tuple[int, ...] = ()


@dataclasses.dataclass(slots=True)
class Kernel:
    """One ``.entry``. ``labels`` map a label to the index of the instruction that follows it."""

    name: str
    params: list[Param]
    variables: list[Variable]
    instrs: list[Instr]
    labels: dict[str, int]
    registers: list[Reg]
    reqntid: tuple[int, int, int] | None
    maxntid: tuple[int, int, int] | None
    minnctapersm: int | None
    maxnreg: int | None
    files: dict[int, str]


@dataclasses.dataclass(slots=True)
class _Scope:
    """``operands``: those read so far, by their text, valid until something else is declared here."""

    parent: _Scope | None
    number: int
    registers: dict[str, Reg | Vec] = dataclasses.field(default_factory=dict)
    ranges: dict[str, tuple[int, str]] = dataclasses.field(default_factory=dict)
    labels: dict[str, str] = dataclasses.field(default_factory=dict)
    operands: dict[str, Operand] = dataclasses.field(default_factory=dict)


_LABEL = re.compile(r"([A-Za-z_$%][\w$]*)\s*:(?!:)")
_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*(?:\((.*?)\))?\s*([^{;]*)\{", re.S)
_PARAM = re.compile(
    r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+(?:\.ptr\s+(?:\.(?!align)\w+\s+)*(?:\.align\s+\d+\s+)?)?([\w$]+)(?:\[(\d*)\])?"
)
_VARIABLE = re.compile(
    r"\.(shared|global|const|local)\s+(?:\.align\s+(\d+)\s+)?(?:\.v[24]\s+)?\.(\w+)\s+([\w$]+)((?:\[\d*\])*)(?:\s*=\s*\{(.*)\})?",
    re.S,
)
_RANGE = re.compile(r"([\w$%]+)<(\d+)>")
_LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)[^;{}]*")
# A call of printf, which prints nothing here, and what it is given. Other calls stay, and are not modelled.
_PRINTING = re.compile(
    r"(?:@!?\s*[\w$%]+\s+)?(?:st\.param\.|call(?:\.uni)?\s*(?:\([^)]*\)\s*,\s*)?vprintf\b)|\.param\b"
)
_COMPONENTS = {"2": ("xr", "yg"), "4": ("xr", "yg", "zb", "wa")}
_GUARD = re.compile(r"@(!?)\s*([\w$%]+)\s+")


def parse_ptx(text: str, kernel_name: str | None = None) -> Kernel:
    """The entry ``kernel_name`` (or the only one) of a PTX module. Raises ``Unsupported`` naming the line."""
    clean = _strip_comments(text)
    entries = list(_ENTRY.finditer(clean))
    chosen = [entry for entry in entries if kernel_name in (None, entry[1])]
    if len(chosen) != 1:
        names = ", ".join(entry[1] for entry in entries)
        raise Unsupported(f"need exactly one kernel {kernel_name or ''}, the module has: {names}")
    entry = chosen[0]
    reader = _BodyReader(clean[: entry.end()].count("\n") + 1)
    reader.read(clean[entry.end() :])
    head = _outside_bodies(clean)
    instrs, labels = branch_around(*split_reductions(reader.resolved(), reader.labels))
    return Kernel(
        name=entry[1],
        params=[_param(match) for match in _PARAM.finditer(entry[2] or "")],
        variables=[*_variables(head), *reader.variables],
        instrs=instrs,
        labels=labels,
        registers=reader.registers,
        reqntid=_threads(entry[3], "reqntid"),
        maxntid=_threads(entry[3], "maxntid"),
        minnctapersm=_number(entry[3], "minnctapersm"),
        maxnreg=_number(entry[3], "maxnreg"),
        files={int(number): name for number, name in re.findall(r'\.file\s+(\d+)\s+"([^"]*)"', text)},
    )


def _strip_comments(text: str) -> str:
    text = re.sub(r"/\*.*?\*/", lambda match: "\n" * match[0].count("\n"), text, flags=re.S)
    return re.sub(r"//[^\n]*", "", text)


def _outside_bodies(text: str) -> str:
    """The module without function bodies; initialisers keep their braces."""
    out, last = [], 0
    for entry in re.finditer(r"\.(?:entry|func)\b[^{;]*\{", text):
        if entry.start() < last:
            continue
        out.append(text[last : entry.start()])
        last = _end_of_body(text, entry.end())
    return "".join([*out, text[last:]])


def _end_of_body(text: str, start: int) -> int:
    """Behind the brace that closes the one before ``start``; the end of the text if there is none."""
    depth = 1
    for brace in re.finditer(r"[{}]", text[start:]):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return start + brace.end()
    return len(text)


def _param(match: re.Match[str]) -> Param:
    align, kind, name, count = match.groups()
    size = WIDTHS[kind] // 8
    return Param(name, size * int(count or 1), int(align or size))


def _threads(directives: str, name: str) -> tuple[int, int, int] | None:
    match = re.search(rf"\.{name}\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?", directives)
    return (int(match[1]), int(match[2] or 1), int(match[3] or 1)) if match else None


def _number(directives: str, name: str) -> int | None:
    match = re.search(rf"\.{name}\s+(\d+)", directives)
    return int(match[1]) if match else None


def _variables(text: str) -> Iterator[Variable]:
    for statement in text.split(";"):
        match = _VARIABLE.search(statement)
        if match and ".param" not in statement:
            yield _variable(match, ".extern" in statement)


def _variable(match: re.Match[str], extern: bool) -> Variable:
    space, align, kind, name, dims, values = match.groups()
    width = WIDTHS[kind] // 8
    count = 1
    for dim in re.findall(r"\[(\d*)\]", dims):
        count *= int(dim or 0)
    initial = tuple(int(value, 0) & 0xFF for value in values.split(",")) if values and width == 1 else ()
    return Variable(name, space, width * count, int(align or width), extern, initial)


class _BodyReader:
    def __init__(self, first_line: int) -> None:
        self.line = first_line
        self.scope = _Scope(None, 0)
        self.scopes = 1
        self.registers: list[Reg] = []
        self.labels: dict[str, int] = {}
        self.instrs: list[tuple[Instr, _Scope]] = []
        self.variables: list[Variable] = []
        self.loc: tuple[int, int] | None = None

    def read(self, body: str) -> None:
        pending, start = "", 0
        for number, raw in enumerate(body.split("\n"), self.line):
            rest = raw.strip()
            while rest:
                if not pending:
                    start = number
                    rest, closed = self._structure(rest, number)
                    if closed:
                        return
                    if not rest:
                        break
                end = rest.find(";")
                if end < 0:
                    pending += rest + " "
                    break
                self._statement((pending + rest[:end]).strip(), start)
                pending, rest = "", rest[end + 1 :].strip()
        raise Unsupported("the kernel body has no closing brace", line=self.line)

    def _structure(self, rest: str, number: int) -> tuple[str, bool]:
        """Consume scopes, labels and line directives at the start of a statement."""
        while rest:
            if rest[0] == "{":
                self.scope = _Scope(self.scope, self.scopes)
                self.scopes += 1
            elif rest[0] == "}":
                if self.scope.parent is None:
                    return "", True
                self.scope = self.scope.parent
            elif match := _LABEL.match(rest):
                self._label(match[1])
                rest = rest[match.end() :].strip()
                continue
            elif match := _LOC.match(rest):
                self.loc = (int(match[1]), int(match[2]))
                return "", False
            else:
                return rest, False
            rest = rest[1:].strip()
        return "", False

    def _label(self, name: str) -> None:
        unique = name if self.scope.parent is None else f"{name}@{self.scope.number}"
        self.scope.labels[name] = unique
        self.labels[unique] = len(self.instrs)

    def _statement(self, text: str, line: int) -> None:
        if text.startswith(".reg"):
            self._declare(text)
        elif text.startswith(".") and (match := _VARIABLE.match(text)):
            self.variables.append(_variable(match, extern=False))
        elif not text.startswith(".pragma") and text and not _PRINTING.match(text):
            self.instrs.append((self._instruction(text, line), self.scope))

    def _declare(self, text: str) -> None:
        self.scope.operands.clear()
        match = re.match(r"\.reg\s+(?:\.v([24])\s+)?\.(\w+)\s+(.*)", text, re.S)
        if match is None or match[2] not in WIDTHS or (match[1] and "<" in text):
            raise Unsupported(f"cannot read the declaration {text!r}")
        for name in split_top(match[3]):
            many = _RANGE.fullmatch(name)
            if match[1]:
                self._new_vector(name, match[2], _COMPONENTS[match[1]])
            elif many:
                self.scope.ranges[many[1]] = (int(many[2]), match[2])
            else:
                self._new_register(name, match[2], self.scope)

    def _new_vector(self, name: str, kind: str, components: tuple[str, ...]) -> None:
        """Every component has two names, ``.x`` and ``.r``: PTX ISA, "Vectors as Operands"."""
        parts = []
        for letters in components:
            register = self._new_register(f"{name}.{letters[0]}", kind, self.scope)
            self.scope.registers[f"{name}.{letters[1]}"] = register
            parts.append(register)
        self.scope.registers[name] = Vec(tuple(parts))

    def _new_register(self, name: str, kind: str, scope: _Scope) -> Reg:
        unique = name if scope.parent is None else f"{name}@{scope.number}"
        register = Reg(unique, WIDTHS[kind], len(self.registers))
        self.registers.append(register)
        scope.registers[name] = register
        return register

    def _lookup(self, name: str) -> Reg | Vec | None:
        scope: _Scope | None = self.scope
        stem = name.rstrip("0123456789")
        while scope is not None:
            found = scope.registers.get(name)
            if found is not None:
                return found
            count, kind = scope.ranges.get(stem, (0, ""))
            if stem != name and int(name[len(stem) :]) < count:
                return self._new_register(name, kind, scope)
            scope = scope.parent
        return None

    def _instruction(self, text: str, line: int) -> Instr:
        guard, negated, rest = None, False, text
        if match := _GUARD.match(text):
            found, negated, rest = self._lookup(match[2]), bool(match[1]), text[match.end() :]
            if not isinstance(found, Reg):
                raise Unsupported(f"unknown guard {match[2]!r}", line=line)
            guard = found
        opcode, *tail = rest.split(maxsplit=1)
        try:
            operands = tuple(self._operand(part) for part in split_top(*tail)) if tail else ()
        except ValueError as error:
            raise Unsupported(str(error), line=line, opcode=opcode) from error
        return Instr(line, opcode, operands, guard, negated, self.loc, text)

    def _operand(self, text: str) -> Operand:
        known = self.scope.operands
        found = known.get(text)
        if found is None:
            found = known[text] = self._lookup(text) or parse_operand(text, self._lookup)
        return found

    def resolved(self) -> list[Instr]:
        """Instructions with the labels of their scopes."""
        return [self._resolve(instr, scope) for instr, scope in self.instrs]

    def _resolve(self, instr: Instr, scope: _Scope) -> Instr:
        if instr.tokens[0] != "bra":
            return instr
        target = instr.operands[0]
        assert isinstance(target, Symbol)
        where: _Scope | None = scope
        while where is not None and target.name not in where.labels:
            where = where.parent
        if where is None:
            raise Unsupported(f"unknown label {target.name}", line=instr.line, opcode=instr.opcode)
        return dataclasses.replace(instr, operands=(Symbol(where.labels[target.name]),))

"""Instructions that have changed places with a neighbour, and those of another thread."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from kernel_space.check.sweep.mutant import LANES, Kernel, Mutant, is_wait, orders
from kernel_space.check.sweep.text import Statement, Unit

MISPLACED, THREAD = "misplaced", "wrong thread"
FURTHEST = 60  # lines that a unit is moved by
_OTHER_LANE = 7
_MEMBERS = ("elect", "shfl", "vote", "match", "redux")


def misplaced(kernel: Kernel) -> Iterator[Mutant]:
    """Neighbours that have changed places: within a straight stretch, and whole units (``Source.unit``)."""
    seen = set()
    units = {one.line: kernel.source.unit(one.line) for one in kernel.relevant}
    statements = [one for one in kernel.relevant if one.tokens[0] not in _MEMBERS]
    for first, second in itertools.pairwise(statements):
        if first.entry != second.entry or not (orders(first) or orders(second)):
            continue
        singles = Unit(first.line, first.line), Unit(second.line, second.line)
        for before, behind in (singles, (units[first.line], units[second.line])):
            found = _swapped(kernel, before, behind)
            if found is not None and found not in seen:
                seen.add(found)
                what = f"changed places with {second.instr.opcode} of line {second.line}"
                yield Mutant(kind=MISPLACED, what=what, statement=first, text=found, other=second)


def _swapped(kernel: Kernel, before: Unit, behind: Unit) -> str | None:
    """The text in which ``behind`` comes first; None where registers or the flow forbid it."""
    source = kernel.source
    if before.last >= behind.first or behind.last - before.first > FURTHEST:
        return None
    if not source.is_straight(before.last + 1, behind.first - 1):
        return None
    first, second = source.instrs(before.first, before.last), source.instrs(behind.first, behind.last)
    between = source.instrs(before.last + 1, behind.first - 1)
    if source.may_pass(first, [*between, *second]):
        return source.moved(before, behind.last)
    if source.may_pass(second, [*first, *between]):
        return source.moved(behind, before.first - 1)
    return None


def wrong_thread(kernel: Kernel, one: Statement) -> Iterator[Mutant]:
    if one.tokens[0] == "elect":
        yield from _elections(kernel, one)
    elif one.tokens[0] not in _MEMBERS:
        yield from _by_fewer(kernel, one)
        yield from _by_another(kernel, one)


def _elections(kernel: Kernel, one: Statement) -> Iterator[Mutant]:
    """Another lane is elected, or every one, for what stands in this branch alone."""
    predicate = one.operands[0].split("|")[-1].strip()
    if predicate == "_":
        return
    lane = f"mov.u32 mutant, %laneid; setp.eq.u32 {predicate}, mutant, {_OTHER_LANE};"
    line = f"\t{{ .reg .b32 mutant; {one.text}; {lane} }}"
    yield kernel.mutant(THREAD, f"lane {_OTHER_LANE} is elected", one, line)
    line = f"\t{{ {one.text}; setp.eq.u32 {predicate}, 0, 0; }}"
    yield kernel.mutant(THREAD, "every lane is elected", one, line)


def _guarded(one: Statement, special: str, test: str, limit: int) -> str:
    """The statement of the threads whose ``special`` register compares so with ``limit``, on top of its own guard."""
    guard = one.instr.text[: one.instr.text.index(one.instr.opcode)].strip()
    bare = one.instr.text[len(one.instr.text[: one.instr.text.index(one.instr.opcode)]) :]
    code = f"mov.u32 mutant, %{special}; setp.{test}.u32 mine, mutant, {limit};"
    if guard:
        name = guard.lstrip("@! ")
        inverted = "not.pred other, other; " if "!" in guard else ""
        code += f" mov.pred other, {name}; {inverted}and.pred mine, mine, other;"
        return f"\t{{ .reg .b32 mutant; .reg .pred mine; .reg .pred other; {code} @mine {bare}; }}"
    return f"\t{{ .reg .b32 mutant; .reg .pred mine; {code} @mine {bare}; }}"


def _by_fewer(kernel: Kernel, one: Statement) -> Iterator[Mutant]:
    """Of several lanes one alone, or half of them; of several warps all but the first."""
    if is_wait(one):
        return
    warps, lanes = kernel.warps(one), kernel.lanes(one)
    if lanes.bit_count() > 1:
        first = (lanes & -lanes).bit_length() - 1
        yield kernel.mutant(THREAD, f"by lane {first} alone", one, _guarded(one, "laneid", "eq", first))
        if lanes >> 16 and lanes & 0xFFFF:
            yield kernel.mutant(THREAD, "by lanes 0 to 15 alone", one, _guarded(one, "laneid", "lt", 16))
    if len(warps) > 1:
        first, last = min(warps), max(warps)
        line = _guarded(one, "tid.x", "ge", (first + 1) * LANES)
        yield kernel.mutant(THREAD, f"by all of its warps but warp {first}", one, line)
        line = _guarded(one, "tid.x", "lt", last * LANES)
        yield kernel.mutant(THREAD, f"by all of its warps but warp {last}", one, line)


def _by_another(kernel: Kernel, one: Statement) -> Iterator[Mutant]:
    """Of one lane: the next one, ahead of the branch that only this one takes."""
    source, lanes = kernel.source, kernel.lanes(one)
    branch = source.around(one.line)
    if lanes.bit_count() != 1 or branch is None or one.instr.guard is not None or one.instr.definitions:
        return
    elected = source.elected(one.line)
    if not source.may_pass([one.instr], source.instrs(branch.line, one.line - 1)):
        return
    lane = (lanes.bit_length() % LANES) if elected is None else _OTHER_LANE
    end = one.line
    while source.is_straight(end + 1, end + 1) and end < len(source.lines):
        end += 1
    label = source.lines[end]
    changed = {one.line: "", end + 1: f"{label}\n{_guarded(one, 'laneid', 'eq', lane)}"}
    warps = kernel.warps(one)
    if elected is None and len(warps) == 1:
        thread = min(warps) * LANES + lane
        changed[end + 1] = f"{label}\n{_guarded(one, 'tid.x', 'eq', thread)}"
    if ":" not in label:
        return
    text = source.with_lines(changed)
    yield Mutant(kind=THREAD, what=f"by lane {lane} behind the branch", statement=one, text=text)

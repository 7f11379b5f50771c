"""Numbers that are wrong: values, sizes and masks of operands."""

from __future__ import annotations

from collections.abc import Iterator

from kernel_space.check.sweep.mutant import Kernel, Mutant, is_wait
from kernel_space.check.sweep.text import Statement, in_scope

VALUE, SIZE, MASK = "wrong value", "wrong size", "wrong mask"
_MEMBER_MASK = {"elect": 1, "shfl": -1, "vote": -1, "match": -1, "redux": -1}


def _changed(
    kernel: Kernel, one: Statement, kind: str, what: str, at: int, code: str, width: str = "b32"
) -> Mutant:
    """Operand ``at`` replaced by a register ``mutant`` that ``code`` makes of ``{old}``."""
    operands = one.operands
    old, operands[at] = operands[at], "mutant"
    return kernel.mutant(kind, what, one, in_scope(width, f"{code.format(old=old)} {one.spelled(operands)}"))


def _literal(kernel: Kernel, one: Statement, kind: str, what: str, at: int, new: object) -> Mutant:
    operands = one.operands
    operands[at] = str(new)
    return kernel.mutant(kind, what, one, f"\t{one.spelled(operands)}")


def _shifted(kernel: Kernel, one: Statement, at: int, by: int, what: str) -> Iterator[Mutant]:
    """The address of operand ``at`` moved by some bytes."""
    text = one.operands[at]
    if not (text.startswith("[") and text.endswith("]")) or "{" in text or "," in text:
        return
    base, _, offset = text[1:-1].partition("+")
    try:
        moved = int(offset or "0", 0) + by
    except ValueError:
        return
    yield _literal(kernel, one, VALUE, what, at, f"[{base.strip()}+{moved}]")


def wrong_numbers(kernel: Kernel, one: Statement) -> Iterator[Mutant]:
    tokens = one.tokens
    if tokens[0] == "mbarrier":
        yield from _mbarriers(kernel, one)
    elif tokens[0] in ("bar", "barrier") and "cluster" not in tokens and "warp" not in tokens:
        yield from _barriers(kernel, one)
    elif "wait_group" in tokens:
        yield from _waits_for_groups(kernel, one)
    elif tokens[0] in ("st", "atom", "red", "stmatrix"):
        yield from _stores(kernel, one)
    elif tokens[0] == "tcgen05":
        yield from _tensor(kernel, one)
    elif tokens[:3] == ("cp", "async", "bulk"):
        yield from _copies(kernel, one)
    elif tokens[0] == "setmaxnreg":
        yield _literal(kernel, one, SIZE, "8 registers more", 0, int(one.operands[0], 0) + 8)
    yield from _masks(kernel, one)


def _mbarriers(kernel: Kernel, one: Statement) -> Iterator[Mutant]:
    if is_wait(one):
        if "parity" in one.tokens:
            yield _changed(kernel, one, VALUE, "the other parity", 2, "xor.b32 mutant, {old}, 1;")
        yield from _shifted(kernel, one, 1, 8, "on the next barrier")
        return
    at = 0 if one.operands[0].startswith("[") else 1
    if at >= len(one.operands):
        return
    yield from _shifted(kernel, one, at, 8, "on the next barrier")
    if len(one.operands) <= at + 1:
        return
    if "expect_tx" in one.tokens or "complete_tx" in one.tokens:
        for by in (16, -16):
            yield _changed(kernel, one, SIZE, f"{by:+} bytes", at + 1, f"add.s32 mutant, {{old}}, {by};")
    elif one.tokens[1] in ("init", "arrive", "arrive_drop"):
        for by in (1, -1):
            yield _changed(kernel, one, SIZE, f"{by:+} arrivals", at + 1, f"add.s32 mutant, {{old}}, {by};")


def _barriers(kernel: Kernel, one: Statement) -> Iterator[Mutant]:
    operands = one.operands
    if operands[0].isdigit():
        yield _literal(kernel, one, VALUE, "the next barrier", 0, (int(operands[0]) + 1) % 16)
    else:
        yield _changed(kernel, one, VALUE, "the next barrier", 0, "add.s32 mutant, {old}, 1;")
    if len(operands) > 1:
        for by in (32, -32):
            yield _changed(kernel, one, SIZE, f"{by:+} threads", 1, f"add.s32 mutant, {{old}}, {by};")


def _waits_for_groups(kernel: Kernel, one: Statement) -> Iterator[Mutant]:
    count = int(one.operands[0], 0)
    yield _literal(kernel, one, VALUE, f"{count + 1} groups pending, not {count}", 0, count + 1)


def _stores(kernel: Kernel, one: Statement) -> Iterator[Mutant]:
    at = next((number for number, text in enumerate(one.operands) if text.startswith("[")), None)
    if at is None:
        return
    words = 16 if "v4" in one.tokens or "stmatrix" in one.tokens else 8 if "v2" in one.tokens else 4
    yield from _shifted(kernel, one, at, words, f"{words} bytes too far")
    integer = {"b32", "u32", "s32"} & {*one.tokens}
    if one.tokens[0] in ("atom", "red") and integer:
        yield _changed(kernel, one, VALUE, "one more", at + 1, "add.s32 mutant, {old}, 1;")


def _tensor(kernel: Kernel, one: Statement) -> Iterator[Mutant]:
    what = one.tokens[1]
    if what in ("alloc", "dealloc"):
        yield _changed(kernel, one, SIZE, "half of the columns", 1, "shr.u32 mutant, {old}, 1;")
    elif what == "commit":
        yield from _shifted(kernel, one, 0, 8, "on the next barrier")
    elif what in ("cp", "mma"):
        yield from _shifted(kernel, one, 0, 4, "4 columns too far")
    if what == "cp":
        yield _changed(kernel, one, VALUE, "from 512 bytes further", 1, "add.s64 mutant, {old}, 32;", "b64")
    if what == "mma":
        for at, name in ((1, "A"), (2, "B")):
            if not one.operands[at].startswith("["):
                code = "add.s64 mutant, {old}, 2;"
                yield _changed(kernel, one, VALUE, f"{name} from 32 bytes further", at, code, "b64")
        if one.operands[-1].startswith("%p"):
            code = "not.pred mutant, {old};"
            yield _changed(kernel, one, VALUE, "accumulates where it should not", -1, code, "pred")


def _copies(kernel: Kernel, one: Statement) -> Iterator[Mutant]:
    operands = one.operands
    for at, text in enumerate(operands):
        if text.startswith("[") and "{" in text:
            head, _, rest = text[1:-1].partition("{")
            first, comma, others = rest.partition(",")
            new = f"[{head}{{mutant{comma}{others}]"
            if not comma:
                new = f"[{head}{{mutant}}]"
                first = first.rstrip("} ")
            spelled = [*operands[:at], new, *operands[at + 1 :]]
            code = f"add.s32 mutant, {first.strip()}, 32; {one.spelled(spelled)}"
            yield kernel.mutant(VALUE, "32 elements further along the row", one, in_scope("b32", code))
        elif text.startswith("["):
            inside = one.tokens[-1] == "global"
            by = 8 if "mbarrier::complete_tx::bytes" in one.tokens and at > 1 else 128
            what = "counted by the next barrier" if by == 8 else "128 bytes too far"
            if not inside:
                yield from _shifted(kernel, one, at, by, what)
        elif at and "tensor" not in one.tokens and "bulk_group" not in one.tokens and at == 2:
            yield _changed(kernel, one, SIZE, "-16 bytes", at, "sub.s32 mutant, {old}, 16;")
    if "tensor" not in one.tokens and "bulk_group" in one.tokens and len(operands) > 2:
        yield _changed(kernel, one, SIZE, "-16 bytes", 2, "sub.s32 mutant, {old}, 16;")


def _masks(kernel: Kernel, one: Statement) -> Iterator[Mutant]:
    tokens, operands = one.tokens, one.operands
    if tokens[0] in _MEMBER_MASK:
        yield _literal(kernel, one, MASK, "members 0 to 15 only", _MEMBER_MASK[tokens[0]], "0xffff")
    elif tokens[:2] == ("bar", "warp"):
        yield _literal(kernel, one, MASK, "members 0 to 15 only", -1, "0xffff")
    elif "multicast::cluster" in tokens and len(operands) > 1:
        at = 1 if tokens[0] == "tcgen05" else _mask_of_copy(operands)
        if at:
            less = "neg.s16 mutant, {old}; and.b16 mutant, mutant, {old};"
            yield _changed(kernel, one, MASK, "one CTA only", at, less, "b16")
            more = "sub.s16 mutant, {old}, 1; and.b16 mutant, mutant, {old};"
            yield _changed(kernel, one, MASK, "the first CTA left out", at, more, "b16")
            more = "add.s16 mutant, {old}, {old}; or.b16 mutant, mutant, {old};"
            yield _changed(kernel, one, MASK, "one CTA more", at, more, "b16")


def _mask_of_copy(operands: list[str]) -> int:
    """Behind the barrier: the first operand without brackets."""
    return next((at for at, text in enumerate(operands) if at and not text.startswith("[")), 0)

"""Probes of instructions that look across the lanes of a warp, and of divergence."""

from __future__ import annotations

from kernel_space.selfcheck.text import bits
from kernel_space.selfcheck.text.probe import Probe, Target
from kernel_space.selfcheck.text.ptx_text import elementwise, per_thread

_DATA = bits.singles(bits.INT_EDGES, "warp", 128)
_FEW = bits.words(value % 5 for value in bits.random_words("few", 128))
# (name, lane operand, clamp operand)
_SHUFFLES = (
    ("idx.full", "%b", "31"), ("up.full", "3", "0"), ("down.full", "5", "31"), ("bfly.full", "13", "31"),
    ("idx.eight", "%b", "0x1807"), ("up.eight", "3", "0x1800"), ("down.eight", "3", "0x1807"),
    ("bfly.eight", "4", "0x1807"), ("idx.clamp", "%b", "0x080B"), ("down.clamp", "2", "0x0813"),
    ("up.clamp", "2", "0x0009"), ("down.far", "40", "31"), ("up.by_lane", "%b", "0"),
)  # fmt: skip
_ELECT_MASKS = (0xFFFFFFFF, 0xFFFFFF80, 0x80000000, 0x0000FF00, 0xAAAAAAAA, 0x00000001, 0x7FFFFFFE)
_LOOP = """\
        mov.u32 %x, 0;
        mov.u32 %y, %a;
        AGAIN:
        setp.eq.u32 %p0, %y, 0;
        @%p0 bra DONE;
        mad.lo.u32 %x, %x, 3, %y;
        shr.u32 %y, %y, 3;
        and.b32 %r0, %x, 1;
        setp.eq.u32 %p1, %r0, 0;
        @%p1 bra AGAIN;
        add.u32 %x, %x, 7;
        bra.uni AGAIN;
        DONE:
        mov.u32 %r1, %x;
        shfl.sync.bfly.b32 %y, %r1, 1, 31, 0xffffffff;"""
_NESTED = """\
        mov.u32 %x, 1;
        and.b32 %r0, %a, 3;
        setp.eq.u32 %p0, %r0, 0;
        setp.eq.u32 %p1, %r0, 1;
        @%p0 bra ZERO;
        @%p1 bra ONE;
        mul.lo.u32 %x, %a, 5;
        bra JOIN;
        ONE:
        add.u32 %x, %a, 100;
        bra JOIN;
        ZERO:
        setp.gt.u32 %p2, %a, 100;
        @%p2 bra JOIN;
        mov.u32 %x, %a;
        JOIN:
        @%p1 add.u32 %x, %x, 1;
        @!%p0 xor.b32 %x, %x, 0x80;"""
_EARLY = """\
        and.b32 %r0, %thread, 1;
        setp.eq.u32 %p0, %r0, 1;
        mov.u32 %x, %a;
        @%p0 ret;"""


def probes() -> list[Probe]:
    return [*_shuffles(), *_votes(), *_redux(), *_elect(), *_divergence(), _special_registers()]


def _shuffles() -> list[Probe]:
    found = []
    for name, lane, clamp in _SHUFFLES:
        how = name.partition(".")[0]
        code = f"""\
            xor.b32 %b, %a, %thread;
            shfl.sync.{how}.b32 %x|%p0, %a, {lane}, {clamp}, 0xffffffff;
            selp.u32 %y, 1, 0, %p0;"""
        asks = f"shfl.sync.{how} lane {lane} clamp {clamp}: value, and the predicate of lanes out of range"
        found.append(elementwise(f"warp.shfl.{name}", asks, code, _DATA, reads=1, writes=2))
    return found


def _votes() -> list[Probe]:
    half = "@!%p1 bra SKIP;\n"
    body = """\
        setp.lt.s32 %p0, %a, 3;
        vote.sync.ballot.b32 %x, %p0, {mask};
        vote.sync.all.pred %p2, %p0, {mask};
        vote.sync.any.pred %p3, %p0, {mask};
        vote.sync.uni.pred %p4, %p0, {mask};
        selp.u32 %r0, 1, 0, %p2;
        selp.u32 %r1, 2, 0, %p3;
        selp.u32 %r2, 4, 0, %p4;
        or.b32 %y, %r0, %r1;
        or.b32 %y, %y, %r2;
        activemask.b32 %z;"""
    start = "mov.u32 %x, 0;\nmov.u32 %y, 0;\nmov.u32 %z, 0;\nand.b32 %r9, %thread, 31;\n"
    some = start + "setp.lt.u32 %p1, %r9, 12;\n" + half + body.format(mask="0xfff") + "\nSKIP:"
    match = "match.any.sync.b32 %x, %a, 0xffffffff;\nmatch.all.sync.b32 %y|%p0, %a, 0xffffffff;\n"
    match += "selp.u32 %z, 1, 0, %p0;"
    return [
        elementwise(
            "warp.vote.full",
            "vote.sync over the warp",
            body.format(mask="0xffffffff"),
            _DATA,
            reads=1,
            writes=3,
        ),
        elementwise("warp.vote.some", "vote.sync of 12 lanes in a branch", some, _FEW, reads=1, writes=3),
        elementwise("warp.match", "match.any and match.all", match, _FEW, reads=1, writes=3),
    ]


def _redux() -> list[Probe]:
    kinds = ("add.u32", "add.s32", "min.u32", "min.s32", "max.u32", "max.s32", "and.b32", "or.b32", "xor.b32")
    whole = [
        elementwise(
            f"warp.redux.{kind}",
            f"redux.sync.{kind}",
            f"redux.sync.{kind} %x, %a, 0xffffffff;",
            _DATA,
            reads=1,
        )
        for kind in kinds
    ]
    floats = [
        elementwise(
            f"warp.redux.{kind}",
            f"redux.sync.{kind} with NaN and zeros",
            f"redux.sync.{kind} %x, %a, 0xffffffff;",
            bits.singles(bits.F32_EDGES, kind, 128),
            reads=1,
            target=Target.SM100A,
        )
        for kind in ("min.f32", "max.f32", "min.NaN.f32", "max.abs.f32")
    ]
    return whole + floats


def _elect() -> list[Probe]:
    """Only the lanes of the mask execute; the others keep their marks."""
    found = []
    for mask in _ELECT_MASKS:
        code = f"""\
            mov.u32 %x, 0xEEEEEEEE;
            mov.u32 %y, 0xEEEEEEEE;
            and.b32 %r0, %thread, 31;
            mov.u32 %r1, {mask:#x};
            shr.u32 %r1, %r1, %r0;
            and.b32 %r1, %r1, 1;
            setp.eq.u32 %p0, %r1, 0;
            @%p0 bra SKIP;
            elect.sync %x|%p1, {mask:#x};
            selp.u32 %y, 1, 0, %p1;
            SKIP:"""
        asks = f"elect.sync {mask:#010x}: which lane leads, and the lane number every member gets"
        found.append(per_thread(f"warp.elect.{mask:08x}", asks, code, words=2))
    return found


def _divergence() -> list[Probe]:
    return [
        elementwise(
            "warp.divergent_loop",
            "trip counts differ by lane; the warp meets again",
            _LOOP,
            _DATA,
            reads=1,
            writes=2,
        ),
        elementwise(
            "warp.nested_branches", "three ways through a branch and guards", _NESTED, _DATA, reads=1
        ),
        elementwise("warp.early_return", "odd lanes return before the store", _EARLY, _DATA, reads=1),
    ]


def _special_registers() -> Probe:
    code = """\
        mov.u32 %x, %laneid;
        mov.u32 %r1, %ntid.x;
        mov.u32 %r2, %nctaid.x;
        shl.b32 %r1, %r1, 16;
        or.b32 %x, %x, %r1;
        mov.u32 %r3, %cluster_ctarank;
        mov.u32 %r4, %cluster_nctarank;
        mov.u32 %r5, %clusterid.x;
        mov.u32 %r6, %nclusterid.x;
        mov.u32 %r7, %cluster_ctaid.x;
        shl.b32 %r4, %r4, 4;
        shl.b32 %r5, %r5, 8;
        shl.b32 %r6, %r6, 12;
        shl.b32 %r7, %r7, 16;
        shl.b32 %r2, %r2, 20;
        or.b32 %y, %r2, %r3;
        or.b32 %y, %y, %r4;
        or.b32 %y, %y, %r5;
        or.b32 %y, %y, %r6;
        or.b32 %y, %y, %r7;
        mov.u32 %z, %lanemask_lt;
        mov.u32 %w, %lanemask_ge;"""
    asks = "lane, CTA and cluster numbers of 3 clusters of 2 CTAs"
    return per_thread("warp.special_registers", asks, code, words=4, block=64, grid=6, cluster=2)

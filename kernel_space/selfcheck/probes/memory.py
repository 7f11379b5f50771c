"""Probes of plain memory instructions: widths, vectors, cp.async."""

from __future__ import annotations

from kernel_space.selfcheck.text.async_text import region_probe, wait
from kernel_space.selfcheck.text.probe import Probe, seeded_bytes
from kernel_space.selfcheck.text.ptx_text import per_thread

_NARROW = """\
        mov.u32 %r0, room;
        mad.lo.u32 %r0, %thread, 16, %r0;
        st.shared.v4.b32 [%r0], {%a, %b, %c, %d};
        ld.shared.TYPE REGISTER, [%r0+OFFSET];
        STORE"""
_MIXED = """\
        mov.u32 %r0, room;
        mad.lo.u32 %r0, %thread, 16, %r0;
        st.shared.v2.b32 [%r0], {%c, %d};
        st.shared.b8 [%r0+1], %a;
        cvt.u16.u32 %h0, %b;
        st.shared.b16 [%r0+4], %h0;
        mov.b64 %q0, {%a, %b};
        st.shared.b64 [%r0+8], %q0;
        ld.shared.v4.b32 {%x, %y, %z, %w}, [%r0];"""
_VECTORS = """\
        mad.wide.u32 %q0, %thread, 16, %in;
        ld.global.nc.v2.b32 {%x, %y}, [%q0];
        ld.global.v4.u16 {%h0, %h1, %h2, %h3}, [%q0+8];
        mov.b32 %z, {%h3, %h0};
        ld.global.s8 %w, [%q0+13];"""


def probes() -> list[Probe]:
    return [*_widths(), *_cp_async()]


def _widths() -> list[Probe]:
    """Narrow loads extend by their type; vectors keep their order."""
    found = []
    for kind, offset in (("s8", 3), ("u8", 5), ("s16", 6), ("u16", 10), ("b8", 15)):
        store = "cvt.u32.u16 %x, %h0;" if kind[0] != "s" else "cvt.s32.s16 %x, %h0;"
        text = (
            _NARROW.replace("TYPE", kind)
            .replace("REGISTER", "%h0")
            .replace("OFFSET", str(offset))
            .replace("STORE", store)
        )
        if kind == "s8":
            text = text.replace("%h0", "%x", 1).replace("cvt.s32.s16 %x, %h0;", "")
        found.append(
            per_thread(
                f"memory.shared.{kind}",
                f"ld.shared.{kind}",
                _load_four() + text,
                block=128,
                shared=".shared .align 16 .b8 room[2048];",
                inputs=seeded_bytes("widths", 2048),
            )
        )
    found.append(
        per_thread(
            "memory.shared.mixed",
            "stores of 1, 2 and 8 bytes, one load of 16",
            _load_four() + _MIXED,
            words=4,
            block=128,
            shared=".shared .align 16 .b8 room[2048];",
            inputs=seeded_bytes("mixed", 2048),
        )
    )
    found.append(
        per_thread(
            "memory.global.vectors",
            "v2, v4 of 16 bits, s8",
            _VECTORS,
            words=4,
            block=128,
            inputs=seeded_bytes("vectors", 2048),
        )
    )
    return found


def _load_four() -> str:
    return "mad.wide.u32 %q1, %thread, 16, %in;\n        ld.global.v4.b32 {%a, %b, %c, %d}, [%q1];\n"


def _cp_async() -> list[Probe]:
    plain = "cp.async.{cache}.shared.global [%r3], [%q0], {size}"
    where = "mad.wide.u32 %q0, %thread, {size}, %in;\nmad.lo.u32 %r3, %thread, {size}, %r0;\n"
    cases = (("ca", 4, False), ("ca", 8, True), ("cg", 16, True))
    found = []
    for cache, size, short in cases:
        code = (where + plain).format(cache=cache, size=size)
        if short:
            code = f"and.b32 %r4, %thread, {size - 1};\n{code}, %r4"
        name = f"{cache}_{size}{'_short' if short else ''}"
        body = f"{code};\ncp.async.commit_group;\ncp.async.wait_group 0;"
        asks = "cp.async: bytes beyond the source size are zero"
        found.append(region_probe(f"cp_async.{name}", asks, body, 2048, seeded_bytes(name, 2048)))
    arrive = """\
@%lead mbarrier.init.shared::cta.b64 [%r1], 128;
bar.sync 0;
mad.wide.u32 %q0, %thread, 16, %in;
mad.lo.u32 %r3, %thread, 16, %r0;
cp.async.cg.shared.global [%r3], [%q0], 16;
cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r1];
""" + wait("%r1", 0)
    asks = "every thread's copy arrives once on a barrier of 128"
    return [
        *found,
        region_probe("cp_async.mbarrier_arrive", asks, arrive, 2048, seeded_bytes("arrive", 2048)),
    ]

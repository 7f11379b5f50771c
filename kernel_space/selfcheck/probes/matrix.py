"""Probes of ``ldmatrix`` and ``stmatrix``."""

from __future__ import annotations

from kernel_space.selfcheck.text.async_text import region_probe
from kernel_space.selfcheck.text.probe import Probe, seeded_bytes
from kernel_space.selfcheck.text.ptx_text import per_thread


def probes() -> list[Probe]:
    return _matrices()


def _matrices() -> list[Probe]:
    """Rows of 16 bytes at a stride of 48, in an order of their own, so that lanes and rows cannot be confused."""
    row = """\
        and.b32 %r10, %thread, 31;
        mul.lo.u32 %r11, %r10, 13;
        and.b32 %r11, %r11, 31;
        mad.lo.u32 %r12, %r11, 48, %r0;"""
    found = []
    for count, registers in ((1, "%r20"), (2, "%r20, %r21"), (4, "%r20, %r21, %r22, %r23")):
        for transposed in ("", ".trans"):
            values = "".join(
                f"mad.lo.u32 %r{20 + n}, %thread, 0x10001, {0x1111 * (n + 1)};\n" for n in range(count)
            )
            store = (
                f"stmatrix.sync.aligned.m8n8.x{count}{transposed}.shared::cta.b16 [%r12], {{{registers}}};"
            )
            guard = "setp.ge.u32 %p9, %thread, 32;\n@%p9 bra REST;\n"
            name = f"matrix.store.x{count}{transposed}"
            body = guard + row + "\n" + values + store + "\nREST:"
            found.append(region_probe(name, f"stmatrix x{count}{transposed}", body, 1536, bytes(16)))
            found.append(_load_matrix(count, transposed, registers))
    return found


def _load_matrix(count: int, transposed: str, registers: str) -> Probe:
    results = "".join(f"mov.b32 %{'xyzw'[n]}, %r{20 + n};\n" for n in range(count))
    code = f"""\
mov.u32 %r0, room;
mov.u32 %r200, %thread;
FILL:
mad.lo.u32 %r201, %r200, 4, %r0;
mad.wide.u32 %q0, %r200, 4, %in;
ld.global.b32 %r202, [%q0];
st.shared.b32 [%r201], %r202;
add.u32 %r200, %r200, 32;
setp.lt.u32 %p0, %r200, 384;
@%p0 bra FILL;
bar.sync 0;
mul.lo.u32 %r11, %thread, 13;
and.b32 %r11, %r11, 31;
mad.lo.u32 %r12, %r11, 48, %r0;
ldmatrix.sync.aligned.m8n8.x{count}{transposed}.shared::cta.b16 {{{registers}}}, [%r12];
{results}"""
    name = f"matrix.load.x{count}{transposed}"
    return per_thread(
        name,
        f"ldmatrix x{count}{transposed}",
        code,
        words=count,
        inputs=seeded_bytes(name, 1536),
        shared=".shared .align 16 .b8 room[1536];",
    )

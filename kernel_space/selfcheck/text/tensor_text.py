"""Text of probes on tensor memory (sm_100a): allocate, fill, issue, wait, dump. 128 threads, 512 columns.

Registers: %r0 shared region, %r1 barrier (count 1), %r2 rank in the cluster, %r4 TMEM base, %r5 TMEM base of the
warp's own 32 lanes, %p30 false in warp 0, %p0 for use by bodies.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from kernel_space.selfcheck.text.async_text import THREADS, meet, wait
from kernel_space.selfcheck.text.probe import Probe, Target
from kernel_space.selfcheck.text.ptx_text import program

_STATIC = ".shared .align 8 .b64 barrier;\n.shared .align 4 .b32 slot;"
_CHUNK = 8
DESCRIPTOR_VERSION = 1 << 46


@dataclasses.dataclass(frozen=True, kw_only=True)
class TensorProbe:
    """``body`` between filling the region and dumping columns 0 .. ``columns`` - 1 of every CTA's TMEM.

    ``image``  what each CTA's shared region starts with; the input buffer holds it once per CTA, then ``more``
    ``group``  1 or 2: CTAs per group; 2 makes a cluster of 2
    """

    name: str
    asks: str
    body: str
    columns: int
    image: bytes = bytes(1024)
    more: bytes = b""
    group: int = 1
    dump: str = ""

    def probe(self) -> Probe:
        ctas = self.group
        own = len(self.image) // ctas
        parts = [_setup(own), _allocate(self.group), meet(ctas), _BASES, self.body, meet(ctas)]
        parts += [self.dump or dump_columns(self.columns), _free(self.group, ctas)]
        return Probe(
            name=self.name,
            asks=self.asks,
            ptx=program("\n".join(parts), shared=_STATIC, dynamic=True, target=Target.SM100A),
            target=Target.SM100A,
            inputs=self.image + self.more,
            output=bytes(ctas * THREADS * 4 * self.columns),
            grid=ctas,
            cluster=ctas,
            block=THREADS,
            smem_bytes=own,
        )


def _setup(size: int) -> str:
    """Copy this CTA's image to shared memory, ready for the async proxy."""
    return f"""\
mov.u32 %r0, dynamic;
mov.u32 %r1, barrier;
mov.u32 %r2, %cluster_ctarank;
mov.u32 %r3, slot;
mad.wide.u32 %q31, %r2, {size}, %in;
mov.u32 %r200, %thread;
FILL:
  setp.ge.u32 %p20, %r200, {size // 4};
  @%p20 bra FILLED;
  mad.lo.u32 %r201, %r200, 4, %r0;
  mad.wide.u32 %q30, %r200, 4, %q31;
  ld.global.b32 %r202, [%q30];
  st.shared.b32 [%r201], %r202;
  add.u32 %r200, %r200, {THREADS};
  bra FILL;
FILLED:
@%lead mbarrier.init.shared::cta.b64 [%r1], 1;
fence.mbarrier_init.release.cluster;
fence.proxy.async;"""


def _allocate(group: int) -> str:
    return f"""\
setp.ge.u32 %p30, %thread, 32;
@%p30 bra ALLOCATED;
tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [%r3], 512;
tcgen05.relinquish_alloc_permit.cta_group::{group}.sync.aligned;
ALLOCATED:"""


_BASES = """\
ld.shared.b32 %r4, [%r3];
and.b32 %r5, %thread, 0x60;
shl.b32 %r5, %r5, 16;
add.u32 %r5, %r4, %r5;"""


def _free(group: int, ctas: int) -> str:
    return f"""\
{meet(ctas)}
@%p30 bra FREED;
tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 %r4, 512;
FREED:"""


def registers(count: int, first: int = 20) -> str:
    return "{" + ", ".join(f"%r{first + n}" for n in range(count)) + "}"


def set_columns(count: int, pattern: int = 0x5A000000, first: int = 0) -> str:
    """Every word of the columns becomes ``pattern | lane << 12 | column``."""
    lines = [f"shl.b32 %r7, %thread, 12;\nor.b32 %r7, %r7, {pattern:#x};"]
    for start in range(first, first + count, _CHUNK):
        lines += [f"or.b32 %r{20 + n}, %r7, {start + n};" for n in range(_CHUNK)]
        lines += [f"add.u32 %r6, %r5, {start};"]
        lines += [f"tcgen05.st.sync.aligned.32x32b.x{_CHUNK}.b32 [%r6], {registers(_CHUNK)};"]
    return "\n".join([*lines, "tcgen05.wait::st.sync.aligned;"])


def hand_over(ctas: int = 1) -> str:
    """Order earlier tcgen05.ld/st of all warps before later tcgen05 operations of others."""
    return f"tcgen05.fence::before_thread_sync;\n{meet(ctas)}\ntcgen05.fence::after_thread_sync;"


def in_leader(lines: Sequence[str], label: str, group: int = 1) -> str:
    """``lines`` in one thread of the (even-ranked) CTA."""
    other = "setp.ne.u32 %p9, %r2, 0;\n@%p9 bra " + label + ";\n" if group == 2 else ""
    return f"@!%lead bra {label};\n{other}" + "\n".join(lines) + f"\n{label}:"


def commit(group: int) -> str:
    """Everything issued so far arrives on %r1 of every CTA of the group."""
    opcode = f"tcgen05.commit.cta_group::{group}.mbarrier::arrive::one.shared::cluster"
    if group == 1:
        return f"{opcode}.b64 [%r1];"
    return f"mov.u16 %h9, 3;\n{opcode}.multicast::cluster.b64 [%r1], %h9;"


def await_commit() -> str:
    return wait("%r1", 0) + "\ntcgen05.fence::after_thread_sync;"


def descriptor(target: str, offset: int, lbo: int, sbo: int, layout: int = 0) -> str:
    """Shared-memory descriptor of region byte ``offset`` into the 64-bit register ``target``; strides in bytes."""
    fixed = (lbo >> 4) << 16 | (sbo >> 4) << 32 | DESCRIPTOR_VERSION | layout << 61
    return f"""\
add.u32 %r15, %r0, {offset};
and.b32 %r15, %r15, 0x3FFFF;
shr.u32 %r15, %r15, 4;
cvt.u64.u32 {target}, %r15;
or.b64 {target}, {target}, {fixed:#x};"""


def dump_columns(count: int) -> str:
    """Word (lane, column) of rank r goes to output word (128 r + lane) * count + column."""
    lines = [f"mad.lo.u32 %r8, %r2, {THREADS}, %thread;\nmad.wide.u32 %q20, %r8, {4 * count}, %out;"]
    for start in range(0, count, _CHUNK):
        lines += [f"add.u32 %r6, %r5, {start};"]
        lines += [f"tcgen05.ld.sync.aligned.32x32b.x{_CHUNK}.b32 {registers(_CHUNK)}, [%r6];"]
        lines += ["tcgen05.wait::ld.sync.aligned;"]
        for half in (0, 4):
            lines += [f"st.global.v4.b32 [%q20+{4 * (start + half)}], {registers(4, 20 + half)};"]
    return "\n".join(lines)


def dump_registers(count: int) -> str:
    """Register i of thread t goes to output word t * count + i."""
    lines = [f"mad.wide.u32 %q20, %thread, {4 * count}, %out;"]
    return "\n".join([*lines, *(f"st.global.b32 [%q20+{4 * n}], %r{20 + n};" for n in range(count))])

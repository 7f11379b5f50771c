"""Text of probes that copy asynchronously: fill shared memory, issue, wait for a limited time, dump.

A CTA's part of the output buffer is a header of 16 bytes (1 if the barrier's phase completed in time, else 0;
the rest zero) and the dumped region. The region starts out as words ``0xA5000000 | index`` or as a copy of the input.
"""

from __future__ import annotations

import dataclasses
import textwrap

from kernel_space.selfcheck.text.probe import MapSpec, Probe, Target
from kernel_space.selfcheck.text.ptx_text import program

HEADER = 16
THREADS = 128
POLLS = 1000
POLL_NS = 2000
STATIC = ".shared .align 8 .b64 barrier;"


@dataclasses.dataclass(frozen=True, kw_only=True)
class AsyncCopy:
    """A probe of asynchronous copies. ``issue`` runs in thread 0 of every CTA (``lanes`` > 1: in so many lanes).

    Registers of ``issue``: %r0 start of the region, %r1 barrier, %r2 rank of the CTA in its cluster, %in, %out, %map*.

    ``expect``  bytes each CTA's barrier expects in its only phase; None: no barrier is waited for
    ``in_vain`` some CTA's barrier stays open: look at it for about 2 ms, instead of waiting until it completes
    ``region``  bytes of shared memory to dump, a multiple of 16
    ``fill``    "pattern", or "input": the region starts as a copy of the input buffer (of every CTA alike)
    ``finish``  text of thread 0 after ``issue``, for stores: wait until they have been written
    ``after``   text of all threads between the wait and the dump
    ``output``  contents of the output buffer; None: only the dump, zeros before
    """

    name: str
    asks: str
    issue: str
    region: int
    expect: int | None = None
    cluster: int = 1
    lanes: int = 1
    fill: str = "pattern"
    finish: str = ""
    before_expect: bool = False
    inputs: bytes = b""
    output: bytes | None = None
    maps: tuple[MapSpec, ...] = ()
    dump: bool = True
    after: str = ""
    target: Target = Target.SM90
    race_free: bool = True
    in_vain: bool = False

    def probe(self) -> Probe:
        size = (HEADER + self.region) * self.cluster if self.dump else 0
        return Probe(
            name=self.name,
            asks=self.asks,
            ptx=program(self._body(), shared=STATIC, dynamic=True, maps=len(self.maps), target=self.target),
            target=self.target,
            inputs=self.inputs or bytes(16),
            output=self.output if self.output is not None else bytes(size),
            grid=self.cluster,
            cluster=self.cluster,
            block=THREADS,
            smem_bytes=self.region,
            maps=self.maps,
            race_free=self.race_free,
            in_vain=self.in_vain,
        )

    def _body(self) -> str:
        parts = [_SETUP, fill(self.region // 4, self.fill), _BARRIER, meet(self.cluster), self._issue()]
        if self.expect is not None:
            parts.append(poll("%r1", 0) if self.in_vain else wait("%r1", 0))
        parts += [meet(self.cluster), self.after]
        if self.dump:
            parts.append(dump(self.region // 4))
        return "\n".join(parts)

    def _issue(self) -> str:
        expect = ""
        if self.expect is not None:
            expect = f"@%lead mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], {self.expect};\n"
        guard = f"setp.ge.u32 %p10, %thread, {self.lanes};\n@%p10 bra ISSUED;\n"
        body = textwrap.dedent(self.issue).strip() + "\n" + textwrap.dedent(self.finish).strip() + "\n"
        issue = f"{guard}{body}ISSUED:\n"
        return issue + PAUSE + expect if self.before_expect else expect + issue


_SETUP = """\
mov.u32 %r0, dynamic;
mov.u32 %r1, barrier;
mov.u32 %r2, %cluster_ctarank;"""
_BARRIER = (
    "@%lead mbarrier.init.shared::cta.b64 [%r1], 1;\nfence.mbarrier_init.release.cluster;\nfence.proxy.async;"
)
PAUSE = "nanosleep.u32 100000;\nnanosleep.u32 100000;\n"


def fill(count: int, how: str) -> str:
    """``count`` words of the region: a pattern, or the input buffer."""
    value = "or.b32 %r202, %r200, 0xA5000000;"
    if how == "input":
        value = "mad.wide.u32 %q30, %r200, 4, %in;\n  ld.global.b32 %r202, [%q30];"
    return f"""\
mov.u32 %r200, %thread;
FILL:
  setp.ge.u32 %p20, %r200, {count};
  @%p20 bra FILLED;
  mad.lo.u32 %r201, %r200, 4, %r0;
  {value}
  st.shared.b32 [%r201], %r202;
  add.u32 %r200, %r200, {THREADS};
  bra FILL;
FILLED:"""


def meet(cluster: int) -> str:
    """All threads of the CTA or cluster, with everything they did before visible after."""
    if cluster == 1:
        return "bar.sync 0;"
    return "barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;"


def wait(barrier: str, parity: int, label: str = "WAIT") -> str:
    """Wait until the phase of ``parity`` is over."""
    return f"""\
{label}:
  mbarrier.try_wait.parity.shared::cta.b64 %p21, [{barrier}], {parity};
  @!%p21 bra {label};
mov.u32 %r220, 1;"""


def poll(barrier: str, parity: int, label: str = "POLL") -> str:
    """Look at the barrier until the phase of ``parity`` is over or about 2 ms have passed; %p21 tells which."""
    return f"""\
mov.u32 %r210, 0;
{label}:
  mbarrier.test_wait.parity.shared::cta.b64 %p21, [{barrier}], {parity};
  @%p21 bra {label}_OVER;
  nanosleep.u32 {POLL_NS};
  add.u32 %r210, %r210, 1;
  setp.lt.u32 %p22, %r210, {POLLS};
  @%p22 bra {label};
{label}_OVER:
selp.u32 %r220, 1, 0, %p21;"""


def dump(count: int) -> str:
    """The header and ``count`` words of the region to this CTA's part of the output."""
    return f"""\
mad.wide.u32 %q31, %r2, {HEADER + 4 * count}, %out;
@%lead st.global.b32 [%q31], %r220;
mov.u32 %r200, %thread;
DUMP:
  setp.ge.u32 %p20, %r200, {count};
  @%p20 bra DUMPED;
  mad.lo.u32 %r201, %r200, 4, %r0;
  ld.shared.b32 %r202, [%r201];
  mad.wide.u32 %q30, %r200, 4, %q31;
  st.global.b32 [%q30+{HEADER}], %r202;
  add.u32 %r200, %r200, {THREADS};
  bra DUMP;
DUMPED:"""


def region_probe(name: str, asks: str, body: str, region: int, inputs: bytes, block: int = THREADS) -> Probe:
    """A body between filling and dumping a region; %r0 is its start, %r1 a barrier with a count of 1."""
    text = [
        "mov.u32 %r0, dynamic;",
        "mov.u32 %r1, barrier;",
        "mov.u32 %r2, 0;",
        "mov.u32 %r220, 0;",
        fill(region // 4, "pattern"),
        meet(1),
        body,
        meet(1),
        dump(region // 4),
    ]
    return Probe(
        name=name,
        asks=asks,
        ptx=program("\n".join(text), shared=STATIC, dynamic=True),
        inputs=inputs,
        output=bytes(HEADER + region),
        block=block,
        smem_bytes=region,
    )

"""PTX text of probes: the frame around a body, and the two shapes most of them have.

Registers a body may use without declaring them:

| name | what |
|---|---|
| ``%in``, ``%out`` | u64 addresses of the buffers |
| ``%map0`` .. | u64 generic addresses of the tensor maps |
| ``%thread`` | u32 thread number in the CTA |
| ``%lead`` | predicate of thread 0 |
| ``%r0``.., ``%q0``.., ``%h0``.., ``%p0``.. | scratch of 32, 64, 16 bits and predicates |
| ``%a %b %c %d``, ``%x %y %z %w`` | u32 operands and results of an item (``elementwise``) |
"""

from __future__ import annotations

import textwrap

from kernel_space.selfcheck.text.probe import MapSpec, Probe, Target

PTX_VERSION = "8.8"  # CUDA 12.9: what CuTe DSL emits
OPERANDS, RESULTS = "abcd", "xyzw"
CTA_THREADS = 128


def program(
    body: str, *, maps: int = 0, target: Target = Target.SM90, shared: str = "", dynamic: bool = False
) -> str:
    """A module with the entry ``probe``. ``shared``: static declarations; ``dynamic``: adds ``dynamic[]``."""
    params = ["    .param .u64 in_pointer", "    .param .u64 out_pointer"]
    params += [f"    .param .align 64 .b8 tensor_map{n}[128]" for n in range(maps)]
    joined = ",\n".join(params)
    outside = ".extern .shared .align 1024 .b8 dynamic[];\n" if dynamic else ""
    return (
        f".version {PTX_VERSION}\n.target {target}\n.address_size 64\n{outside}"
        f".visible .entry probe(\n{joined}\n)\n{{\n"
        + textwrap.indent(
            _PROLOGUE + _static(shared) + _map_addresses(maps) + textwrap.dedent(body).strip("\n"), "  "
        )
        + "\n  ret;\n}\n"
    )


_PROLOGUE = """\
.reg .b64 %in, %out, %at;
.reg .b32 %thread, %a, %b, %c, %d, %x, %y, %z, %w;
.reg .b64 %map<4>;
.reg .b32 %r<300>;
.reg .b64 %q<40>;
.reg .b16 %h<40>;
.reg .pred %p<40>;
.reg .pred %lead;
ld.param.u64 %in, [in_pointer];
ld.param.u64 %out, [out_pointer];
cvta.to.global.u64 %in, %in;
cvta.to.global.u64 %out, %out;
mov.u32 %thread, %tid.x;
setp.eq.u32 %lead, %thread, 0;
"""


def _static(shared: str) -> str:
    return textwrap.dedent(shared).strip() + "\n" if shared else ""


def _map_addresses(count: int) -> str:
    lines = [f"mov.b64 %map{n}, tensor_map{n};\ncvta.param.u64 %map{n}, %map{n};\n" for n in range(count)]
    return "".join(lines)


def elementwise(
    name: str,
    asks: str,
    code: str,
    inputs: bytes,
    *,
    reads: int,
    writes: int = 1,
    ulp: int = 0,
    target: Target = Target.SM90,
) -> Probe:
    """One thread per item: ``reads`` words into %a.., ``code``, ``writes`` words from %x...

    ``inputs`` is padded with zeros to whole CTAs of 128 items.
    """
    size = 4 * reads * CTA_THREADS
    inputs = inputs + bytes(-len(inputs) % size)
    items = len(inputs) // (4 * reads)
    body = f"""\
mov.u32 %r298, %ctaid.x;
mad.lo.u32 %r299, %r298, {CTA_THREADS}, %thread;
mad.wide.u32 %at, %r299, {4 * reads}, %in;
{_transfers("ld", "%{}, [%at+{}]", OPERANDS[:reads])}
{textwrap.dedent(code).strip()}
mad.wide.u32 %at, %r299, {4 * writes}, %out;
{_transfers("st", "[%at+{1}], %{0}", RESULTS[:writes])}"""
    return Probe(
        name=name,
        asks=asks,
        ptx=program(body, target=target),
        target=target,
        inputs=inputs,
        output=bytes(items * 4 * writes),
        grid=items // CTA_THREADS,
        block=CTA_THREADS,
        item_bytes=(4 * reads, 4 * writes),
        ulp=ulp,
    )


def _transfers(opcode: str, form: str, names: str) -> str:
    return "\n".join(f"{opcode}.global.b32 {form.format(name, 4 * n)};" for n, name in enumerate(names))


def per_thread(
    name: str,
    asks: str,
    code: str,
    *,
    words: int = 1,
    block: int = 32,
    grid: int = 1,
    cluster: int = 1,
    inputs: bytes = b"",
    shared: str = "",
    smem_bytes: int = 0,
    maps: tuple[MapSpec, ...] = (),
    target: Target = Target.SM90,
    in_vain: bool = False,
    race_free: bool = True,
) -> Probe:
    """Every thread stores ``words`` words from %x.. after ``code``; words it never reaches stay 0xEE bytes."""
    body = f"""\
{textwrap.dedent(code).strip()}
mov.u32 %r298, %ctaid.x;
mad.lo.u32 %r299, %r298, {block}, %thread;
mad.wide.u32 %at, %r299, {4 * words}, %out;
{_transfers("st", "[%at+{1}], %{0}", RESULTS[:words])}"""
    return Probe(
        name=name,
        asks=asks,
        ptx=program(body, shared=shared, dynamic=smem_bytes > 0, maps=len(maps), target=target),
        target=target,
        inputs=inputs or bytes(16),
        output=b"\xee" * (grid * block * words * 4),
        grid=grid,
        cluster=cluster,
        block=block,
        smem_bytes=smem_bytes,
        maps=maps,
        in_vain=in_vain,
        race_free=race_free,
    )

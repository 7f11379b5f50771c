"""Small PTX programs for the tests of the machine."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernel_space.machine.run.run import SimResult, run_ptx

HEADER = """
.version 8.8
.target sm_100a
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry kernel({params})
{{
.reg .pred %p<32>;
.reg .b16 %h<64>;
.reg .b32 %r<256>;
.reg .b64 %d<64>;
{body}
ret;
}}
"""
# Thread in r1, warp in r2, shared memory in r10 with two mbarriers of one arrival.
TWO_BARRIERS = """
mov.u32 %r1, %tid.x;
shr.u32 %r2, %r1, 5;
mov.u32 %r10, smem;
ld.param.u64 %d1, [out];
setp.ne.u32 %p1, %r1, 0;
@%p1 bra READY;
mbarrier.init.shared.b64 [%r10], 1;
mbarrier.init.shared.b64 [%r10+8], 1;
READY:
bar.sync 0;
"""


def program(body: str, params: str = ".param .u64 out") -> str:
    return HEADER.format(params=params, body=body)


def run_body(body: str, *values: Any, params: str = ".param .u64 out", **options: Any) -> SimResult:
    """Run ``body`` as a kernel; ``values`` are its parameters."""
    return run_ptx(program(body, params), *values, **options)


def lanes_of(text: str, a: Any, b: Any = 0, c: Any = 0, *, uniform: bool, kinds: str = "rrrr") -> list[int]:
    """Result of one instruction on 32 lanes. ``text`` has {d} {a} {b} {c}; ``kinds``: register classes h, r, d or p.

    ``a b c``: one value for all lanes, or 32. ``uniform``: the operands come from parameters, so that the translator
    knows that the lanes agree; otherwise each lane loads its own.
    """
    size = {"h": 2, "r": 4, "d": 8, "p": 4}
    dtype = {"h": np.uint16, "r": np.uint32, "d": np.uint64, "p": np.uint32}
    arrays = [
        np.broadcast_to(np.array(value, dtype=object), 32).astype(dtype[kind])
        for value, kind in zip((a, b, c), kinds[1:], strict=True)
    ]
    lines = ["mov.u32 %r255, %tid.x;", "ld.param.u64 %d60, [out];"]
    names = []
    for number, kind in enumerate(kinds[1:]):
        name = {
            "h": f"%h{10 + number}",
            "r": f"%r{100 + number}",
            "d": f"%d{40 + number}",
            "p": f"%p{10 + number}",
        }[kind]
        load = f"%r{120 + number}" if kind == "p" else name
        bits = size[kind] * 8
        if uniform:
            lines.append(f"ld.param.b{bits} {load}, [in{number}];")
        else:
            lines += [
                f"ld.param.u64 %d61, [in{number}];",
                f"mul.wide.u32 %d62, %r255, {size[kind]};",
                "add.u64 %d61, %d61, %d62;",
                f"ld.global.b{bits} {load}, [%d61];",
            ]
        if kind == "p":
            lines.append(f"setp.ne.u32 {name}, {load}, 0;")
        names.append(name)
    target = {"h": "%h1", "r": "%r1", "d": "%d1", "p": "%p1"}[kinds[0]]
    lines.append(text.format(d=target, a=names[0], b=names[1], c=names[2]))
    if kinds[0] == "p":
        lines.append("selp.u32 %r1, 1, 0, %p1;")
        target = "%r1"
    out = np.zeros(32, dtype[kinds[0]])
    lines += [
        f"mul.wide.u32 %d62, %r255, {size[kinds[0]]};",
        "add.u64 %d60, %d60, %d62;",
        f"st.global.b{size[kinds[0]] * 8} [%d60], {target};",
    ]
    params = ".param .u64 out, " + ", ".join(
        f".param .b{size[kind] * 8} in{number}" if uniform else f".param .u64 in{number}"
        for number, kind in enumerate(kinds[1:])
    )
    values = [int(array[0]) if uniform else np.ascontiguousarray(array) for array in arrays]
    result = run_ptx(program("\n".join(lines), params), out, *values)
    assert result.ok, str(result)
    return out.tolist()


def f32(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


def f16(value: float) -> int:
    return int(np.float16(value).view(np.uint16))

"""``mma.sync`` and ``wgmma`` with A in registers: fragments and swizzles as the PTX ISA defines them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernel_space.machine.values.faults import SimStatus
from tests.machine.ptx import run_body

PARAMS = ".param .u64 in, .param .u64 out"
LOAD = """
mov.u32 %r1, %tid.x;
ld.param.u64 %d1, [in];
ld.param.u64 %d2, [out];
mad.wide.u32 %d3, %r1, {stride}, %d1;
"""
DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16}


def bits(values: torch.Tensor, kind: str) -> np.ndarray:
    return values.to(DTYPES[kind]).view(torch.int16).numpy().astype(np.uint16)


def a_words(rows: np.ndarray) -> np.ndarray:
    """``[warps, 32 lanes, 4]``: a0 (row g, k 2t), a1 (row g + 8), a2 (k 2t + 8), a3 (both), of 16 rows a warp."""
    words = np.zeros((len(rows) // 16, 32, 4), np.uint32)
    for warp in range(len(rows) // 16):
        for lane in range(32):
            for register in range(4):
                row = 16 * warp + lane // 4 + 8 * (register & 1)
                k = 2 * (lane % 4) + 8 * (register >> 1)
                words[warp, lane, register] = int(rows[row, k]) | int(rows[row, k + 1]) << 16
    return words


def d_matrix(words: np.ndarray, columns: int) -> np.ndarray:
    """``[warps, 32 lanes, columns / 2]`` of fp32 -> ``[16 warps, columns]``."""
    result = np.zeros((16 * len(words), columns))
    for warp in range(len(words)):
        for lane in range(32):
            for i in range(columns // 2):
                row = 16 * warp + lane // 4 + 8 * (i // 2 % 2)
                result[row, i // 4 * 8 + lane % 4 * 2 + i % 2] = words[warp, lane, i]
    return result


def operands(kind: str, rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Small integers: every sum is exact."""
    generator = torch.Generator().manual_seed(rows * columns)
    a = torch.randint(-8, 9, (rows, 16), generator=generator).to(DTYPES[kind])
    b = torch.randint(-8, 9, (columns, 16), generator=generator).to(DTYPES[kind])
    c = torch.randint(-99, 100, (rows, columns), generator=generator).float()
    return a, b, c


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_mma_sync(kind: str) -> None:
    a, b, c = operands(kind, 16, 8)
    b_bits, data = bits(b, kind), np.zeros((32, 10), np.uint32)
    data[:, :4] = a_words(bits(a, kind))[0]
    for lane in range(32):
        for register in range(2):  # b0 (column g, k 2t), b1 (k 2t + 8)
            k = 2 * (lane % 4) + 8 * register
            data[lane, 4 + register] = int(b_bits[lane // 4, k]) | int(b_bits[lane // 4, k + 1]) << 16
        for i in range(4):
            value = c[lane // 4 + 8 * (i // 2), lane % 4 * 2 + i % 2]
            data[lane, 6 + i] = np.float32(value).view(np.uint32)
    body = LOAD.format(stride=40)
    body += "".join(f"ld.global.u32 %r{10 + i}, [%d3+{4 * i}];\n" for i in range(10))
    body += f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 {{%r30, %r31, %r32, %r33}}, "
    body += "{%r10, %r11, %r12, %r13}, {%r14, %r15}, {%r16, %r17, %r18, %r19};\n"
    body += "mad.wide.u32 %d4, %r1, 16, %d2;\nst.global.v4.u32 [%d4], {%r30, %r31, %r32, %r33};\n"
    out = np.zeros((1, 32, 4), np.float32)
    result = run_body(body, data, out, params=PARAMS)
    assert result.ok, str(result)
    want = a.double() @ b.double().T + c.double()
    np.testing.assert_array_equal(d_matrix(out, 8), want.numpy())


WGMMA = """
mov.u32 %r2, smem;
mad.lo.u32 %r3, %r1, {store}, %r2;
mad.wide.u32 %d5, %r1, {store}, %d1;
{copies}
{fence}
bar.sync 0;
mad.wide.u32 %d3, %r1, 16, %d1;
ld.global.v4.u32 {{%r10, %r11, %r12, %r13}}, [%d3+{registers}];
{zero}
shr.u32 %r4, %r2, 4;
add.u32 %r4, %r4, 2;
and.b32 %r4, %r4, 16383;
or.b32 %r4, %r4, 65536;
mov.b64 %d6, {{%r4, {high}}};
setp.ne.u32 %p1, {accumulate}, 0;
wgmma.fence.sync.aligned;
wgmma.mma_async.sync.aligned.m64n16k16.f32.{kind}.{kind} {{{sums}}}, {{%r10, %r11, %r12, %r13}}, %d6, %p1, 1, 1, 0;
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;
mad.wide.u32 %d4, %r1, 32, %d2;
st.global.v4.u32 [%d4], {{%r40, %r41, %r42, %r43}};
st.global.v4.u32 [%d4+16], {{%r44, %r45, %r46, %r47}};
"""


def run_wgmma(kind: str, span: int, *, accumulate: int = 1, fence: bool = True) -> tuple[object, np.ndarray]:
    """64 x 16 x 16; the column operand lies in the second 32 bytes of swizzled rows; sums start at 5."""
    a, b, _ = operands(kind, 64, 16)
    image = np.zeros((16, span), np.uint8)  # 8-row groups follow each other
    raw = bits(b, kind).view(np.uint8)
    for row in range(16):
        for chunk in range(2):
            # PTX ISA, swizzling modes: 16-byte chunk index XOR the row within the pattern.
            place = (2 + chunk) ^ (row % 8 if span == 128 else row % 8 // 2)
            image[row, place * 16 : place * 16 + 16] = raw[row, chunk * 16 : chunk * 16 + 16]
    store = image.size // 128
    data = np.concatenate([image.ravel(), a_words(bits(a, kind)).ravel().view(np.uint8)])
    layout = {128: 1, 64: 2}[span] << 30 | 8 * span >> 4
    sums = ", ".join(f"%r{40 + i}" for i in range(8))
    zero = "\n".join(f"mov.u32 %r{40 + i}, 0x40A00000;" for i in range(8))
    copies = "\n".join(
        f"ld.global.v2.u32 {{%r20, %r21}}, [%d5+{i}];\nst.shared.v2.u32 [%r3+{i}], {{%r20, %r21}};"
        for i in range(0, store, 8)
    )
    body = LOAD.format(stride=16) + WGMMA.format(
        store=store, copies=copies, registers=image.size, high=layout, accumulate=accumulate, kind=kind, sums=sums,
        zero=zero, fence="fence.proxy.async.shared::cta;" if fence else "",
    )  # fmt: skip
    out = np.zeros((4, 32, 8), np.float32)
    result = run_body(body, data, out, params=PARAMS, block=(128, 1, 1), smem_bytes=4096)
    return result, d_matrix(out, 16) - (a.double() @ b.double().T).numpy()


@pytest.mark.parametrize(("kind", "span"), [("f16", 128), ("bf16", 128), ("f16", 64)])
@pytest.mark.parametrize("accumulate", [0, 1])
def test_wgmma_with_a_in_registers(kind: str, span: int, accumulate: int) -> None:
    result, difference = run_wgmma(kind, span, accumulate=accumulate)
    assert result.ok, str(result)
    np.testing.assert_array_equal(difference, np.full((64, 16), 5.0 * accumulate))


def test_column_operand_written_without_a_proxy_fence_is_a_race() -> None:
    result, _ = run_wgmma("f16", 128, fence=False)
    assert result.status is SimStatus.RACE, str(result)

"""``tcgen05``: what its waits and fences order, four copies of scale factors, the collector buffer, one CTA group per
kernel, reserved bits. PTX ISA "tcgen05 memory consistency model", "tcgen05.mma", "Matrix descriptor", "Instruction
descriptor". Every defect has a right neighbour.
"""

from __future__ import annotations

import numpy as np
import pytest

from kernel_space.machine.run.run import SimResult
from kernel_space.machine.values.faults import SimStatus
from tests.machine.ptx import run_body
from tests.machine.test_tensor_core import (
    block_scaled_image,
    block_scaled_issue,
    dense_idesc,
    k_major_128,
    multiply,
    steps,
)

ST = "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r3], {%r1};\n"
LD = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r4}, [%r3];\ntcgen05.wait::ld.sync.aligned;\n"
WAIT = "tcgen05.wait::st.sync.aligned;\n"
BEFORE, AFTER = "tcgen05.fence::before_thread_sync;\n", "tcgen05.fence::after_thread_sync;\n"
# Warps 0 and 4 use the same lanes of tensor memory.
TWO_WARPS = """
mov.u32 %r1, %tid.x;
shr.u32 %r2, %r1, 5;
mov.u32 %r10, smem;
setp.eq.u32 %p1, %r2, 0;
setp.eq.u32 %p2, %r2, 4;
@!%p1 bra MADE;
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r10], 32;
MADE:
bar.sync 0;
ld.shared.u32 %r3, [%r10];
@!%p1 bra WRITTEN;
{first}
WRITTEN:
bar.sync 0;
@!%p2 bra READ;
{second}
READ:
bar.sync 0;
@!%p1 bra END;
tcgen05.wait::st.sync.aligned;
{last}
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r3, 32;
END:
"""


def two_warps(first: str, second: str, last: str = "") -> SimResult:
    body = TWO_WARPS.format(first=first, second=second, last=last)
    return run_body(body, np.zeros(1, np.uint32), block=(160, 1, 1), smem_bytes=64)


@pytest.mark.parametrize(
    ("first", "second", "races"),
    [
        (ST + WAIT, LD, False),
        (ST, LD, True),
        (ST + "tcgen05.wait::ld.sync.aligned;\n", LD, True),
        (ST + WAIT + LD, "", False),
        (ST + LD, "", True),
        (ST + BEFORE, AFTER + LD, False),
        (ST, AFTER + LD, True),
        (ST + BEFORE, LD, True),
        (BEFORE + ST, AFTER + LD, True),
        (ST + BEFORE, LD + AFTER, True),
        (ST + ST + WAIT, LD, False),
    ],
    ids=[
        "waited", "not_waited", "the_wrong_wait", "own_waited", "own_not_waited", "fenced", "no_fence_before",
        "no_fence_after", "fence_before_the_store", "fence_behind_the_load", "two_stores",
    ],
)  # fmt: skip
def test_a_store_is_there_when_it_is_waited_for_or_fenced(first: str, second: str, races: bool) -> None:
    result = two_warps(first, second)
    assert result.status is (SimStatus.RACE if races else SimStatus.OK), str(result)
    assert ("RAW on TMEM" in str(result)) == races


@pytest.mark.parametrize("access", [ST + WAIT, LD], ids=["store", "load"])
@pytest.mark.parametrize("step", ["0", "%r4"], ids=["one_address", "each_lane_its_own"])
def test_a_collective_access_has_one_address(access: str, step: str) -> None:
    """PTX ISA, "tcgen05.ld" and "st": all threads of the warp must specify the same taddr, the base of the access. What
    lanes 0 and 1 name, lanes 0 and 1 of column 0, would be right for a load of each thread on its own.
    """
    own = f"and.b32 %r4, %r1, 31;\nshl.b32 %r4, %r4, 16;\nadd.u32 %r5, %r3, {step};\nmov.b32 %r6, %r1;\n"
    access = access.replace("[%r3]", "[%r5]")
    result = two_warps(own + access if access.startswith(ST[:10]) else ST + WAIT + own + access, "")
    if step == "0":
        assert result.ok, str(result)
        return
    assert result.status is SimStatus.PROTOCOL_ERROR, str(result)
    assert "needs one address for the whole warp; lane 1 of warp0 names lane 1, column 0" in str(result)


def _collected(da: int, db: int, uses: tuple[str, ...], shifts: tuple[int, ...]) -> str:
    """Products with A ``shifts`` units of 16 bytes further, added up; the first overwrites."""
    lines = [f"mov.b32 %r30, {dense_idesc(128, 128, 0, 0)};\nmov.b64 %d11, {db};"]
    for number, (use, shift) in enumerate(zip(uses, shifts, strict=True)):
        words = f".collector::a::{use}" if use else ""
        lines.append(f"mov.b64 %d10, {da + shift};\nsetp.ne.u32 %p9, {number}, 0;")
        lines.append(f"tcgen05.mma.cta_group::1.kind::f16{words} [%r20], %d10, %d11, %r30, %p9;")
    return "\n".join(lines)


def operands() -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, int, int]]:
    """A and B of 128 rows, and their image with descriptors."""
    random = np.random.default_rng(1)
    a, b = (random.integers(-4, 5, (128, 64)).astype(np.float16) for _ in range(2))
    return a, b, k_major_128(a.view(np.uint8), b.view(np.uint8))


@pytest.mark.parametrize("uses", [("fill", "use", "use"), ("fill", "use", "lastuse"), ("fill", "", "fill")])
def test_the_collector_is_used_behind_a_fill(uses: tuple[str, ...]) -> None:
    a, b, (image, da, db) = operands()
    found = multiply(image, _collected(da, db, uses, (0, 0, 0)), 128).view(np.float32)
    expected = 3 * (a[:, :16].astype(np.float64) @ b[:, :16].astype(np.float64).T)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("uses", "shifts", "what"),
    [
        (("", "use"), (0, 0), "nothing is in the collector buffer"),
        (("discard", "use"), (0, 0), "nothing is in the collector buffer"),
        (("fill", "lastuse", "use"), (0, 0, 0), "nothing is in the collector buffer"),
        (("fill", "use"), (0, 2), "another A is in the collector buffer"),
        (("fill", "", "use"), (0, 0, 0), "nothing is in the collector buffer"),
    ],
)
def test_the_collector_without_a_fill(uses: tuple[str, ...], shifts: tuple[int, ...], what: str) -> None:
    _, _, (image, da, db) = operands()
    with pytest.raises(AssertionError, match=what):
        multiply(image, _collected(da, db, uses, shifts), 128)


@pytest.mark.parametrize(("alloc", "dealloc", "fails"), [(1, 1, False), (1, 2, True)])
def test_one_cta_group_per_kernel(alloc: int, dealloc: int, fails: bool) -> None:
    body = f"""
mov.u32 %r10, smem;
tcgen05.alloc.cta_group::{alloc}.sync.aligned.shared::cta.b32 [%r10], 32;
ld.shared.u32 %r3, [%r10];
tcgen05.dealloc.cta_group::{dealloc}.sync.aligned.b32 %r3, 32;
"""
    result = run_body(body, np.zeros(1, np.uint32), smem_bytes=64)
    assert result.status is (SimStatus.PROTOCOL_ERROR if fails else SimStatus.OK), str(result)
    assert ("all must name one" in str(result)) == fails


@pytest.mark.parametrize("bit", [0, 1, 3, 6, 23, 29])
def test_reserved_bits_of_an_instruction_descriptor(bit: int) -> None:
    _, _, (image, da, db) = operands()
    idesc = dense_idesc(128, 128, 0, 0)
    multiply(image, steps("f16", idesc, da, db, 2), 128)
    with pytest.raises(AssertionError, match=rf"instruction descriptor .*: reserved bits {bit} must be 0"):
        multiply(image, steps("f16", idesc | 1 << bit, da, db, 2), 128)


@pytest.mark.parametrize("bit", [14, 15, 30, 31, 53, 60])
def test_reserved_bits_of_a_matrix_descriptor(bit: int) -> None:
    _, _, (image, da, db) = operands()
    with pytest.raises(AssertionError, match=rf"matrix descriptor .*: reserved bits {bit} must be 0"):
        multiply(image, steps("f16", dense_idesc(128, 128, 0, 0), da, db | 1 << bit, 2), 128)


def factors(spread: int) -> tuple[np.ndarray, int, int]:
    """Operands of ones with scale factors of 2**(0 .. ``spread``); 512 bytes more, for a copy that reads on."""
    random = np.random.default_rng(2)
    ones = np.full((128, 128), 0x22, np.uint8)
    codes = [((random.integers(0, spread + 1, (128, 16)) + 7) << 3).astype(np.uint8) for _ in range(2)]
    image, da, db = block_scaled_image(ones, ones, *codes)
    return np.concatenate([image, np.full(512, 7 << 3, np.uint8)]), da, db


@pytest.mark.parametrize("copy", ["64x128b.warpx2::02_13", "64x128b.warpx2::01_23", "128x128b"])
def test_scale_factors_are_read_from_every_quarter_of_the_lanes(copy: str) -> None:
    """A copy that fills one or two quarters with an atom of scale factors brings the next atoms to the others."""
    idesc = 1 << 7 | 1 << 10 | 128 >> 3 << 17 | 128 >> 4 << 24
    image, da, db = factors(1)
    image = np.concatenate([image, np.full(1024, 7 << 3, np.uint8)])
    issue = block_scaled_issue("mxf4nvf4", "block16", idesc, da, db, (0,) * 4)
    multiply(image, issue, 128)
    quarter = 64 if "01" in copy else 32
    with pytest.raises(
        AssertionError, match=f"others in lanes {quarter}..{quarter + 31} than in lanes 0..31"
    ):
        multiply(image, issue.replace("32x128b.warpx4", copy), 128)
    same, da, db = factors(0)
    same = np.concatenate([same, np.full(1024, 7 << 3, np.uint8)])
    out = multiply(same, issue.replace("32x128b.warpx4", copy), 128).view(np.float32)
    assert (out == 256).all()

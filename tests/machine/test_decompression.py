"""``tcgen05.cp`` that makes bytes of 4- and 6-bit elements, and products with such an A in tensor memory.

PTX ISA, "Optional Decompression": 16 elements and 8 or 4 bytes of padding become 16 bytes. Codes are packed, held and
decoded here by hand, products are float64.
"""

from __future__ import annotations

import numpy as np
import pytest

from kernel_space.machine.run.run import SimResult
from kernel_space.machine.values.faults import SimStatus
from tests.machine.ptx import run_body
from tests.machine.test_tensor_core import PROGRAM, dense_idesc, descriptor, drain, place_k_major
from tests.machine.undefined_programs import assert_left

FORMATS = {"e2m1": (4, "b4x16_p64", 5), "e2m3": (6, "b6x16_p32", 3), "e3m2": (6, "b6x16_p32", 4)}
BELOW = {4: 2, 6: 1}  # 00xxxx00 and 0xxxxxx0
ROWS, K, N = 128, 128, 64
A_COLUMN, B_AT, A_AT = 128, 0, N * K


def value(code: int, form: str) -> float:
    """Sign, exponent, mantissa; the lowest exponent is subnormal, and no code is special."""
    exponent_bits, mantissa_bits = int(form[1]), int(form[3])
    mantissa, exponent = code % (1 << mantissa_bits), code >> mantissa_bits & (1 << exponent_bits) - 1
    bias = (1 << exponent_bits - 1) - 1
    size = mantissa / (1 << mantissa_bits) + (exponent > 0)
    return (-1.0) ** (code >> exponent_bits + mantissa_bits) * size * 2.0 ** (max(exponent, 1) - bias)


def padded(codes: np.ndarray, bits: int) -> np.ndarray:
    """Rows of codes as groups of 16: element n of a group takes bits n * ``bits`` and up; 0xFF behind it."""
    rows = np.full(codes.shape, 0xFF, np.uint8)
    for row, line in enumerate(codes.tolist()):
        for start in range(0, len(line), 16):
            number = sum(code << bits * n for n, code in enumerate(line[start : start + 16]))
            rows[row, start : start + 2 * bits] = list(number.to_bytes(2 * bits, "little"))
    return rows


class Problem:
    """A in a narrow format, behind B of e4m3 ones and twos."""

    def __init__(self, form: str) -> None:
        self.form = form
        self.bits, self.source, self.code = FORMATS[form]
        random = np.random.default_rng(self.bits)
        self.a = random.integers(0, 1 << self.bits, (ROWS, K), np.uint8)
        self.b = random.integers(1, 3, (N, K))
        self.image = np.zeros(K * (N + ROWS), np.uint8)
        place_k_major(self.image, B_AT, np.where(self.b == 1, 0x38, 0x40).astype(np.uint8), 0)
        place_k_major(self.image, A_AT, padded(self.a, self.bits), 0)

    def copies(self, column: int) -> str:
        """Of the four blocks of 32 elements of K, 8 columns each."""
        lines = []
        for block in range(4):
            start = descriptor(A_AT + 256 * block, 128, 8 * K, 0)
            lines.append(f"mov.b64 %d12, {start};\nadd.u32 %r33, %r20, {column + 8 * block};")
            lines.append(f"tcgen05.cp.cta_group::1.128x256b.b8x16.{self.source} [%r33], %d12;")
        return "\n".join(lines)

    def products(self) -> str:
        lines = [f"mov.b32 %r30, {dense_idesc(ROWS, N, self.code, 0)};"]
        for block in range(4):
            lines.append(f"mov.b64 %d11, {descriptor(B_AT + 256 * block, 128, 8 * K, 0)};")
            lines.append(f"add.u32 %r33, %r20, {A_COLUMN + 8 * block};\nsetp.ne.u32 %p9, {block}, 0;")
            lines.append("tcgen05.mma.cta_group::1.kind::f8f6f4 [%r20], [%r33], %d11, %r30, %p9;")
        return "\n".join(lines)

    def expected(self) -> np.ndarray:
        wide = np.array([value(code, self.form) for code in range(1 << self.bits)])[self.a]
        return wide @ self.b.T.astype(np.float64)

    def run(self, issue: str, columns: int, missing: int = 0) -> tuple[SimResult, np.ndarray]:
        out = np.zeros((128, columns), np.uint32)
        body = PROGRAM.format(
            bytes=self.image.size - missing, issue=issue, row_bytes=4 * columns, drain=drain(columns)
        )
        result = run_body(
            body, out, self.image, params=".param .u64 out, .param .u64 image", block=(128, 1, 1),
            smem_bytes=1024 + self.image.size,
        )  # fmt: skip
        return result, out


@pytest.mark.parametrize("form", ["e2m1", "e3m2"])
def test_a_copy_puts_each_element_into_the_middle_of_a_byte(form: str) -> None:
    problem = Problem(form)
    result, out = problem.run(problem.copies(0), 32)
    assert result.ok, str(result)
    assert out.view(np.uint8).tolist() == (problem.a.astype(int) << BELOW[problem.bits]).tolist()


@pytest.mark.parametrize("form", FORMATS)
def test_a_product_reads_them_from_tensor_memory(form: str) -> None:
    problem = Problem(form)
    result, out = problem.run(problem.copies(A_COLUMN) + "\n" + problem.products(), N)
    assert result.ok, str(result)
    assert np.array_equal(out.view(np.float32), problem.expected())


@pytest.mark.parametrize("form", ["e2m1", "e3m2"])
def test_padding_may_be_undefined_and_elements_may_not(form: str) -> None:
    """The last 16 bytes, elements 112 to 127 of row 127, are not loaded. Then thread 0 writes all but the padding."""
    problem = Problem(form)
    issue = problem.copies(A_COLUMN) + "\n" + problem.products()
    result, out = problem.run(issue, N, missing=16)
    assert_left(result, 4 * N, 4 * N * 127, "SMEM offset", "never written")
    assert np.array_equal(out.view(np.float32)[:127], problem.expected()[:127])
    at = 1024 + problem.image.size - 16
    words = problem.image[-16:].view(np.uint32).tolist()[: problem.bits // 2]
    stores = "".join(
        f"mov.u32 %r60, {word};\nst.shared.u32 [%r10+{at + 4 * n}], %r60;\n" for n, word in enumerate(words)
    )
    result, out = problem.run(stores + "fence.proxy.async.shared::cta;\n" + issue, N, missing=16)
    assert result.ok, str(result)
    assert np.array_equal(out.view(np.float32), problem.expected())


def test_packed_pairs_of_mxf4_in_tensor_memory_are_not_modelled() -> None:
    problem = Problem("e2m1")
    idesc = 1 << 7 | 1 << 10 | 1 << 23 | N >> 3 << 17 | ROWS >> 4 << 24
    issue = f"""
        add.u32 %r33, %r20, {A_COLUMN};
        mov.b64 %d11, {descriptor(B_AT, 128, 8 * K, 0)};
        mov.b32 %r30, {idesc};
        setp.ne.u32 %p9, 0, 0;
        tcgen05.mma.cta_group::1.kind::mxf4.block_scale.block32 [%r20], [%r33], %d11, %r30, [%r20], [%r20], %p9;
    """
    result, _ = problem.run(issue, N)
    assert result.status is SimStatus.UNSUPPORTED, str(result)
    assert "A of e2m1 in tensor memory is not modelled for kind::mxf4" in str(result)

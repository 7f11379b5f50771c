"""The dequantizing PTX of the sm_90a kernels, run here on every input, against the formats' definitions."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from kernel_space.build.dsl_env import import_dsl

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def ptx_text(name: str, **replacements: str) -> str:
    import_dsl("sm_90a")
    from kernel_space.operators.svdquant_gemm.sm90a_parts import dequant

    text = dequant.__dict__[name]
    for old, new in replacements.items():
        text = text.replace(old, new)
    return text


def run(text: str, registers: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Interpret the handful of PTX instructions used, on vectors of 32-bit words."""
    for statement in re.findall(r"([a-z0-9.]+) ([^;{}]+);", text):
        opcode, operands = statement[0], [item.strip() for item in statement[1].split(",")]
        if opcode.startswith(".reg"):
            continue
        values = [_value(operand, registers) for operand in operands[1:]]
        registers[operands[0]] = _OPCODES[opcode](*values)
    return registers


def _value(operand: str, registers: dict[str, np.ndarray]) -> Any:
    return registers[operand] if operand in registers else np.uint32(int(operand, 0))


def _prmt(a: np.ndarray, b: Any, selector: Any) -> np.ndarray:
    result = np.zeros_like(a)
    for byte in range(4):
        nibble = int(selector) >> (4 * byte) & 0xF
        assert nibble < 8, "sign replication is not modelled"
        source = a if nibble < 4 else b
        result = result | ((source >> np.uint32(8 * (nibble % 4))) & np.uint32(0xFF)) << np.uint32(8 * byte)
    return result.astype(np.uint32)


def _lop3(a: np.ndarray, b: Any, c: np.ndarray, table: Any) -> np.ndarray:
    assert int(table) == (0xF0 & 0xCC) | 0xAA, "only (a & b) | c is used"
    return (a & b) | c


def _mul_f16x2(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return (a.view(np.float16) * b.view(np.float16)).view(np.uint32)


_OPCODES = {
    "shl.b32": lambda a, n: (a << n).astype(np.uint32),
    "shr.b32": lambda a, n: (a >> n).astype(np.uint32),
    "and.b32": lambda a, b: (a & b).astype(np.uint32),
    "lop3.b32": _lop3,
    "prmt.b32": _prmt,
    "mul.rn.f16x2": _mul_f16x2,
}


def factors_of_every_scale() -> tuple[np.ndarray, np.ndarray]:
    """(fp16 scale * 2^7 twice in a word, exact scale) of every finite E4M3 byte, negative ones included."""
    values = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).double().numpy()
    finite = ~np.isnan(values)
    factors = (values[finite] * 128).astype(np.float16)
    assert (factors.astype(np.float64) == values[finite] * 128).all(), "scale * 2^7 must be exact in fp16"
    return np.repeat(factors, 2).view(np.uint32), values[finite]


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize(
    ("name", "nibbles"), [("_EVEN", ((0, 4), (2, 6))), ("_ODD", ((1, 5), (3, 7)))], ids=["even", "odd"]
)
def test_every_code_with_every_scale_is_exact(
    name: str, nibbles: tuple[tuple[int, int], ...], half: int
) -> None:
    """All 16 codes in every position beside all 16 codes in its neighbour, times all finite scales."""
    pair_words, scales = factors_of_every_scale()
    other = np.uint32(0x7FFF0000) if half == 0 else np.uint32(0x00007FFF)  # the factor not meant: NaN
    chosen = pair_words & (np.uint32(0x0000FFFF) if half == 0 else np.uint32(0xFFFF0000))
    for low in range(16):
        for high in range(16):
            codes = [low if position % 2 == 0 else high for position in range(8)]
            codes = codes[:4] + codes[4:][::-1]
            word = sum(code << (4 * position) for position, code in enumerate(codes))
            words = np.full(len(scales), word, dtype=np.uint32)
            text = ptx_text("_DECLARE_PAIR", SELECTOR=("0x1010", "0x3232")[half])
            text += ptx_text(name) + ptx_text("_PAIRS", FACTOR="s")
            end = run(text, {"WORD": words, "FACTORS": chosen | other})
            for output, (first, second) in zip(("OUT0", "OUT1"), nibbles, strict=True):
                got = end[output].view(np.float16).astype(np.float64).reshape(-1, 2)
                want = np.stack([E2M1[codes[first]] * scales, E2M1[codes[second]] * scales], axis=1) / 128
                assert (got == want).all(), (codes, output)


def test_scale_factor_constant_is_two_to_the_seventh_twice() -> None:
    import_dsl("sm_90a")
    from kernel_space.operators.svdquant_gemm.sm90a_parts.dequant import DEQUANT_SHIFT, SCALE_FACTOR

    both = np.array([int(SCALE_FACTOR, 16)], dtype=np.uint32).view(np.float16)
    assert both.tolist() == [2.0**DEQUANT_SHIFT] * 2 == [128.0, 128.0]


def test_largest_and_smallest_products_are_fp16_numbers() -> None:
    """2688 / 128 and 2^-10 / 128: far from overflow, and a multiple of fp16's least subnormal 2^-24."""
    assert float(np.float16(6 * 448 / 128)) == 21.0
    assert float(np.float16(0.5 * 2**-9 / 128)) == 2.0**-17

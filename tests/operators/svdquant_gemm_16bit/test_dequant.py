"""The dequantizing PTX for bf16, run here on every code and scale byte, against the formats' definitions."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from kernel_space.build.dsl_env import import_dsl
from tests.numerics.nvfp4_oracle import e2m1_value, e4m3_value

SCALES = range(0x7F)  # neither negative nor NaN: docs/operator.md
PAIRS = {0: ((0, 4), (2, 6)), 1: ((1, 5), (3, 7))}


def widened(halves: np.ndarray) -> np.ndarray:
    """Two bf16 a word -> float64 ``[words, 2]``."""
    return (halves.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64).reshape(-1, 2)


def multiplied(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """``mul.rn.bf16x2``, which keeps subnormal numbers (PTX ISA), where nothing has to be rounded."""
    exact = widened(a) * widened(b)
    bits = exact.astype(np.float32).view(np.uint32)
    assert (exact == bits.view(np.float32)).all() and not (bits & 0xFFFF).any(), "a product is rounded"
    return (bits >> 16).astype(np.uint16).view(np.uint32).reshape(-1)


def permuted(a: np.ndarray, _: Any, selector: np.ndarray) -> np.ndarray:
    """``prmt.b32`` with zeros as the second word."""
    bytes_ = np.stack([a >> np.uint32(8 * i) & 0xFF for i in range(4)] + [a & 0] * 4)
    picked = [bytes_[int(selector[0]) >> 4 * i & 7] << np.uint32(8 * i) for i in range(4)]
    return np.bitwise_or.reduce(picked).astype(np.uint32)


def looked_up(a: np.ndarray, b: np.ndarray, c: np.ndarray, table: np.ndarray) -> np.ndarray:
    assert int(table[0]) == (0xF0 & 0xCC) | 0xAA
    return (a & b) | c


OPCODES = {
    "mov.b32": lambda a: a,
    "shl.b32": lambda a, n: (a << n).astype(np.uint32),
    "shr.b32": lambda a, n: (a >> n).astype(np.uint32),
    "and.b32": lambda a, b: a & b,
    "lop3.b32": looked_up,
    "prmt.b32": permuted,
    "mul.rn.bf16x2": multiplied,
}


def executed(lines: list[str], operands: list[Any], results: int, **_: Any) -> list[np.ndarray]:
    """In place of ``dequant._asm``: the lines on vectors of words. Raises ``KeyError`` for an unknown opcode."""
    registers = {f"${results + i}": operand for i, operand in enumerate(operands)}

    def value(text: str) -> np.ndarray:
        return registers[text] if text in registers else np.full_like(operands[0], int(text, 0))

    for line in lines:
        opcode, arguments = re.fullmatch(r"(\S+) (.*);", line).groups()  # type: ignore[union-attr]  # always
        if opcode != ".reg":
            target, *sources = arguments.split(", ")
            registers[target] = OPCODES[opcode](*map(value, sources))
    return [registers[f"${i}"] for i in range(results)]


@pytest.fixture
def dequant(monkeypatch: pytest.MonkeyPatch) -> Any:
    import_dsl("sm_90a")
    from kernel_space.operators.svdquant_gemm_16bit import dequant

    monkeypatch.setattr(dequant, "_asm", executed)
    return dequant


def factors(dequant: Any) -> np.ndarray:
    """Of every scale, in both halves of a word."""
    pair = dequant.scale_pair(np.array(SCALES, dtype=np.uint32), is_bf16=True)
    return (pair & 0xFFFF) * np.uint32(0x10001)


def test_every_scale_becomes_its_factor_whatever_is_beside_it(dequant: Any) -> None:
    """Two blocks' scales in the low bytes of a word, anything in the others."""
    first, second = (np.repeat(SCALES, 127), np.tile(SCALES, 127))
    words = (0xFF7F0000 | second << 8 | first).astype(np.uint32)
    got = widened(dequant.scale_pair(words, is_bf16=True))
    value = np.array([float(e4m3_value(byte)) for byte in SCALES])
    assert (got == np.stack([value[first], value[second]], axis=1) * 2.0**119).all()


@pytest.mark.parametrize("odd", [0, 1])
def test_every_code_with_every_scale_is_exact(dequant: Any, odd: int) -> None:
    """All 16 codes in each place beside all 16 in the others, times all scales, smaller by 2^7 than their product."""
    scale = np.array([float(e4m3_value(byte)) for byte in SCALES])
    by = factors(dequant)
    for low in range(16):
        for high in range(16):
            codes = [low, high, high ^ 5, low ^ 9, high, low, low ^ 3, high ^ 14]
            word = sum(code << 4 * place for place, code in enumerate(codes))
            found = dequant.unpack_pairs(np.full(len(scale), word, dtype=np.uint32), by, odd, is_bf16=True)
            for got, pair in zip(found, PAIRS[odd], strict=True):
                wanted = np.stack([float(e2m1_value(codes[place])) * scale for place in pair], axis=1) / 128
                assert (widened(got) == wanted).all(), (codes, pair)


def test_the_largest_and_the_least_product_by_hand(dequant: Any) -> None:
    """6 * 448 / 128 = 21 and 0.5 * 2^-9 / 128 = 2^-17."""
    by = factors(dequant)[[0x7E, 0x01]]
    found = dequant.unpack_pairs(np.array([0x7, 0x1], dtype=np.uint32), by, 0, is_bf16=True)
    assert widened(found[0])[:, 0].tolist() == [21.0, 2.0**-17]

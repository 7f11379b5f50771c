"""Sums of ``merged_fp8`` on a tensor core that keeps 13 bits of what it adds, as one of sm_90 does with E4M3 numbers.

The machine's own is exact. Here its instructions cut as the card's do (docs/evidence/kernel_fp8.md), and products of
one sign show how many of them one sum has.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from kernel_space.core.rules import Legal
from kernel_space.machine.units import wgmma
from tests.operators.svdquant_linear_fp8.runs import (
    OPERATOR,
    PAIR,
    PLAIN,
    STREAM,
    Tensors,
    e4m3_bytes,
    inputs,
    legal,
    merged_by_hand,
    problem,
    rows_by_hand,
    sums_by_hand,
    value_of,
    whole,
)

KEPT_BITS = 13  # behind the first bit of the largest of what one instruction adds
MMA_K = 32
PROMOTED = 512 // MMA_K  # instructions of one sum
LOSES = 0.01

Floats = NDArray[np.float64]


def cut(rows: Floats, columns: Floats, sums: Floats) -> Floats:
    """``rows [m, 32] @ columns [n, 32].T + sums`` of one instruction: every term without its low bits, towards zero."""
    terms = np.concatenate([rows[:, None, :] * columns[None, :, :], sums[:, :, None]], axis=2)
    largest = np.abs(terms).max(2)
    unit = np.exp2(np.floor(np.log2(np.where(largest > 0, largest, 1.0))) - KEPT_BITS)
    return np.trunc(terms / unit[:, :, None]).sum(2) * unit


@pytest.fixture
def cutting(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The machine's instructions on E4M3 numbers cut; how many there were."""
    exact, count = wgmma._product, [0]

    def product(w: Any, shape: Any, rows: Floats, b: int, accumulate: int, c: Any, site: int) -> Any:
        if shape.a != "e4m3":
            return exact(w, shape, rows, b, accumulate, c, site)
        count[0] += 1
        columns = wgmma._operand(w, shape.b, shape.columns, b, False, site, "b")
        places = places_of(len(c))
        sums = np.zeros((16, shape.columns))
        for place, word in zip(places, c, strict=True):
            sums[place] = np.ascontiguousarray(wgmma.spread(word, 32), np.uint32).view(np.float32)
        made = cut(rows, columns, sums).astype(np.float32)
        return tuple(np.ascontiguousarray(made[place]).view(np.uint32) for place in places)

    monkeypatch.setattr(wgmma, "_product", product)
    return count


def places_of(registers: int) -> list[tuple[Any, Any]]:
    """Rows and columns of the sums of every register, lane by lane. PTX ISA, "wgmma fragment of D"."""
    lane = np.arange(32)
    return [
        (lane // 4 + 8 * (one // 2 % 2), one // 4 * 8 + lane % 4 * 2 + one % 2) for one in range(registers)
    ]


def positive(shape: Any) -> Tensors:
    """Operands without a sign and without a bias; y is below 1."""
    tensors = inputs(shape)
    return {
        **tensors,
        "x": tensors["x"].abs(),
        "wgt": tensors["wgt"] & 0x77,
        "wcscale": 1 / (tensors["wpeak"] * shape.k),
        "bias": torch.zeros_like(tensors["bias"]),
    }


def kept_by_hand(tensors: Tensors, sizes: Any, instructions: int) -> Floats:
    """What is left of each sum over K, of sums of so many instructions that are then added exactly."""
    x8 = value_of(rows_by_hand(tensors["x"])[0]).numpy()
    merged = value_of(e4m3_bytes(merged_by_hand(tensors, sizes).value)).numpy()
    total = np.zeros((sizes.m, sizes.n))
    for group in range(0, sizes.k, instructions * MMA_K):
        sums = np.zeros_like(total)
        for k in range(group, min(group + instructions * MMA_K, sizes.k), MMA_K):
            sums = cut(x8[:, k : k + MMA_K], merged[:, k : k + MMA_K], sums)
        total += sums
    return total / (x8 @ merged.T)


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        pytest.param(PLAIN, "4,2048,8,0", marks=pytest.mark.slow),
        pytest.param(PAIR, "4,2560,200,0", marks=pytest.mark.slow),
        pytest.param(STREAM, "4,2560,136,0", marks=pytest.mark.slow),
    ],
)
def test_sums_of_one_sign_lose_no_more_than_those_of_512_products(
    cutting: list[int], text: str, shape: str
) -> None:
    sizes = problem(shape, "fp16")
    tensors = positive(sizes)
    away = 1 - whole(text, sizes, tensors).double() / sums_by_hand(tensors, sizes)
    assert cutting[0] >= sizes.k // MMA_K
    one_sum, promoted = (kept_by_hand(tensors, sizes, count).mean() for count in (sizes.k // MMA_K, PROMOTED))
    assert 1 - one_sum > LOSES
    assert away.max() < LOSES
    assert float(away.mean()) == pytest.approx(1 - promoted, abs=5e-4)


def test_the_oracle_knows_the_one_from_the_other_where_k_is_long() -> None:
    """What it allows for is a bound: of 4096 products of one sign it would take one sum."""
    sizes = problem("4,16384,16,0", "fp16")
    tensors, found = positive(sizes), legal(PLAIN, sizes)
    assert isinstance(found, Legal)
    exact = sums_by_hand(tensors, sizes)
    one_sum, promoted = (
        (exact * torch.from_numpy(kept_by_hand(tensors, sizes, count))).half()
        for count in (sizes.k // MMA_K, PROMOTED)
    )
    assert OPERATOR.check(sizes, {**tensors, "y": promoted}, found.config)["y"].ok
    assert not OPERATOR.check(sizes, {**tensors, "y": one_sum}, found.config)["y"].ok


def test_what_an_instruction_keeps() -> None:
    """As measured: 2^-13 of 256 comes back, 2^-14 does not, and of what is not lost the low bits are."""
    rows, columns = np.zeros((1, MMA_K)), np.ones((1, MMA_K))
    for small, kept in ((2.0**-5, 2.0**-5), (2.0**-6, 0.0), (-(2.0**-6), 0.0), (1.5 * 2.0**-5, 2.0**-5)):
        rows[0, 0] = small
        assert cut(rows, columns, np.array([[256.0]])) == 256 + kept

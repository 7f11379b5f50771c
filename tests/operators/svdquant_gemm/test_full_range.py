"""Operands with every scale factor: what they hold by the formats' own tables, and that each of it can be seen in y."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from kernel_space.numerics.nvfp4 import unpack_e2m1
from kernel_space.operators.svdquant_gemm.operands import Operands, make_operands
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.reference import check_packed, packed_reference
from tests.numerics import nvfp4_oracle as oracle

pytestmark = pytest.mark.usefixtures("one_thread")

LEGAL_SCALES = set(range(0x7F))
FP16_LARGEST, BF16_LARGEST = 65504.0, (2 - 2.0**-7) * 2.0**127
LARGEST = {"fp16": FP16_LARGEST, "bf16": BF16_LARGEST}


def operands(shape: str, seed: int = 0, dtype: str = "fp16") -> Operands:
    return make_operands(GemmProblem.parse(shape, lora_dtype=dtype, out_dtype=dtype), seed, source="scales")


def used_scales(blocked: torch.Tensor, rows: int, k: int) -> torch.Tensor:
    """``[rows, k / 16]`` bytes, by the layout's formula."""
    groups = k // 16
    offsets = [[oracle.blocked_offset(row, group, groups) for group in range(groups)] for row in range(rows)]
    return blocked[torch.tensor(offsets)]


@pytest.mark.parametrize("shape", ["1,2048,8,0", "16,256,16,16", "333,480,264,32"])
def test_every_scale_and_every_code_is_there(shape: str) -> None:
    """From one row of 128 groups on, and from 16 rows of 16 groups on."""
    inputs = operands(shape)
    for codes, blocked in ((inputs.act, inputs.ascales), (inputs.wgt, inputs.wscales)):
        scales = used_scales(blocked, codes.shape[0], inputs.k)
        assert set(scales.unique().tolist()) <= LEGAL_SCALES
        assert unpack_e2m1(codes).unique().numel() == 16
        if shape != "16,256,16,16" or codes.shape[0] * scales.shape[1] > 2000:
            assert set(scales.unique().tolist()) == LEGAL_SCALES
        else:
            assert set((scales >> 3).unique().tolist()) == set(range(16))


def test_every_byte_of_a_block_of_scales_meets_every_exponent() -> None:
    """512 places of a block: the row within 128 and the group within four."""
    inputs = operands("128,4096,128,0")
    for blocked in (inputs.ascales, inputs.wscales):
        exponents = blocked.view(-1, 512) >> 3
        met = torch.zeros(512, 16, dtype=torch.bool)
        met[torch.arange(512).expand_as(exponents), exponents.long()] = True
        whole_rows_of_zero = (blocked.view(-1, 512) == 0).all(dim=0)
        assert met[~whole_rows_of_zero].float().mean() > 0.97


def test_zero_rows_and_zero_blocks_are_there() -> None:
    inputs = operands("256,1024,256,16")
    for codes, blocked in ((inputs.act, inputs.ascales), (inputs.wgt, inputs.wscales)):
        scales = used_scales(blocked, 256, 1024)
        blocks = unpack_e2m1(codes).view(256, 64, 16)
        empty = (blocks & 7 == 0).all(dim=2)
        assert 0.01 < empty.float().mean() < 0.15
        assert (blocks[empty] == 8).any() and (blocks[empty] == 0).any(), "zeros of both signs"
        assert ((scales == 0) & ~empty).any(), "a zero scale under codes that are not zero"
        assert (scales == 0).all(dim=1).any() and empty.all(dim=1).any(), "whole rows of either kind"
        assert not empty[0].all() and scales[0].any(), "row 0 may be the only one"


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_results_overflow_on_purpose_only(dtype: str) -> None:
    """In every eighth column, in part of the rows, to either side; all others are finite and of moderate size."""
    inputs = operands("200,2048,64,32", dtype=dtype)
    reference = packed_reference(inputs)
    beyond = reference.abs() > LARGEST[dtype]
    columns = torch.arange(64) % 8 == 0
    assert not beyond[:, ~columns].any() and reference.isfinite().all()
    assert 0.1 < beyond[:, columns].float().mean() < 0.6
    assert (reference[beyond] > 0).any() and (reference[beyond] < 0).any()
    assert reference[:, 2:8].abs().max() < 4096
    rounded = reference.to(inputs.y.dtype)
    tiny = (rounded.abs() < 2.0**-14) & (rounded != 0)
    assert (tiny[:, 1::8].float().mean() > 0.9) == (dtype == "fp16")
    assert inputs.wcscale.abs().max() <= 2.0**112, "kernels hold it 2^14 times larger in fp32"
    saturated = rounded.clamp(-LARGEST[dtype], LARGEST[dtype])
    check = check_packed(saturated, inputs)
    assert check_packed(rounded, inputs).ok and check.bad > 0.3 * beyond.sum(), str(check)


def with_scale(inputs: Operands, name: str, blocked: torch.Tensor) -> torch.Tensor:
    """The output of a machine that reads ``blocked`` in place of the scales it was given."""
    return packed_reference(dataclasses.replace(inputs, **{name: blocked})).to(inputs.y.dtype)


@pytest.mark.parametrize("name", ["ascales", "wscales"])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_an_error_in_any_scale_value_is_seen(dtype: str, name: str) -> None:
    """A decoder that takes one of the 127 bytes for the next one (the largest: for the one before)."""
    inputs = operands("4,2048,32,16", dtype=dtype)
    for byte in sorted(LEGAL_SCALES):
        neighbour = byte + 1 if byte < 0x7E else byte - 1
        blocked = getattr(inputs, name).clone()
        blocked[blocked == byte] = neighbour
        check = check_packed(with_scale(inputs, name, blocked), inputs)
        assert check.bad > 0, f"{byte:#04x} read as {neighbour:#04x} is not seen: {check}"


@pytest.mark.parametrize("name", ["ascales", "wscales"])
def test_an_error_in_any_place_is_seen(name: str) -> None:
    """One scale, wherever it stands and whatever it is, read as zero or, being zero, as its least."""
    inputs = operands("131,1056,136,16", seed=3)
    rows, codes = (131, inputs.act) if name == "ascales" else (136, inputs.wgt)
    empty = (unpack_e2m1(codes).view(rows, 66, 16) & 7 == 0).all(dim=2)
    random, seen = torch.Generator().manual_seed(0), 0
    for _ in range(60):
        row = int(torch.randint(rows, (1,), generator=random))
        group = int(torch.randint(66, (1,), generator=random))
        place = oracle.blocked_offset(row, group, 66)
        blocked = getattr(inputs, name).clone()
        before = int(blocked[place])
        if empty[row, group]:
            continue
        blocked[place] = 0 if before else 0x38
        assert check_packed(with_scale(inputs, name, blocked), inputs).bad, f"{before:#04x} at {row}, {group}"
        seen += 1
    assert seen > 40


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("shape", ["100,96,40,16", "60,4096,72,128"])
def test_every_term_matters(shape: str, dtype: str) -> None:
    """Without one term most elements miss the tolerance that do not overflow anyway."""
    inputs = operands(shape, 1, dtype)
    right = inputs.reference().to(inputs.y.dtype)
    assert check_packed(right, inputs).ok and math.isfinite(check_packed(right, inputs).mean_error)
    without = {name: torch.zeros_like(getattr(inputs, name)) for name in ("wgt", "lora_up", "bias")}
    without["wcscale"] = inputs.wcscale * 1.1
    for name, tensor in without.items():
        wrong = packed_reference(dataclasses.replace(inputs, **{name: tensor})).to(inputs.y.dtype)
        assert check_packed(wrong, inputs).bad > 0.6 * wrong.numel(), name

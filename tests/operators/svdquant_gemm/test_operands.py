from __future__ import annotations

import dataclasses

import pytest
import torch

from kernel_space.core.errors import InputError
from kernel_space.numerics.nvfp4 import unpack_e2m1
from kernel_space.operators.svdquant_gemm.operands import ARGUMENT_ORDER, SOURCES, make_operands
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.reference import check_packed, packed_reference
from tests.numerics import nvfp4_oracle as oracle

MIDDLE = [source for source in SOURCES if source != "scales"]  # whose scales test_full_range.py looks at
RAGGED = GemmProblem.parse("131,160,136,48", lora_dtype="bf16", out_dtype="fp16")


@pytest.mark.parametrize("source", SOURCES)
def test_layout_of_every_argument(source: str) -> None:
    operands = make_operands(RAGGED, 0, source=source)
    scale_bytes = 2 * 3 * 512  # two blocks of 128 rows, three of 64 along K = 160
    expected = {
        "act": (torch.uint8, (131, 80)),
        "ascales": (torch.uint8, (scale_bytes,)),
        "wgt": (torch.uint8, (136, 80)),
        "wscales": (torch.uint8, (scale_bytes,)),
        "lora_act_in": (torch.bfloat16, (131, 48)),
        "lora_up": (torch.bfloat16, (136, 48)),
        "wcscale": (torch.float32, (136,)),
        "bias": (torch.float32, (136,)),
        "y": (torch.float16, (131, 136)),
    }
    tensors = operands.tensors()
    assert {name: (x.dtype, tuple(x.shape)) for name, x in tensors.items()} == expected
    assert tuple(tensors) == ARGUMENT_ORDER == tuple(expected)
    assert all(x.is_contiguous() and x.data_ptr() % 16 == 0 for x in tensors.values())
    assert operands.y.isnan().all()
    assert operands.problem == RAGGED


@pytest.mark.parametrize("source", MIDDLE)
def test_only_the_padding_of_the_scales_is_zero(source: str) -> None:
    operands = make_operands(RAGGED, 0, source=source)
    for blocked, rows in ((operands.ascales, 131), (operands.wscales, 136)):
        used = {oracle.blocked_offset(row, group, 10) for row in range(rows) for group in range(10)}
        assert set(blocked.nonzero().flatten().tolist()) == used


@pytest.mark.parametrize("source", SOURCES)
def test_same_seed_same_operands(source: str) -> None:
    first, again, other = (make_operands(RAGGED, seed, source=source).tensors() for seed in (3, 3, 4))
    for name in ARGUMENT_ORDER[:-1]:
        assert torch.equal(first[name], again[name])
        assert not torch.equal(first[name], other[name])


@pytest.mark.parametrize("source", MIDDLE)
def test_values_are_varied(source: str) -> None:
    operands = make_operands(GemmProblem.parse("128,512,128,64"), 0, source=source)
    for codes in (operands.act, operands.wgt):
        assert unpack_e2m1(codes).unique().numel() == 16
    for blocked in (operands.ascales, operands.wscales):
        assert blocked.unique().numel() > 16
        assert blocked.max() < 0x7E and blocked.min() > 0
    for signed in (operands.wcscale, operands.bias, operands.lora_up, operands.lora_act_in):
        assert 0.2 < (signed > 0).float().mean() < 0.8
    assert operands.wcscale.abs().min() >= 0.5 and operands.wcscale.abs().max() <= 2.0


@pytest.mark.parametrize("source", MIDDLE)
@pytest.mark.parametrize("shape", ["100,96,40,16", "60,4096,72,128"])
@pytest.mark.parametrize("out_dtype", ["fp16", "bf16"])
def test_every_term_matters(shape: str, out_dtype: str, source: str) -> None:
    """Without one term, or with the scales of one operand off by a row, most elements miss the tolerance."""
    operands = make_operands(GemmProblem.parse(shape, out_dtype=out_dtype), 1, source=source)
    right = operands.reference().to(operands.y.dtype)
    assert check_packed(right, operands).ok and right.isfinite().all()
    without = {name: torch.zeros_like(getattr(operands, name)) for name in ("wgt", "lora_up", "bias")}
    without["wcscale"] = torch.ones_like(operands.wcscale)
    without["ascales"] = operands.ascales.roll(16)
    without["wscales"] = operands.wscales.roll(16)
    for name, tensor in without.items():
        wrong = packed_reference(dataclasses.replace(operands, **{name: tensor})).to(operands.y.dtype)
        check = check_packed(wrong, operands)
        assert check.bad > 0.6 * check.elements, f"{name}: {check}"


def test_without_lora_the_lora_tensors_are_empty() -> None:
    operands = make_operands(GemmProblem.parse("5,64,8,0"), 0)
    assert operands.lora_act_in.shape == (5, 0) and operands.lora_up.shape == (8, 0)
    operands.y.copy_(operands.reference(chunk_rows=2))
    assert operands.check().ok


def test_check_reads_what_is_in_y_now() -> None:
    operands = make_operands(GemmProblem.parse("5,64,8,16"), 0)
    assert operands.check().bad == 40
    operands.y.copy_(operands.reference())
    assert operands.check().ok
    difference = (operands.y.double() - operands.reference()).abs()
    assert (difference <= operands.tolerance()).all()
    assert (operands.tolerance(split_k=2) > operands.tolerance()).all()


def test_an_unknown_source_is_an_input_error() -> None:
    with pytest.raises(InputError, match="source must be one of gaussian, codes, scales, got 'zeros'"):
        make_operands(RAGGED, 0, source="zeros")

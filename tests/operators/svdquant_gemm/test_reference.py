from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from kernel_space.core.errors import InputError
from kernel_space.numerics.nvfp4 import block_scales, dequantize_nvfp4, quantize_nvfp4
from kernel_space.operators.svdquant_gemm.inputs import TORCH_DTYPES, PackedInputs, PublicInputs
from kernel_space.operators.svdquant_gemm.operands import Operands, make_operands
from kernel_space.operators.svdquant_gemm.packing import pack_svdquant_weights
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.reference import (
    check_output,
    check_packed,
    output_ulp,
    packed_reference,
    packed_tolerance,
    public_reference,
    public_tolerance,
)
from tests.numerics import nvfp4_oracle as oracle


def operands(shape: str, seed: int = 0, **dtypes: str) -> Operands:
    return make_operands(GemmProblem.parse(shape, **dtypes), seed)


def exact(values: torch.Tensor) -> list[list[Fraction]]:
    return [[Fraction(x) for x in row] for row in values.double().tolist()]


def naive_packed(inputs: PackedInputs) -> list[list[float]]:
    """The packed contract by triple loop over exact rationals."""
    act, ascales = inputs.act.numpy().tobytes(), inputs.ascales.numpy().tobytes()
    wgt, wscales = inputs.wgt.numpy().tobytes(), inputs.wscales.numpy().tobytes()
    lora_act, lora_up = exact(inputs.lora_act_in), exact(inputs.lora_up)
    wcscale, bias = exact(torch.stack([inputs.wcscale, inputs.bias]))
    y = []
    for m in range(inputs.m):
        a = [oracle.packed_element(act, ascales, inputs.k, m, k) for k in range(inputs.k)]
        y.append([])
        for n in range(inputs.n):
            b = [oracle.packed_element(wgt, wscales, inputs.k, n, k) for k in range(inputs.k)]
            total = sum(x * w for x, w in zip(a, b, strict=True))
            total += sum(d * u for d, u in zip(lora_act[m], lora_up[n], strict=True))
            y[-1].append(float(total * wcscale[n] + bias[n]))
    return y


@pytest.mark.parametrize("shape", ["3,96,8,16", "131,32,8,0", "2,160,16,32"])
@pytest.mark.parametrize("lora_dtype", ["fp16", "bf16"])
def test_packed_reference_equals_a_triple_loop(shape: str, lora_dtype: str) -> None:
    inputs = operands(shape, lora_dtype=lora_dtype)
    reference = packed_reference(inputs)
    assert reference.dtype == torch.float64
    torch.testing.assert_close(
        reference, torch.tensor(naive_packed(inputs), dtype=torch.float64), rtol=1e-12, atol=0
    )


def public_inputs(m: int, k: int, n: int, r: int, dtype: torch.dtype, seed: int = 0) -> PublicInputs:
    random = torch.Generator().manual_seed(seed)
    act = quantize_nvfp4(torch.randn(m, k, generator=random))
    wgt = quantize_nvfp4(torch.randn(n, k, generator=random))
    return PublicInputs(
        act=act,
        wgt=wgt,
        lora_act_in=torch.randn(m, r, generator=random).to(dtype),
        lora_up=torch.randn(n, r, generator=random).to(dtype),
        wcscale=(torch.rand(n, generator=random) + 0.5) * (torch.arange(n) % 2 * 2 - 1),
        bias=torch.randn(n, generator=random),
        alpha=0.37,
    )


def packed_of(public: PublicInputs) -> PackedInputs:
    packed = pack_svdquant_weights(
        public.wgt.codes, public.wgt.scales, public.lora_up, public.wcscale, public.bias, public.alpha
    )
    return PackedInputs(
        act=public.act.codes,
        ascales=block_scales(public.act.scales),
        wgt=packed.wgt,
        wscales=packed.wscales,
        lora_act_in=public.lora_act_in,
        lora_up=packed.lora_up,
        wcscale=packed.wcscale,
        bias=packed.bias,
    )


@pytest.mark.parametrize("r", [0, 16])
def test_public_reference_equals_the_formula_in_exact_rationals(r: int) -> None:
    inputs = public_inputs(3, 64, 8, r, torch.float16)
    act, wgt = exact(dequantize_nvfp4(inputs.act)), exact(dequantize_nvfp4(inputs.wgt))
    lora_act, lora_up = exact(inputs.lora_act_in), exact(inputs.lora_up)
    wcscale, bias = exact(torch.stack([inputs.wcscale, inputs.bias]))
    reference = public_reference(inputs)
    for m in range(3):
        for n in range(8):
            gemm = sum(x * w for x, w in zip(act[m], wgt[n], strict=True))
            lora = sum((d * u for d, u in zip(lora_act[m], lora_up[n], strict=True)), start=Fraction(0))
            expected = Fraction(inputs.alpha) * gemm * wcscale[n] + bias[n] + lora
            assert reference[m, n].item() == pytest.approx(float(expected), rel=1e-12)


def test_lora_is_scaled_by_wcscale_in_one_contract_only() -> None:
    inputs = public_inputs(4, 64, 8, 16, torch.float16)
    without = dataclasses.replace(inputs, lora_up=torch.zeros_like(inputs.lora_up))
    difference = public_reference(inputs) - public_reference(without)
    torch.testing.assert_close(difference, inputs.lora_act_in.double() @ inputs.lora_up.double().T)
    packed = packed_of(inputs)
    bare = dataclasses.replace(packed, lora_up=torch.zeros_like(packed.lora_up))
    difference = packed_reference(packed) - packed_reference(bare)
    expected = (packed.lora_act_in.double() @ packed.lora_up.double().T) * packed.wcscale.double()
    torch.testing.assert_close(difference, expected)


@pytest.mark.parametrize("chunk_rows", [1, 7, 128])
def test_row_chunks_and_slices_change_nothing(chunk_rows: int) -> None:
    inputs = operands("150,1120,24,32")
    whole, tolerance = packed_reference(inputs), packed_tolerance(inputs, "fp16")
    torch.testing.assert_close(packed_reference(inputs, chunk_rows=chunk_rows), whole, rtol=1e-13, atol=1e-10)
    some = slice(33, 140)
    part = packed_reference(inputs, rows=some, chunk_rows=chunk_rows)
    torch.testing.assert_close(part, whole[some], rtol=1e-13, atol=1e-10)
    part = packed_tolerance(inputs, "fp16", rows=some, chunk_rows=chunk_rows)
    torch.testing.assert_close(part, tolerance[some], rtol=1e-5, atol=0)


def test_the_number_of_torch_threads_is_left_alone() -> None:
    inputs = operands("3,64,8,16")
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        packed_reference(inputs)
        packed_tolerance(inputs, "fp16")
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


# --- the tolerance


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_output_ulp(dtype: torch.dtype) -> None:
    by_hand = {
        torch.float16: {0.0: -24, 2.0**-14: -24, 1.0: -10, 1.999: -10, 2.0: -9, -2048.0: 1, 65504.0: 5},
        torch.bfloat16: {0.0: -133, 2.0**-126: -133, 1.0: -7, 1.999: -7, -2.0: -6, 65504.0: 8},
    }[dtype]
    x = torch.tensor(list(by_hand), dtype=torch.float64)
    assert output_ulp(x, dtype).tolist() == [2.0**exponent for exponent in by_hand.values()]


def test_output_ulp_of_fp16_equals_numpy_spacing() -> None:
    x = torch.randn(5000, generator=torch.Generator().manual_seed(0), dtype=torch.float64).mul(4).exp()
    x = x.clamp(max=60000).half().double()
    assert (
        output_ulp(x, torch.float16).tolist()
        == np.spacing(x.numpy().astype(np.float16)).astype(float).tolist()
    )


def truncate_fp32(x: torch.Tensor) -> torch.Tensor:
    """float64 -> the fp32 number next to it towards zero, as float64."""
    nearest = x.float()
    towards_zero = torch.nextafter(nearest, torch.zeros_like(nearest))
    return torch.where(nearest.double().abs() > x.abs(), towards_zero, nearest).double()


def tensor_core(inputs: PackedInputs, *, truncating: bool, split_k: int = 1) -> torch.Tensor:
    """fp32 output of a machine that adds the products of one instruction exactly and rounds once per instruction."""
    round_fp32 = truncate_fp32 if truncating else lambda x: x.float().double()
    a, b = decoded(inputs)
    steps = [(a[:, k : k + 64], b[:, k : k + 64]) for k in range(0, inputs.k, 64)]
    d, u = inputs.lora_act_in.double(), inputs.lora_up.double()
    steps += [(d[:, r : r + 16], u[:, r : r + 16]) for r in range(0, inputs.r, 16)]
    acc = torch.zeros(inputs.m, inputs.n, dtype=torch.float64)
    for part in range(split_k):
        partial = torch.zeros_like(acc)
        for left, right in steps[part * len(steps) // split_k : (part + 1) * len(steps) // split_k]:
            partial = round_fp32(partial + left @ right.T)
        acc = (acc.float() + partial.float()).double()
    return acc.float() * inputs.wcscale + inputs.bias


def decoded(inputs: PackedInputs) -> tuple[torch.Tensor, torch.Tensor]:
    """float64 act and wgt, element by element through the oracle's formulas (vectorised only over the tables)."""

    def operand(codes: torch.Tensor, blocked: torch.Tensor) -> torch.Tensor:
        rows, k = codes.shape[0], 2 * codes.shape[1]
        e2m1 = torch.tensor([float(oracle.e2m1_value(code)) for code in range(16)], dtype=torch.float64)
        e4m3 = torch.tensor([*map(float, oracle.E4M3_VALUES)], dtype=torch.float64)
        offsets = [[oracle.blocked_offset(row, g, k // 16) for g in range(k // 16)] for row in range(rows)]
        nibbles = torch.stack([codes & 15, codes >> 4], dim=2).view(rows, k)
        return e2m1[nibbles.long()] * e4m3[blocked[torch.tensor(offsets)].long()].repeat_interleave(16, dim=1)

    return operand(inputs.act, inputs.ascales), operand(inputs.wgt, inputs.wscales)


@pytest.mark.parametrize("out_dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("shape", ["70,2080,48,64", "129,32,8,0", "5,96,16,256"])
def test_correct_kernels_pass(shape: str, out_dtype: str) -> None:
    """Rounding and truncating tensor cores, one and three splits, and a plain fp32 matmul in torch's own order."""
    inputs = operands(shape, out_dtype=out_dtype)
    half = TORCH_DTYPES[out_dtype]
    for truncating in (False, True):
        check = check_packed(tensor_core(inputs, truncating=truncating).to(half), inputs)
        assert check.ok and 0.1 < check.max_ratio <= 1.0, str(check)
        check = check_packed(
            tensor_core(inputs, truncating=truncating, split_k=3).to(half), inputs, split_k=3
        )
        assert check.ok, str(check)
    a, b = decoded(inputs)
    fp32 = a.float() @ b.float().T + inputs.lora_act_in.float() @ inputs.lora_up.float().T
    check = check_packed((fp32 * inputs.wcscale + inputs.bias).to(half), inputs)
    assert check.ok, str(check)


def all_equal_operands(k: int, code_byte: int, scale_byte: int) -> PackedInputs:
    """Every product positive and the same: truncation errors add up instead of cancelling."""
    scales = torch.full((8, k // 16), scale_byte, dtype=torch.uint8).view(torch.float8_e4m3fn)
    codes = torch.full((8, k // 2), code_byte, dtype=torch.uint8)
    return PackedInputs(
        act=codes,
        ascales=block_scales(scales),
        wgt=codes.clone(),
        wscales=block_scales(scales),
        lora_act_in=torch.zeros(8, 0, dtype=torch.float16),
        lora_up=torch.zeros(8, 0, dtype=torch.float16),
        wcscale=torch.full((8,), 2.0**-12),
        bias=torch.zeros(8),
    )


def test_the_accumulation_bound_holds_in_the_worst_case_and_is_not_far_from_it() -> None:
    """One product of 36 * 448^2, where an fp32 ulp is 1/2, then 8176 of 0.4727, each truncated away by itself."""
    k = 8192
    codes = torch.full((8, k // 2), 0x11, dtype=torch.uint8)
    codes[:, :8] = torch.tensor([0x07, 0, 0, 0, 0, 0, 0, 0])  # 6, then zeros to the end of the block
    scales = torch.full((8, k // 16), 0x3B, dtype=torch.uint8)  # 1.375
    scales[:, 0] = 0x7E  # 448
    blocked = block_scales(scales.view(torch.float8_e4m3fn))
    inputs = dataclasses.replace(
        all_equal_operands(k, 0x11, 0x3B), act=codes, wgt=codes, ascales=blocked, wscales=blocked
    )
    a, b = decoded(inputs)
    acc = torch.zeros(8, 8, dtype=torch.float64)
    for column in range(k):
        acc = truncate_fp32(acc + torch.outer(a[:, column], b[:, column]))
    assert acc.unique().tolist() == [36 * 448**2]
    error = (acc - a @ b.T).abs() * 2.0**-12
    ulp = output_ulp(packed_reference(inputs), torch.float16)
    bound = packed_tolerance(inputs, "fp16") - ulp
    assert 0.4 < (error / bound).max().item() < 1.0
    assert not check_packed((acc * 2.0**-12).bfloat16(), inputs).bad


def test_the_tolerance_by_hand() -> None:
    """K = 64, every product 1: one instruction, 65 roundings, partial sums and sum of magnitudes both 64."""
    inputs = all_equal_operands(64, 0x22, 0x38)
    inputs = dataclasses.replace(inputs, wcscale=torch.full((8,), 0.5), bias=torch.full((8,), 8.0))
    u = 2.0**-23
    accumulation = u / (1 - 65 * u) ** 2 * (65 * 64 + 65 * 64) * 0.5
    epilogue = 2.0**-24 * (32 + 40)
    expected = 2.0**-5 + (accumulation + epilogue) * (1 + 2.0**-11) * (
        1 + 2.0**-20
    )  # fp16 has ulp 2^-5 at 40
    assert packed_reference(inputs).unique().tolist() == [40.0]
    assert packed_tolerance(inputs, "fp16")[3, 5].item() == pytest.approx(expected, rel=1e-9)
    two_splits = expected + u * (65 * 64 + 2 * 64) * 0.5  # partial sums may start anywhere; one rounding more
    assert packed_tolerance(inputs, "fp16", split_k=2)[3, 5].item() == pytest.approx(two_splits, rel=1e-4)


def test_partial_sums_that_cancel_widen_the_tolerance() -> None:
    """K = 192: 64 products of 1, 64 of -1, 64 of 0. The result is 0, the partial sum after one instruction 64."""
    inputs = all_equal_operands(192, 0x22, 0x38)
    inputs.act[:, 32:64] = 0xAA  # -1
    inputs.act[:, 64:] = 0x00
    assert packed_reference(inputs).unique().tolist() == [0.0]
    bound = 2.0**-23 * (3 * 65 * 64 + 65 * 128) * 2.0**-12  # wcscale is 2^-12
    assert packed_tolerance(inputs, "fp16")[0, 0].item() == pytest.approx(2.0**-24 + bound, rel=1e-3)


def test_lora_counts_in_the_tolerance_by_hand() -> None:
    """K = 64 and R = 32: 65 + 2 * 17 roundings; partial sums up to 64 + 32; magnitudes sum to 96."""
    bare = all_equal_operands(64, 0x22, 0x38)
    lora = torch.ones(8, 32, dtype=torch.float16)
    inputs = dataclasses.replace(bare, lora_act_in=lora, lora_up=-lora, wcscale=torch.ones(8))
    bound = 2.0**-23 * (99 * 96 + 65 * 96) + 2.0**-24 * (32 + 32)
    assert packed_reference(inputs).unique().tolist() == [32.0]
    assert packed_tolerance(inputs, "fp16")[0, 0].item() == pytest.approx(2.0**-5 + bound, rel=1e-4)


@pytest.mark.parametrize("out_dtype", ["fp16", "bf16"])
def test_two_ulp_are_caught(out_dtype: str) -> None:
    """At moderate K an element that is off by two units of the output format is found."""
    inputs = operands("40,256,24,32", out_dtype=out_dtype)
    reference, tolerance = inputs.reference(), inputs.tolerance()
    right = reference.to(inputs.y.dtype)
    ulp = output_ulp(reference, right.dtype)
    for direction in (-2, 2):
        wrong = (right.double() + direction * ulp).to(right.dtype)
        caught = (
            wrong.double() - reference
        ).abs() > tolerance  # not where terms cancelled and an ulp is small
        assert caught.float().mean() > {"fp16": 0.75, "bf16": 0.95}[out_dtype]
    row, column = divmod(int((tolerance / ulp).argmin()), 24)
    inputs.y.copy_(right)
    inputs.y[row, column] = wrong[row, column]
    check = inputs.check()
    assert (check.bad, check.worst_index, check.got) == (1, (row, column), wrong[row, column].item())
    assert not check.ok and check.max_ratio > 1.0
    assert str(check).startswith("1 of 960 elements beyond the tolerance; worst ")
    assert f" at [{row}, {column}]: got {check.got:.8g}, expected " in str(check)


def test_typical_slips_of_a_kernel_are_caught() -> None:
    inputs = operands("130,1056,40,128")
    output = tensor_core(inputs, truncating=True)
    a, b = decoded(inputs)
    d, u = inputs.lora_act_in.double(), inputs.lora_up.double()
    swapped = a.clone()
    swapped[:, 512:528], swapped[:, 528:544] = a[:, 528:544], a[:, 512:528]
    slips = {
        "no bias": output - inputs.bias,
        "last 32 of K lost": output - (a[:, 1024:] @ b[:, 1024:].T).float() * inputs.wcscale,
        "one LoRA slice twice": output + (d[:, 64:] @ u[:, 64:].T).float() * inputs.wcscale,
        "two groups of act swapped": output + ((swapped - a) @ b.T).float() * inputs.wcscale,
        "wcscale of the next column": (output - inputs.bias) / inputs.wcscale * inputs.wcscale.roll(1)
        + inputs.bias,
        "rounded to bf16 on the way": output.bfloat16(),
    }
    assert check_packed(output.half(), inputs).ok
    for name, wrong in slips.items():
        check = check_packed(wrong.half(), inputs)
        assert check.bad > 0.5 * check.elements, f"{name}: {check}"


def test_a_poisoned_output_is_all_bad() -> None:
    inputs = operands("3,64,8,0")
    check = inputs.check()
    assert (check.bad, check.max_ratio, check.worst_index) == (24, math.inf, (0, 0))


def test_the_worst_element_is_found_in_a_later_chunk() -> None:
    inputs = operands("10,64,8,0")
    inputs.y.copy_(inputs.reference())
    inputs.y[7, 3] += 1000
    inputs.y[2, 1] += 10
    check = check_packed(inputs.y, inputs, chunk_rows=4)
    assert (check.bad, check.worst_index, check.elements) == (2, (7, 3), 80)
    assert check.max_error == pytest.approx(1000, rel=1e-2)


@pytest.mark.parametrize(
    "got, expected, right",
    [
        (math.inf, 65520.0, True),  # rounds to infinity in fp16
        (math.inf, 1e6, True),
        (-math.inf, -1e6, True),
        (-math.inf, 1e6, False),
        (math.inf, 65504.0, True),  # 16 away from what rounds to infinity: within one ulp, 32
        (math.inf, 65400.0, False),
        (65504.0, 1e6, False),
        (65504.0, 65530.0, True),
        (math.nan, 1.0, False),
        (1.0, 1.0, True),
    ],
)
def test_infinity_stands_for_what_rounds_to_it(got: float, expected: float, right: bool) -> None:
    reference = torch.tensor([[expected]], dtype=torch.float64)
    tolerance = output_ulp(reference.clamp(-65504, 65504), torch.float16)
    assert check_output(torch.tensor([[got]]).half(), reference, tolerance).ok is right


# --- the public contract


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("r", [0, 64])
def test_a_packed_kernel_meets_the_public_contract(dtype: torch.dtype, r: int) -> None:
    inputs = public_inputs(33, 320, 48, r, dtype)
    lora_dtype = {torch.float16: "fp16", torch.bfloat16: "bf16"}[dtype]
    reference, tolerance = public_reference(inputs), public_tolerance(inputs, "fp16", lora_dtype)
    output = tensor_core(packed_of(inputs), truncating=True).half()
    check = check_output(output, reference, tolerance)
    assert check.ok and check.max_ratio > 0.1, str(check)
    wrong = output + (0.37 * 5 * inputs.wcscale).half()
    assert check_output(wrong, reference, tolerance).bad > 0.5 * wrong.numel()


def test_folding_is_what_the_public_tolerance_adds() -> None:
    """bf16 folding errs by up to 2^-8 of each LoRA product: beyond the packed bound, within the public one."""
    inputs = public_inputs(33, 64, 48, 128, torch.bfloat16)
    packed = packed_of(inputs)
    difference = (packed_reference(packed) - public_reference(inputs)).abs()
    assert (difference > packed_tolerance(packed, "fp16")).float().mean() > 0.5
    public = public_tolerance(inputs, "fp16", "bf16")
    assert (difference <= public).all()
    products = inputs.lora_act_in.double().abs() @ inputs.lora_up.double().abs().T
    added = public - packed_tolerance(packed, "fp16")
    assert (added / (products * 2.0**-8)).median().item() == pytest.approx(1.0, abs=0.3)


# --- bad input


def test_operands_that_do_not_fit_are_named() -> None:
    good = operands("3,64,8,16")
    fields = {field.name: getattr(good, field.name) for field in dataclasses.fields(PackedInputs)}
    PackedInputs(**fields)
    slips = {
        "act": (fields["act"].int(), r"act must be uint8 \[3, 32\], got int32 \[3, 32\]"),
        "ascales": (fields["ascales"][:100], r"ascales must be uint8 \[512\], got uint8 \[100\]"),
        "wgt": (fields["wgt"][:, :16], r"wgt must be uint8 \[8, 32\], got uint8 \[8, 16\]"),
        "lora_up": (fields["lora_up"].float(), r"lora_up must be float16 or bfloat16 \[8, 16\], got float32"),
        "lora_act_in": (
            fields["lora_act_in"].bfloat16(),
            r"lora_act_in must be float16 \[3, 16\], got bfloat16",
        ),
        "wcscale": (fields["wcscale"].half(), r"wcscale must be float32 \[8\], got float16"),
        "bias": (fields["bias"][:4], r"bias must be float32 \[8\], got float32 \[4\]"),
    }
    for name, (tensor, message) in slips.items():
        with pytest.raises(InputError, match=message):
            PackedInputs(**(fields | {name: tensor}))


def test_scales_that_are_nan_or_negative_are_named() -> None:
    inputs = operands("3,64,8,0")
    inputs.ascales[oracle.blocked_offset(2, 3, 4)] = 0x7F
    with pytest.raises(
        InputError, match="ascales must be finite and not negative, got nan at row 2, group 3"
    ):
        packed_reference(inputs)


def test_public_inputs_need_one_level_and_fitting_shapes() -> None:
    good = public_inputs(3, 64, 8, 16, torch.float16)
    with pytest.raises(InputError, match="multiply it into alpha"):
        dataclasses.replace(good, wgt=dataclasses.replace(good.wgt, global_scale=2.0))
    with pytest.raises(InputError, match=r"bias must be .* \[8\]"):
        dataclasses.replace(good, bias=torch.zeros(9))


def test_rows_must_select_something() -> None:
    inputs = operands("3,64,8,0")
    for rows in (slice(3, 5), slice(0, 3, 2)):
        with pytest.raises(InputError, match="non-empty contiguous slice of 3"):
            packed_reference(inputs, rows=rows)


@pytest.mark.slow
def test_the_full_problem_in_bounded_memory() -> None:
    """4352x3840x3072: the float64 result itself is 107 MB; chunked, a check never holds one."""
    inputs = operands("4352,3840,3072,128")
    inputs.y.copy_(inputs.reference())
    check = inputs.check()
    assert check.ok and check.max_ratio <= 0.5 and check.elements == 4352 * 3072

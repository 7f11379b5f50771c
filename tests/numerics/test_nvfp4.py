from __future__ import annotations

import math
import random

import pytest
import torch

from kernel_space.core.errors import InputError
from kernel_space.numerics import nvfp4
from tests.numerics import nvfp4_oracle as oracle


def just_above(x: float) -> float:
    return torch.nextafter(torch.tensor(x), torch.tensor(math.inf)).item()


def just_below(x: float) -> float:
    return torch.nextafter(torch.tensor(x), torch.tensor(-math.inf)).item()


# value -> code; the codes of 0, 0.5, 1, 1.5, 2, 3, 4, 6 are 0..7. Ties go to the even code.
E2M1_TABLE = [
    (0.0, 0), (0.25, 0), (just_above(0.25), 1), (0.5, 1), (just_below(0.75), 1), (0.75, 2), (1.0, 2), (1.25, 2),
    (just_above(1.25), 3), (1.5, 3), (just_below(1.75), 3), (1.75, 4), (2.0, 4), (2.5, 4), (just_above(2.5), 5),
    (3.0, 5), (just_below(3.5), 5), (3.5, 6), (4.0, 6), (5.0, 6), (just_above(5.0), 7), (6.0, 7), (7.0, 7), (9.0, 7),
    (1e30, 7), (math.inf, 7),
]  # fmt: skip


@pytest.mark.parametrize("sign, bit", [(1.0, 0), (-1.0, 8)])
def test_e2m1_rounds_to_nearest_even_and_saturates(sign: float, bit: int) -> None:
    values = torch.tensor([sign * value for value, _ in E2M1_TABLE])
    assert nvfp4.encode_e2m1(values).tolist() == [code | bit for _, code in E2M1_TABLE]
    assert nvfp4.encode_e2m1(values.double()).tolist() == [code | bit for _, code in E2M1_TABLE]


def test_e2m1_encoding_equals_exact_search() -> None:
    values = torch.randn(2000, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 3
    assert nvfp4.encode_e2m1(values).tolist() == [oracle.encode_e2m1(x) for x in values.tolist()]


def test_e2m1_decodes_all_codes() -> None:
    expected = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]
    decoded = nvfp4.decode_e2m1(torch.arange(16, dtype=torch.uint8))
    assert decoded.tolist() == expected
    assert torch.signbit(decoded).tolist() == [False] * 8 + [True] * 8
    assert nvfp4.encode_e2m1(decoded).tolist() == list(range(16))


def test_even_k_lies_in_the_low_nibble() -> None:
    codes = torch.tensor([[0x1, 0x2, 0xF, 0x0], [0x8, 0x7, 0x3, 0xC]], dtype=torch.uint8)
    packed = nvfp4.pack_e2m1(codes)
    assert packed.tolist() == [[0x21, 0x0F], [0x78, 0xC3]]
    assert torch.equal(nvfp4.unpack_e2m1(packed), codes)


def test_every_byte_survives_unpack_and_pack() -> None:
    packed = torch.arange(256, dtype=torch.uint8).view(4, 64)
    assert torch.equal(nvfp4.pack_e2m1(nvfp4.unpack_e2m1(packed)), packed)


@pytest.mark.parametrize(
    "value, byte",
    [
        (0.0, 0x00),
        (2.0**-10, 0x00),  # half the smallest subnormal: tie with 0, which is even
        (2.0**-10 * (1 + 2.0**-40), 0x01),  # through fp32 this would become the tie
        (2.0**-9, 0x01),
        (1.5 * 2.0**-9, 0x02),
        (7.5 * 2.0**-9, 0x08),  # largest subnormal 0x07 or smallest normal 2^-6
        (1.0, 0x38),
        (1.0625, 0x38),
        (1.0625 + 2.0**-40, 0x39),
        (1.125, 0x39),
        (1.1875, 0x3A),
        (1.9375, 0x40),  # 1.875 is odd, 2.0 even
        (432.0, 0x7E),  # tie of 416 (0x7D) and 448
        (448.0, 0x7E),
        (464.0, 0x7E),
        (480.0, 0x7E),
        (1e9, 0x7E),
    ],
)
def test_e4m3_rounding_by_hand(value: float, byte: int) -> None:
    rounded = nvfp4.round_e4m3(torch.tensor([value], dtype=torch.float64))
    assert rounded.view(torch.uint8).tolist() == [byte]


def test_e4m3_keeps_every_finite_value() -> None:
    values = torch.tensor([float(value) for value in oracle.E4M3_VALUES], dtype=torch.float64)
    assert nvfp4.round_e4m3(values).view(torch.uint8).tolist() == list(range(0x7F))


def test_e4m3_equals_torch_below_saturation() -> None:
    random_bits = (
        torch.randn(20000, generator=torch.Generator().manual_seed(2)).mul_(4).exp_().clamp_(max=440.0)
    )
    assert torch.equal(
        nvfp4.round_e4m3(random_bits.double()).view(torch.uint8),
        random_bits.to(torch.float8_e4m3fn).view(torch.uint8),
    )


def interesting_blocks(seed: int) -> list[list[float]]:
    """fp32-representable blocks of 16: ordinary, exact ties, zero, underflow, saturation, mixed magnitudes."""
    rng = random.Random(seed)
    as_fp32 = lambda x: torch.tensor(x, dtype=torch.float32).item()  # noqa: E731
    blocks = [[as_fp32(rng.gauss(0, 10.0**e)) for _ in range(16)] for e in range(-4, 6)]
    blocks += [
        [rng.randrange(-24, 25) / 4 for _ in range(15)] + [6.0] for _ in range(10)
    ]  # scale 1: ties at x.25, x.5
    blocks += [[0.0, -0.0] * 8]
    blocks += [[6 * 2.0**-10] + [-1e-4] * 15, [just_above(6 * 2.0**-10)] + [-1e-4] * 15]  # scale 0, then 2^-9
    blocks += [[1e-30] * 16, [3e38, -3e38] + [1.0] * 14, [2688.0, -2689.0] + [112.0] * 14]
    return blocks


@pytest.mark.parametrize("global_scale", [None, 1.0, 1 / 3, 7.25e-4, 123.456])
def test_quantizer_equals_exact_brute_force(global_scale: float | None) -> None:
    blocks = interesting_blocks(3)
    x = torch.tensor(blocks).view(-1, 32) if len(blocks) % 2 == 0 else torch.tensor(blocks)
    quantized = nvfp4.quantize_nvfp4(x, global_scale=global_scale)
    fp32_scale = 1.0 if global_scale is None else torch.tensor(global_scale).item()
    expected = [oracle.quantize_block(block, fp32_scale) for block in x.view(-1, 16).tolist()]
    assert nvfp4.unpack_e2m1(quantized.codes).view(-1, 16).tolist() == [codes for codes, _ in expected]
    assert quantized.scales.view(torch.uint8).flatten().tolist() == [byte for _, byte in expected]
    assert quantized.global_scale == (None if global_scale is None else fp32_scale)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_quantizer_takes_half_precision(dtype: torch.dtype) -> None:
    x = torch.randn(5, 48, generator=torch.Generator().manual_seed(4)).to(dtype)
    half, full = nvfp4.quantize_nvfp4(x), nvfp4.quantize_nvfp4(x.float())
    assert torch.equal(half.codes, full.codes)
    assert torch.equal(half.scales.view(torch.uint8), full.scales.view(torch.uint8))


def test_quantizer_beyond_one_chunk_and_on_a_transposed_view() -> None:
    x = torch.randn(1024, 160, generator=torch.Generator().manual_seed(5)).T  # 10240 blocks
    quantized = nvfp4.quantize_nvfp4(x)
    for row, group in [(0, 0), (3, 17), (77, 40), (159, 63)]:
        codes, byte = oracle.quantize_block(x[row, 16 * group : 16 * group + 16].tolist())
        assert nvfp4.unpack_e2m1(quantized.codes)[row, 16 * group : 16 * group + 16].tolist() == codes
        assert quantized.scales[row, group].view(torch.uint8).item() == byte


def test_zero_and_underflowing_blocks_are_all_zero_bytes() -> None:
    x = torch.zeros(2, 16)
    x[0, 3] = -0.0
    x[1] = -6 * 2.0**-10
    quantized = nvfp4.quantize_nvfp4(x)
    assert quantized.codes.tolist() == [[0] * 8] * 2
    assert quantized.scales.view(torch.uint8).tolist() == [[0]] * 2
    assert nvfp4.dequantize_nvfp4(quantized).tolist() == [[0.0] * 16] * 2


def test_saturation_at_2688_without_a_global_scale() -> None:
    x = torch.full((1, 16), 5000.0)
    assert nvfp4.dequantize_nvfp4(nvfp4.quantize_nvfp4(x)).unique().tolist() == [2688.0]
    two_levels = nvfp4.quantize_nvfp4(x, global_scale=nvfp4.nvfp4_global_scale(x))
    assert nvfp4.dequantize_nvfp4(two_levels)[0, 0].item() == pytest.approx(5000.0, rel=1e-6)


def test_global_scale_by_hand() -> None:
    assert nvfp4.nvfp4_global_scale(torch.tensor([[1.0, -5376.0]])) == 2.0
    assert nvfp4.nvfp4_global_scale(torch.zeros(1, 16)) == 1.0


def test_dequantize_by_hand() -> None:
    codes = nvfp4.pack_e2m1(torch.arange(16, dtype=torch.uint8).view(1, 16))
    scales = torch.tensor([[0x3C]], dtype=torch.uint8).view(torch.float8_e4m3fn)  # 1.5
    quantized = nvfp4.NVFP4Tensor(codes=codes, scales=scales, global_scale=2.0)
    positive = [0.0, 1.5, 3.0, 4.5, 6.0, 9.0, 12.0, 18.0]
    assert nvfp4.dequantize_nvfp4(quantized).tolist() == [positive + [-x for x in positive]]


def test_dequantized_numbers_are_fixed_points() -> None:
    """E4M3 rounds a normal scale by at most 1/16, so amax becomes 6 and amax / 6 of the result is the scale itself."""
    once = nvfp4.quantize_nvfp4(torch.randn(64, 256, generator=torch.Generator().manual_seed(6)))
    twice = nvfp4.quantize_nvfp4(nvfp4.dequantize_nvfp4(once))
    assert torch.equal(once.codes, twice.codes)
    assert torch.equal(once.scales.view(torch.uint8), twice.scales.view(torch.uint8))


def test_quantization_error_is_at_most_a_sixth_of_the_largest_element() -> None:
    """Half the largest step of E2M1 is 1 of 6; the scale's own rounding adds 1/16 of that and of the saturated top."""
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(7))
    error = (nvfp4.dequantize_nvfp4(nvfp4.quantize_nvfp4(x)) - x).abs().view(64, 16, 16)
    ratio = error.amax(dim=2) / x.view(64, 16, 16).abs().amax(dim=2)
    assert 0.05 < ratio.max() <= (1 + 1 / 16) / 6


@pytest.mark.parametrize("rows, k", [(1, 16), (128, 64), (129, 96), (257, 336), (300, 32)])
def test_blocked_layout_element_by_element(rows: int, k: int) -> None:
    groups = k // 16
    bytes_ = torch.randint(
        1, 0x7F, (rows, groups), dtype=torch.uint8, generator=torch.Generator().manual_seed(rows)
    )
    blocked = nvfp4.block_scales(bytes_.view(torch.float8_e4m3fn))
    assert blocked.numel() == nvfp4.blocked_scale_bytes(rows, k) == -(-rows // 128) * -(-k // 64) * 512
    expected = [0] * blocked.numel()
    for row in range(rows):
        for group in range(groups):
            expected[oracle.blocked_offset(row, group, groups)] = bytes_[row, group].item()
    assert blocked.tolist() == expected  # everything not named is padding and zero
    assert torch.equal(nvfp4.unblock_scales(blocked, rows, k).view(torch.uint8), bytes_)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_not_finite_input_is_named(value: float) -> None:
    x = torch.zeros(3, 32)
    x[2, 17] = value
    with pytest.raises(InputError, match=rf"got {value} at row 2, column 17"):
        nvfp4.quantize_nvfp4(x)


@pytest.mark.parametrize(
    "x, message",
    [
        (torch.zeros(2, 24), r"multiple of 16, got float32 \[2, 24\]"),
        (torch.zeros(32), r"got float32 \[32\]"),
        (torch.zeros(0, 16), r"got float32 \[0, 16\]"),
        (torch.zeros(2, 32, dtype=torch.int32), r"got int32 \[2, 32\]"),
        (torch.zeros(2, 32, dtype=torch.float64), r"got float64 \[2, 32\]"),
    ],
)
def test_quantizer_rejects_other_shapes_and_dtypes(x: torch.Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        nvfp4.quantize_nvfp4(x)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, 1e39, 1e-60])
def test_quantizer_rejects_a_global_scale_that_is_no_scale(scale: float) -> None:
    with pytest.raises(InputError, match="global_scale must be a positive finite fp32 number"):
        nvfp4.quantize_nvfp4(torch.ones(1, 16), global_scale=scale)


def test_layout_functions_reject_the_wrong_form() -> None:
    with pytest.raises(InputError, match="float8_e4m3fn"):
        nvfp4.block_scales(torch.zeros(4, 4, dtype=torch.uint8))
    with pytest.raises(InputError, match=r"uint8 \[512\], got uint8 \[1024\]"):
        nvfp4.unblock_scales(torch.zeros(1024, dtype=torch.uint8), 128, 64)
    with pytest.raises(InputError, match="even length"):
        nvfp4.pack_e2m1(torch.zeros(3, dtype=torch.uint8))
    with pytest.raises(InputError, match="uint8"):
        nvfp4.unpack_e2m1(torch.zeros(4))


def test_scale_bytes_that_the_tensor_core_reads_otherwise_are_named() -> None:
    scales = torch.full((2, 3), 0x38, dtype=torch.uint8)
    nvfp4.require_scale_bytes(scales.view(torch.float8_e4m3fn), "wscales")
    for byte, shown in ((0x7F, "nan"), (0xB8, "-1.0")):
        scales[1, 2] = byte
        with pytest.raises(
            InputError, match=f"wscales must be finite and not negative, got {shown} at row 1, group 2"
        ):
            nvfp4.require_scale_bytes(scales.view(torch.float8_e4m3fn), "wscales")

"""quantize_act against exact rationals in plain Python."""

from __future__ import annotations

import pytest
import torch

from tests.numerics.nvfp4_oracle import blocked_offset, quantize_activations
from tuner.runtime import InputError, quantize_act

OPS = torch.ops.svdquant


def expected(x: torch.Tensor) -> tuple[bytes, bytes]:
    """(act, ascales) of fp32 ``[M, K]``, an element at a time."""
    m, k = x.shape
    act, scales = bytearray(m * k // 2), bytearray(-(-m // 128) * -(-k // 64) * 512)
    for row, values in enumerate(x.tolist()):
        for group in range(k // 16):
            codes, scale = quantize_activations(values[16 * group : 16 * group + 16])
            scales[blocked_offset(row, group, k // 16)] = scale
            for index, code in enumerate(codes):
                act[(row * k + 16 * group + index) // 2] |= code << 4 * (index % 2)
    return bytes(act), bytes(scales)


def same(got: tuple[torch.Tensor, ...], wanted: tuple[bytes, bytes]) -> bool:
    return tuple(bytes(tensor.view(-1).tolist()) for tensor in got[:2]) == wanted


def random(m: int, k: int, dtype: torch.dtype) -> torch.Tensor:
    """Magnitudes from 2^-12 to 2^12, so that scales underflow and saturate too."""
    draw = torch.Generator().manual_seed(m * k)
    rows = torch.exp2(torch.rand(m, 1, generator=draw) * 24 - 12)
    return (torch.randn(m, k, generator=draw) * rows).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("m", "k"), [(1, 32), (17, 96), (129, 64)])
def test_codes_and_scales(m: int, k: int, dtype: torch.dtype) -> None:
    x = random(m, k, dtype)
    assert same(quantize_act(x, None, None), expected(x.float()))


def test_smoothing_multiplies_by_the_rounded_reciprocal() -> None:
    x = random(9, 64, torch.bfloat16)
    smooth = torch.rand(64, generator=torch.Generator().manual_seed(0)) + 0.01
    # In float64 a quotient of 24 bits rounds to fp32 as the exact one does, and a product of two such is exact.
    inverse = (1 / smooth.double()).float()
    z = (x.double() * inverse.double()).float()
    assert same(quantize_act(x, smooth, None), expected(z))


def test_ties_between_codes_go_to_the_even_one() -> None:
    """smooth of powers of two, whose reciprocals are exact: every block lands on the ties."""
    ties = [6.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
    block = torch.tensor([*ties, *(-tie for tie in ties)])
    smooth = torch.exp2(torch.arange(-64.0, 64.0)).repeat_interleave(16)
    z = block.repeat(128)
    act, ascales, _ = quantize_act((z * smooth).unsqueeze(0), smooth, None)
    assert same((act, ascales), expected(z.unsqueeze(0)))
    assert act[0, :8].tolist() == [0x07, 0x22, 0x44, 0x66, 0x8F, 0xAA, 0xCC, 0xEE]


def test_lora_act_in_is_of_the_raw_activations() -> None:
    x, down = random(5, 64, torch.float16).clamp(-4, 4), torch.randn(64, 16).half()
    smooth = torch.full((64,), 8.0)
    _, _, lora = quantize_act(x, smooth, down)
    exact = x.double() @ down.double()
    assert lora.dtype == torch.float16
    assert torch.allclose(lora.double(), exact, rtol=2**-10, atol=1e-3)


def test_no_rows_and_no_branch() -> None:
    act, ascales, lora = quantize_act(torch.zeros(0, 64), None, None)
    assert (act.shape, ascales.shape, lora.shape) == ((0, 32), (0,), (0, 0))


@pytest.mark.parametrize(
    ("x", "smooth", "down", "message"),
    [
        (torch.zeros(3, 48), None, None, "multiple of 32"),
        (torch.zeros(3, 64, dtype=torch.float64), None, None, "float16, bfloat16 or float32"),
        (torch.zeros(64), None, None, "float16, bfloat16 or float32"),
        (torch.zeros(3, 64), torch.ones(32), None, "smooth must be"),
        (torch.zeros(3, 64), None, torch.zeros(32, 16).half(), "lora_down must be"),
        (
            torch.zeros(3, 64),
            None,
            torch.zeros(64, 16, device="meta"),
            "lora_down must be on cpu like x, got meta",
        ),
        (torch.zeros(3, 64), torch.ones(64, device="meta"), None, "smooth must be on cpu like x, got meta"),
        (torch.full((3, 64), torch.inf), None, None, "finite"),
        (torch.zeros(3, 64, requires_grad=True), None, None, "no backward"),
    ],
)
def test_bad_input(
    x: torch.Tensor, smooth: torch.Tensor | None, down: torch.Tensor | None, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        quantize_act(x, smooth, down)


def test_torch_checks_the_operator() -> None:
    x, smooth = random(17, 96, torch.float16), torch.rand(96) + 0.5
    for args in ((x, smooth), (x, None)):
        assert set(torch.library.opcheck(OPS.quantize.default, args).values()) == {"SUCCESS"}


def test_compiled_whole_with_any_number_of_rows() -> None:
    down = torch.randn(64, 16).half()

    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return quantize_act(x, None, down)

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True, dynamic=True)
    for m in (2, 17, 130):
        x = random(m, 64, torch.float16)
        assert all(torch.equal(a, b) for a, b in zip(compiled(x), run(x), strict=True))

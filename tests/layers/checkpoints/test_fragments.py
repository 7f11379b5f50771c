"""Orders of elements: digests that others published, and the formulas, element by element."""

from __future__ import annotations

import hashlib

import pytest
import torch

from tests.layers.checkpoints import packer
from tuner.layers.checkpoints import fragments

# SHA-256 of arange(n) in bf16, read as if it were in fragments: from the tests of vllm-omni's converter.
PUBLISHED_UP = "44344e9613d3ca5bd360fc9f1a0cd2baf5840dd3fea0cce38e5714c1343b1fde"
PUBLISHED_DOWN = "901720de4393aa3bad2651492208a651bb2415f1d7895b3b4b844a1a448cd1fb"
PUBLISHED_VECTORS = {
    128: "d191c323fa36ac7f763cdb7f448bef790b8a08dca8533a11afec6513253b2144",
    256: "f332b85ad192ea70ced60706633cc7808ffd277503dec6a5b77bbf3627718179",
    5376: "ea39a087f605481a64b7230029ba64be00948d745efbf4656c309d67c7508e36",
    14336: "0e867e585483c578aa10f8f0fb978835678e9a09532a76728e3afe9b112c1637",
}


def sha256(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def counting(*sizes: int) -> torch.Tensor:
    return torch.arange(torch.Size(sizes).numel(), dtype=torch.bfloat16).view(sizes)


def test_published_digests_of_the_branch() -> None:
    stored = counting(32, 16)
    assert sha256(fragments.lora_up(stored)) == PUBLISHED_UP
    assert sha256(fragments.lora_down(stored).T) == PUBLISHED_DOWN


@pytest.mark.parametrize(("length", "digest"), PUBLISHED_VECTORS.items())
def test_published_digests_of_vectors(length: int, digest: str) -> None:
    assert sha256(fragments.vector(counting(length))) == digest


def test_formulas_are_the_inverse_of_what_the_digests_hold() -> None:
    """So the packer of these tests, element by element from the formulas, writes what was published."""
    stored = counting(32, 16)
    assert torch.equal(packer.pack_up(fragments.lora_up(stored)), stored)
    assert torch.equal(packer.pack_down(fragments.lora_down(stored).T.contiguous()), stored)
    for length in PUBLISHED_VECTORS:
        assert torch.equal(packer.pack_vector(fragments.vector(counting(length))), counting(length))


@pytest.mark.parametrize(("n", "k"), [(128, 64), (128, 128), (256, 192), (384, 640)])
def test_codes_and_scales_come_back(n: int, k: int) -> None:
    drawn = packer.draw(n, k, 16)
    assert torch.equal(fragments.codes(packer.pack_codes(drawn.codes)), drawn.rows_bytes())
    scales = fragments.scales(packer.pack_scales(drawn.scales))
    assert torch.equal(scales.view(torch.uint8), drawn.scales.view(torch.uint8))


@pytest.mark.parametrize(("rows", "rank"), [(16, 16), (48, 32), (128, 48)])
def test_branches_of_any_size_come_back(rows: int, rank: int) -> None:
    drawn = packer.draw(rows, rows, rank)
    assert torch.equal(fragments.lora_up(packer.pack_up(drawn.up)), drawn.up)
    assert torch.equal(fragments.lora_down(packer.pack_down(drawn.down)), drawn.down.T)


def test_codes_of_awq_come_back() -> None:
    codes = packer.draw(8, 192, 16).codes
    assert torch.equal(fragments.awq_codes(packer.pack_awq(codes)), codes)

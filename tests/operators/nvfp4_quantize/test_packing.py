"""Packed lora_down against an index computed element by element."""

from __future__ import annotations

import pytest
import torch

from kernel_space.core.errors import InputError
from kernel_space.operators.nvfp4_quantize.packing import pack_lora_down, packed_shape, unpack_lora_down


@pytest.mark.parametrize(("k", "r"), [(32, 16), (64, 8), (96, 48), (224, 16)])
def test_every_element_lies_where_it_must(k: int, r: int) -> None:
    plain = torch.arange(1, k * r + 1, dtype=torch.int32).to(torch.int16).view(k, r)
    packed = pack_lora_down(plain)
    assert tuple(packed.shape) == packed_shape(k, r) == (-(-k // 64), r, 64) and packed.is_contiguous()
    wanted = torch.zeros_like(packed)
    for at in range(k):
        chunk, piece, rest = at // 64, at % 64 // 8, at % 8
        for n in range(r):
            wanted[chunk, n, (piece ^ n % 8) * 8 + rest] = plain[at, n]
    assert torch.equal(packed, wanted)
    assert torch.equal(unpack_lora_down(packed, k), plain)


def test_what_cannot_be_packed() -> None:
    with pytest.raises(InputError, match=r"16-bit \[K, R\], R a multiple of 8, got float32 \[32, 16\]"):
        pack_lora_down(torch.zeros(32, 16))
    with pytest.raises(InputError, match="got float16"):
        pack_lora_down(torch.zeros(32, 12).half())
    with pytest.raises(InputError, match=r"must be \[2, 16, 64\], got \[1, 16, 64\]"):
        unpack_lora_down(torch.zeros(1, 16, 64).half(), 96)

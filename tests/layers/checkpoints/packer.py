"""An independent writer of checkpoints: element by element, by the published formulas of positions.

Nothing of ``tuner.layers.checkpoints`` is used. A layer is drawn as what its producer has, in plain order, and
``weight64`` is what its formula makes of it in float64.
"""

from __future__ import annotations

import dataclasses

import torch

_VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.float64)
E2M1 = torch.cat([_VALUES, -_VALUES])


def grid(rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(rows).unsqueeze(1), torch.arange(columns).unsqueeze(0)


def padded(tensor: torch.Tensor, *sizes: int, value: float = 0) -> torch.Tensor:
    out = torch.full(sizes, value, dtype=torch.float32).to(tensor.dtype)
    out[tuple(slice(0, size) for size in tensor.shape)] = tensor
    return out


def up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def place(values: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """One-dimensional: element i of ``values`` at ``position`` i."""
    flat = torch.zeros(values.numel(), dtype=values.dtype)
    position = position.expand(values.shape).reshape(-1)
    assert position.unique().numel() == values.numel() and position.max() == values.numel() - 1
    flat[position] = values.reshape(-1)
    return flat


def pack_codes(codes: torch.Tensor) -> torch.Tensor:
    """uint8 codes ``[N, K]`` -> int8 ``[N, K/2]``."""
    n, k = codes.shape
    i, j = grid(n, k)
    r, c = i % 128, j % 64
    p, s, q = r // 16, r % 16, c % 32
    position = (
        ((((i // 128) * (k // 64) + j // 64) * 8 + p) * 32 + (s % 8) * 4 + q // 8) * 32
        + (s // 8) * 16
        + (c // 32) * 8
        + q % 8
    )
    nibbles = place(codes, position)
    return (nibbles[0::2] | (nibbles[1::2] << 4)).view(torch.int8).view(n, k // 2)


def pack_scales(scales: torch.Tensor) -> torch.Tensor:
    """float8 ``[N, K/16]`` -> float8 ``[K/16, N]``."""
    n, groups = scales.shape
    i, g = grid(n, groups)
    r = i % 128
    lane = (r % 8) * 4 + (r // 8) % 4
    position = ((i // 128) * (groups // 4) + g // 4) * 512 + lane * 16 + (r // 32) * 4 + g % 4
    return place(scales.view(torch.uint8), position).view(torch.float8_e4m3fn).view(groups, n)


def pack_vector(values: torch.Tensor) -> torch.Tensor:
    i = torch.arange(values.numel())
    r = i % 16
    return place(values, (i // 16) * 16 + ((r % 8) // 2) * 4 + (r // 8) * 2 + r % 2)


def tail(r: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return ((r % 8) * 4 + (c % 8) // 2) * 8 + (r // 8) * 4 + (c // 8) * 2 + c % 2


def pack_up(values: torch.Tensor) -> torch.Tensor:
    """``[N, R]``."""
    n, j = grid(*values.shape)
    position = ((n // 16) * (values.shape[1] // 16) + j // 16) * 256 + tail(n % 16, j % 16)
    return place(values, position).view(values.shape)


def pack_down(values: torch.Tensor) -> torch.Tensor:
    """``[R, K]``, a row a rank -> ``[K, R]``."""
    rank, channels = values.shape
    j, k = grid(rank, channels)
    position = ((k // 16) * (rank // 16) + j // 16) * 256 + tail(j % 16, k % 16)
    return place(values, position).view(channels, rank)


def pack_awq(codes: torch.Tensor) -> torch.Tensor:
    """uint8 codes ``[N, K]`` -> int32 ``[N/4, K/2]``: see llm-awq's interleaving of four rows and of 32 columns."""
    n, k = codes.shape
    words = torch.zeros(n // 4, k, dtype=torch.int32)
    for row in range(n):
        for column in range(k):
            inner = column % 32
            word = (column // 64) * 64 + (row % 4) * 16 + (column % 64) // 32 * 8 + inner % 8
            words[row // 4, word] |= int(codes[row, column]) << (4 * (inner // 8))
    words = torch.where(words >= 1 << 15, words - (1 << 16), words)
    return words.to(torch.int16).view(torch.int32)


@dataclasses.dataclass
class Drawn:
    """A layer as its producer knows it, in plain order. ``codes`` uint8 ``[N, K]``; ``down`` ``[R, K]``."""

    codes: torch.Tensor
    scales: torch.Tensor
    smooth: torch.Tensor
    down: torch.Tensor
    up: torch.Tensor
    wtscale: torch.Tensor
    wcscales: torch.Tensor
    bias: torch.Tensor

    def residual64(self) -> torch.Tensor:
        """What the 4-bit product multiplies x / smooth with."""
        values = E2M1[self.codes.long()] * self.scales.double().repeat_interleave(16, dim=1)
        return values * self.wtscale.double() * self.wcscales.double().unsqueeze(1)

    def weight64(self) -> torch.Tensor:
        return self.residual64() / self.smooth.double() + self.up.double() @ self.down.double()

    def rows_bytes(self) -> torch.Tensor:
        """The codes row-major, the even k in the low nibble."""
        return self.codes[:, 0::2] | (self.codes[:, 1::2] << 4)

    def fragments(self, multiple: int = 128) -> dict[str, torch.Tensor]:
        """As nunchaku v2 has it; ``multiple``: to what vectors and the branch are padded."""
        n, k = self.codes.shape
        big_n, big_k, rank = up(n, 128), up(k, 128), up(self.up.shape[1], 16)
        small_n, small_k = up(n, multiple), up(k, multiple)
        return {
            "qweight": pack_codes(padded(self.codes, big_n, big_k)),
            "wscales": pack_scales(padded(self.scales, big_n, big_k // 16, value=1)),
            "wtscale": self.wtscale.view(1),
            "wcscales": pack_vector(padded(self.wcscales, small_n, value=1)),
            "smooth_factor": pack_vector(padded(self.smooth, small_k, value=1)),
            "bias": pack_vector(padded(self.bias, small_n, value=1)),
            "proj_down": pack_down(padded(self.down, rank, small_k)),
            "proj_up": pack_up(padded(self.up, small_n, rank)),
        }

    def rows(self) -> dict[str, torch.Tensor]:
        """As vllm-omni has it."""
        transposed = self.scales.view(torch.uint8).T.contiguous().view(torch.float8_e4m3fn)
        return {
            "qweight": self.rows_bytes().view(torch.int8),
            "wscales": transposed,
            "wtscale": self.wtscale.view(1),
            "wcscales": self.wcscales,
            "smooth_factor": self.smooth,
            "bias": self.bias,
            "proj_down": self.down.T.contiguous(),
            "proj_up": self.up,
        }


def draw(n: int, k: int, rank: int, *, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> Drawn:
    rng = torch.Generator().manual_seed(seed)

    def uniform(*sizes: int, low: float, high: float) -> torch.Tensor:
        return torch.rand(sizes, generator=rng) * (high - low) + low

    return Drawn(
        codes=torch.randint(0, 16, (n, k), generator=rng, dtype=torch.uint8),
        scales=uniform(n, k // 16, low=1.0, high=400.0).to(torch.float8_e4m3fn),
        smooth=uniform(k, low=0.25, high=4.0).to(dtype),
        down=(torch.randn(rank, k, generator=rng) / k**0.5).to(dtype),
        up=(torch.randn(n, rank, generator=rng) / 8).to(dtype),
        wtscale=torch.tensor(2.0**-9 * 1.375).to(dtype),
        wcscales=uniform(n, low=0.5, high=2.0).to(dtype),
        bias=torch.randn(n, generator=rng).to(dtype),
    )


def named(prefix: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}

"""Undo nunchaku's order of elements: fragments of tensor-core instructions, one after the other.

What a warp's lanes load together lies together, so a position is a mixed-radix number whose digits are digits of n, k
and R in another order. Each function reads the stored tensor as these digits, puts them in the order of rows and
columns, and joins them; nothing is computed. N is padded to multiples of 128 (that of vectors and of the branch may be
to 16), K to multiples of 64, R to 16. Source: ``NunchakuWeightPacker`` of nunchaku, as formulas:

    qweight       ((((n//128)*(K/64) + k//64)*8 + p)*32 + (s%8)*4 + q//8)*32 + (s//8)*16 + (c//32)*8 + q%8,
                  with r = n%128, c = k%64, p = r//16, s = r%16, q = c%32; nibbles, the first in the low half of a byte
    wscales       ((n//128)*(K/64) + g//4)*512 + ((r%8)*4 + (r//8)%4)*16 + (r//32)*4 + g%4, with g = k//16
    vectors       (i//16)*16 + ((r%8)//2)*4 + (r//8)*2 + r%2, with r = i%16
    proj_up       ((n//16)*(R/16) + j//16)*256 + ((r%8)*4 + (c%8)//2)*8 + (r//8)*4 + (c//8)*2 + c%2, r = n%16, c = j%16
    proj_down     ((k//16)*(R/16) + j//16)*256 + the same with r = j%16, c = k%16
"""

from __future__ import annotations

import torch

TILE_N = 128
TILE_K = 64
TILE = 16  # of vectors and of the low-rank branch


def codes(qweight: torch.Tensor) -> torch.Tensor:
    """int8 or uint8 ``[N, K/2]`` -> uint8 ``[N, K/2]`` row-major, the even k in the low nibble."""
    n, k = qweight.shape[0], 2 * qweight.shape[1]
    # n//128, k//64, p, s%8, q//8, s//8, c//32, bytes of q%8
    digits = qweight.contiguous().view(torch.uint8).view(n // TILE_N, k // TILE_K, 8, 8, 4, 2, 2, 4)
    return digits.permute(0, 2, 5, 3, 1, 6, 4, 7).reshape(n, k // 2)


def scales(wscales: torch.Tensor) -> torch.Tensor:
    """float8_e4m3fn ``[K/16, N]`` -> ``[N, K/16]`` row-major."""
    groups, n = wscales.shape
    # n//128, g//4, r%8, (r//8)%4, r//32, g%4
    digits = wscales.contiguous().view(torch.uint8).view(n // TILE_N, groups // 4, 8, 4, 4, 4)
    return digits.permute(0, 4, 3, 2, 1, 5).reshape(n, groups).view(torch.float8_e4m3fn)


def vector(stored: torch.Tensor) -> torch.Tensor:
    """``[length]`` -> ``[length]`` in order: bias, wcscales, smooth_factor."""
    digits = stored.reshape(-1, 4, 2, 2)  # i//16, (r%8)//2, r//8, r%2
    return digits.permute(0, 2, 1, 3).reshape(-1)


def lora_up(stored: torch.Tensor) -> torch.Tensor:
    """``[N, R]`` -> ``[N, R]`` row-major."""
    n, r = stored.shape
    digits = _branch(stored)  # n//16, j//16, r%8, (c%8)//2, r//8, c//8, c%2
    return digits.permute(0, 4, 2, 1, 5, 3, 6).reshape(n, r)


def lora_down(stored: torch.Tensor) -> torch.Tensor:
    """``[K, R]`` -> ``[K, R]`` row-major, one column a rank."""
    k, r = stored.shape
    digits = _branch(stored)  # k//16, j//16, r%8, (c%8)//2, r//8, c//8, c%2
    return digits.permute(0, 5, 3, 6, 1, 4, 2).reshape(k, r)


def _branch(stored: torch.Tensor) -> torch.Tensor:
    rows, r = stored.shape
    return stored.contiguous().view(rows // TILE, r // TILE, 8, 4, 2, 2, 2)


def awq_codes(qweight: torch.Tensor) -> torch.Tensor:
    """AWQ's int32 ``[N/4, K/2]`` -> uint8 codes 0 to 15 ``[N, K]``.

    Four rows take turns every 64 columns. Of 32 columns, word w of 16 bits holds w, 8 + w, 16 + w, 24 + w from the low
    nibble up (tinychat).
    """
    rows, k = 4 * qweight.shape[0], 2 * qweight.shape[1]
    words = qweight.contiguous().view(torch.int16).view(rows // 4, k // TILE_K, 4, TILE_K // 4)
    words = words.permute(0, 2, 1, 3).reshape(rows, k // 32, 1, 8).int()
    shifts = torch.arange(0, 16, 4, dtype=torch.int32, device=words.device).view(4, 1)
    return ((words >> shifts) & 0xF).to(torch.uint8).reshape(rows, k)

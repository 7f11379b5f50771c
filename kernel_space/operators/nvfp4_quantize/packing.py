"""``lora_down`` as the kernels take it: packed once, when a layer is loaded.

``[K, R]`` becomes ``[ceil(K / 64), R, 64]``, zeros beyond K. Chunk c holds k = 64 c .. 64 c + 63 of every column n as
the bytes that lie in shared memory, so a chunk, or some columns of it, is one copy without a descriptor: a row of 64
elements is 128 bytes with the 128-byte swizzle of TMA and wgmma, the 16-byte piece q lies at q ^ (n % 8).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernel_space.core.errors import InputError

if TYPE_CHECKING:
    import torch

CHUNK_K = 64
_ROW_PIECES = 8  # of 16 bytes


def packed_shape(k: int, r: int) -> tuple[int, int, int]:
    """Of packed lora_down; without elements where R = 0."""
    return (-(-k // CHUNK_K), r, CHUNK_K)


def pack_lora_down(lora_down: torch.Tensor) -> torch.Tensor:
    """``[K, R]`` of a 16-bit dtype -> contiguous ``[ceil(K / 64), R, 64]``, on the device where it is."""
    import torch

    if lora_down.ndim != 2 or lora_down.element_size() != 2 or lora_down.shape[1] % _ROW_PIECES:
        dtype = str(lora_down.dtype).removeprefix("torch.")
        raise InputError(
            f"lora_down must be 16-bit [K, R], R a multiple of {_ROW_PIECES}, got {dtype} {list(lora_down.shape)}"
        )
    k, r = lora_down.shape
    chunks = packed_shape(k, r)[0]
    padded = lora_down.new_zeros((chunks * CHUNK_K, r))
    padded[:k] = lora_down
    by_column = padded.view(chunks, CHUNK_K, r).transpose(1, 2)
    rows = by_column.reshape(chunks, r // _ROW_PIECES, _ROW_PIECES, _ROW_PIECES, CHUNK_K // _ROW_PIECES)
    return torch.gather(rows, 3, _pieces(rows)).reshape(chunks, r, CHUNK_K)


def unpack_lora_down(packed: torch.Tensor, k: int) -> torch.Tensor:
    """The inverse: ``[ceil(K / 64), R, 64]`` -> ``[K, R]``."""
    import torch

    chunks, r, _ = packed.shape
    if packed.ndim != 3 or tuple(packed.shape) != packed_shape(k, r):
        raise InputError(f"packed lora_down must be {list(packed_shape(k, r))}, got {list(packed.shape)}")
    rows = packed.reshape(chunks, r // _ROW_PIECES, _ROW_PIECES, _ROW_PIECES, CHUNK_K // _ROW_PIECES)
    plain = torch.gather(rows, 3, _pieces(rows)).view(chunks, r, CHUNK_K)
    return plain.transpose(1, 2).reshape(chunks * CHUNK_K, r)[:k].contiguous()


def _pieces(rows: torch.Tensor) -> torch.Tensor:
    """Where piece q of row n comes from: q ^ (n % 8), which is its own inverse."""
    import torch

    n = torch.arange(_ROW_PIECES, device=rows.device)
    return (n[:, None] ^ n[None, :])[None, None, :, :, None].expand(rows.shape)

"""Operands of the packed and of the public contract (see ``reference.py``), checked where they are put together."""

from __future__ import annotations

import dataclasses

import torch

from kernel_space.core.errors import InputError
from kernel_space.numerics.blocked import blocked_scale_bytes
from kernel_space.numerics.nvfp4 import NVFP4Tensor
from kernel_space.numerics.tensors import FLOAT_DTYPES, require_matrix, require_tensor

TORCH_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PackedInputs:
    """Operands of the packed contract, as the kernel takes them. Raises ``InputError`` when they do not fit.

    ``act``, ``wgt``          uint8 ``[M, K/2]``, ``[N, K/2]``: two E2M1 codes a byte, low nibble first
    ``ascales``, ``wscales``  uint8, the blocked layout of ``nvfp4.block_scales``
    ``lora_act_in``           fp16 or bf16 ``[M, R]``, ``lora_up`` ``[N, R]``; R = 0 without LoRA
    ``wcscale``, ``bias``     fp32 ``[N]``
    """

    act: torch.Tensor
    ascales: torch.Tensor
    wgt: torch.Tensor
    wscales: torch.Tensor
    lora_act_in: torch.Tensor
    lora_up: torch.Tensor
    wcscale: torch.Tensor
    bias: torch.Tensor

    def __post_init__(self) -> None:
        m, n = self.m, self.n
        byte, half, lora = (torch.uint8,), tuple(TORCH_DTYPES.values()), (self.lora_up.dtype,)
        k = 2 * require_matrix(self.act, "act", byte, m)
        require_tensor(self.ascales, "ascales", byte, (blocked_scale_bytes(m, k),))
        require_tensor(self.wgt, "wgt", byte, (n, k // 2))
        require_tensor(self.wscales, "wscales", byte, (blocked_scale_bytes(n, k),))
        r = require_matrix(self.lora_up, "lora_up", half, n)
        require_tensor(self.lora_act_in, "lora_act_in", lora, (m, r))
        require_tensor(self.wcscale, "wcscale", (torch.float32,), (n,))
        require_tensor(self.bias, "bias", (torch.float32,), (n,))

    @property
    def m(self) -> int:
        return self.act.shape[0]

    @property
    def n(self) -> int:
        return self.wgt.shape[0]

    @property
    def k(self) -> int:
        return 2 * self.act.shape[-1]

    @property
    def r(self) -> int:
        return self.lora_up.shape[-1]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PublicInputs:
    """Operands of the public contract, before packing. Raises ``InputError`` when they do not fit.

    ``act``, ``wgt``       NVFP4 ``[M, K]``, ``[N, K]`` of one level; second levels belong into ``alpha``
    ``lora_act_in``        ``[M, R]``, ``lora_up`` ``[N, R]`` of any float dtype; R = 0 without LoRA
    ``wcscale``, ``bias``  ``[N]`` of any float dtype
    """

    act: NVFP4Tensor
    wgt: NVFP4Tensor
    lora_act_in: torch.Tensor
    lora_up: torch.Tensor
    wcscale: torch.Tensor
    bias: torch.Tensor
    alpha: float

    def __post_init__(self) -> None:
        if self.act.global_scale is not None or self.wgt.global_scale is not None:
            raise InputError("act and wgt must have no global scale; multiply it into alpha")
        n = self.wgt.rows
        require_tensor(self.wgt.codes, "wgt codes", (torch.uint8,), (n, self.act.k // 2))
        r = require_matrix(self.lora_up, "lora_up", FLOAT_DTYPES, n)
        require_tensor(self.lora_act_in, "lora_act_in", FLOAT_DTYPES, (self.act.rows, r))
        require_tensor(self.wcscale, "wcscale", FLOAT_DTYPES, (n,))
        require_tensor(self.bias, "bias", FLOAT_DTYPES, (n,))

"""The tensors of one layer in plain order, whoever wrote them, and the ``SVDQuantLinear`` that they make."""

from __future__ import annotations

import dataclasses
import math

import torch

from kernel_space.core.errors import InputError
from kernel_space.numerics.nvfp4 import require_scale_bytes
from kernel_space.operators.svdquant_gemm.inputs import TORCH_DTYPES
from kernel_space.operators.svdquant_gemm.packing import pack_svdquant_weights
from kernel_space.operators.svdquant_gemm.problem import R_MULTIPLE
from tuner.layers.linear import SVDQuantLinear

_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}
_SIGNS = 0x88  # of the two codes of a byte
_LARGEST_FP16 = 2.0**14  # what a folded branch may reach, to leave its inputs room


@dataclasses.dataclass(kw_only=True, eq=False)
class Parts:
    """``y = (S(x / smooth) @ W(wgt, wscales).T) * wcscale * alpha + (x @ lora_down) @ lora_up.T + bias``.

    ``wgt`` uint8 ``[N, K/2]``, the even k in the low nibble; ``wscales`` float8_e4m3fn ``[N, K/16]``; ``smooth``
    ``[K]``; ``lora_down`` ``[K, R]``; ``lora_up`` ``[N, R]``; ``wcscale`` and ``bias`` ``[N]``; ``alpha`` a number.
    ``notes``: what was done to them, for the report.
    """

    wgt: torch.Tensor
    wscales: torch.Tensor
    smooth: torch.Tensor
    lora_down: torch.Tensor
    lora_up: torch.Tensor
    wcscale: torch.Tensor
    alpha: float
    bias: torch.Tensor
    notes: list[str] = dataclasses.field(default_factory=list)

    def cut(self, n: int, k: int) -> None:
        """Leave out what lies beyond ``n`` rows and ``k`` columns: padding."""
        had = (self.wgt.shape[0], 2 * self.wgt.shape[1])
        if had == (n, k):
            return
        if n > had[0] or k > had[1] or k % 32:
            raise InputError(f"[{had[0]}, {had[1]}] cannot be cut to [{n}, {k}], K a multiple of 32")
        self.wgt, self.wscales = self.wgt[:n, : k // 2], self.wscales[:n, : k // 16]
        self.smooth, self.lora_down = self.smooth[:k], self.lora_down[:k]
        self.lora_up, self.wcscale, self.bias = self.lora_up[:n], self.wcscale[:n], self.bias[:n]
        self.notes.append(f"padding left out, N, K = {had[0]}, {had[1]} to {n}, {k}")

    def layer(self, dtype: torch.dtype) -> SVDQuantLinear:
        """Raises ``InputError`` for values that the kernels do not take; each says which tensor."""
        self._make_scales_positive()
        self._pad_rank()
        shift = self._shift(dtype)
        packed = pack_svdquant_weights(
            self.wgt,
            self.wscales.contiguous(),
            self.lora_up.double() / shift,
            self.wcscale.double(),
            self.bias.float(),
            self.alpha,
            lora_dtype=_NAMES[dtype],
        )
        lora_down = (self.lora_down.double() * shift).to(dtype)
        if not torch.isfinite(lora_down).all():
            raise InputError(f"lora_down must be finite in {_NAMES[dtype]}, its elements are too large")
        return SVDQuantLinear.from_packed(packed, lora_down, self.smooth.float())

    def _make_scales_positive(self) -> None:
        """The tensor core reads scales without a sign: that of a negative one goes into the codes of its block."""
        raw = self.wscales.contiguous().view(torch.uint8)
        negative = (raw & 0x80) != 0
        if not negative.any():
            return
        self.wscales = (raw & 0x7F).view(torch.float8_e4m3fn)
        require_scale_bytes(self.wscales, "wscales")
        n, groups = raw.shape
        signs = torch.where(negative, _SIGNS, 0).to(torch.uint8).unsqueeze(2)
        self.wgt = (self.wgt.reshape(n, groups, 8) ^ signs).view(n, -1)
        self.notes.append(f"{int(negative.sum())} negative block scales, their signs moved into the codes")

    def _pad_rank(self) -> None:
        rank = self.lora_up.shape[1]
        if missing := -rank % R_MULTIPLE:
            self.lora_up = torch.nn.functional.pad(self.lora_up, (0, missing))
            self.lora_down = torch.nn.functional.pad(self.lora_down, (0, missing))
            self.notes.append(f"R padded from {rank} to {rank + missing}")

    def _shift(self, dtype: torch.dtype) -> float:
        """A power of two to move from lora_up to lora_down, 1 unless lora_up folded is too large for ``dtype``."""
        if dtype != torch.float16 or not self.lora_up.numel():
            return 1.0
        folded = self.lora_up.double() / (self.wcscale.double() * self.alpha).unsqueeze(1)
        largest = folded.abs().amax().item()
        if not math.isfinite(largest) or largest <= _LARGEST_FP16:
            return 1.0
        shift = math.ldexp(1.0, math.ceil(math.log2(largest / _LARGEST_FP16)))
        self.notes.append(f"{shift:g} moved from lora_up to lora_down, which fp16 needs")
        return shift

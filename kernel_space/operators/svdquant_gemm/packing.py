"""Pack the weights of the public SVDQuant contract for the kernel, once, at load time.

The kernel accumulates the low-rank product into the accumulator of the quantized GEMM and scales both together:
``y = (scaled_mma + lora_act_in @ lora_up'.T) * factor + bias`` with ``factor = alpha * wcscale`` (fp32) and
``lora_up' = lora_up / factor`` (rounded to lora_dtype).
"""

from __future__ import annotations

import dataclasses
from typing import Self

import torch

from kernel_space.core.errors import InputError
from kernel_space.core.problem import ProblemClass
from kernel_space.numerics.blocked import SF_VEC_SIZE
from kernel_space.numerics.nvfp4 import block_scales, require_scale_bytes
from kernel_space.numerics.tensors import FLOAT_DTYPES, require_matrix, require_tensor
from kernel_space.operators.svdquant_gemm.inputs import TORCH_DTYPES
from kernel_space.operators.svdquant_gemm.problem import GemmProblem

MAX_LOST = 0.01  # of the 2-norm of a row of lora_up, by rounding what is folded


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PackedSVDQuant:
    """Weights of one layer as the kernel takes them.

    ``wgt``      uint8 ``[N, K/2]``, ``wscales`` uint8 in the blocked layout
    ``lora_up``  fp16 or bf16 ``[N, R]``, already divided by ``wcscale``; R = 0 without LoRA
    ``wcscale``  fp32 ``[N]``, alpha multiplied in; ``bias`` fp32 ``[N]``
    """

    wgt: torch.Tensor
    wscales: torch.Tensor
    lora_up: torch.Tensor
    wcscale: torch.Tensor
    bias: torch.Tensor

    @property
    def n(self) -> int:
        return self.wgt.shape[0]

    @property
    def k(self) -> int:
        return 2 * self.wgt.shape[1]

    @property
    def r(self) -> int:
        return self.lora_up.shape[1]

    @property
    def device(self) -> torch.device:
        return self.wgt.device

    @property
    def lora_dtype(self) -> str:
        return next(name for name, dtype in TORCH_DTYPES.items() if dtype == self.lora_up.dtype)

    def to(self, device: torch.device | str) -> Self:
        """The same weights on ``device``; dtypes are part of the contract and stay."""
        return dataclasses.replace(
            self, **{field.name: getattr(self, field.name).to(device) for field in dataclasses.fields(self)}
        )

    def problem_class(self, out_dtype: str) -> ProblemClass:
        return GemmProblem.class_of(r=self.r, lora_dtype=self.lora_dtype, out_dtype=out_dtype)


def pack_svdquant_weights(
    wgt: torch.Tensor,
    wscales: torch.Tensor,
    lora_up: torch.Tensor | None,
    wcscale: torch.Tensor,
    bias: torch.Tensor | None,
    alpha: float | torch.Tensor,
    *,
    lora_dtype: str | None = None,
) -> PackedSVDQuant:
    """Fold alpha into wcscale and ``1 / (alpha * wcscale)`` into lora_up.

    ``wgt``      uint8 ``[N, K/2]``, low nibble first; ``wscales`` float8_e4m3fn ``[N, K/16]``, row-major
    ``lora_up``  float ``[N, R]``; None or R = 0: no LoRA
    ``wcscale``  float ``[N]``; ``bias`` float ``[N]``, or None for zeros; ``alpha`` a number or a tensor of one element
    ``lora_dtype``  "fp16" or "bf16", needed when ``lora_up`` has neither dtype; fp16 without LoRA

    All on one device, where the packed weights stay; ``PackedSVDQuant.to`` moves them.

    Raises ``InputError``, naming row and value, when a factor ``alpha * wcscale`` is not a normal fp32 number (zero,
    subnormal, NaN, infinite), when a folded lora_up is not finite in lora_dtype or underflows so far that a row loses
    more than 1 % of its norm, when a scale is NaN or negative, or a bias not finite in fp32; and when shapes and dtypes
    do not fit.
    """
    n = wgt.shape[0]
    k = 2 * require_matrix(wgt, "wgt", (torch.uint8,), n)
    lora_dtype, lora_up = _lora(lora_up, lora_dtype, n, wgt.device)
    _same_device(wgt, wscales=wscales, lora_up=lora_up, wcscale=wcscale, bias=bias)
    GemmProblem(m=1, k=k, n=n, r=lora_up.shape[1], lora_dtype=lora_dtype)  # raises for illegal sizes
    require_tensor(wscales, "wscales", (torch.float8_e4m3fn,), (n, k // SF_VEC_SIZE))
    require_scale_bytes(wscales, "wscales")
    factor = _factor(wcscale, alpha, n)
    return PackedSVDQuant(
        wgt=wgt.contiguous(),
        wscales=block_scales(wscales),
        lora_up=_fold(lora_up, factor, lora_dtype),
        wcscale=factor,
        bias=_bias(bias, n, wgt.device),
    )


def _same_device(wgt: torch.Tensor, **others: torch.Tensor | None) -> None:
    for name, tensor in others.items():
        if tensor is not None and tensor.device != wgt.device:
            raise InputError(f"{name} must be on {wgt.device} like wgt, got {tensor.device}")


def _lora(
    lora_up: torch.Tensor | None, lora_dtype: str | None, n: int, device: torch.device
) -> tuple[str, torch.Tensor]:
    """(lora_dtype, lora_up) without None; a given lora_dtype is checked by GemmProblem."""
    if lora_up is None:
        lora_up = torch.zeros((n, 0), dtype=torch.float16, device=device)
    require_matrix(lora_up, "lora_up", FLOAT_DTYPES, n)
    if lora_dtype is None:
        names = {dtype: name for name, dtype in TORCH_DTYPES.items()}
        if lora_up.dtype not in names:
            came = str(lora_up.dtype).removeprefix("torch.")
            raise InputError(f"lora_dtype must be given (fp16 or bf16) when lora_up is {came}")
        lora_dtype = names[lora_up.dtype]
    return lora_dtype, lora_up


def _factor(wcscale: torch.Tensor, alpha: float | torch.Tensor, n: int) -> torch.Tensor:
    """fp32 ``alpha * wcscale``."""
    require_tensor(wcscale, "wcscale", FLOAT_DTYPES, (n,))
    if isinstance(alpha, torch.Tensor):
        if alpha.numel() != 1:
            raise InputError(f"alpha must be one number, got a tensor {list(alpha.shape)}")
        alpha = alpha.item()
    factor = (wcscale.double() * alpha).float()
    bad = ~(factor.isfinite() & (factor.abs() >= torch.finfo(torch.float32).smallest_normal))
    if bad.any():
        row = int(bad.nonzero()[0])
        raise InputError(
            f"alpha * wcscale must be a finite normal fp32 number and not zero, got {factor[row].item()} at row {row} "
            f"(alpha {alpha}, wcscale {wcscale[row].item()}); rescale the row of wgt"
        )
    return factor


def _fold(lora_up: torch.Tensor, factor: torch.Tensor, lora_dtype: str) -> torch.Tensor:
    exact = lora_up.double() / factor.double().unsqueeze(1)
    folded = exact.to(TORCH_DTYPES[lora_dtype]).contiguous()
    bad = ~folded.isfinite()
    if bad.any():
        row, column = bad.nonzero()[0].tolist()
        value, source, by = (x.item() for x in (folded[row, column], lora_up[row, column], factor[row]))
        raise InputError(
            f"lora_up / (alpha * wcscale) must be finite in {lora_dtype}, got {value} at row {row}, column {column} "
            f"(lora_up {source}, alpha * wcscale {by}); use bf16 or move a power of two from lora_up to lora_act_in"
        )
    _require_kept(exact, folded, lora_up, factor, lora_dtype)
    return folded


def _require_kept(
    exact: torch.Tensor, folded: torch.Tensor, lora_up: torch.Tensor, factor: torch.Tensor, lora_dtype: str
) -> None:
    """Raises ``InputError`` for a row that underflow ruins; rounding to normal numbers takes 0.2 % at most."""
    if not exact.numel():
        return
    largest = exact.abs().amax(dim=1, keepdim=True)
    unit = torch.where(
        largest > 0, largest, torch.ones_like(largest)
    )  # squares of tiny numbers would be zero
    difference = (exact - folded.double()) / unit
    lost, norm = difference.norm(dim=1), (exact / unit).norm(dim=1)
    bad = lost > MAX_LOST * norm
    if bad.any():
        row = int(bad.nonzero()[0])
        column = int(difference[row].abs().argmax())
        source, by, kept = (x.item() for x in (lora_up[row, column], factor[row], folded[row, column]))
        raise InputError(
            f"lora_up / (alpha * wcscale) must keep {100 * (1 - MAX_LOST):g} % of each row's norm in {lora_dtype}, "
            f"row {row} loses {100 * (lost[row] / norm[row]).item():.3g} % (column {column}: lora_up {source}, "
            f"alpha * wcscale {by}, rounded to {kept}); use bf16 or move a power of two from lora_act_in to lora_up"
        )


def _bias(bias: torch.Tensor | None, n: int, device: torch.device) -> torch.Tensor:
    if bias is None:
        return torch.zeros(n, dtype=torch.float32, device=device)
    require_tensor(bias, "bias", FLOAT_DTYPES, (n,))
    bad = ~bias.float().isfinite()
    if bad.any():
        row = int(bad.nonzero()[0])
        raise InputError(f"bias must be finite in fp32, got {bias[row].item()} at row {row}")
    return bias.float().contiguous()

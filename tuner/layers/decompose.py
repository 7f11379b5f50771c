"""Split a weight for SVDQuant: smoothing factors, a low-rank branch, and an NVFP4 residual.

    W x = (W diag(s)) (x / s)        smoothing moves large columns of x into the weight
    W diag(s) = L2 L1 + Q            L2 L1 of rank R holds what is hard to quantize, Q is rounded to NVFP4

Sources: SmoothQuant (Xiao et al., 2023) for s, SVDQuant (Li et al., 2025) for the branch.
"""

from __future__ import annotations

import dataclasses
import math

import torch

from kernel_space.core.errors import InputError
from kernel_space.numerics.nvfp4 import (
    E2M1_MAX,
    E4M3_MAX,
    NVFP4Tensor,
    dequantize_nvfp4,
    nvfp4_global_scale,
    quantize_nvfp4,
)
from kernel_space.numerics.tensors import require_tensor

SVD_METHODS = ("auto", "exact", "randomized")
EXACT_UP_TO = (
    1024  # smaller side of a weight for which "auto" computes the whole SVD; about a second on two cores
)
OVERSAMPLING = 32
POWER_ITERATIONS = 6
SEED = 20
# Smoothed activations should stay below this: half of NVFP4's largest number, as unseen ones may be larger.
ACT_RANGE = E2M1_MAX * E4M3_MAX / 2
LEAST_ALPHA = 2.0**-7  # of the scale that the weight would have without a branch
UNKNOWN_ACT = (
    8.0  # standard deviations that the branch must hold for an x of unit variance, without calibration
)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Decomposition:
    """``W ~ alpha * dequantized(wgt) * diag(1 / smooth) + lora_up @ lora_down.T``.

    ``smooth`` fp32 ``[K]``; ``lora_down`` ``[K, R]`` of x itself, in the half dtype asked for; ``lora_up`` float64
    ``[N, R]``, which that dtype holds exactly once it is divided by ``alpha``; ``wgt`` NVFP4 of one level ``[N, K]``;
    ``alpha`` a power of two.
    """

    smooth: torch.Tensor
    lora_down: torch.Tensor
    lora_up: torch.Tensor
    wgt: NVFP4Tensor
    alpha: float

    def weight(self) -> torch.Tensor:
        """float64 ``[N, K]``: the weight that the decomposition stands for."""
        residual = dequantize_nvfp4(self.wgt, torch.float64) * self.alpha / self.smooth.double()
        return residual + self.lora_up @ self.lora_down.double().T


def decompose(
    weight: torch.Tensor,
    rank: int,
    dtype: torch.dtype,
    *,
    smooth: torch.Tensor | None = None,
    activations: torch.Tensor | None = None,
    svd: str = "auto",
) -> Decomposition:
    """Decompose ``weight`` ``[N, K]``, the same way every time.

    ``smooth``: fp32 ``[K]``, ones by default. ``activations`` ``[rows, K]``: what x is like, which decides how a
    power of two is shared between the halves of the branch. ``svd``: ``exact``, ``randomized`` (subspace iteration
    with a fixed seed, for large layers), or ``auto``, by size. Raises ``InputError`` for a weight that is not
    finite.
    """
    if svd not in SVD_METHODS:
        raise InputError(f"svd must be one of {', '.join(SVD_METHODS)}, got {svd!r}")
    if not torch.isfinite(weight).all():
        raise InputError("the weight must be finite, it holds NaN or infinity")
    smooth = torch.ones(weight.shape[1], device=weight.device) if smooth is None else smooth.float()
    smoothed = weight.double() * smooth.double()
    up, down = low_rank(smoothed, rank, svd)
    unit = _unit(smoothed, smoothed - up @ down)
    down = down.T / smooth.double().unsqueeze(1)
    inputs = branch_inputs(down, activations)
    while True:
        shift = balance(up / unit, inputs)
        # Rounded first and subtracted as rounded: what rounding loses of the branch goes into the residual.
        lora_up = (up / unit / shift).to(dtype).double() * unit
        lora_down = (down * shift).to(dtype).contiguous()
        residual = smoothed - lora_up @ (lora_down.double() * smooth.double().unsqueeze(1)).T
        alpha = max(unit, _power_of_two_above(nvfp4_global_scale(residual)))
        if alpha == unit:  # so folding alpha into lora_up rounds nothing, subnormal numbers included
            break
        unit = alpha  # rounding made the residual larger: rarely, and by little
    return Decomposition(
        smooth=smooth,
        lora_down=lora_down,
        lora_up=lora_up,
        wgt=quantize_nvfp4((residual / alpha).float()),
        alpha=alpha,
    )


def smoothing(activations: torch.Tensor, weight: torch.Tensor, strength: float) -> torch.Tensor:
    """fp32 ``[K]`` for ``activations`` ``[rows, K]`` and ``weight`` ``[N, K]``: ``max|x_k|^strength / max|w_k|^(1 -
    strength)``.

    Multiplied by one power of two, so that the largest smoothed activation is near ``ACT_RANGE`` without exceeding it:
    scales of NVFP4 are E4M3 numbers, whose precision and range end at 2^-9. Columns without activations get the scale
    of the smallest others. Raises ``InputError`` for a strength outside 0 to 1 and activations that are not finite.
    """
    if not 0.0 <= strength <= 1.0:
        raise InputError(f"smoothing strength must be between 0 and 1, got {strength}")
    if not torch.isfinite(activations).all():
        raise InputError("calibration activations must be finite, they hold NaN or infinity")
    largest = activations.abs().amax(dim=0).double()
    if not largest.any():
        raise InputError("calibration activations must not be all zero")
    largest = largest.clamp_(min=largest[largest > 0].min().item())
    columns = weight.double().abs().amax(dim=0)
    columns = (
        columns.clamp_(min=columns[columns > 0].min().item()) if columns.any() else torch.ones_like(columns)
    )
    factor = largest**strength / columns ** (1.0 - strength)
    return (factor * _power_of_two_above((largest / factor).max().item() / ACT_RANGE)).float()


def require_smooth(smooth: torch.Tensor, k: int) -> None:
    """Raises ``InputError`` unless these are factors that x can be divided by in fp32."""
    require_tensor(smooth, "smooth", (torch.float32,), (k,))
    if not ((smooth > 0) & smooth.isfinite() & smooth.reciprocal().isfinite()).all():
        raise InputError("smooth must be positive, finite, and not so small that its reciprocal is not")


def low_rank(matrix: torch.Tensor, rank: int, svd: str = "auto") -> tuple[torch.Tensor, torch.Tensor]:
    """float64 (up ``[N, rank]``, down ``[rank, K]``): the best product of that rank, or nearly, with equal norms."""
    n, k = matrix.shape
    kept = min(rank, n, k)
    up, down = matrix.new_zeros((n, rank)), matrix.new_zeros((rank, k))
    if kept == 0 or not matrix.any():
        return up, down
    exact = svd == "exact" or (svd == "auto" and min(n, k) <= EXACT_UP_TO)
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False) if exact else _randomized(matrix, kept)
    root = s[:kept].sqrt()
    up[:, :kept] = u[:, :kept] * root
    down[:kept] = root.unsqueeze(1) * vh[:kept]
    return up, down


def _randomized(matrix: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Leading singular triplets by subspace iteration (Halko, Martinsson, Tropp, 2011), in fp32, from a fixed seed."""
    a = matrix.float()
    width = min(rank + OVERSAMPLING, *a.shape)
    start = torch.randn((a.shape[1], width), generator=torch.Generator().manual_seed(SEED)).to(a.device)
    basis = torch.linalg.qr(a @ start)[0]
    for _ in range(POWER_ITERATIONS):
        basis = torch.linalg.qr(a @ torch.linalg.qr(a.T @ basis)[0])[0]
    u, s, vh = torch.linalg.svd((basis.T @ a).double(), full_matrices=False)
    return basis.double() @ u, s, vh


def _unit(smoothed: torch.Tensor, residual: torch.Tensor) -> float:
    """What alpha will be, or a little less: a power of two, so that dividing by it is exact.

    Not arbitrarily far below the weight's own scale, because the branch is divided by it too: one that holds nearly all
    of a weight must still fit half precision, and E4M3 block scales have range to spare.
    """
    least = _power_of_two_above(nvfp4_global_scale(smoothed)) * LEAST_ALPHA
    return max(least, _power_of_two_above(nvfp4_global_scale(residual)))


def branch_inputs(down: torch.Tensor, activations: torch.Tensor | None) -> torch.Tensor:
    """What ``x @ down`` may reach, from activations or as for x of unit variance."""
    if activations is None:
        return down.norm(dim=0) * UNKNOWN_ACT
    return activations.double() @ down


def balance(up: torch.Tensor, inputs: torch.Tensor) -> float:
    """The power of two that moves from lora_up (as folded, divided by about alpha) to lora_down, so that the branch's
    two factors are equally far from the largest fp16 number.
    """
    if not (up.numel() and up.any() and inputs.any()):
        return 1.0
    return _power_of_two_above(math.sqrt(up.abs().max().item() / inputs.abs().max().item()))


def _power_of_two_above(value: float) -> float:
    """The smallest power of two that is at least ``value`` > 0: dividing by it is exact."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(1.0, exponent - 1 if mantissa == 0.5 else exponent)

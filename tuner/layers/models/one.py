"""One linear, quantized from what it saw; its smoothing searched by the error of its outputs."""

from __future__ import annotations

import dataclasses

import torch

from kernel_space.operators.svdquant_linear.problem import LinearProblem
from kernel_space.operators.svdquant_linear.runtime import reference
from tuner.layers.decompose import smoothing
from tuner.layers.linear import SVDQuantLinear
from tuner.layers.models.calibration import Seen

STRENGTHS = (0.2, 0.35, 0.5, 0.65, 0.8)  # that a search tries, besides no smoothing
MOST_ROWS = 256  # of which the error of y is computed


@dataclasses.dataclass(frozen=True, kw_only=True)
class How:
    """``strength``: of smoothing; None: searched. The others as in ``quantize_model``."""

    rank: int
    strength: float | None
    dtype: torch.dtype | None
    svd: str
    rows: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Quantized:
    """One layer of the report.

    ``relative_error``: of the weight. ``output_error``: of y on rows that it saw, activations quantized too: norm of
    the difference over norm; None without calibration. ``strength``: of smoothing, None where x is not smoothed.
    ``places``: names of the linear in the model. ``resumed``: it was finished before.
    """

    name: str = ""
    places: tuple[str, ...] = ()
    n: int
    k: int
    rank: int
    relative_error: float
    output_error: float | None
    strength: float | None
    seconds: float = 0.0
    resumed: bool = False
    note: str = ""

    def __str__(self) -> str:
        error = "" if self.output_error is None else f" y {self.output_error:.4f},"
        smooth = "not smoothed" if self.strength is None else f"smoothed {self.strength:g}"
        also = f", also {', '.join(self.places[1:])}" if len(self.places) > 1 else ""
        note = f"; {self.note}" if self.note else ""
        return (
            f"{self.name}: K={self.k} N={self.n} R={self.rank}, errors:{error} W {self.relative_error:.4f}, "
            f"{smooth}{also}{note}"
        )


def quantized(linear: torch.nn.Linear, seen: Seen | None, how: How) -> tuple[SVDQuantLinear, Quantized]:
    """(layer, what the report says of it but for its names). Raises ``InputError`` for values that cannot be."""
    if seen is None:
        return _made(linear, None, None, how)
    if how.strength is not None:
        return _made(linear, seen, how.strength, how)
    tried = [_made(linear, seen, strength, how) for strength in (None, *STRENGTHS)]
    return min(tried, key=lambda one: one[1].output_error or 0.0)


def _made(
    linear: torch.nn.Linear, seen: Seen | None, strength: float | None, how: How
) -> tuple[SVDQuantLinear, Quantized]:
    smooth = rows = None
    if seen is not None:
        assert seen.rows is not None and seen.largest is not None
        weight = linear.weight.detach()
        rows = seen.rows.to(weight.device)
        factor = 0.5 if strength is None else strength  # asked for its checks even where it is not used
        smooth = smoothing(seen.largest.unsqueeze(0).to(weight.device), weight, factor)
        smooth = torch.ones_like(smooth) if strength is None else smooth
    layer = SVDQuantLinear.from_linear(linear, how.rank, rows, smooth=smooth, dtype=how.dtype, svd=how.svd)
    result = Quantized(
        n=layer.out_features,
        k=layer.in_features,
        rank=layer.rank,
        relative_error=layer.relative_error,
        output_error=None if rows is None else output_error(layer, linear, rows),
        strength=strength,
    )
    return layer, result


def output_error(layer: SVDQuantLinear, linear: torch.nn.Linear, rows: torch.Tensor) -> float:
    """Of y on ``rows`` ``[M, K]``: norm of the difference to the linear in fp32, over its norm.

    By the torch reference, which needs neither a kernel for this problem nor a tune; kernels compute the same.
    """
    rows = rows[:MOST_ROWS]
    with torch.no_grad(), torch.autocast(rows.device.type, enabled=False):
        exact = torch.nn.functional.linear(
            rows.float(), linear.weight.float(), None if linear.bias is None else linear.bias.float()
        )
        made = _reference(layer, rows)
        norm = exact.norm().item()
        return (made.float() - exact).norm().item() / norm if norm else 0.0


def _reference(layer: SVDQuantLinear, rows: torch.Tensor) -> torch.Tensor:
    names = ("smooth", "wgt", "wscales", "lora_up", "wcscale", "bias")
    tensors = {name: layer.get_buffer(name) for name in names}
    problem = LinearProblem(
        m=rows.shape[0],
        k=layer.in_features,
        n=layer.out_features,
        r=layer.lora_up.shape[1],
        dtype="fp16" if layer.dtype == torch.float16 else "bf16",
    )
    tensors |= {"x": rows.to(layer.dtype), "lora_down": layer.lora_down_packed}
    return reference(tensors, problem)["y"]

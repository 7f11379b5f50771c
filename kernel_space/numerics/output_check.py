"""How an output compares with its reference: element by element, and in the mean of all.

An element is right within its tolerance, whatever the others are. The mean sees what stays within that: sums kept in
fp16 or bf16 between instructions, or written out so. docs/evidence/tolerance.md derives it.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import torch

from kernel_space.numerics.nvfp4 import power_of_two_below
from kernel_space.numerics.tensors import FLOAT_DTYPES, element_bytes, require_tensor

FALSE_ALARM = 1e-12  # chance that the mean of a correct kernel's rounding errors exceeds its bound


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputCheck:
    """How an output compares with its reference. ``str()`` is one line for a report.

    ``max_ratio`` is the largest error in units of its element's tolerance, infinite for NaN, for a wrong infinity and
    for any error where the tolerance is 0; ``worst_index`` is where, ``got``, ``expected`` and ``tolerance`` what is
    there.
    ``max_error`` is the largest finite absolute error anywhere.

    The mean is over the ``judged`` elements whose reference is a normal, finite number of the output format:
    ``mean_error`` of |error| in units of half an ulp plus the element's drift, ``mean_limit`` what is the most that
    rounding and drift can make of it. Without judged elements both are 0.
    """

    elements: int
    bad: int
    max_ratio: float
    worst_index: tuple[int, ...]
    got: float
    expected: float
    tolerance: float
    max_error: float
    judged: int = 0
    error_sum: float = 0.0
    drift_sum: float = 0.0

    @property
    def ok(self) -> bool:
        return self.bad == 0 and self.mean_error <= self.mean_limit

    @property
    def mean_error(self) -> float:
        return self.error_sum / max(1, self.judged)

    @property
    def mean_limit(self) -> float:
        """Hoeffding's bound: the rounding errors are independent, between 0 and 1 in their unit, 1/2 in the mean."""
        if not self.judged:
            return 0.0
        return self.drift_sum / self.judged + math.sqrt(math.log(1 / FALSE_ALARM) / (2 * self.judged))

    def merged(self, other: OutputCheck) -> OutputCheck:
        """The check of both parts of one output."""
        worst = self if self.max_ratio >= other.max_ratio else other
        return dataclasses.replace(
            worst,
            elements=self.elements + other.elements,
            bad=self.bad + other.bad,
            max_error=max(self.max_error, other.max_error),
            judged=self.judged + other.judged,
            error_sum=self.error_sum + other.error_sum,
            drift_sum=self.drift_sum + other.drift_sum,
        )

    def __str__(self) -> str:
        mean = f"mean error {self.mean_error:.3f}, at most {self.mean_limit:.3f} for sums in fp32"
        if not self.bad and not self.ok:
            return f"{mean} (units of half an ulp and what fp32 may add): sums are kept in less than fp32"
        at = f"at {list(self.worst_index)}: got {self.got:.8g}, expected {self.expected:.8g}"
        if not self.tolerance and not self.judged:
            return f"{self.bad} of {self.elements} elements differ{f'; the first {at}' if self.bad else ''}"
        return (
            f"{self.bad} of {self.elements} elements beyond the tolerance; worst {self.max_ratio:.3g} x tolerance "
            f"{at} +- {self.tolerance:.3g}{f'; {mean}' if self.judged else ''}"
        )


def check_output(
    y: torch.Tensor,
    reference: torch.Tensor,
    tolerance: torch.Tensor,
    *,
    drift: torch.Tensor | None = None,
    first_row: int = 0,
) -> OutputCheck:
    """Compare fp16 or bf16 ``y`` ``[rows, N]`` with a float64 reference and tolerance of that shape.

    ``drift``: how far each element of a correct kernel may be from the reference in the mean, before it is rounded;
    None: the mean is not judged.

    An infinity stands for everything that rounds to it, so it is right where the reference overflows ``y.dtype``.
    ``first_row`` is the row of the whole output that ``y`` begins with, for ``worst_index``.
    """
    require_tensor(y, "y", FLOAT_DTYPES[:3], tuple(reference.shape))
    value = y.double()
    error = (value - reference).abs()
    overflow = _overflow_threshold(y.dtype)
    beyond = (overflow - value.sign() * reference).clamp_(min=0.0)
    error = torch.where(value.isinf(), beyond, error)
    ratio = (error / tolerance).nan_to_num_(nan=math.inf, posinf=math.inf)
    worst = int(ratio.argmax())
    row, column = divmod(worst, y.shape[1])
    judged, error_sum, drift_sum = (
        (0, 0.0, 0.0) if drift is None else _mean_parts(error, reference, drift, y.dtype)
    )
    return OutputCheck(
        elements=y.numel(),
        bad=int((ratio > 1.0).sum()),
        max_ratio=ratio.view(-1)[worst].item(),
        worst_index=(first_row + row, column),
        got=value[row, column].item(),
        expected=reference[row, column].item(),
        tolerance=tolerance[row, column].item(),
        max_error=error.nan_to_num_(nan=0.0, posinf=0.0).max().item(),
        judged=judged,
        error_sum=error_sum,
        drift_sum=drift_sum,
    )


def check_equal(out: torch.Tensor, expected: torch.Tensor) -> OutputCheck:
    """Compare an output whose contract is bitwise, of any dtype and shape, with what it must be, of the same.

    An element is right when its bytes are; so a NaN needs the same payload, and 0 is not -0.
    """
    require_tensor(out, "the output", (expected.dtype,), tuple(expected.shape))
    different = (element_bytes(out) != element_bytes(expected)).any(dim=1)
    bad = int(different.sum())
    where = int(different.to(torch.uint8).argmax()) if bad else 0
    got, wanted = (tensor.reshape(-1)[where].item() if tensor.numel() else 0 for tensor in (out, expected))
    error = (out.double() - expected.double()).abs().nan_to_num_(nan=0.0, posinf=0.0)
    return OutputCheck(
        elements=out.numel(),
        bad=bad,
        max_ratio=math.inf if bad else 0.0,
        worst_index=tuple(int(index) for index in np.unravel_index(where, out.shape)) if out.numel() else (),
        got=got,
        expected=wanted,
        tolerance=0.0,
        max_error=error.max().item() if out.numel() else 0.0,
    )


def _mean_parts(
    error: torch.Tensor, reference: torch.Tensor, drift: torch.Tensor, dtype: torch.dtype
) -> tuple[int, float, float]:
    """(elements judged, sum of their errors, sum of what is to be expected), each error in units of half an ulp plus
    its drift: so an element of any size weighs the same, and one near zero is judged by its drift alone."""
    info, size = torch.finfo(dtype), reference.abs()
    half = output_ulp(reference, dtype).mul_(0.5)
    unit = half + drift
    weight = ((size >= info.smallest_normal) & (size + unit <= info.max)) / unit
    return (
        int(weight.count_nonzero()),
        (error * weight).nan_to_num_(nan=0.0, posinf=0.0).sum().item(),
        ((half * 0.5).add_(drift) * weight).sum().item(),
    )


def output_ulp(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """float64 spacing of ``dtype`` at ``x`` (float64), that of its subnormals near zero."""
    info = torch.finfo(dtype)
    return power_of_two_below(x).clamp_(min=info.smallest_normal).mul_(info.eps)


def _overflow_threshold(dtype: torch.dtype) -> float:
    """The least magnitude that rounds to infinity: half a unit beyond the largest finite number."""
    info = torch.finfo(dtype)
    return info.max + 2.0 ** (math.floor(math.log2(info.max)) - 1) * info.eps

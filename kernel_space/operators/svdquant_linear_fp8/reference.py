"""The oracle of ``svdquant_linear_fp8``: what is multiplied, to the bit, and how far sums of it may be from float64.

    factor[m] = 448 / max_k |x[m, k]|             x8 = e4m3(x * factor)         fp32, each operation rounded once
    merged8 = e4m3((wgt / smooth + lora_up @ lora_down.T) * (448 / wpeak[n]))
    y = f((x8 @ merged8.T) / factor[m] * (wpeak[n] / 448 * wcscale[n]) + bias[n])

A row whose largest magnitude is below ``LEAST`` counts as zeros.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from kernel_space.numerics.activation import Uncertain, activated, after
from kernel_space.numerics.nvfp4 import NVFP4Tensor, dequantize_nvfp4, unblock_scales
from kernel_space.numerics.output_check import OutputCheck, check_output, output_ulp
from kernel_space.numerics.tensors import require_tensor
from kernel_space.operators.nvfp4_quantize.packing import unpack_lora_down
from kernel_space.operators.svdquant_gemm.inputs import TORCH_DTYPES
from kernel_space.operators.svdquant_gemm.operands import CARD_CHUNK_ROWS
from kernel_space.operators.svdquant_gemm.reference import ACC_ROUNDOFF, CHUNK_ROWS, FP32_ROUNDOFF
from kernel_space.operators.svdquant_linear_fp8.peaks import LEAST
from kernel_space.operators.svdquant_linear_fp8.problem import Fp8LinearProblem

LARGEST = 448.0  # of E4M3
LORA_MMA_K, MMA_K = 16, 32  # products of one wgmma
ROWS_AT_ONCE = 512  # of weights in float64
MERGE_ROUNDINGS = 5  # of fp32 in a merged weight beside its sum over R: two reciprocals, two products, a sum
EPILOGUE_ROUNDINGS = (
    8  # two scales of a row, two of a column, their products, the bias; y is no larger than their sum
)
# An sm_90 tensor core keeps this of a sum of E4M3 products, behind the first bit of its largest term, and cuts the rest
# off: 2^-13 of 256 came back, 2^-14 did not (measured, H100, docs/evidence/kernel_fp8.md). PTX leaves it open.
KEPT = 2.0**-13
PROMOTED_K = 512  # products that are summed so at most, before sums are added in fp32
FALSE_ALARM = (
    1e-15  # chance that a right element is beyond its tolerance, by Hoeffding's bound for what is cut off
)

Tensors = Mapping[str, torch.Tensor]


class Rows(NamedTuple):
    """``values`` fp32 ``[M, K]``, each an E4M3 number; ``scale`` fp32 ``[M]``, what they are multiples of."""

    values: torch.Tensor
    scale: torch.Tensor


def quantized_rows(x: torch.Tensor) -> Rows:
    """x fp16 or bf16 ``[M, K]`` as the kernel multiplies it, to the bit."""
    wide = x.float()
    largest = wide.abs().amax(1)
    zeros = largest < LEAST
    # As a tensor by a tensor: of a number by a tensor torch makes a product with the reciprocal, rounded twice.
    factor = (torch.full_like(largest, LARGEST) / largest).masked_fill(zeros, 0.0)
    scale = (largest * torch.tensor(1 / LARGEST, dtype=torch.float32)).masked_fill(zeros, 0.0)
    return Rows(e4m3(wide * factor[:, None]), scale)


def e4m3(values: torch.Tensor) -> torch.Tensor:
    """The nearest E4M3 numbers, ties to even, beyond 448 448, in fp32."""
    return values.clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn).float()


class Weights:
    """Merged weights of a problem, in float64 where that is small."""

    def __init__(self, problem: Fp8LinearProblem, tensors: Tensors) -> None:
        scales = unblock_scales(tensors["wscales"], problem.n, problem.k)
        self.wgt = dequantize_nvfp4(NVFP4Tensor(codes=tensors["wgt"], scales=scales))
        self.inverse = 1 / tensors["smooth"].double()
        self.factor = LARGEST / tensors["wpeak"].double()
        self.n, self.r = problem.n, problem.r
        if problem.r:
            self.up = tensors["lora_up"].double()
            self.down = unpack_lora_down(tensors["lora_down"], problem.k).double()

    def merged(self) -> tuple[torch.Tensor, torch.Tensor]:
        """fp32 ``[N, K]``: E4M3 numbers, and by how much a kernel's own may differ: by a step where what fp32 adds to
        the number in float64 decides its rounding, else not.
        """
        parts = [self._rows(slice(at, at + ROWS_AT_ONCE)) for at in range(0, self.n, ROWS_AT_ONCE)]
        values, doubt = (torch.cat(part) for part in zip(*parts, strict=True))
        return values, doubt

    def _rows(self, rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
        value = self.wgt[rows].double() * self.inverse
        error = value.abs() * (MERGE_ROUNDINGS * FP32_ROUNDOFF)
        if self.r:
            value += self.up[rows] @ self.down.T
            steps = self.r // LORA_MMA_K + MERGE_ROUNDINGS
            error += (self.up[rows].abs() @ self.down.abs().T) * (steps * ACC_ROUNDOFF)
        value, error = (one * self.factor[rows, None] for one in (value, error))
        low, high = e4m3((value - error).float()), e4m3((value + error).float())
        # Through fp32 a number may be rounded twice: what is between the two ends is in doubt anyway.
        return e4m3(value.float()), high - low


def check_outputs(problem: Fp8LinearProblem, tensors: Tensors, config: Any) -> dict[str, OutputCheck]:
    """How ``y`` compares with float64. ``tensors``: inputs and output by name; ``config.partial_sums``: parts of K that
    are summed apart.
    """
    y, x = tensors["y"], tensors["x"]
    require_tensor(y, "y", tuple(TORCH_DTYPES.values()), (problem.m, problem.out_columns))
    contract = _Contract(problem, tensors, config.partial_sums)
    step = CARD_CHUNK_ROWS if x.is_cuda else CHUNK_ROWS
    check: OutputCheck | None = None
    for first in range(0, problem.m, step):
        rows = slice(first, min(first + step, problem.m))
        made = contract.expected(rows)
        tolerance = made.error * (1 + torch.finfo(y.dtype).eps / 2) + output_ulp(made.value, y.dtype)
        part = check_output(y[rows], made.value, tolerance, drift=made.drift, first_row=first)
        check = part if check is None else check.merged(part)
    assert check is not None  # M >= 1
    return {"y": check}


class _Sums(NamedTuple):
    """float64 ``[rows, N]``. ``product``: x8 @ merged.T; ``cuts``: of what is cut off in each group of ``PROMOTED_K``
    the square of the most, times how often; ``lost``: where products have one sign more often than the other, what that
    takes at most; ``moved``: sum of the magnitudes of the groups' sums.
    """

    product: torch.Tensor
    cuts: torch.Tensor
    lost: torch.Tensor
    moved: torch.Tensor


class _Contract:
    def __init__(self, problem: Fp8LinearProblem, tensors: Tensors, parts: int) -> None:
        self.x, self.activation, self.parts = tensors["x"], problem.activation, parts
        self.merged, self.doubt = Weights(problem, tensors).merged()
        self.scale = tensors["wpeak"].double() / LARGEST * tensors["wcscale"].double()
        self.bias = tensors["bias"].double()
        self.groups = [slice(at, at + PROMOTED_K) for at in range(0, problem.k, PROMOTED_K)]

    def expected(self, rows: slice) -> Uncertain:
        """``Uncertain`` y of some rows: value, how far an element may be from it, how far in the mean."""
        x8, scale = quantized_rows(self.x[rows])
        sums = self._sums(x8)
        area = scale.double()[:, None] * self.scale.abs()
        value = sums.product * scale.double()[:, None] * self.scale + self.bias
        sure = sums.moved * area * ((len(self.groups) + self.parts) * FP32_ROUNDOFF)
        if bool(self.doubt.any()):
            sure += (x8.abs() @ self.doubt.T).double() * area
        sure += EPILOGUE_ROUNDINGS * FP32_ROUNDOFF * ((value - self.bias).abs() + self.bias.abs())
        most = (sums.cuts * (math.log(2 / FALSE_ALARM) / 2)).sqrt() + sums.lost
        usual = (sums.cuts / 12).sqrt() + sums.lost
        return after(self.activation, Uncertain(value, most * area + sure, usual * area + sure))

    def _sums(self, x8: torch.Tensor) -> _Sums:
        """Group by group. No partial sum of a group and no product is larger than ``largest``, but by chance: twice the
        root of the sum of all squares, and the group's own sum.
        """
        product, cuts, lost, moved = (
            torch.zeros((x8.shape[0], self.merged.shape[0]), dtype=torch.float64, device=x8.device)
            for _ in range(4)
        )
        for group in self.groups:
            x, merged = x8[:, group], self.merged[:, group]
            own = x.double() @ merged.double().T
            largest = own.abs() + 2 * (x.square() @ merged.square().T).double().sqrt()
            count = x.shape[1] + math.ceil(x.shape[1] / MMA_K)
            cuts += (largest * KEPT).square() * count
            lost += (x.sign() @ merged.sign().T).abs().double() * largest * KEPT
            product += own
            moved += own.abs()
        return _Sums(product, cuts, lost, moved)


def layer(problem: Fp8LinearProblem, tensors: Tensors) -> torch.Tensor:
    """The operator in plain torch: products and sums in fp32, one rounding to the dtype of x."""
    x8, scale = quantized_rows(tensors["x"])
    merged, _ = Weights(problem, tensors).merged()
    columns = tensors["wpeak"] / LARGEST * tensors["wcscale"]
    whole = (x8 @ merged.T) * scale[:, None] * columns + tensors["bias"]
    return activated(whole, problem.activation).to(tensors["x"].dtype)

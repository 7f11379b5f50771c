"""Float64 oracles of the operator, and how far a correct kernel may be from them.

``packed``  what the kernel computes: ``y = f((scaled_mma(act, wgt) + lora_act_in @ lora_up.T) * wcscale + bias)``, with
            the activation f of ``numerics.activation``: none, or of the sum in fp32 before the one rounding
``public``  what users of SVDQuant know: ``y = alpha * scaled_mma(act, wgt) * wcscale + bias + lora_act_in @ lora_up.T``

``scaled_mma(A, B)[m, n] = sum_k A[m, k] * SFA[m, k // 16] * B[n, k] * SFB[n, k // 16]``. References are float64 and not
rounded to the output format. Work goes by chunks of rows: besides the result, memory holds the weights once in
fp32 (exact) and a few ``[chunk_rows, N]`` matrices. Everything is computed where the operands lie, on the CPU or a
card. docs/evidence/tolerance.md derives the tolerances.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import NamedTuple

import torch

from kernel_space.core.errors import InputError
from kernel_space.numerics.activation import Uncertain, activated, after
from kernel_space.numerics.nvfp4 import (
    NVFP4Tensor,
    dequantize_nvfp4,
    require_scale_bytes,
    unblock_scales,
)
from kernel_space.numerics.output_check import OutputCheck, check_output, output_ulp
from kernel_space.numerics.tensors import require_tensor
from kernel_space.operators.svdquant_gemm.inputs import TORCH_DTYPES, PackedInputs, PublicInputs

ALL_ROWS = slice(None)
CHUNK_ROWS = 128

MMA_K = 64  # products of one NVFP4 tensor-core instruction
LORA_MMA_K = 16  # of one fp16/bf16 instruction
PATH_EVERY = 4  # reading all partial sums would take the oracle a fifth longer
STEP_K = 16  # products that any kernel adds to its sum with one rounding at most: those of its smallest instruction
# The PTX ISA leaves order and rounding within one MMA instruction open ("at least single precision"), truncation
# included, so one rounding may err by a whole unit in the last place of fp32.
ACC_ROUNDOFF = 2.0**-23
FP32_ROUNDOFF = 2.0**-24  # the epilogue rounds to nearest
SECOND_ORDER = 1 + 2.0**-20  # products of two roundoffs, and float64's own errors


def packed_reference(
    inputs: PackedInputs,
    *,
    activation: str = "none",
    rows: slice = ALL_ROWS,
    chunk_rows: int = CHUNK_ROWS,
) -> torch.Tensor:
    """float64 ``[rows, N]`` (``swiglu``: N/2) of the packed contract, not rounded to the output format."""
    contract = _packed_contract(inputs, activation)
    return torch.cat([contract.reference(chunk) for chunk in _row_chunks(inputs.m, rows, chunk_rows)])


def public_reference(
    inputs: PublicInputs, *, rows: slice = ALL_ROWS, chunk_rows: int = CHUNK_ROWS
) -> torch.Tensor:
    """float64 ``[rows, N]`` of the public contract, not rounded to the output format."""
    contract = _public_contract(inputs)
    return torch.cat([contract.reference(chunk) for chunk in _row_chunks(inputs.act.rows, rows, chunk_rows)])


def packed_tolerance(
    inputs: PackedInputs,
    out_dtype: str,
    *,
    split_k: int = 1,
    activation: str = "none",
    rows: slice = ALL_ROWS,
    chunk_rows: int = CHUNK_ROWS,
) -> torch.Tensor:
    """float64 ``[rows, N]``: how far an element of a correct kernel may be from ``packed_reference``.

    One unit in the last place of ``out_dtype`` ("fp16" or "bf16") plus the bound of the fp32 accumulation, the two
    fp32 operations of the epilogue and the activation. ``split_k`` is the kernel's knob.
    """
    contract = _packed_contract(inputs, activation)
    chunks = _row_chunks(inputs.m, rows, chunk_rows)
    return torch.cat([contract.expected(chunk, out_dtype, split_k).tolerance for chunk in chunks])


def public_tolerance(
    inputs: PublicInputs,
    out_dtype: str,
    lora_dtype: str,
    *,
    split_k: int = 1,
    rows: slice = ALL_ROWS,
    chunk_rows: int = CHUNK_ROWS,
) -> torch.Tensor:
    """As ``packed_tolerance`` against ``public_reference``: adds the rounding of the folded lora_up to ``lora_dtype``
    and of ``alpha * wcscale`` to fp32.
    """
    contract = _public_contract(inputs, lora_dtype)
    chunks = _row_chunks(inputs.act.rows, rows, chunk_rows)
    return torch.cat([contract.expected(chunk, out_dtype, split_k).tolerance for chunk in chunks])


def check_packed(
    y: torch.Tensor,
    inputs: PackedInputs,
    *,
    split_k: int = 1,
    activation: str = "none",
    chunk_rows: int = CHUNK_ROWS,
) -> OutputCheck:
    """``check_output`` of a whole ``[M, N]`` output against the packed contract, without ``[M, N]`` temporaries."""
    columns = inputs.n // 2 if activation == "swiglu" else inputs.n
    require_tensor(y, "y", tuple(TORCH_DTYPES.values()), (inputs.m, columns))
    return _check(y, _packed_contract(inputs, activation), split_k, chunk_rows)


def packed_bounds(
    inputs: PackedInputs,
    out_dtype: str,
    *,
    split_k: int = 1,
    activation: str = "none",
    chunk_rows: int = CHUNK_ROWS,
) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
    """(rows, the least and the largest y that a correct kernel may write there, ``[rows, N]`` of ``out_dtype``).

    Rounding is monotone: y is between the roundings of the ends of where its fp32 number may be.
    """
    contract, half = _packed_contract(inputs, activation), TORCH_DTYPES[out_dtype]
    for rows in _row_chunks(inputs.m, ALL_ROWS, chunk_rows):
        found = contract.expected(rows, out_dtype, split_k)
        yield rows, (found.value - found.error).to(half), (found.value + found.error).to(half)


def check_half(
    y: torch.Tensor,
    x: torch.Tensor,
    wgt: NVFP4Tensor,
    lora: tuple[torch.Tensor, torch.Tensor],
    affine: tuple[torch.Tensor, torch.Tensor],
    *,
    split_k: int = 1,
    activation: str = "none",
    chunk_rows: int = CHUNK_ROWS,
) -> OutputCheck:
    """As ``check_packed`` for 16-bit activations x ``[M, K]``: ``y = f((x @ wgt.T + lora_act_in @ lora_up.T) * wcscale
    + bias)``. ``lora``: lora_act_in ``[M, R]``, lora_up ``[N, R]``; ``affine``: wcscale, bias fp32 ``[N]``.
    """
    columns = wgt.rows // 2 if activation == "swiglu" else wgt.rows
    require_tensor(y, "y", tuple(TORCH_DTYPES.values()), (x.shape[0], columns))
    scale, bias = (vector.double() for vector in affine)
    contract = _Contract(
        act=x,
        wgt=dequantize_nvfp4(wgt),
        lora_act_in=lora[0].double(),
        lora_up=lora[1].double(),
        gemm_scale=scale,
        lora_scale=scale,
        bias=bias,
        activation=activation,
    )
    return _check(y, contract, split_k, chunk_rows)


def check_dense(
    y: torch.Tensor,
    x: torch.Tensor,
    wgt: torch.Tensor,
    doubt: torch.Tensor,
    affine: tuple[torch.Tensor, torch.Tensor],
    *,
    lora: tuple[torch.Tensor, torch.Tensor] | None = None,
    split_k: int = 1,
    activation: str = "none",
    chunk_rows: int = CHUNK_ROWS,
) -> OutputCheck:
    """As ``check_half`` for 16-bit weights: ``y = f((x @ wgt.T + lora_act_in @ lora_up.T) * wcscale + bias)``. ``wgt``
    fp32 ``[N, K]``, whose elements are 16-bit numbers; ``doubt``, of the same shape, is by how much those of the kernel
    may differ from them. ``lora``: lora_act_in ``[M, R]`` and lora_up ``[N, R]``, or None where the weights have it.
    """
    columns = wgt.shape[0] // 2 if activation == "swiglu" else wgt.shape[0]
    require_tensor(y, "y", tuple(TORCH_DTYPES.values()), (x.shape[0], columns))
    scale, bias = (vector.double() for vector in affine)
    lora = lora or (x.new_empty((x.shape[0], 0)), x.new_empty((wgt.shape[0], 0)))
    contract = _Contract(
        act=x,
        wgt=wgt,
        lora_act_in=lora[0].double(),
        lora_up=lora[1].double(),
        gemm_scale=scale,
        lora_scale=scale,
        bias=bias,
        activation=activation,
        doubt=doubt if bool(doubt.any()) else None,
    )
    return _check(y, contract, split_k, chunk_rows)


def _check(y: torch.Tensor, contract: _Contract, split_k: int, chunk_rows: int) -> OutputCheck:
    out_dtype = next(name for name, dtype in TORCH_DTYPES.items() if dtype == y.dtype)
    check: OutputCheck | None = None
    for rows in _row_chunks(y.shape[0], ALL_ROWS, chunk_rows):
        expected = contract.expected(rows, out_dtype, split_k)
        part = check_output(
            y[rows], expected.value, expected.tolerance, drift=expected.drift, first_row=rows.start
        )
        check = part if check is None else check.merged(part)
    assert check is not None  # M >= 1
    return check


@contextlib.contextmanager
def _threads_for(products: int) -> Iterator[None]:
    """One thread for a small chunk: on a busy machine two wait for each other for milliseconds at every operation."""
    before = torch.get_num_threads()
    if products < 1 << 28:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Walk(NamedTuple):
    """float64 ``a @ b.T`` as it is accumulated by instructions: the result, and of the partial sums after each
    instruction the largest magnitude and the sum of magnitudes, the latter from every ``PATH_EVERY``-th for all since
    the one before: in the mean partial sums grow."""

    product: torch.Tensor
    peak: torch.Tensor
    path: torch.Tensor


class _Expected(NamedTuple):
    """float64 ``[rows, N]``. ``error``: how far fp32 accumulation and epilogue may move an element; ``drift``: in the
    mean; ``tolerance``: the former and the rounding to the output's dtype."""

    value: torch.Tensor
    error: torch.Tensor
    tolerance: torch.Tensor
    drift: torch.Tensor


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Contract:
    """``y = f(gemm_scale * (act @ wgt.T) + lora_scale * (lora_act_in @ lora_up.T) + bias)`` with decoded operands.

    ``act`` still packed or in 16 bits, ``wgt`` fp32, the rest float64. ``lora_dtype`` is set when the kernel gets
    ``lora_up`` divided by ``gemm_scale`` and rounded to it, which is then part of the tolerance. So is ``doubt``:
    by how much elements of the kernel's ``wgt`` may differ from these.
    """

    act: NVFP4Tensor | torch.Tensor
    wgt: torch.Tensor
    lora_act_in: torch.Tensor
    lora_up: torch.Tensor
    gemm_scale: torch.Tensor
    lora_scale: torch.Tensor
    bias: torch.Tensor
    lora_dtype: str | None = None
    activation: str = "none"
    doubt: torch.Tensor | None = None

    def reference(self, rows: slice) -> torch.Tensor:
        with self._threads(rows):
            gemm = _product(self._act(rows), self.wgt)
            return activated(self._epilogue(gemm, self.lora_act_in[rows] @ self.lora_up.T), self.activation)

    def expected(self, rows: slice, out_dtype: str, split_k: int) -> _Expected:
        with self._threads(rows):
            act, lora_act = self._act(rows), self.lora_act_in[rows]
            gemm = _walk(act, self.wgt, MMA_K)
            lora = _walk(lora_act, self.lora_up, LORA_MMA_K)
            gemm_scale, lora_scale = self.gemm_scale.abs(), self.lora_scale.abs()
            reference = self._epilogue(gemm.product, lora.product)
            peak = gemm.peak * gemm_scale + lora.peak * lora_scale
            total = _fp32_product(act.abs(), self._wgt_magnitude) * gemm_scale
            total += _fp32_product(lora_act.abs(), self.lora_up.abs()) * lora_scale
            drift = self._drift(gemm, lora, gemm_scale, lora_scale).add_(total).add_(peak, alpha=split_k - 1)
            error = self._accumulation_error(peak, total, split_k)
            other = FP32_ROUNDOFF * ((reference - self.bias).abs() + reference.abs())
            if self.lora_dtype is not None:
                other += self._folding_error(self.lora_dtype, gemm.product, lora_act)
            if self.doubt is not None:
                other += _fp32_product(act.abs(), self.doubt) * gemm_scale
            half = TORCH_DTYPES[out_dtype]
            error.add_(other).mul_(SECOND_ORDER)
            made = after(self.activation, Uncertain(reference, error, drift.mul_(ACC_ROUNDOFF).add_(other)))
            tolerance = made.error * (1 + torch.finfo(half).eps / 2) + output_ulp(made.value, half)
            return _Expected(made.value, made.error, tolerance, made.drift)

    def _drift(
        self, gemm: _Walk, lora: _Walk, gemm_scale: torch.Tensor, lora_scale: torch.Tensor
    ) -> torch.Tensor:
        """Sum of |partial sums| after each ``STEP_K`` products, with LoRA anywhere between the others."""
        steps = math.ceil(self.wgt.shape[1] / MMA_K) * (MMA_K // STEP_K)
        lora_steps = math.ceil(self.lora_up.shape[1] / LORA_MMA_K)
        own = gemm.path * (MMA_K // STEP_K) + gemm.product.abs() * lora_steps
        return own.mul_(gemm_scale) + (lora.path + lora.product.abs() * steps) * lora_scale

    def _accumulation_error(self, peak: torch.Tensor, total: torch.Tensor, split_k: int) -> torch.Tensor:
        """fp32 accumulation: ``peak`` bounds the partial sums between instructions, ``total`` sums all |products|."""
        k, r = self.wgt.shape[1], self.lora_up.shape[1]
        roundings = math.ceil(k / MMA_K) * (MMA_K + 1) + math.ceil(r / LORA_MMA_K) * (LORA_MMA_K + 1)
        roundings += split_k - 1
        if roundings * ACC_ROUNDOFF > 0.5:
            raise InputError(f"K={k} is too large for a meaningful bound of an fp32 accumulation")
        start_anywhere = 1 if split_k == 1 else 2  # a sum over k0..k1 is the difference of two sums from 0
        first_order = peak * (roundings * start_anywhere) + total * (MMA_K + 1)
        return first_order * (ACC_ROUNDOFF / (1 - roundings * ACC_ROUNDOFF) ** 2)

    def _folding_error(self, lora_dtype: str, gemm: torch.Tensor, lora_act: torch.Tensor) -> torch.Tensor:
        """lora_up / gemm_scale rounded to lora_dtype (through fp32) and gemm_scale rounded to fp32."""
        info = torch.finfo(TORCH_DTYPES[lora_dtype])
        relative, absolute = info.eps / 2 + FP32_ROUNDOFF, info.smallest_normal * info.eps / 2
        each = relative * self.lora_up.abs() + absolute * self.gemm_scale.abs().unsqueeze(1)
        # 2 % for what the folding does to the other terms of the bound, which is second order
        return (lora_act.abs() @ each.T + FP32_ROUNDOFF * (gemm * self.gemm_scale).abs()) * 1.02

    def _threads(self, rows: slice) -> contextlib.AbstractContextManager[None]:
        return _threads_for((rows.stop - rows.start) * self.wgt.numel())

    @functools.cached_property
    def _wgt_magnitude(self) -> torch.Tensor:
        return self.wgt.abs()

    def _epilogue(self, gemm: torch.Tensor, lora: torch.Tensor) -> torch.Tensor:
        return gemm * self.gemm_scale + lora * self.lora_scale + self.bias

    def _act(self, rows: slice) -> torch.Tensor:
        if isinstance(self.act, torch.Tensor):
            return self.act[rows].float()
        return dequantize_nvfp4(NVFP4Tensor(codes=self.act.codes[rows], scales=self.act.scales[rows]))


def _packed_contract(inputs: PackedInputs, activation: str) -> _Contract:
    act = _row_major(inputs.act, inputs.ascales, "ascales")
    wgt = _row_major(inputs.wgt, inputs.wscales, "wscales")
    return _Contract(
        act=act,
        wgt=dequantize_nvfp4(wgt),
        lora_act_in=inputs.lora_act_in.double(),
        lora_up=inputs.lora_up.double(),
        gemm_scale=inputs.wcscale.double(),
        lora_scale=inputs.wcscale.double(),
        bias=inputs.bias.double(),
        activation=activation,
    )


def _public_contract(inputs: PublicInputs, lora_dtype: str | None = None) -> _Contract:
    require_scale_bytes(inputs.act.scales, "ascales")
    require_scale_bytes(inputs.wgt.scales, "wscales")
    return _Contract(
        act=inputs.act,
        wgt=dequantize_nvfp4(inputs.wgt),
        lora_act_in=inputs.lora_act_in.double(),
        lora_up=inputs.lora_up.double(),
        gemm_scale=inputs.wcscale.double() * inputs.alpha,
        lora_scale=torch.ones(inputs.wgt.rows, dtype=torch.float64, device=inputs.bias.device),
        bias=inputs.bias.double(),
        lora_dtype=lora_dtype,
    )


def _row_major(codes: torch.Tensor, blocked: torch.Tensor, name: str) -> NVFP4Tensor:
    scales = unblock_scales(blocked, codes.shape[0], 2 * codes.shape[1])
    require_scale_bytes(scales, name)
    return NVFP4Tensor(codes=codes, scales=scales)


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """float64 ``a @ b.T``, converting panels of K so that ``b`` need not be held in float64."""
    out = torch.zeros((a.shape[0], b.shape[0]), dtype=torch.float64, device=a.device)
    for panel in _panels(a.shape[1], 1024):
        out.addmm_(a[:, panel].double(), b[:, panel].double().T)
    return out


def _walk(a: torch.Tensor, b: torch.Tensor, mma_k: int) -> _Walk:
    out = torch.zeros((a.shape[0], b.shape[0]), dtype=torch.float64, device=a.device)
    peak, path = torch.zeros_like(out), torch.zeros_like(out)
    scratch = torch.empty_like(out)
    panels = list(_panels(a.shape[1], mma_k))
    for number, panel in enumerate(panels, 1):
        out.addmm_(a[:, panel].double(), b[:, panel].double().T)
        torch.maximum(peak, torch.abs(out, out=scratch), out=peak)
        if number % PATH_EVERY == 0:
            path.add_(scratch, alpha=PATH_EVERY)
    if rest := len(panels) % PATH_EVERY:
        path.add_(scratch, alpha=rest)
    return _Walk(out, peak, path)


def _fp32_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a @ b.T`` of nonnegative numbers, in fp32 for speed: the error is below one factor 1 / (1 - roundings * u)."""
    return (a.float() @ b.float().T).double()


def _row_chunks(length: int, rows: slice, step: int) -> Iterator[slice]:
    start, stop, stride = rows.indices(length)
    if stride != 1 or start >= stop:
        raise InputError(f"rows must be a non-empty contiguous slice of {length}, got {rows}")
    return (slice(first, min(first + step, stop)) for first in range(start, stop, step))


def _panels(length: int, width: int) -> Iterator[slice]:
    return (slice(first, first + width) for first in range(0, length, width))

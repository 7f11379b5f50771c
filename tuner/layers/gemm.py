"""``svdquant_gemm`` as a torch operator: ``torch.ops.svdquant.gemm`` and its form with an output, ``gemm_out``.

Registered with ``torch.library.Library``; the decorator ``custom_op`` costs more host time than the kernel's launch.
"""

from __future__ import annotations

import torch

from kernel_space.core.errors import InputError
from kernel_space.numerics.tensors import require_tensor
from kernel_space.operators.svdquant_gemm.inputs import TORCH_DTYPES
from kernel_space.operators.svdquant_gemm.packing import PackedSVDQuant
from kernel_space.operators.svdquant_gemm.runtime import problem_of
from tuner.runtime.caller import Caller
from tuner.runtime.operands import require_launchable
from tuner.runtime.torch_operator import needs_dispatcher

_OPERANDS = (
    "Tensor act, Tensor ascales, Tensor wgt, Tensor wscales, Tensor lora_act_in, Tensor lora_up, "
    "Tensor wcscale, Tensor bias"
)
CALLER = Caller("svdquant_gemm", labels=("out",))
quick_call = CALLER.quick.call
_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}
_compiling = torch.compiler.is_dynamo_compiling  # which torch.compile knows to be true where it traces
LIBRARY = torch.library.Library("svdquant", "DEF")
LIBRARY.define(f"gemm({_OPERANDS}, ScalarType out_dtype) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
LIBRARY.define(f"gemm_out({_OPERANDS}, Tensor(a!) out) -> ()", tags=(torch.Tag.pt2_compliant_tag,))


def _gemm(act, ascales, wgt, wscales, lora_act_in, lora_up, wcscale, bias, out_dtype):  # noqa: ANN001, ANN202
    y = quick_call(act, ascales, wgt, wscales, lora_act_in, lora_up, wcscale, bias, None, out_dtype)
    if y is not None:
        return y
    operands = (act, ascales, wgt, wscales, lora_act_in, lora_up, wcscale, bias)
    return run(*operands, None, out_dtype, asked=out_dtype, quick=True)


def _gemm_out(act, ascales, wgt, wscales, lora_act_in, lora_up, wcscale, bias, out) -> None:  # noqa: ANN001
    if quick_call(act, ascales, wgt, wscales, lora_act_in, lora_up, wcscale, bias, out, None) is None:
        operands = (act, ascales, wgt, wscales, lora_act_in, lora_up, wcscale, bias)
        run(*operands, out, out.dtype, quick=True)


for _key in ("CPU", "CUDA"):
    LIBRARY.impl("gemm", _gemm, _key)
    LIBRARY.impl("gemm_out", _gemm_out, _key)


@torch.library.register_fake("svdquant::gemm", lib=LIBRARY)
def _fake_gemm(act, ascales, wgt, wscales, lora_act_in, lora_up, wcscale, bias, out_dtype):  # noqa: ANN001, ANN202
    _require_no_grad((act, ascales, wgt, wscales, lora_act_in, lora_up, wcscale, bias), None)
    return act.new_empty((act.shape[0], wgt.shape[0]), dtype=out_dtype)


@torch.library.register_fake("svdquant::gemm_out", lib=LIBRARY)
def _fake_gemm_out(act, ascales, wgt, wscales, lora_act_in, lora_up, wcscale, bias, out) -> None:  # noqa: ANN001
    _require_no_grad((act, ascales, wgt, wscales, lora_act_in, lora_up, wcscale, bias), out)


def svdquant_gemm(
    act: torch.Tensor,
    ascales: torch.Tensor,
    packed: PackedSVDQuant,
    lora_act_in: torch.Tensor | None,
    out: torch.Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """``y[M,N] = (scaled_mma(act, wgt) + lora_act_in @ lora_up.T) * wcscale + bias`` on torch's current stream.

    ``act``  uint8 ``[M, K/2]``, ``ascales`` uint8 in the blocked layout, as ``quantize_act`` gives them
    ``packed``  weights from ``pack_svdquant_weights``, on the same device
    ``lora_act_in``  ``[M, R]`` in the dtype of ``packed.lora_up``; None is allowed when R is 0
    ``out``  ``[M, N]`` contiguous, float16 or bfloat16, is written and returned; otherwise a new tensor
    ``out_dtype``  of a new tensor; by default the dtype of ``packed.lora_up``

    The kernel is what the dispatch table of the card has for this problem (``explain`` tells which); on the CPU and on
    cards without a kernel it is the torch reference, which a warning says once. There is no backward pass.

    Raises ``InputError`` for tensors that do not fit, for one that requires grad in grad mode (weights and ``out``
    too), and when there is no kernel for the problem; ``HostCallError`` when CUDA refuses the launch.
    """
    wgt, wscales, lora_up, wcscale, bias = (
        packed.wgt,
        packed.wscales,
        packed.lora_up,
        packed.wcscale,
        packed.bias,
    )
    if not _compiling():
        y = quick_call(act, ascales, wgt, wscales, lora_act_in, lora_up, wcscale, bias, out, out_dtype)
        if y is not None:
            return y
    return gemm(act, ascales, wgt, wscales, lora_act_in, lora_up, wcscale, bias, out, out_dtype)


def gemm(
    act: torch.Tensor,
    ascales: torch.Tensor,
    wgt: torch.Tensor,
    wscales: torch.Tensor,
    lora_act_in: torch.Tensor | None,
    lora_up: torch.Tensor,
    wcscale: torch.Tensor,
    bias: torch.Tensor,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """``svdquant_gemm`` with the packed weights one by one."""
    if not _compiling():
        y = quick_call(act, ascales, wgt, wscales, lora_act_in, lora_up, wcscale, bias, out, out_dtype)
        if y is not None:
            return y
    asked = out_dtype
    if lora_act_in is None:
        lora_act_in = lora_up.new_empty((act.shape[0], 0))
    if out is None:
        out_dtype = lora_up.dtype if out_dtype is None else out_dtype
    elif out_dtype is None or out_dtype == out.dtype:
        out_dtype = out.dtype
    else:
        raise InputError(f"out_dtype must be left out or be that of out, {out.dtype}, got {out_dtype}")
    operands = (act, ascales, wgt, wscales, lora_act_in, lora_up, wcscale, bias)
    if not needs_dispatcher(act):
        return run(*operands, out, out_dtype, asked=asked, quick=True)
    _require_no_grad(operands, out)
    if out is None:
        return torch.ops.svdquant.gemm(*operands, out_dtype)
    torch.ops.svdquant.gemm_out(*operands, out)
    return out


def run(
    act: torch.Tensor,
    ascales: torch.Tensor,
    wgt: torch.Tensor,
    wscales: torch.Tensor,
    lora_act_in: torch.Tensor,
    lora_up: torch.Tensor,
    wcscale: torch.Tensor,
    bias: torch.Tensor,
    out: torch.Tensor | None,
    out_dtype: torch.dtype,
    *,
    asked: torch.dtype | None = None,
    quick: bool = False,
) -> torch.Tensor:
    """The long way: ``y`` ``[M, N]`` in ``out_dtype``, or ``out``, which must have that dtype.

    ``quick``: let calls like this one, with ``asked`` as their out_dtype, go the short way from now on.
    """
    inputs = (act, ascales, wgt, wscales, lora_act_in, lora_up, wcscale, bias)
    outputs = None if out is None else (out,)
    if out_dtype not in _NAMES:
        raise InputError(f"y must be float16 or bfloat16, got {str(out_dtype).removeprefix('torch.')}")
    if act.ndim == 2 and not act.shape[0]:
        return _no_rows(inputs, out, out_dtype)
    return CALLER.run(inputs, outputs, (_NAMES[out_dtype], "none"), asked=asked, quick=quick)[0]


def _no_rows(
    inputs: tuple[torch.Tensor, ...], out: torch.Tensor | None, out_dtype: torch.dtype
) -> torch.Tensor:
    """There is nothing to launch, but tensors must fit as ever."""
    CALLER.require_no_grad(inputs, None if out is None else (out,))
    problem, act = problem_of(CALLER.named(inputs)), inputs[0]
    CALLER.require_placed(inputs)
    if out is None:
        return act.new_empty((0, problem.n), dtype=out_dtype)
    require_tensor(out, "out", (out_dtype,), (0, problem.n))
    require_launchable(out, "out", act.device)
    return out


def _require_no_grad(inputs: tuple[torch.Tensor, ...], out: torch.Tensor | None) -> None:
    CALLER.require_no_grad(inputs, None if out is None else (out,))


def no_backward(what: str) -> InputError:
    return InputError(
        f"{what} has no backward pass but its input requires grad; "
        "call it under torch.no_grad() or torch.inference_mode()"
    )

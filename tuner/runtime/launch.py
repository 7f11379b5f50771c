"""A call the long way: everything is checked, and resolved when it is new. ``quick.py`` is for calls made before."""

from __future__ import annotations

from typing import Any

import torch

from kernel_space.core.errors import InputError
from tuner.runtime import state
from tuner.runtime.choice.ranks import pad_rank
from tuner.runtime.choice.remembered import MAX_CALLS, Recent
from tuner.runtime.load.loaded import launch_error
from tuner.runtime.load.plan import Plan
from tuner.runtime.load.trampoline import MISALIGNED
from tuner.runtime.operands import (
    WEIGHTS,
    WeightRecord,
    record_of,
    require_launchable,
    require_memory,
    require_no_grad,
)
from tuner.runtime.quick import learn, quick_call
from tuner.runtime.reference import reference_gemm, warn_once

_plans: Recent[tuple, Plan | None] = Recent(MAX_CALLS, of_tables=True)
"""By generation, record, and what the activations look like: None where there is nothing to launch."""


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
    """``y`` ``[M, N]`` in ``out_dtype``: ``out`` if given, which must have that dtype. See ``svdquant_gemm``.

    ``quick``: let calls like this one, with ``asked`` as their out_dtype, go the short way from now on.
    """
    weights = (wgt, wscales, lora_up, wcscale, bias)
    require_no_grad(
        "svdquant_gemm", lora_act_in=lora_act_in, lora_up=lora_up, wcscale=wcscale, bias=bias, out=out
    )
    tables, generation = state.active()
    record = record_of(weights)
    _check_placed(record, act, ascales, lora_act_in)  # first: a plan is made for the card of the weights
    key = (
        generation,
        record,
        act.shape,
        ascales.shape,
        lora_act_in.shape,
        act.dtype,
        ascales.dtype,
        lora_act_in.dtype,
        out_dtype,
    )
    plan = _plans.get(key, _plans)
    if plan is _plans:
        plan = _plan(tables, record, act, ascales, lora_act_in, out_dtype)
        _plans.put(key, plan)
    if out is not None:
        _check_out(out, (act.shape[0], record.n), out_dtype, act.device)
    if plan is None:
        return _without_kernel(
            act, ascales, wgt, wscales, lora_act_in, lora_up, wcscale, bias, out, out_dtype
        )
    if plan.choice.is_padded:
        # Every time anew, as nobody tells when lora_up is written; it first, because a kernel may read weights while
        # the one before it still runs.
        rank = plan.choice.launched.r
        lora_up, lora_act_in = pad_rank(lora_up, rank), pad_rank(lora_act_in, rank)
        return _again(
            act, ascales, wgt, wscales, lora_act_in, lora_up, wcscale, bias, out, out_dtype, asked, quick
        )
    with torch.cuda.device(plan.device):
        y = _launch(plan, act, ascales, weights, lora_act_in, out)
    if quick:
        learn(plan, generation, (act, ascales, lora_act_in, *weights), out, asked)
    return y


def _again(*operands: Any) -> torch.Tensor:
    """``run`` with padded operands, which may have been learned."""
    *tensors, out, out_dtype, asked, quick = operands
    y = quick_call(*tensors, out, asked) if quick else None
    return run(*tensors, out, out_dtype, asked=asked, quick=quick) if y is None else y


def _launch(
    plan: Plan,
    act: torch.Tensor,
    ascales: torch.Tensor,
    weights: tuple[torch.Tensor, ...],
    lora_act_in: torch.Tensor,
    out: torch.Tensor | None,
) -> torch.Tensor:
    y = plan.output() if out is None else out
    stream, memory, mutex = torch.cuda.current_stream(plan.device).cuda_stream, None, 0
    if plan.workspace_bytes:
        room = plan.workspaces.take(plan.workspace_bytes, plan.zeroed_bytes, stream)
        memory, mutex = room.memory, room.mutex
    wgt, wscales, lora_up, wcscale, bias = weights
    code = plan.launch(
        act, ascales, wgt, wscales, lora_act_in, lora_up, wcscale, bias, y, memory, mutex, stream
    )
    if code == MISALIGNED:
        named = {"act": act, "ascales": ascales, "lora_act_in": lora_act_in, "out": y}
        for name, tensor in (named | dict(zip(WEIGHTS, weights, strict=True))).items():
            require_launchable(tensor, name, act.device)
    if code:
        raise launch_error(code, f"{plan.choice.problem} on cuda:{plan.device}")
    return y


def _plan(
    tables: state.RuntimeState,
    record: WeightRecord,
    act: torch.Tensor,
    ascales: torch.Tensor,
    lora_act_in: torch.Tensor,
    out_dtype: torch.dtype,
) -> Plan | None:
    """None: there is nothing to launch, because no kernel runs on that device or M is 0."""
    record.check_activations(act, ascales, lora_act_in)
    m = act.shape[0]
    problem = record.problem(max(m, 1), out_dtype)
    if record.device < 0 or state.supported_class(record.device) is None:
        warn_once(act.device)
        return None
    return tables.plan(problem, record.device) if m else None


_OPERANDS = ("act", "ascales", "wgt", "wscales", "lora_act_in", "lora_up", "wcscale", "bias")


def _without_kernel(*operands: torch.Tensor | torch.dtype | None) -> torch.Tensor:
    *tensors, out, out_dtype = operands
    act, wgt = tensors[0], tensors[2]
    if act.shape[0] == 0:
        return act.new_empty((0, wgt.shape[0]), dtype=out_dtype) if out is None else out
    for name, tensor in zip(_OPERANDS, tensors, strict=True):
        require_memory(tensor, name)
    y = reference_gemm(*tensors, out_dtype)
    return y if out is None else out.copy_(y)


def _check_placed(
    record: WeightRecord, act: torch.Tensor, ascales: torch.Tensor, lora_act_in: torch.Tensor
) -> None:
    device = record.device
    same = (
        act.get_device() == device and ascales.get_device() == device and lora_act_in.get_device() == device
    )
    if device < 0:  # which is the number of meta tensors too
        same = act.is_cpu and ascales.is_cpu and lora_act_in.is_cpu
    if same and act.is_contiguous() and ascales.is_contiguous() and lora_act_in.is_contiguous():
        return
    on = torch.device("cuda", device) if device >= 0 else torch.device("cpu")
    for name, tensor in (("act", act), ("ascales", ascales), ("lora_act_in", lora_act_in)):
        require_launchable(tensor, name, on)


def _check_out(out: torch.Tensor, shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> None:
    if out.shape != shape or out.dtype != dtype:
        wanted = f"{str(dtype).removeprefix('torch.')} {list(shape)}"
        came = f"{str(out.dtype).removeprefix('torch.')} {list(out.shape)}"
        raise InputError(f"out must be {wanted}, got {came}")
    require_launchable(out, "out", device)

"""The call itself: from tensors to a launch on torch's current stream, in as few steps as Python allows."""

from __future__ import annotations

import torch

from kernel_space.errors import InputError
from tuner.runtime import state
from tuner.runtime.loaded import launch_error
from tuner.runtime.operands import ALIGN, WeightRecord, record_of, require_launchable
from tuner.runtime.plan import Plan
from tuner.runtime.reference import reference_gemm, warn_once

_raw_stream = getattr(
    torch._C, "_cuda_getCurrentRawStream", None
)  # absent from a build of torch without CUDA
_current_device = getattr(torch._C, "_cuda_getDevice", None)


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
) -> torch.Tensor:
    """``y`` ``[M, N]`` in ``out_dtype``: ``out`` if given, which must have that dtype. See ``svdquant_gemm``."""
    weights = (wgt, wscales, lora_up, wcscale, bias)
    tables, generation = state.active()
    record = record_of(weights, generation)
    key = (
        act.shape,
        ascales.shape,
        lora_act_in.shape,
        act.dtype,
        ascales.dtype,
        lora_act_in.dtype,
        out_dtype,
    )
    if key in record.plans:
        plan = record.plans[key]
    else:
        plan = _plan(tables, record, act, ascales, lora_act_in, out_dtype)
        record.remember(key, plan)
    _check_placed(record, act, ascales, lora_act_in)
    if out is not None:
        _check_out(out, (act.shape[0], record.n), out_dtype, act.device)
    if plan is None:
        return _without_kernel(
            act, ascales, wgt, wscales, lora_act_in, lora_up, wcscale, bias, out, out_dtype
        )
    if _current_device() != plan.device:
        with torch.cuda.device(plan.device):
            return _launch(plan, act, ascales, weights, lora_act_in, out)
    return _launch(plan, act, ascales, weights, lora_act_in, out)


def _launch(
    plan: Plan,
    act: torch.Tensor,
    ascales: torch.Tensor,
    weights: tuple[torch.Tensor, ...],
    lora_act_in: torch.Tensor,
    out: torch.Tensor | None,
) -> torch.Tensor:
    wgt, wscales, lora_up, wcscale, bias = weights
    y = plan.output() if out is None else out
    stream = _raw_stream(plan.device)
    workspace, memory = 0, None
    if plan.workspace_bytes:
        memory = plan.workspaces.take(plan.workspace_bytes, plan.zeroed_bytes, stream)
        workspace = memory.data_ptr()
    act_at, ascales_at, lora_at = act.data_ptr(), ascales.data_ptr(), lora_act_in.data_ptr()
    if (act_at | ascales_at | lora_at) % ALIGN:
        for name, tensor in (("act", act), ("ascales", ascales), ("lora_act_in", lora_act_in)):
            require_launchable(tensor, name, act.device)
    code = plan.launch(
        plan.static,
        act_at,
        ascales_at,
        wgt.data_ptr(),
        wscales.data_ptr(),
        lora_at,
        lora_up.data_ptr(),
        wcscale.data_ptr(),
        bias.data_ptr(),
        y.data_ptr(),
        workspace,
        stream,
    )
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


def _without_kernel(*operands: torch.Tensor | torch.dtype | None) -> torch.Tensor:
    *tensors, out, out_dtype = operands
    act, wgt = tensors[0], tensors[2]
    if act.shape[0] == 0:
        return act.new_empty((0, wgt.shape[0]), dtype=out_dtype) if out is None else out
    y = reference_gemm(*tensors, out_dtype)
    return y if out is None else out.copy_(y)


def _check_placed(
    record: WeightRecord, act: torch.Tensor, ascales: torch.Tensor, lora_act_in: torch.Tensor
) -> None:
    device = record.device
    same = (
        act.get_device() == device and ascales.get_device() == device and lora_act_in.get_device() == device
    )
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

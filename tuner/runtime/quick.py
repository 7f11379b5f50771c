"""The way of a call that has been made before: no checks but one, no dispatcher.

``TensorGuards``, torch's own check of a compiled graph's inputs, compares type, dispatch keys, dtype, device, sizes
and strides of all activations in a single C++ call of 0.3 us. It also fails where somebody listens to operators
(fake tensors, dispatch modes, functorch, autograd), because the dispatch keys differ then; such a call goes the long
way.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._C._dynamo.guards import TensorGuards

from tuner.runtime import state
from tuner.runtime.loaded import launch_error
from tuner.runtime.operands import WeightRecord, records
from tuner.runtime.plan import Plan, new_tensor
from tuner.runtime.trampoline import MISALIGNED

MAX_VARIANTS = 4  # of one shape: inference mode, autocast and the like have dispatch keys of their own
_raw_stream = getattr(
    torch._C, "_cuda_getCurrentRawStream", None
)  # absent from a build of torch without CUDA
_current_device = getattr(torch._C, "_cuda_getDevice", None)
_on_card = torch.cuda.device
_functions = torch._C._len_torch_function_stack
_profiling = torch.autograd._profiler_enabled


class QuickCall:
    """One shape of one layer's calls. ``check(act, ascales, lora_act_in[, out])``: is this such a call?

    ``other``: the next variant with the same shape, or None. ``only_card``: no other can be the current device.
    """

    __slots__ = (
        "check",
        "device",
        "dtype",
        "launch",
        "only_card",
        "other",
        "plan",
        "shape",
        "stride",
        "workspace_bytes",
        "workspaces",
        "zeroed_bytes",
    )

    def __init__(self, plan: Plan, activations: tuple[torch.Tensor, ...], other: QuickCall | None) -> None:
        guards: Any = TensorGuards(
            *activations,
            dynamic_dims_sizes=[list(tensor.shape) for tensor in activations],
            dynamic_dims_strides=[list(tensor.stride()) for tensor in activations],
        )
        self.check = guards.check
        self.plan = plan
        self.other = other
        self.only_card = torch.cuda.device_count() == 1
        for name in ("device", "dtype", "launch", "shape", "stride"):
            setattr(self, name, getattr(plan, name))
        self.workspaces = plan.workspaces
        self.workspace_bytes, self.zeroed_bytes = plan.workspace_bytes, plan.zeroed_bytes


def quick_call(
    act: torch.Tensor,
    ascales: torch.Tensor,
    wgt: torch.Tensor,
    wscales: torch.Tensor,
    lora_act_in: torch.Tensor,
    lora_up: torch.Tensor,
    wcscale: torch.Tensor,
    bias: torch.Tensor,
    out: torch.Tensor | None,
    out_dtype: torch.dtype | None,
) -> torch.Tensor | None:
    """``y``, or None: this call must go the long way, which checks it and says what is wrong with it."""
    record = records.get((id(wgt), id(wscales), id(lora_up), id(wcscale), id(bias)))
    if record is None or record.generation != state.generation or _profiling() or _functions():
        return None
    call = record.calls.get((act.shape, out is None, out_dtype))
    if out is None:
        while call is not None and not call.check(act, ascales, lora_act_in):
            call = call.other
    else:
        while call is not None and not call.check(act, ascales, lora_act_in, out):
            call = call.other
    if call is None:
        return None
    if not (call.only_card or _current_device() == call.device):
        with _on_card(
            call.device
        ):  # as torch's own operators do for tensors of another card than the current one
            return quick_call(act, ascales, wgt, wscales, lora_act_in, lora_up, wcscale, bias, out, out_dtype)
    y = new_tensor(call.shape, call.stride, call.dtype) if out is None else out
    stream = _raw_stream(call.device)
    memory, mutex = None, 0
    if call.workspace_bytes:
        room = call.workspaces.take(call.workspace_bytes, call.zeroed_bytes, stream)
        memory, mutex = room.memory, room.mutex
    code = call.launch(
        act, ascales, wgt, wscales, lora_act_in, lora_up, wcscale, bias, y, memory, mutex, stream
    )
    if code == 0:
        return y
    if code == MISALIGNED:
        return None
    raise launch_error(code, f"{call.plan.choice.problem} on cuda:{call.device}")


def learn(
    record: WeightRecord,
    plan: Plan,
    activations: tuple[torch.Tensor, ...],
    out: torch.Tensor | None,
    out_dtype: torch.dtype | None,
) -> None:
    """From now on calls like this one are quick. It was just made, the long way and outside of any mode.

    One that is known already came here because somebody listens, such as the profiler.
    """
    key = (activations[0].shape, out is None, out_dtype)
    guarded = activations if out is None else (*activations, out)
    first = record.calls.get(key)
    known = 0
    other = first
    while other is not None:
        if other.check(*guarded):
            return
        known, other = known + 1, other.other
    record.remember_call(key, QuickCall(plan, guarded, first if known < MAX_VARIANTS else None))

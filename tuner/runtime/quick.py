"""The way of a call that has been made before: no checks but one, no dispatcher.

``TensorGuards``, torch's own check of a compiled graph's inputs, compares type, dispatch keys, dtype, device, sizes,
strides and whether a gradient is wanted of all operands in a single C++ call of 0.6 us. It also fails where somebody
listens to operators (fake tensors, dispatch modes, functorch), because the dispatch keys differ then; such a call goes
the long way. Nothing is known of a tensor but what it looks like: layers of one shape share what was learned, and a
weight that was changed in any way is another one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C._dynamo.guards import TensorGuards

from tuner.runtime import state
from tuner.runtime.choice.remembered import MAX_CALLS, Recent
from tuner.runtime.load.loaded import launch_error
from tuner.runtime.load.plan import Plan, new_tensor
from tuner.runtime.load.trampoline import MISALIGNED

MAX_VARIANTS = (
    8  # of one shape: rank, card, and modes such as inference mode, which have dispatch keys of their own
)
_raw_stream = getattr(
    torch._C, "_cuda_getCurrentRawStream", None
)  # absent from a build of torch without CUDA
_current_device = getattr(torch._C, "_cuda_getDevice", None)
_on_card = torch.cuda.device
_functions = torch._C._len_torch_function_stack
_profiling = torch.autograd._profiler_enabled
_grad = torch.is_grad_enabled


class QuickCall:
    """Calls of one shape. ``check(act, ascales, lora_act_in, *weights[, out])``: is this such a call?

    ``other``: the next variant with the same shape, or None. ``only_card``: no other can be the current device.
    ``generation``: of the tables that the plan is from.
    """

    __slots__ = (
        "check",
        "device",
        "dtype",
        "generation",
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

    def __init__(
        self, plan: Plan, generation: int, tensors: tuple[torch.Tensor, ...], other: QuickCall | None
    ) -> None:
        guards: Any = TensorGuards(
            *tensors,
            dynamic_dims_sizes=[list(tensor.shape) for tensor in tensors],
            dynamic_dims_strides=[list(tensor.stride()) for tensor in tensors],
        )
        wants = any(tensor.requires_grad for tensor in tensors)
        self.check = _without_grad(guards.check) if wants else guards.check
        self.plan = plan
        self.generation = generation
        self.other = other
        self.only_card = torch.cuda.device_count() == 1
        for name in ("device", "dtype", "launch", "shape", "stride"):
            setattr(self, name, getattr(plan, name))
        self.workspaces = plan.workspaces
        self.workspace_bytes, self.zeroed_bytes = plan.workspace_bytes, plan.zeroed_bytes


def _without_grad(check: Callable[..., bool]) -> Callable[..., bool]:
    """For tensors that want a gradient, which is fine where none is recorded: the guard does not look at that."""
    return lambda *tensors: not _grad() and check(*tensors)


calls: Recent[tuple, QuickCall] = Recent(MAX_CALLS, of_tables=True)
"""By the sizes of act and wgt, whether an output is given, and the dtype that was asked for."""
_near: Recent[tuple, QuickCall] = Recent(MAX_CALLS, of_tables=True)
"""The same by the identity of wgt in place of its sizes, which saves 0.1 us. Where a new tensor has the identity of one
that died, ``check`` tells whether the call is one like this.
"""


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
    try:
        call = _near.hot.get((id(wgt), act.shape, out is None, out_dtype))
        if call is None:
            call = _find(act, wgt, out, out_dtype)
    except (AttributeError, TypeError):  # no tensor, or sizes that are symbols
        return None
    if call is None or call.generation != state.generation or _profiling() or _functions():
        return None
    if out is None:
        while call is not None and not call.check(
            act, ascales, lora_act_in, wgt, wscales, lora_up, wcscale, bias
        ):
            call = call.other
    else:
        while call is not None and not call.check(
            act, ascales, lora_act_in, wgt, wscales, lora_up, wcscale, bias, out
        ):
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


def _find(
    act: torch.Tensor, wgt: torch.Tensor, out: torch.Tensor | None, out_dtype: torch.dtype | None
) -> QuickCall | None:
    """The first of the calls of these sizes; the next one with this very ``wgt`` finds it at once."""
    call = calls.get((act.shape, wgt.shape, out is None, out_dtype))
    if call is not None:
        _near.put((id(wgt), act.shape, out is None, out_dtype), call)
    return call


def learn(
    plan: Plan,
    generation: int,
    operands: tuple[torch.Tensor, ...],
    out: torch.Tensor | None,
    out_dtype: torch.dtype | None,
) -> None:
    """From now on calls like this one are quick. It was just made, the long way and outside of any mode.

    ``operands``: act, ascales, lora_act_in and the five weights. A call that is known already came here because
    somebody listens, such as the profiler, or because it was not made for long.
    """
    act, wgt = operands[0], operands[3]
    key = (act.shape, wgt.shape, out is None, out_dtype)
    guarded = operands if out is None else (*operands, out)
    known = _variants(calls.get(key), generation)
    if any(one.check(*guarded) for one in known):
        first = known[0]
    else:
        if len(known) == MAX_VARIANTS:
            known[-2].other = None
        first = QuickCall(plan, generation, guarded, known[0] if known else None)
        calls.put(key, first)
    _near.put((id(wgt), act.shape, out is None, out_dtype), first)


def _variants(first: QuickCall | None, generation: int) -> list[QuickCall]:
    """``first`` and what follows, newest first; none of another generation."""
    found = []
    while first is not None and first.generation == generation:
        found.append(first)
        first = first.other
    return found

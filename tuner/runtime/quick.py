"""The way of a call that has been made before: no checks but one, no dispatcher.

``TensorGuards``, torch's own check of a compiled graph's inputs, compares type, dispatch keys, dtype, device, sizes,
strides and whether a gradient is wanted of all operands in a single C++ call of 0.6 us. It also fails where somebody
listens to operators (fake tensors, dispatch modes, functorch), because the dispatch keys differ then; such a call goes
the long way. Nothing is known of a tensor but what it looks like: layers of one shape share what was learned, and a
weight that was changed in any way is another one.

The function itself is written for each signature (``quick_source.py``), as loops over its names would cost more than
all the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._C._dynamo.guards import TensorGuards

from kernel_space.core.signature import Signature
from tuner.runtime import state
from tuner.runtime.choice.remembered import MAX_CALLS, Recent
from tuner.runtime.load.early import capturing
from tuner.runtime.load.loaded import launch_error
from tuner.runtime.load.plan import Output, Plan, new_tensor
from tuner.runtime.load.trampoline import MISALIGNED
from tuner.runtime.quick_source import quick_source

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

Tensors = tuple[torch.Tensor, ...]
_USED_BY_SOURCE = (state, launch_error, new_tensor, MISALIGNED, capturing)


class QuickCall:
    """Calls of one shape. ``check(*inputs[, *outputs])``: is this such a call?

    ``captured``: the launch on a stream that is being captured. ``other``: the next variant with the same shape, or
    None. ``only_card``: no other can be the current device. ``generation``: of the tables that the plan is from.
    """

    __slots__ = (
        "captured",
        "check",
        "device",
        "generation",
        "launch",
        "only_card",
        "other",
        "outputs",
        "plan",
        "workspace_bytes",
        "workspaces",
        "zeroed_bytes",
    )

    def __init__(
        self,
        plan: Plan,
        generation: int,
        tensors: Tensors,
        other: QuickCall | None,
        unread: frozenset[int] = frozenset(),
        leading: Mapping[int, tuple[int, ...]] | None = None,
    ) -> None:
        sizes: Any = [list(tensor.shape) for tensor in tensors]  # torch's stub knows one tensor's only
        strides: Any = [list(tensor.stride()) for tensor in tensors]
        guards: Any = TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
        wants = any(tensor.requires_grad for tensor in tensors)
        self.check = _without_grad(guards.check) if wants else guards.check
        self.plan = plan
        self.generation = generation
        self.other = other
        self.only_card = torch.cuda.device_count() == 1
        self.device, self.launch, self.captured = plan.device, plan.launch, plan.captured
        # A call unpacks no other kind as quickly.
        self.outputs = tuple(
            [
                one if isinstance(one, torch.Tensor) else tuple(_shaped(one, number, leading or {}))
                for number, one in enumerate(plan.outputs_for(unread))
            ]
        )
        self.workspaces = plan.workspaces
        self.workspace_bytes, self.zeroed_bytes = plan.workspace_bytes, plan.zeroed_bytes


def _shaped(one: Output, number: int, leading: Mapping[int, tuple[int, ...]]) -> Output:
    return one.with_leading(leading[number]) if number in leading else one


def _without_grad(check: Callable[..., bool]) -> Callable[..., bool]:
    """For tensors that want a gradient, which is fine where none is recorded: the guard does not look at that."""
    return lambda *tensors: not _grad() and check(*tensors)


class Quick:
    """Calls of one operator that were made before.

    ``call(*inputs, *outputs or Nones, asked)``: the output, a tuple of several, or None: this call must go the long
    way, which checks it and says what is wrong with it. ``asked``: whatever else a call is about, such as a dtype.

    ``unread``: numbers of outputs that no caller looks at. ``keys``: inputs by whose sizes calls are found. ``steady``:
    one of them that is the same tensor from call to call, or empty: it is known by its identity, which saves 0.1 us.
    Where a new tensor has the identity of one that died, ``check`` tells whether the call is one like this.
    """

    def __init__(
        self,
        signature: Signature,
        keys: tuple[str, ...],
        steady: str = "",
        *,
        unread: frozenset[int] = frozenset(),
        limit: int = MAX_CALLS,
    ) -> None:
        self._unread = unread
        self._keys = [signature.inputs.index(name) for name in keys]
        self._steady = signature.inputs.index(steady) if steady else None
        self.calls: Recent[tuple, QuickCall] = Recent(limit, of_tables=True)
        """By the sizes of ``keys``, whether outputs are given, and what was asked for."""
        self.near: Recent[tuple, QuickCall] = Recent(limit, of_tables=True)
        """The same with the identity of ``steady`` in place of its sizes."""
        scope: dict[str, Any] = {}
        source = quick_source(signature, self._keys, self._steady)
        exec(compile(source, f"<quick call of {len(signature.parts)} arguments>", "exec"), globals(), scope)
        self.call: Callable[..., Any] = scope["make"](self._first, self.find)

    @property
    def _first(self) -> Recent[tuple, QuickCall]:
        """Where a call looks first."""
        return self.calls if self._steady is None else self.near

    def find(self, inputs: Tensors, given: bool, asked: Any) -> QuickCall | None:
        """The first of the calls of these sizes; the next one with this very ``steady`` finds it at once."""
        call = self.calls.get(self._key(inputs, given, asked))
        if call is not None and self._steady is not None:
            self.near.put(self._near_key(inputs, given, asked), call)
        return call

    def learn(
        self,
        plan: Plan,
        generation: int,
        inputs: Tensors,
        outputs: Tensors | None,
        asked: Any,
        leading: Mapping[int, tuple[int, ...]] | None = None,
    ) -> None:
        """From now on calls like this one are quick. It was just made, the long way and outside of any mode.
        ``leading``: of outputs by number, what is in place of all sizes but the last.

        A call that is known already came here because somebody listens, such as the profiler, or because it was not
        made for long.
        """
        key = self._key(inputs, outputs is not None, asked)
        guarded = inputs if outputs is None else (*inputs, *outputs)
        known = _variants(self.calls.get(key), generation)
        if any(one.check(*guarded) for one in known):
            first = known[0]
        else:
            if len(known) == MAX_VARIANTS:
                known[-2].other = None
            first = QuickCall(plan, generation, guarded, known[0] if known else None, self._unread, leading)
            self.calls.put(key, first)
        if self._steady is not None:
            self.near.put(self._near_key(inputs, outputs is not None, asked), first)

    def learn_alike(
        self, inputs: Tensors, alike: Tensors, asked: Any, leading: Mapping[int, tuple[int, ...]]
    ) -> bool:
        """Calls with ``alike``, the same memory as ``inputs`` in other sizes, are quick from now on as those with
        ``inputs`` are; False if these are not. ``leading``: as of ``learn``.
        """
        known = self.find(inputs, False, asked)
        while known is not None and (known.generation != state.generation or not known.check(*inputs)):
            known = known.other
        if known is not None:
            self.learn(known.plan, known.generation, alike, None, asked, leading)
        return known is not None

    def _key(self, inputs: Tensors, given: bool, asked: Any) -> tuple:
        return (*(inputs[index].shape for index in self._keys), given, asked)

    def _near_key(self, inputs: Tensors, given: bool, asked: Any) -> tuple:
        assert self._steady is not None
        shapes = (inputs[index].shape for index in self._keys if index != self._steady)
        return (id(inputs[self._steady]), *shapes, given, asked)


def _variants(first: QuickCall | None, generation: int) -> list[QuickCall]:
    """``first`` and what follows, newest first; none of another generation."""
    found = []
    while first is not None and first.generation == generation:
        found.append(first)
        first = first.other
    return found

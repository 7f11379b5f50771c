"""A call the long way: everything is checked, and resolved when it is new. ``quick.py`` is for calls made before.

Nothing is remembered of a tensor itself, only of what it looks like, which every call compares: ``.data = ...``, a
change of dtype, sizes, strides or device of a known tensor are seen. What a call checks besides is what such facts do
not tell: alignment, and that there is memory at all.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from kernel_space.core import registry
from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from kernel_space.core.signature import In, Out
from kernel_space.numerics.tensors import DTYPES, require_specs, require_tensor
from tuner.runtime import record, state
from tuner.runtime.choice.contract import runtime_of
from tuner.runtime.choice.remembered import MAX_CALLS, Recent
from tuner.runtime.load.early import behind_writes, capturing
from tuner.runtime.load.loaded import launch_error
from tuner.runtime.load.plan import Plan
from tuner.runtime.load.trampoline import MISALIGNED
from tuner.runtime.operands import require_launchable, require_memory, require_no_grad
from tuner.runtime.quick import Quick, Tensors
from tuner.runtime.quick_source import facts_of

About = Problem | tuple[str, ...]
"""What a call is about besides its tensors: the problem itself, or the options that its caller chooses."""

_once = threading.Lock()
_warned: set[str] = set()


class Caller:
    """Calls of one operator. ``labels``: what its outputs are called in messages, by default as in the signature.
    ``reads``: those that its callers look at, by default all: a kernel that does not write one of the others gets none.
    """

    def __init__(self, name: str, labels: Sequence[str] = (), *, reads: Sequence[str] = ()) -> None:
        operator = registry.operator(name)
        self.name = name
        self.signature = operator.signature
        self.runtime = runtime_of(name)
        self.labels = tuple(labels) or self.signature.outputs
        outputs = self.signature.outputs
        self._unread = frozenset(outputs.index(one) for one in outputs if reads and one not in reads)
        self.quick = Quick(self.signature, self.runtime.keys, self.runtime.steady, unread=self._unread)
        parts = [part.name for part in self.signature.parts if isinstance(part, In | Out)]
        given = (*self.signature.inputs, *self.signature.outputs)
        self._order = [given.index(name) for name in parts]  # of the launch, out of inputs and outputs
        self._facts = facts_of(len(self.signature.inputs))
        self._plans: Recent[tuple, tuple[Problem, Plan | None]] = Recent(MAX_CALLS, of_tables=True)
        """By generation, what the call is about, and what the inputs look like."""

    def run(
        self,
        inputs: Tensors,
        outputs: Tensors | None,
        about: About,
        *,
        asked: Any = None,
        quick: bool = False,
        noted: bool = False,
    ) -> Tensors:
        """The outputs: those given, which must be what the problem says, or new ones.

        ``quick``: let calls like this one, with ``asked``, go the short way from now on. ``noted``: who records
        problems knows of this call already. Raises ``InputError`` for tensors that do not fit and where nothing can be
        launched, ``HostCallError`` when CUDA refuses.
        """
        self.require_no_grad(inputs, outputs)
        tables, generation = state.active()
        key = (generation, about, self._facts(*inputs))
        known = self._plans.get(key)
        if known is None:
            known = self._resolve(tables, inputs, about)
            self._plans.put(key, known)
        problem, plan = known
        if outputs is not None:
            self._check_outputs(outputs, problem, self._device(inputs))
        if record.listening():
            quick = False  # such a call would not come by here
            if not noted:
                record.note(problem, plan)
        if plan is None:
            return self._without_kernel(problem, inputs, outputs)
        if plan.choice.is_padded:
            return self._adapted(plan, inputs, outputs, about, asked, quick)
        with torch.cuda.device(plan.device):
            made = self._launch(plan, inputs, outputs)
            if quick:
                self.quick.learn(plan, generation, inputs, outputs, asked)
        return made

    def require_no_grad(self, inputs: Tensors, outputs: Tensors | None) -> None:
        """Raises ``InputError`` if gradients are recorded and somebody wants one."""
        tensors = inputs if outputs is None else (*inputs, *outputs)
        if torch.is_grad_enabled() and any([one.requires_grad for one in tensors]):
            require_no_grad(self.name, zip((*self.signature.inputs, *self.labels), tensors, strict=False))

    def require_placed(self, inputs: Tensors) -> None:
        """Raises ``InputError`` unless all are contiguous, aligned, and on one device."""
        device = self._device(inputs)
        for name, tensor in zip(self.signature.inputs, inputs, strict=True):
            require_launchable(tensor, name, device)

    def named(self, inputs: Tensors) -> dict[str, torch.Tensor]:
        return dict(zip(self.signature.inputs, inputs, strict=True))

    def _device(self, inputs: Tensors) -> torch.device:
        """Where a call runs: with the tensor that stays from call to call, else with the first."""
        steady = self.runtime.steady
        return inputs[self.signature.inputs.index(steady) if steady else 0].device

    def _resolve(
        self, tables: state.RuntimeState, inputs: Tensors, about: About
    ) -> tuple[Problem, Plan | None]:
        """Everything that what the tensors look like decides."""
        if isinstance(about, Problem):
            problem, specs = about, self.signature.tensors(about)
            require_specs(self.named(inputs), {name: specs[name] for name in self.signature.inputs})
        else:
            assert self.runtime.problem_of is not None
            options = dict(zip(self.runtime.options, about, strict=True))
            problem = self.runtime.problem_of(self.named(inputs), **options)
        self.require_placed(inputs)
        return problem, plan_for(tables, problem, self._device(inputs))

    def _check_outputs(self, outputs: Tensors, problem: Problem, device: torch.device) -> None:
        specs = self.signature.tensors(problem)
        for name, label, output in zip(self.signature.outputs, self.labels, outputs, strict=True):
            require_tensor(output, label, (DTYPES[specs[name].dtype],), specs[name].shape)
            require_launchable(output, label, device)

    def _adapted(
        self, plan: Plan, inputs: Tensors, outputs: Tensors | None, about: About, asked: Any, quick: bool
    ) -> Tensors:
        """The call of the problem that stands in. Its operands are made anew every time: nobody tells of writes."""
        stand_in = plan.choice.stand_in
        assert stand_in.adapt is not None, "a stand-in of other sizes adapts the inputs"
        adapted = stand_in.adapt(self.named(inputs))
        inputs = tuple(adapted[name] for name in self.signature.inputs)
        if isinstance(about, Problem):
            about = asked = stand_in.problem
        with behind_writes():
            made = self.short_way(inputs, outputs, asked) if quick else None
            if made is not None:
                return made
            return self.run(inputs, outputs, about, asked=asked, quick=quick, noted=True)

    def short_way(self, inputs: Tensors, outputs: Tensors | None, asked: Any) -> Tensors | None:
        """The outputs of a call like one before; None: it must go the long way."""
        given = (None,) * len(self.labels) if outputs is None else outputs
        made = self.quick.call(*inputs, *given, asked)
        return (made,) if isinstance(made, torch.Tensor) else made

    def _launch(self, plan: Plan, inputs: Tensors, outputs: Tensors | None) -> Tensors:
        outputs = plan.new_outputs(self._unread) if outputs is None else outputs
        stream = torch.cuda.current_stream(plan.device).cuda_stream
        given = (*inputs, *outputs)
        values: list[Any] = [given[index] for index in self._order]
        if self.signature.workspace is not None:
            memory, mutex = None, 0
            if plan.workspace_bytes:
                room = plan.workspaces.take(plan.workspace_bytes, plan.zeroed_bytes, stream)
                memory, mutex = room.memory, room.mutex
            values += [memory, mutex]
        code = (plan.captured if capturing() else plan.launch)(*values, stream)
        if code == MISALIGNED:
            device = self._device(inputs)
            for name, tensor in zip((*self.signature.inputs, *self.labels), given, strict=True):
                require_launchable(tensor, name, device)
        if code:
            raise launch_error(code, f"{plan.choice.problem} on cuda:{plan.device}")
        return outputs

    def _without_kernel(self, problem: Problem, inputs: Tensors, outputs: Tensors | None) -> Tensors:
        """In plain torch."""
        device = self._device(inputs)
        if self.runtime.reference is None:
            raise InputError(
                f"{self.name} cannot run on {device}: no kernel here does, and the operator has no torch reference"
            )
        for name, tensor in self.named(inputs).items():
            require_memory(tensor, name)
        warn_once(self.name, device)
        found = self.runtime.reference(self.named(inputs), problem)
        made = tuple(found[name] for name in self.signature.outputs)
        if outputs is None:
            return made
        return tuple(output.copy_(one) for output, one in zip(outputs, made, strict=True))


def plan_for(tables: state.RuntimeState, problem: Problem, device: torch.device) -> Plan | None:
    """None: there is nothing to launch, because no kernel runs on that device."""
    if device.type != "cuda" or state.supported_class(device.index) is None:
        return None
    return tables.plan(problem, device.index)


@functools.cache
def caller_of(name: str) -> Caller:
    """The one that ``tuner.runtime.launch`` and torch's operator share. Raises ``InputError`` for no operator."""
    return Caller(name)


def warn_once(name: str, device: torch.device) -> None:
    """Say, once per process and operator, that the reference is what runs."""
    with _once:
        if name in _warned:
            return
        _warned.add(name)
    warnings.warn(
        f"{name} on {device} is the torch reference, which is slow: no kernel here runs on that device",
        stacklevel=4,
    )

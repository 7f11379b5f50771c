"""``launch``: a kernel of any operator by its name, on tensors by theirs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from kernel_space.core import registry
from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from tuner.runtime.caller import Caller, caller_of
from tuner.runtime.quick import Tensors


def launch(
    op: str,
    problem: Problem | str,
    inputs: Mapping[str, torch.Tensor],
    outputs: Mapping[str, torch.Tensor] | None = None,
) -> dict[str, torch.Tensor]:
    """Outputs of operator ``op`` by name, on torch's current stream.

    ``problem``   one of the operator's, or its printed sizes; it says the dtype and shape of every tensor
    ``inputs``    by name as in the operator's signature: contiguous, 16-byte aligned, on one card
    ``outputs``   to be written, all of them; by default new ones

    The kernel is what the dispatch table of the card has for the problem (``explain`` tells which). A launch may be
    captured into a CUDA graph, after a first one or ``prepare``. For ``torch.compile`` see ``torch_operator``. There is
    no backward pass.

    Raises ``InputError`` for tensors that do not fit, for one that requires grad in grad mode, and when there is no
    kernel for the problem; ``HostCallError`` when CUDA refuses the launch.
    """
    caller = caller_of(op)
    names = caller.signature
    try:
        given: Tensors = tuple([inputs[name] for name in names.inputs])
        to: Tensors | None = None if outputs is None else tuple([outputs[name] for name in names.outputs])
    except KeyError as missing:
        raise InputError(f"{op} needs {missing.args[0]}; {_takes(caller)}") from None
    if isinstance(problem, str):
        problem = registry.operator(op).problem.parse(problem)
    whole = len(inputs) == len(given) > 0 and (outputs is None or len(outputs) == len(names.outputs))
    made = caller.short_way(given, to, problem) if whole else None
    if made is None:
        _check(caller, problem, inputs, outputs or {})
        made = caller.run(given, to, problem, asked=problem, quick=True)
    return dict(zip(names.outputs, made, strict=True))


def _check(caller: Caller, problem: Any, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
    """That the call makes sense before anything is looked at."""
    expected = registry.operator(caller.name).problem
    if not isinstance(problem, expected):
        raise InputError(
            f"a problem of {caller.name} must be a {expected.__name__} or {expected.form()}, got {problem!r:.80}"
        )
    if not caller.signature.inputs:
        raise InputError(f"{caller.name} has no input, so nothing says on which card it is to run")
    for known, tensors in ((caller.signature.inputs, inputs), (caller.signature.outputs, outputs)):
        for name, tensor in tensors.items():
            if name not in known:
                raise InputError(f"{caller.name} has no {name}; {_takes(caller)}")
            if not (type(tensor) is torch.Tensor or isinstance(tensor, torch.nn.Parameter)):
                raise InputError(
                    f"{name} must be a plain tensor, got {type(tensor).__name__}; inside torch.compile and under modes "
                    f"of torch call tuner.runtime.torch_operator({caller.name!r})"
                )
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise InputError(f"{caller.name} is not launched inside a transform of torch.func")


def _takes(caller: Caller) -> str:
    names = caller.signature
    return f"its inputs are {', '.join(names.inputs)}, its outputs {', '.join(names.outputs)}"

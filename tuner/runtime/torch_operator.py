"""Operators of the registry as operators of torch, by their signature: ``torch.ops.autotuner.<name>``.

Registered with ``torch.library.Library``; the decorator ``custom_op`` costs more host time than the kernel's launch.
"""

from __future__ import annotations

import functools
import string
import threading
from typing import Any

import torch

from kernel_space.core import registry
from kernel_space.core.errors import InputError
from kernel_space.numerics.tensors import DTYPES
from tuner.runtime.caller import Caller, caller_of

NAMESPACE = "autotuner"
_LIBRARY = torch.library.Library(NAMESPACE, "DEF")
_TAGS = (torch.Tag.pt2_compliant_tag,)
_lock = threading.RLock()


def torch_operator(op: str) -> Any:
    """``torch.ops.autotuner.<op>`` and ``<op>_out``, registered when first asked for.

        y, count = torch_operator("rowstats")(x)
        torch.ops.autotuner.rowstats_out(x, y, count)

    Inputs and outputs are those of the operator's signature, in its order; options that the caller chooses are keyword
    arguments. ``torch.compile(fullgraph=True)``, ``torch.export`` and fake tensors see it; each size is compiled for
    itself. Raises ``InputError`` for an operator that does not say how its problem follows from its tensors.
    """
    with _lock:
        return _registered(op)


@functools.cache
def _registered(op: str) -> Any:
    caller = caller_of(op)
    if caller.runtime.problem_of is None or not caller.signature.inputs:
        raise InputError(
            f"{op} must say how its problem follows from its inputs to be an operator of torch: problem_of in the "
            "module that Operator.runtime names; launch(op, problem, inputs) needs none"
        )
    _LIBRARY.define(_schema(caller), tags=_TAGS)
    _LIBRARY.define(_schema_out(caller), tags=_TAGS)
    for key in ("CPU", "CUDA"):
        _LIBRARY.impl(op, functools.partial(_call, caller), key)
        _LIBRARY.impl(f"{op}_out", functools.partial(_call_out, caller), key)
    fake = torch.library.register_fake
    fake(f"{NAMESPACE}::{op}", functools.partial(_fake, caller), lib=_LIBRARY)
    fake(f"{NAMESPACE}::{op}_out", functools.partial(_fake_out, caller), lib=_LIBRARY)
    return getattr(getattr(torch.ops, NAMESPACE), op)


def _schema(caller: Caller) -> str:
    names = caller.signature
    results = ", ".join(f"Tensor {name}" for name in names.outputs)
    inputs = [f"Tensor {name}" for name in names.inputs]
    returned = f"({results})" if len(names.outputs) > 1 else "Tensor"
    return f"{caller.name}({', '.join([*inputs, *_options(caller)])}) -> {returned}"


def _schema_out(caller: Caller) -> str:
    names = caller.signature
    written = [f"Tensor({string.ascii_lowercase[i]}!) {name}" for i, name in enumerate(names.outputs)]
    inputs = [f"Tensor {name}" for name in names.inputs]
    return f"{caller.name}_out({', '.join([*inputs, *written, *_options(caller)])}) -> ()"


def _options(caller: Caller) -> list[str]:
    """Of a schema: keyword arguments with their defaults."""
    defaults = _defaults(caller)
    return [*(["*"] if defaults else []), *(f'str {name}="{value}"' for name, value in defaults.items())]


def _defaults(caller: Caller) -> dict[str, str]:
    forms = registry.operator(caller.name).problem.forms()
    return {name: forms[name].choices[0] for name in caller.runtime.options}


def _about(caller: Caller, options: dict[str, str]) -> tuple[str, ...]:
    return tuple(options.get(name, usual) for name, usual in _defaults(caller).items())


def _call(caller: Caller, *inputs: torch.Tensor, **options: str) -> Any:
    about = _about(caller, options)
    made = caller.short_way(inputs, None, about)
    if made is None:
        made = caller.run(inputs, None, about, asked=about, quick=True)
    return made if len(made) > 1 else made[0]


def _call_out(caller: Caller, *tensors: torch.Tensor, **options: str) -> None:
    about, count = _about(caller, options), len(caller.signature.inputs)
    inputs, outputs = tensors[:count], tensors[count:]
    if caller.short_way(inputs, outputs, about) is None:
        caller.run(inputs, outputs, about, asked=about, quick=True)


def _fake(caller: Caller, *inputs: torch.Tensor, **options: str) -> Any:
    """The problem is one of numbers, so sizes that are symbols become numbers here."""
    caller.require_no_grad(inputs, None)
    numbers = tuple(one.new_empty([int(size) for size in one.shape]) for one in inputs)
    chosen = dict(zip(caller.runtime.options, _about(caller, options), strict=True))
    assert caller.runtime.problem_of is not None
    specs = caller.signature.tensors(caller.runtime.problem_of(caller.named(numbers), **chosen))
    made = [
        inputs[0].new_empty(specs[name].shape, dtype=DTYPES[specs[name].dtype])
        for name in caller.signature.outputs
    ]
    return tuple(made) if len(made) > 1 else made[0]


def _fake_out(caller: Caller, *tensors: torch.Tensor, **options: str) -> None:
    count = len(caller.signature.inputs)
    caller.require_no_grad(tensors[:count], tensors[count:])


def needs_dispatcher(tensor: torch.Tensor) -> bool:
    """Whether somebody listens to operators: a compiler, a mode, a transform, a tensor subclass or the profiler.

    Otherwise the dispatcher would only find its way back here, for a third of the host time of a call.
    """
    if torch.compiler.is_compiling():
        return True
    return (
        type(tensor) is not torch.Tensor
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._len_torch_function_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch.autograd._profiler_enabled()
    )

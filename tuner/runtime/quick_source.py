"""The Python source of a quick call, written for the tensors of one signature: see ``quick.py``, where it runs.

Tensors are ``i0 ...`` inputs and ``o0 ...`` outputs, so that no name of an operator means anything here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from kernel_space.core.signature import In, Out, Signature

_TEMPLATE = """
def make(first, find):
    def call({parameters}, asked):
        try:
            known = first.hot.get({key})
            if known is None:
                known = find({tuple}, o0 is not None, asked)
        except (AttributeError, TypeError):  # no tensor, or sizes that are symbols
            return None
        if known is None or known.generation != state.generation or _profiling() or _functions():
            return None
        if o0 is None:
            while known is not None and not known.check({inputs}):
                known = known.other
        else:
            while known is not None and not known.check({both}):
                known = known.other
        if known is None:
            return None
        if not (known.only_card or _current_device() == known.device):
            with _on_card(known.device):  # as torch's own operators do for tensors of another card than the current one
                return call({parameters}, asked)
        if o0 is None:
{allocations}
        stream = _raw_stream(known.device)
{launch}
        if code == 0:
            return {result}
        if code == MISALIGNED:
            return None
        raise launch_error(code, f"{{known.plan.choice.problem}} on cuda:{{known.device}}")
    return call
"""

_PLAIN = """
        code = (known.captured if capturing() else known.launch)({tensors}, stream)
"""

_WITH_WORKSPACE = """
        memory, mutex = None, 0
        if known.workspace_bytes:
            room = known.workspaces.take(known.workspace_bytes, known.zeroed_bytes, stream)
            memory, mutex = room.memory, room.mutex
        code = (known.captured if capturing() else known.launch)({tensors}, memory, mutex, stream)
"""


def quick_source(signature: Signature, keys: Sequence[int], steady: int | None) -> str:
    """``make(first, find)`` -> ``call(*inputs, *outputs, asked)``.

    ``keys``: numbers of the inputs by whose sizes calls are found; ``steady``: the one known by its identity.
    """
    inputs = [f"i{index}" for index in range(len(signature.inputs))]
    outputs = [f"o{index}" for index in range(len(signature.outputs))]
    short = dict(zip((*signature.inputs, *signature.outputs), (*inputs, *outputs), strict=True))
    tensors = [short[part.name] for part in signature.parts if isinstance(part, In | Out)]
    identity = [] if steady is None else [f"id(i{steady})"]
    shapes = [f"i{index}.shape" for index in keys if index != steady]
    launch = _PLAIN if signature.workspace is None else _WITH_WORKSPACE
    return _TEMPLATE.format(
        parameters=", ".join([*inputs, *outputs]),
        inputs=", ".join(inputs),
        tuple=f"({''.join(f'{name}, ' for name in inputs)})",
        both=", ".join([*inputs, *outputs]),
        key=f"({', '.join([*identity, *shapes, 'o0 is not None', 'asked'])})",
        allocations="\n".join(_allocations(outputs)),
        launch=launch.format(tensors=", ".join(tensors)).strip("\n"),
        result=", ".join(outputs),
    )


@functools.cache
def facts_of(count: int) -> Callable[..., tuple[Any, ...]]:
    """Of ``count`` tensors -> all that they look like. One expression, because a loop takes half as long again."""
    names = [f"i{index}" for index in range(count)]
    facts = [f"{name}.dtype, {name}.device, {name}.shape, {name}.stride()" for name in names]
    return eval(f"lambda {', '.join(names)}: ({''.join(f'{one}, ' for one in facts)})")


def _allocations(outputs: Sequence[str]) -> list[str]:
    unpacked = ", ".join(f"like_{name}" for name in outputs)
    lines = [f"{unpacked}{',' if len(outputs) == 1 else ''} = known.outputs"]
    # A tensor is there already: of an output that is neither written nor read.
    lines += [
        f"{name} = new_tensor(*like_{name}) if like_{name}.__class__ is tuple else like_{name}"
        for name in outputs
    ]
    return [" " * 12 + line for line in lines]

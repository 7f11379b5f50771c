"""What an operator may say of itself for a card, beside its object: how launches follow one another, and its peers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    Tensors = Mapping[str, torch.Tensor]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chain:
    """Launches of which each reads what the one before wrote: what ``Operator.chain`` gives.

    ``output``   lies where launches read
    ``shared``   the inputs that lie there, in the order in which they lie
    ``writers``  inputs of the launches that write there, taken in turns: no two write the same
    ``reader``   inputs of the launches that read there. Whatever ``writers`` write is legal as any of ``shared``
    ``first``    of a count: so many bytes (uint8) that are legal as ``shared``, for what no launch writes; None: there
                 stand the reader's own
    ``leading``  those of ``shared`` of which a kernel uses the leading bytes only
    """

    output: str
    shared: Sequence[str]
    writers: Sequence[Tensors]
    reader: Tensors
    first: Callable[[int], torch.Tensor] | None = None
    leading: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
    """``function(*inputs)``: one call of a peer. It gives its result, a tensor."""

    function: Callable[..., torch.Tensor]
    inputs: tuple[torch.Tensor, ...]

    def __call__(self) -> torch.Tensor:
        return self.function(*self.inputs)

    def copy(self) -> Call:
        """The same on inputs at other addresses."""
        return dataclasses.replace(self, inputs=tuple(tensor.clone() for tensor in self.inputs))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Peer:
    """Something else that computes the operator or a part of it, to be timed beside its kernel.

    A module of peers (``Operator.peers``) has ``peers(problem, compiler) -> Sequence[Peer]``, where ``compiler`` is
    ``torch.compile`` or, in tests, leaves functions as they are.

    ``name``      in documents and reports
    ``what``      is timed, in words
    ``build``     ``(problem, inputs)`` -> the call on these inputs of the operator: what it takes is made here, untimed
    ``expected``  ``(problem, inputs)`` -> what the call must give, fp32 or wider
    ``worst``     relative error that is allowed, by Frobenius norms
    """

    name: str
    what: str
    build: Callable[[Any, Tensors], Call]
    expected: Callable[[Any, Tensors], torch.Tensor]
    worst: float

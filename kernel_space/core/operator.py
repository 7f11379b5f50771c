"""Operator: a contract that is independent of hardware. All that generic code knows of an operator is this object.

A folder below ``kernel_space/operators/`` (or one that ``registry`` is told of) has a module ``operator`` with its
``OPERATOR``. Importing it imports neither torch nor the DSL: what needs torch is named as ``"module:function"`` and
imported when it is called (``Deferred``).
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from kernel_space.core.errors import InputError
from kernel_space.core.kernel import Kernel
from kernel_space.core.problem import Problem
from kernel_space.core.signature import Signature

if TYPE_CHECKING:
    import torch

    from kernel_space.core.config import KernelConfig
    from kernel_space.core.on_card import Chain

    Tensors = Mapping[str, torch.Tensor]

Part = TypeVar("Part")
PLAIN = "plain"  # the source of operands that every operator has


@runtime_checkable
class Comparison(Protocol):
    """How an output compares with its oracle: what verdicts and reports read of it. ``str()`` is one line.

    ``numerics.output_check.OutputCheck`` is one, and says what the members are.
    """

    @property
    def ok(self) -> bool: ...
    @property
    def elements(self) -> int: ...
    @property
    def tolerance(self) -> float: ...
    @property
    def max_ratio(self) -> float: ...
    @property
    def judged(self) -> int: ...
    @property
    def mean_error(self) -> float: ...
    @property
    def mean_limit(self) -> float: ...
    def merged(self, other: Any) -> Comparison: ...


class Chained(Protocol):
    """What a chain of operators is made of; ``kernel_space.composite.operator.Composed`` is one."""

    @property
    def operator(self) -> str:
        """The chain's own name."""
        ...

    @property
    def links(self) -> Sequence[Any]:
        """``kernel_space.composite.link.Link``, in the order of launches."""
        ...

    @property
    def kernels(self) -> Mapping[str, Sequence[Kernel]]:
        """Kernel of the chain -> that of every link."""
        ...

    def kernel(self, name: str) -> Kernel: ...
    def name_of(self, kernels: Sequence[str]) -> str: ...


class Deferred:
    """A function by its name ``"module:function"``, imported when it is first called."""

    def __init__(self, name: str) -> None:
        self.name = name

    @functools.cached_property
    def function(self) -> Callable[..., Any]:
        module, _, name = self.name.partition(":")
        return getattr(importlib.import_module(module), name)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.function(*args, **options)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """What a problem costs on any hardware. ``operations`` by pipe (``nvfp4``, ``fp16``, ``fp32`` …), a multiply-add
    counts two. Bytes follow from the signature: every tensor once.
    """

    operations: Mapping[str, float]

    @property
    def total(self) -> float:
        """Operations of all pipes."""
        return sum(self.operations.values())


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Operator:
    """One operator.

    ``name``       of its folder, of ``--op`` and of its rows
    ``formula``    one line for people
    ``problem``    its problem type
    ``signature``  the arguments of its host functions
    ``kernels``    names of its kernels, each a folder with a module ``spec`` beside the module of this object
    ``inputs``     ``(problem, seed, source, device)`` -> input tensors by name, contiguous, as kernels take them; the
                   same for the same arguments
    ``check``      ``(problem, tensors, config)`` -> ``Comparison`` of each output, by name, against the oracle;
                   ``tensors`` holds inputs and outputs. Work goes by chunks, so that the oracle fits on a card beside
                   them
    ``work``       of a problem
    ``sources``    kinds of operands that a check tries; the first is the one that is timed
    ``ragged``     ``(config, problem)`` -> problems of the same class whose edges cut the tiles elsewhere
    ``check_bytes``  ``(problem)`` -> bytes that ``check`` takes beside the tensors
    ``weights``    inputs that no launch just before may have written: a kernel may read them before it waits for that
    ``chain``      ``(problem, seed, device)`` -> launches of which each reads what the one before wrote
                   (``on_card.Chain``); None: every input but ``weights`` of the dtype of an output is read so
    ``peers``      module with what the operator is compared with on a card (``on_card.Peer``); empty: nothing
    ``runtime``    module with what torch needs: see ``tuner.runtime``; empty: launched through ``tuner.runtime.launch``
    ``composed``   of which operators it is a chain (``kernel_space.composite.operator.composite``); None: of none, and
                   its kernels are folders
    """

    name: str
    formula: str
    problem: type[Problem]
    signature: Signature
    kernels: tuple[str, ...]
    inputs: Callable[[Any, int, str, Any], dict[str, torch.Tensor]]
    check: Callable[[Any, Tensors, KernelConfig], dict[str, Comparison]]
    work: Callable[[Any], Work]
    sources: tuple[str, ...] = (PLAIN,)
    ragged: Callable[[Any, Any], list[Any]] | None = None
    check_bytes: Callable[[Any], int] | None = None
    weights: tuple[str, ...] = ()
    chain: Callable[[Any, int, Any], Chain] | None = None
    peers: str = ""
    runtime: str = ""
    composed: Chained | None = None

    def __post_init__(self) -> None:
        if self.problem.operator != self.name:
            raise InputError(
                f"the problem type of operator {self.name} must be declared with operator={self.name!r}, it says "
                f"{self.problem.operator!r}"
            )
        if unknown := sorted(set(self.weights) - set(self.signature.inputs)):
            raise InputError(f"weights of operator {self.name} must be inputs of it, {unknown[0]!r} is none")

    def compare(self, problem: Any, tensors: Tensors, config: KernelConfig) -> dict[str, Comparison]:
        """``check`` of every output, in the order of the signature. Raises ``InputError`` for one that is left out,
        as what nobody judges is not right, and for one that is judged by something else than a ``Comparison``.
        """
        found = self.check(problem, tensors, config)
        if set(found) != set(self.signature.outputs):
            wanted, got = ", ".join(self.signature.outputs), ", ".join(found) or "none"
            raise InputError(
                f"the check of {self.name} must judge each of its outputs, {wanted}; it judges {got}"
            )
        for name, one in found.items():
            if not isinstance(one, Comparison):
                raise InputError(
                    f"the check of {self.name} must say how {name} compares by an OutputCheck, it does by "
                    f"{type(one).__name__}"
                )
        return {name: found[name] for name in self.signature.outputs}

    def tensor_bytes(self, problem: Problem) -> dict[str, int]:
        """Bytes of each input and output of ``problem``, in the order of the signature."""
        return {name: spec.nbytes for name, spec in self.signature.tensors(problem).items()}


def load_kernel(package: str, operator: str, name: str) -> Kernel:
    """The ``KERNEL`` of the folder ``name`` in ``package``. Raises ``InputError`` for what ``load_part`` refuses, and
    when it says another name.
    """
    module = f"{package}.{name}.spec"
    kernel = load_part(module, "KERNEL", Kernel, f"kernel {operator}/{name}")
    if (kernel.operator, kernel.name) != (operator, name):
        raise InputError(f"{module} must hold the kernel {operator}/{name}, it has {kernel.full_name}")
    return kernel


def load_part(module: str, attribute: str, kind: type[Part], what: str) -> Part:
    """``attribute`` of ``module``, which anybody may have written. Raises ``InputError`` when it cannot be imported,
    whatever goes wrong there, and when what it holds is no ``kind``.
    """
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise InputError(f"{what} cannot be loaded from {module}: {type(error).__name__}: {error}") from error
    if not isinstance(found, kind):
        raise InputError(
            f"{attribute} of {module} must be of type {kind.__name__}, it is of type {type(found).__name__}"
        )
    return found

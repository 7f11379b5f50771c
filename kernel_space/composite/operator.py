"""A composite operator from its links: ``OPERATOR = composite(name=..., problem=..., links=(Link(...), Link(...)))``.

Arguments, inputs, oracle, work and kernels follow from the links' own. A kernel of the chain is one kernel of every
link, for the architectures that all of them have; its time is that of all launches, one after the other.
"""

from __future__ import annotations

import dataclasses
import importlib
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from kernel_space.composite.kernel import BETWEEN, composite_kernel
from kernel_space.composite.link import Link
from kernel_space.composite.signature import check_tensors, made_inside, names_of, signature_of
from kernel_space.core.errors import InputError
from kernel_space.core.kernel import Kernel
from kernel_space.core.operator import Comparison, Operator, Work, load_kernel
from kernel_space.core.problem import Problem
from kernel_space.core.registry import kernel, package_of

if TYPE_CHECKING:
    import torch

    from kernel_space.core.config import KernelConfig
    from kernel_space.core.signature import TensorSpec

    Tensors = Mapping[str, torch.Tensor]


class ByLink(Protocol):
    """The config of a kernel of a composite operator: of a chain, or of one that is no chain. Such a one may also have
    ``left_out``, names of what links hand on that it has no need of: it is not written, and what follows is judged by
    what the link's torch reference makes of it. One whose outputs no link's check is right for has ``judge``,
    ``(problem, tensors)`` -> its own comparisons.
    """

    def of(self, link: str) -> Any:
        """What the check and the ragged problems of one link ask: a config of its operator, or what stands for one."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Composed:
    """What a composite operator is made of. ``kernels``: name -> the kernel of every link."""

    operator: str
    links: tuple[Link, ...]
    kernels: Mapping[str, tuple[Kernel, ...]]

    def kernel(self, name: str) -> Kernel:
        """A chain, or a kernel of the operator's own. Raises ``InputError`` for one that cannot be loaded."""
        if name not in self.kernels:
            return load_kernel(package_of(self.operator), self.operator, name)
        return composite_kernel(self.operator, self.links, self.kernels[name])

    def name_of(self, kernels: Sequence[str]) -> str:
        """The kernel that consists of these, link by link."""
        return BETWEEN.join(kernels)


def composite(
    *,
    name: str,
    formula: str,
    problem: type[Problem],
    links: Sequence[Link],
    sources: Mapping[str, Sequence[str]] | None = None,
    kernels: Sequence[str] = (),
    **optional: Any,
) -> Operator:
    """The operator ``name``, whose launches are those of ``links``, in their order, on one stream.

    ``problem``   has an ``example``, at which tensors of one name are compared
    ``sources``   kind of operands -> the kind of every link; by default the first of each link, and with the last link
                  its others
    ``kernels``   names of kernels of its own, which do the work of all links in one launch: folders beside the
                  operator's module, whose configs are ``ByLink``
    ``optional``  other fields of ``Operator``: ``peers``, ``runtime``, ``chain``

    Raises ``InputError`` for links that do not fit each other or the problem, and where no architecture has all.
    """
    links = tuple(links)
    if len({link.name for link in links}) < len(links) or len(links) < 2:
        raise InputError(f"{name} must have two links or more, each with a name of its own")
    for link in links:
        link.check(problem)
    check_tensors(links, problem.parse(problem.example))
    kinds = sources or _sources(links)
    parts = _Parts(links, kinds)
    inside = made_inside(links)
    composed = Composed(operator=name, links=links, kernels=_kernels(name, links))
    signature = signature_of(links)
    return Operator(
        name=name,
        formula=formula,
        problem=problem,
        signature=signature,
        kernels=(*kernels, *composed.kernels),
        inputs=parts.inputs,
        check=parts.check,
        work=parts.work,
        sources=tuple(kinds),
        ragged=parts.ragged,
        check_bytes=parts.check_bytes,
        weights=tuple(one for one in names_of(links, lambda link: link.of.weights) if one not in inside),
        composed=composed,
        **optional,
    )


def _kernels(name: str, links: Sequence[Link]) -> dict[str, tuple[Kernel, ...]]:
    """Kernels that have an architecture in common, in the links' order."""
    choices = [[kernel(link.operator, one) for one in link.of.kernels] for link in links]
    found = {
        BETWEEN.join(one.name for one in kernels): kernels
        for kernels in itertools.product(*choices)
        if set.intersection(*(set(one.archs) for one in kernels))
    }
    if not found:
        raise InputError(f"no architecture has a kernel for every link of {name}")
    return found


def _sources(links: Sequence[Link]) -> dict[str, tuple[str, ...]]:
    first = [link.of.sources[0] for link in links[:-1]]
    return {last: (*first, last) for last in links[-1].of.sources}


class _Parts:
    """What an operator says of a problem, from what its links say of theirs."""

    def __init__(self, links: Sequence[Link], sources: Mapping[str, Sequence[str]]) -> None:
        self.links, self.sources = links, sources

    def inputs(self, problem: Problem, seed: int, source: str, device: Any) -> dict[str, torch.Tensor]:
        """Of every link those that no earlier one writes. Raises ``InputError`` for an unknown source."""
        if source not in self.sources:
            raise InputError(f"source must be one of {', '.join(self.sources)}, got {source!r}")
        found: dict[str, torch.Tensor] = {}
        written: set[str] = set()
        for number, (link, own) in enumerate(zip(self.links, self.sources[source], strict=True)):
            given = link.of.inputs(link.problem(problem), seed + number, own, device)
            for name, tensor in given.items():
                if (outer := link.called(name)) not in written:
                    found.setdefault(outer, tensor)
            written |= {link.called(name) for name in link.of.signature.outputs}
        return found

    def check(self, problem: Problem, tensors: Tensors, config: KernelConfig) -> dict[str, Comparison]:
        """Every link by its own check, on what the links before it have really written; or by the kernel's own."""
        if judge := getattr(config, "judge", None):
            return {**_unwritten(tensors, config), **judge(problem, tensors)}
        by_link = cast(ByLink, config)  # of this operator's kernels, as always
        found: dict[str, Comparison] = {}
        for link in self.links:
            part = link.problem(problem)
            own = {
                name: _as_said(tensors[link.called(name)], spec)
                for name, spec in link.of.signature.tensors(part).items()
            }
            own |= _left_out(link, part, own, getattr(config, "left_out", ()))
            tensors = {**tensors, **{link.called(name): tensor for name, tensor in own.items()}}
            checks = link.of.compare(part, own, by_link.of(link.name))
            found |= {link.called(name): check for name, check in checks.items()}
        return found

    def work(self, problem: Problem) -> Work:
        total: Counter[str] = Counter()
        for link in self.links:
            total.update(link.of.work(link.problem(problem)).operations)
        return Work(operations=dict(total))

    def check_bytes(self, problem: Problem) -> int:
        """Links are judged one after the other."""
        return max(
            link.of.check_bytes(link.problem(problem)) if link.of.check_bytes else 0 for link in self.links
        )

    def ragged(self, config: ByLink, problem: Problem) -> list[Problem]:
        """Of every link, widened to the whole; what the contract of another link refuses is left out."""
        found: list[Problem] = []
        for link in self.links:
            part = link.problem(problem)
            for variant in link.of.ragged(config.of(link.name), part) if link.of.ragged else ():
                if whole := self._widened(link, variant, problem):
                    found.append(whole)
        return list(dict.fromkeys(found))

    def _widened(self, link: Link, variant: Problem, problem: Problem) -> Problem | None:
        try:
            whole = link.widen(variant, problem)
            for other in self.links:
                other.problem(whole)
        except InputError:
            return None
        return whole


def _left_out(link: Link, part: Problem, own: Tensors, names: Sequence[str]) -> dict[str, torch.Tensor]:
    """Outputs of a link that a kernel does not write, by the link's own names, as its reference has them."""
    wanted = [name for name in link.of.signature.outputs if link.called(name) in names]
    if not wanted:
        return {}
    made = importlib.import_module(link.of.runtime).reference(own, part)
    return {name: made[name] for name in wanted}


def _unwritten(tensors: Tensors, config: Any) -> dict[str, Comparison]:
    """Of outputs that a kernel leaves out, of which there is nothing to judge."""
    from kernel_space.numerics.output_check import check_equal

    return {name: check_equal(tensors[name], tensors[name]) for name in config.left_out}


def _as_said(tensor: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """``tensor``; where it has no elements, of the dtype that this link says: another may say another."""
    if tensor.numel():
        return tensor
    from kernel_space.numerics.tensors import DTYPES

    return tensor.new_empty(spec.shape, dtype=DTYPES[spec.dtype])

"""The arguments of a chain: what its links take, each once. What one link writes for another is an output of the chain,
so every link is judged by its own check.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kernel_space.composite.link import Link
from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from kernel_space.core.signature import Grid, In, Out, Signature, Size, Stream, Workspace


def signature_of(links: Sequence[Link]) -> Signature:
    """Inputs, outputs, workspace, sizes of the chain's problem, grid, stream; inputs and outputs in the order of links,
    the others as far as a link has them.

    Raises ``InputError`` for a tensor that two links write, and for a link that reads what a later one writes.
    """
    tensors: dict[str, In | Out] = {}
    sizes: dict[str, Size] = {}
    for link in links:
        for part in link.of.signature.parts:
            if isinstance(part, In | Out):
                _take(tensors, link, part)
            elif isinstance(part, Size) and part.name in link.fields:
                sizes.setdefault(link.fields[part.name], Size(link.fields[part.name]))
    workspace = [Workspace()] if any(link.of.signature.workspace for link in links) else []
    inputs = [part for part in tensors.values() if isinstance(part, In)]
    outputs = [part for part in tensors.values() if isinstance(part, Out)]
    grid = (
        [Grid()] if any(isinstance(part, Grid) for link in links for part in link.of.signature.parts) else []
    )
    return Signature(*inputs, *outputs, *workspace, *sizes.values(), *grid, Stream())


def made_inside(links: Sequence[Link]) -> frozenset[str]:
    """Tensors that one link writes and a later one reads, by the chain's names."""
    written: set[str] = set()
    found: set[str] = set()
    for link in links:
        found |= written & {link.called(name) for name in link.of.signature.inputs}
        written |= {link.called(name) for name in link.of.signature.outputs}
    return frozenset(found)


def check_tensors(links: Sequence[Link], problem: Problem) -> None:
    """Raise ``InputError`` where two links mean tensors of other dtypes or shapes by one name, at ``problem``."""
    seen: dict[str, tuple[str, Any]] = {}
    for link in links:
        for name, spec in link.of.signature.tensors(link.problem(problem)).items():
            first, known = seen.setdefault(link.called(name), (link.name, spec))
            if known != spec:
                raise InputError(
                    f"{link.called(name)} is {_shown(known)} for link {first} and {_shown(spec)} for link {link.name} "
                    f"at {problem}; rename one of them in tensors"
                )


def _take(tensors: dict[str, In | Out], link: Link, part: In | Out) -> None:
    name = link.called(part.name)
    if isinstance(part, Out) and name in tensors:
        raise InputError(
            f"{name} is written by link {link.name} and taken by one before it; rename one in tensors"
        )
    dtype = part.dtype if isinstance(part.dtype, str) else _outer(link, part.dtype)
    moved = dataclasses.replace(part, name=name, dtype=dtype, shape=_outer(link, part.shape))
    tensors.setdefault(name, moved)


def _outer(link: Link, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda problem: function(link.problem(problem))


def _shown(spec: Any) -> str:
    return f"{spec.dtype} {list(spec.shape)}"


def names_of(links: Iterable[Link], parts: Callable[[Link], Iterable[str]]) -> list[str]:
    """``parts`` of every link by the chain's names, each once, in order."""
    return list(dict.fromkeys(link.called(name) for link in links for name in parts(link)))

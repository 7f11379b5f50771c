"""The rank to which a layer pads its low-rank branch once, so that no call has to."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch

from kernel_space.core.errors import InputError
from kernel_space.operators.svdquant_linear.problem import LinearProblem
from tuner.runtime import state
from tuner.runtime.choice.choose import Library
from tuner.runtime.choice.remembered import Recent

if TYPE_CHECKING:
    from tuner.devices.classes import DeviceClass

LAYER_MS = tuple(1 << power for power in range(14))  # of a layer, to find its rank
MAX_KINDS = 1024  # of layers
_ranks: Recent[tuple[int, DeviceClass | None, LinearProblem], int] = Recent(MAX_KINDS, of_tables=True)


def launched_rank(device: torch.device, problem: LinearProblem) -> int:
    """The rank of a layer on ``device`` whose problem this is at any M; its own where no card is."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return problem.r
    index = torch.cuda.current_device() if device.index is None else device.index
    return layer_rank(problem, index)


def layer_rank(problem: LinearProblem, device: int) -> int:
    """``rank_of_layer`` on ``cuda:<device>``; its own where nothing can be launched: a call says why."""
    tables, generation = state.active()
    device_class = state.supported_class(device)
    if device_class is None:
        return problem.r
    key = (generation, device_class, dataclasses.replace(problem, m=1))
    rank = _ranks.get(key)
    if rank is None:
        try:
            rank = rank_of_layer(tables.library(device_class), problem)
        except InputError:
            return problem.r
        _ranks.put(key, rank)
    return rank


def rank_of_layer(library: Library, problem: LinearProblem) -> int:
    """The smallest rank from which on no M of this layer is padded; that of ``problem`` where nothing is launched.

    Asked for powers of two of M. Without a branch there is nothing to pad ahead of a call.
    """
    if not problem.r:
        return 0
    rank = problem.r
    while True:
        try:
            asked = [dataclasses.replace(problem, m=m, r=rank) for m in LAYER_MS]
            launched = [library.choose(one).launched for one in asked]
        except InputError:  # a call says what is missing
            return rank
        larger = max(one.r for one in launched if isinstance(one, type(problem)))
        if larger == rank:
            return rank
        rank = larger

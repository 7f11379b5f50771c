"""A loaded candidate with what it is launched on: ``Launcher(i)`` enqueues one launch with operand set ``i``."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from kernel_space.core.arguments import pack
from kernel_space.core.errors import InputError
from kernel_space.core.plain_files import read_plain
from kernel_space.core.problem import Problem
from kernel_space.core.registry import operator_of
from kernel_space.launch.loading import LoadedObject, load_bytes
from kernel_space.launch.occupancy import OccupancyRuntime, clusters_that_fit, grid_clusters
from kernel_space.launch.runtime_symbols import Runtime
from kernel_space.numerics.tensors import DTYPES
from tuner.card.worker.bench import sets_needed
from tuner.card.worker.candidate import Case, Loadable
from tuner.card.worker.check import make_inputs
from tuner.card.worker.timed_outputs import TimedOutputs
from tuner.card.worker.torch_gpu import capture

DISTINCT_SETS = (
    8  # with data of their own; further ones are copies at other addresses, which is what a cache sees
)
HELD_CYCLES = 400_000  # 0.2 ms: enqueueing a chain takes less


def load_candidate(candidate: Loadable, runtime: Runtime) -> LoadedObject:
    """Raises ``InputError`` for an object that cannot be read, is not what was compiled, or is no such object."""
    return load_bytes(object_bytes(candidate), candidate.prefix, runtime, arguments=candidate.arguments)


def object_bytes(candidate: Loadable) -> bytes:
    """Raises ``InputError`` when the file cannot be read or has another SHA-256 than was recorded for it."""
    path = Path(candidate.object_path)
    try:
        data = read_plain(path)
    except OSError as error:
        raise InputError(f"the object {path} cannot be read: {error.strerror}") from None
    found = hashlib.sha256(data).hexdigest()
    if found != candidate.object_sha256:
        raise InputError(
            f"the object {path} is damaged: its SHA-256 is {found[:12]}..., {candidate.object_sha256[:12]}... was built"
        )
    return data


def max_active_clusters(candidate: Loadable, problem: Problem, device: int, sm_count: int) -> int:
    """Clusters of the persistent grid: what the config means to have, and no more than the card holds."""
    meant, fit = sm_count * candidate.ctas_per_sm // candidate.cluster_size, None
    if candidate.cluster_size > 1:
        data, runtime = object_bytes(candidate), OccupancyRuntime((device,))
        fit = clusters_that_fit(data, candidate.prefix, candidate.arguments, problem, runtime, meant=meant)
    return grid_clusters(meant, fit)


def bind(
    loaded: LoadedObject,
    problem: Problem,
    sets: Sequence[Mapping[str, int]],
    clusters: int,
    *,
    stream: Callable[[], int],
) -> Callable[[int], None]:
    """``launch(i)``: one launch with the addresses ``sets[i]`` (by the names of pointer arguments) on ``stream()``.

    Everything but the stream is packed beforehand, so that a launch costs a few microseconds. Raises ``InputError``
    for an object whose arguments are not those of the operator.
    """
    signature = operator_of(problem).signature
    signature.require(loaded.arguments, loaded.prefix)
    packed: list[list[Any]] = []
    for addresses in sets:
        values = signature.values(problem, addresses, clusters=clusters)
        packed.append([pack(item, value) for item, value in zip(signature.abi, values, strict=True)])
    place = len(signature.abi) - 1  # the stream comes last
    pointers = [[ctypes.addressof(value) for value in values] for values in packed]

    def launch(index: int) -> None:
        packed[index][place].value = stream()
        loaded.call_pointers(pointers[index])

    return launch


def current_stream() -> int:
    return torch.cuda.current_stream().cuda_stream


class OperandSets:
    """Operands of ``problem`` on ``device``: as many sets as ``bench.sets_needed`` says for ``l2_bytes`` of cache.

    ``count`` sets of ``set_bytes`` each, outputs included; ``addresses[i]`` and ``outputs[i]`` by argument name. Raises
    ``torch.OutOfMemoryError``.
    """

    def __init__(self, problem: Problem, device: torch.device | str, l2_bytes: int, *, seed: int) -> None:
        self.problem = problem
        operator = operator_of(problem)
        self.set_bytes = sum(operator.tensor_bytes(problem).values())
        self.count = sets_needed(self.set_bytes, l2_bytes)
        inputs: list[Mapping[str, torch.Tensor]] = []
        for number in range(self.count):
            if number < DISTINCT_SETS:
                inputs.append(make_inputs(problem, seed + number, operator.sources[0], device))
            else:
                like = inputs[number % DISTINCT_SETS]
                inputs.append({name: tensor.clone() for name, tensor in like.items()})
        specs = operator.signature.tensors(problem)
        self.outputs = [
            {
                name: torch.empty(specs[name].shape, dtype=DTYPES[specs[name].dtype], device=device)
                for name in operator.signature.outputs
            }
            for _ in inputs
        ]
        self._inputs = inputs  # kept: only their addresses are used
        self.addresses = [
            addresses_of({**one, **written}) for one, written in zip(inputs, self.outputs, strict=True)
        ]


def addresses_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """0 for an empty tensor: a pointer that must not be used."""
    return {name: tensor.data_ptr() if tensor.numel() else 0 for name, tensor in tensors.items()}


class CardLane:
    """``chains.Lane`` of a loaded candidate; to be used on a stream of its own, on which launches may overlap."""

    def __init__(
        self, loaded: LoadedObject, problem: Problem, clusters: int, wait: Callable[[str], None]
    ) -> None:
        self._loaded, self._problem, self._clusters = loaded, problem, clusters
        self.wait = wait

    def bind(self, sets: Sequence[Mapping[str, torch.Tensor]]) -> Callable[[int], None]:
        addresses = [addresses_of(tensors) for tensors in sets]
        return bind(self._loaded, self._problem, addresses, self._clusters, stream=current_stream)

    def eager(self, launch: Callable[[int], None], count: int) -> None:
        torch.cuda._sleep(HELD_CYCLES)
        for index in range(count):
            launch(index)

    def graph(self, launch: Callable[[int], None], count: int) -> Callable[[], None]:
        return capture(torch.cuda.current_stream(), launch, range(count)).replay


class Launcher:
    """``launcher(i)`` for timing: operand sets that rotate, and a workspace of its own; ``outputs`` judges what they
    hold afterwards. ``wait`` as in ``check_case``."""

    def __init__(
        self,
        loaded: LoadedObject,
        candidate: Loadable,
        case: Case,
        operands: OperandSets,
        clusters: int,
        wait: Callable[[str], None],
    ) -> None:
        self._loaded = loaded
        device = torch.device("cuda", torch.cuda.current_device())
        # Zeroed once; every launch leaves the counters zero. Partial sums are written before they are read.
        self._workspace = torch.zeros(case.workspace_bytes, dtype=torch.uint8, device=device)
        workspace = self._workspace.data_ptr() if case.workspace_bytes else 0
        name = operator_of(case.problem).signature.workspace
        own = {} if name is None else {name: workspace}
        sets = [{**addresses, **own} for addresses in operands.addresses]
        self.candidate = candidate
        self.sets = operands.count
        self._launch = bind(loaded, case.problem, sets, clusters, stream=current_stream)
        self.outputs = TimedOutputs(case.problem, self, operands.outputs, wait)

    def __call__(self, index: int) -> None:
        self._launch(index)

"""Are launches right when nobody waits between them: chains in which each reads or overwrites what the one before did.

With programmatic dependent launch (``use_pdl``) a launch begins while the one before still runs. Until
``griddepcontrol.wait`` it may read weights only (docs/gpu.md, "Launches that overlap"): other inputs and the workspace
may still be written, outputs and the workspace may still be read. A chain is made of links of three launches:

    write S     one output lies in S
    write S     another result: a late store of the launch before would be left there
    read S      the inputs that may come from the launch before lie in S; an output of its own
    write S     the next link, while the one before may still read

All launches share one workspace. The expected bits are those of the same launches one at a time. What lies where says
``Operator.chain``; without that, every input of the output's dtype lies in S, but for ``Operator.weights``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import torch

from kernel_space.core.on_card import Chain
from kernel_space.core.operator import Operator
from kernel_space.core.problem import Problem
from kernel_space.core.registry import operator_of
from kernel_space.numerics.tensors import DTYPES, bytes_of
from tuner.card.worker.candidate import Case
from tuner.card.worker.check import INTEGERS, CheckFailed, make_inputs
from tuner.trials.outcome import Status

Launch = Callable[[int], None]
Tensors = Mapping[str, torch.Tensor]

LINK = 3  # launches: two that write S, one that reads it
WRITERS = 3  # of launches that write S: two in a row, and the one before them, differ
POISON = 0xFF
ALIGNMENT = 256  # of buffers; S is entered at multiples of 16 bytes, which is what a kernel asks of an output
ENTRY = 16
# How much is spent: milliseconds of launches for each repeat of the check and way of launching, by this estimate.
MS_PER_REPEAT = 1.0
LAUNCH_US, OPERATIONS_PER_US, BYTES_PER_US = 5.0, 5e8, 1e6
CHAINS_PER_REPEAT = 4  # at most: a small launch is soon over, what comes around its chain is not


class Lane(Protocol):
    """Launches of one candidate on torch's current stream; ``launch.CardLane``, tests have another."""

    def bind(self, sets: Sequence[Tensors]) -> Launch:
        """``launch(i)`` enqueues one launch on the tensors ``sets[i]``, named as the kernel's pointers."""
        ...

    def eager(self, launch: Launch, count: int) -> None:
        """Enqueue ``launch(0)`` to ``launch(count - 1)``, of which none starts before all are there."""
        ...

    def graph(self, launch: Launch, count: int) -> Callable[[], None]:
        """What enqueues the same as one CUDA graph."""
        ...

    def wait(self, what: str) -> None:
        """Until all has ended; raises what became of it."""
        ...


def check_chains(
    lane: Lane,
    case: Case,
    *,
    repeats: int,
    seed: int,
    device: torch.device | str,
    phase: Callable[[str], None] = lambda name: None,
) -> int:
    """Launches that ran in chains, each with the bits that it has alone. Raises ``CheckFailed``, and what ``lane``
    raises."""
    phase("operands")
    chain = _Memory(case, seed, device)
    launch = lane.bind(chain.sets)
    phase("launch")
    chain.reset()
    for number in range(len(chain.sets)):
        launch(number)
        lane.wait(f"launch {number + 1} of a chain, alone, on {case.problem}")
    chain.keep()
    count = chains_for(case.problem, repeats, len(chain.sets))
    replay = lane.graph(launch, len(chain.sets))
    ways = {"launched eagerly": lambda: lane.eager(launch, len(chain.sets)), "in a CUDA graph": replay}
    for how, enqueue in ways.items():
        differing = torch.zeros((count, len(chain.places)), dtype=torch.int64, device=device)
        for row in differing:
            chain.reset()
            enqueue()
            chain.compare(row)
        lane.wait(f"{count} chains of {len(chain.sets)} launches on {case.problem}, {how}")
        _judge(differing.cpu(), chain, how)
    chain.look_at_counters()
    return len(ways) * count * len(chain.sets)


def chains_for(problem: Problem, repeats: int, launches: int) -> int:
    """Chains of ``launches`` for each way of launching them."""
    operator = operator_of(problem)
    operations, moved = (
        sum(operator.work(problem).operations.values()),
        sum(operator.tensor_bytes(problem).values()),
    )
    launch_us = LAUNCH_US + max(operations / OPERATIONS_PER_US, moved / BYTES_PER_US)
    chain_ms = launches * launch_us / 1000
    return max(1, min(CHAINS_PER_REPEAT * repeats, int(MS_PER_REPEAT * repeats / chain_ms)))


def chain_bytes(problem: Problem) -> int:
    """Memory that ``check_chains`` takes at most, without a set of operands and the workspace."""
    operator = operator_of(problem)
    sizes = operator.tensor_bytes(problem)
    inputs, outputs = operator.signature.inputs, operator.signature.outputs
    chained = [name for name in inputs if name not in operator.weights]
    links = 1 + len(chained)
    largest = max(sizes[name] for name in outputs)
    others = sum(sizes[name] for name in outputs) - largest
    shared = 2 * largest + sum(sizes[name] for name in chained)
    writers = 0 if operator.chain else WRITERS * sum(sizes[name] for name in inputs)
    # S thrice, outputs twice, and a comparison
    return 3 * shared + (2 * links + 2) * largest + (4 * links + 2) * others + writers


def chain_of(problem: Problem, seed: int, device: torch.device | str) -> Chain:
    """The operator's own, or what its signature gives."""
    operator = operator_of(problem)
    return (
        operator.chain(problem, seed, device)
        if operator.chain
        else _plain_chain(operator, problem, seed, device)
    )


def _plain_chain(operator: Operator, problem: Problem, seed: int, device: torch.device | str) -> Chain:
    """Floating-point inputs that are no weights and have the dtype of an output: any number is legal there. Of several
    outputs the one that feeds most, of those the last: what comes before may be handed on within a launch."""
    signature, specs = operator.signature, operator.signature.tensors(problem)

    def fed(output: str) -> list[str]:
        dtype = specs[output].dtype
        inputs = [name for name in signature.inputs if name not in operator.weights and specs[name].nbytes]
        return [name for name in inputs if specs[name].dtype == dtype and DTYPES[dtype].is_floating_point]

    feeding = [name for name in signature.outputs if fed(name)] or signature.outputs[:1]
    output = max(reversed(feeding), key=lambda name: sum(specs[one].nbytes for one in fed(name)))
    reader, *writers = (
        make_inputs(problem, seed + number, operator.sources[0], device) for number in range(1 + WRITERS)
    )
    return Chain(output=output, shared=fed(output), writers=writers, reader=reader)


def _judge(differing: torch.Tensor, chain: _Memory, how: str) -> None:
    """``differing``: elements that are wrong, ``[chains, places]``."""
    wrong = differing.sum(dim=0)
    if not bool(wrong.any()):
        return
    chains, first = int((differing.sum(dim=1) > 0).sum()), int((wrong > 0).nonzero()[0])
    name, number = chain.places[first]
    raise CheckFailed(
        Status.RACE,
        f"{chain.problem}: {int(wrong[first])} elements of {name} of launch {number} of a chain of {len(chain.sets)} "
        f"differ from those of the same launches one at a time, in {chains} of {len(differing)} chains {how}: a launch "
        "reads or writes before the one ahead of it has ended",
    )


@dataclasses.dataclass(frozen=True)
class _Region:
    """Bytes of S, from ``start``."""

    start: int
    size: int

    @property
    def end(self) -> int:
        return self.start + self.size


class _Written:
    """Memory that launches write, ``[places, bytes]`` of one output, and what is expected there."""

    def __init__(self, places: int, size: int, element: torch.dtype, device: torch.device | str) -> None:
        self._memory = torch.empty((places, _aligned(size)), dtype=torch.uint8, device=device)
        self._size, self._element = size, element

    def place(self, number: int) -> torch.Tensor:
        return self._memory[number, : self._size]

    def poison(self) -> None:
        self._memory.fill_(POISON)

    def keep(self) -> None:
        self._expected = self._memory.clone()

    def differing(self) -> torch.Tensor:
        """Elements of each place."""
        found, expected = (
            memory[:, : self._size].view(self._element) for memory in (self._memory, self._expected)
        )
        return (found != expected).sum(dim=1)


class _Memory:
    """Memory of one chain: ``sets`` has the arguments of each launch in order; what they write is compared in
    ``places``, each an output and the number of the last launch that writes there."""

    def __init__(self, case: Case, seed: int, device: torch.device | str) -> None:
        self.problem, self._case = case.problem, case
        signature = operator_of(case.problem).signature
        specs = signature.tensors(case.problem)
        chain = chain_of(case.problem, seed, device)
        self._workspace = torch.zeros(case.workspace_bytes, dtype=torch.uint8, device=device)
        size = specs[chain.output].nbytes
        regions = _regions(chain, size)
        elements = {name: INTEGERS[DTYPES[specs[name].dtype].itemsize] for name in signature.outputs}
        end = max((region.end for region in regions.values()), default=0)
        self._shared = _Written(1, _aligned(end + size), elements[chain.output], device)
        self._first = _first_bytes(chain, regions, self._shared.place(0))
        starts = _starts(chain, regions, size)
        own = {
            name: _Written(
                len(starts) * (1 if name == chain.output else 2), specs[name].nbytes, elements[name], device
            )
            for name in signature.outputs
        }
        self._own = own
        self.sets = list(self._launches(chain, regions, starts, size))
        self.places = [
            (name, place) for name in own for place in _numbers(len(starts), writers_too=name != chain.output)
        ]
        self.places.append((chain.output, len(self.sets) - 1))

    def reset(self) -> None:
        """As before the first launch, whatever the last chain left."""
        self._shared.place(0).copy_(self._first)
        for written in self._own.values():
            written.poison()
        self._workspace[self._case.zeroed_bytes :].fill_(POISON)

    def keep(self) -> None:
        """What lies there now is what is expected from now on."""
        for written in (*self._own.values(), self._shared):
            written.keep()

    def compare(self, counts: torch.Tensor) -> None:
        """Enqueue: how many elements of each place differ, into ``counts``; nothing waits."""
        counts.copy_(torch.cat([written.differing() for written in (*self._own.values(), self._shared)]))

    def look_at_counters(self) -> None:
        if bool(self._workspace[: self._case.zeroed_bytes].any()):
            reason = f"{self.problem}: the workspace's counters are not zero after launches in chains"
            raise CheckFailed(Status.RACE, reason)

    def _launches(
        self, chain: Chain, regions: Mapping[str, _Region], starts: Sequence[int], size: int
    ) -> Iterator[Tensors]:
        shared = self._shared.place(0)
        reads = {name: shared[region.start : region.end] for name, region in regions.items()}
        name = operator_of(self.problem).signature.workspace
        common = {} if name is None else {name: self._workspace}
        others = [name for name in self._own if name != chain.output]
        for link, start in enumerate(starts):
            beside = [{name: self._own[name].place(2 * link + turn) for name in others} for turn in range(2)]
            for turn in range(LINK - 1):
                writer = chain.writers[(link * (LINK - 1) + turn) % len(chain.writers)]
                yield {**writer, **common, **beside[0], chain.output: shared[start : start + size]}
            output = self._own[chain.output].place(link)
            yield {**chain.reader, **reads, **common, **beside[1], chain.output: output}


def _numbers(links: int, *, writers_too: bool) -> Iterator[int]:
    """Of the last launch that writes each place of an output."""
    for link in range(links):
        if writers_too:
            yield link * LINK + LINK - 1
        yield (link + 1) * LINK


def _regions(chain: Chain, size: int) -> dict[str, _Region]:
    """Where each shared input lies in S, behind room for an output of ``size`` that ends with the first of them."""
    found, position = {}, _aligned(size)
    for name in chain.shared:
        found[name] = _Region(position, chain.reader[name].nbytes)
        position = _aligned(found[name].end)
    return found


def _starts(chain: Chain, regions: Mapping[str, _Region], size: int) -> list[int]:
    """Of writing launches: the output begins where the first input does, then ends where each does, so that what is
    written first and what is written last are read, and each is reached by an output smaller than the others."""
    if not regions:  # two links: results that are overwritten, and one workspace
        return [0, 0]
    starts = [next(iter(regions.values())).start]
    for name, region in regions.items():
        starts.append(region.start if name in chain.leading else (region.end - size) // ENTRY * ENTRY)
    return starts


def _first_bytes(chain: Chain, regions: Mapping[str, _Region], shared: torch.Tensor) -> torch.Tensor:
    """What lies in S before the first launch."""
    if chain.first is not None:
        return chain.first(len(shared))
    first = torch.zeros_like(shared)
    for name, region in regions.items():
        first[region.start : region.end] = bytes_of(chain.reader[name])
    return first


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT

"""Are launches right when nobody waits between them: chains in which each reads or overwrites what the one before did.

With programmatic dependent launch (``use_pdl``) a launch begins while the one before still runs. Until
``griddepcontrol.wait`` it may read weights only (docs/gpu.md, "Launches that overlap"): act, ascales, lora_act_in and
the workspace may still be written, y and the workspace may still be read. A chain is made of links of three launches:

    write S     y lies in S; wcscale is 0, so that y is the bias: bytes that are legal scale factors, codes and halves
    write S     another bias: a late store of the launch before would be left there
    read S      act, ascales and lora_act_in lie in S; y of its own
    write S     the next link, while the one before may still read

All launches share one workspace. The expected bits are those of the same launches one at a time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch

from kernel_space.numerics.blocked import SF_VEC_SIZE
from kernel_space.numerics.nvfp4 import SF_GROUPS, SF_ROWS
from kernel_space.operators.svdquant_gemm.inputs import TORCH_DTYPES
from kernel_space.operators.svdquant_gemm.operands import argument_bytes, make_operands
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tuner.card.worker.candidate import Case
from tuner.card.worker.check import OUTPUT, WORKSPACE, CheckFailed
from tuner.trials.outcome import Status

Launch = Callable[[int], None]
Tensors = Mapping[str, torch.Tensor]

CHAINED = ("act", "ascales", "lora_act_in")  # what may come from the launch just before
LINK = 3  # launches: two that write S, one that reads it
BIASES = 3  # of launches that write S: two in a row, and the one before them, differ
POISON = 0xFF
ALIGNMENT = 256  # of buffers; S is entered at multiples of 16 bytes, which is what a kernel asks of y
# Low and high bytes of a half in S: any scale factor; a normal number of moderate size in fp16 and bf16.
LOW_BYTES, HIGH_BYTES = (0x00, 0x7F), (0x38, 0x40)
READER_SCALE = (
    2.0**-8
)  # of wcscale: scale factors up to 448 stand in S, those of the other operands are around 1
# How much is spent: milliseconds of launches for each repeat of the check and way of launching, by this estimate.
MS_PER_REPEAT = 1.0
LAUNCH_US, PRODUCTS_PER_US = 5.0, 5e8
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
    chain = _Chain(case, seed, device)
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
        differing = torch.zeros((count, chain.outputs), dtype=torch.int64, device=device)
        for row in differing:
            chain.reset()
            enqueue()
            chain.compare(row)
        lane.wait(f"{count} chains of {len(chain.sets)} launches on {case.problem}, {how}")
        _judge(differing.cpu(), case, how, len(chain.sets))
    chain.look_at_counters()
    return len(ways) * count * len(chain.sets)


def chains_for(problem: GemmProblem, repeats: int, launches: int) -> int:
    """Chains of ``launches`` for each way of launching them."""
    products = problem.m * problem.n * (problem.k + problem.r)
    chain_ms = launches * (LAUNCH_US + 2 * products / PRODUCTS_PER_US) / 1000
    return max(1, min(CHAINS_PER_REPEAT * repeats, int(MS_PER_REPEAT * repeats / chain_ms)))


def chain_bytes(problem: GemmProblem) -> int:
    """Memory that ``check_chains`` takes, without operands and workspace."""
    sizes = argument_bytes(problem)
    links = 1 + len(CHAINED)
    shared = 2 * sizes[OUTPUT] + sum(sizes[name] for name in CHAINED)
    return 3 * shared + (2 * links + 2) * sizes[OUTPUT]  # S thrice, outputs twice, and a comparison


def _judge(differing: torch.Tensor, case: Case, how: str, launches: int) -> None:
    """``differing``: halves that are wrong, ``[chains, outputs]``, the last output being S."""
    wrong = differing.sum(dim=0)
    if not bool(wrong.any()):
        return
    chains, first = int((differing.sum(dim=1) > 0).sum()), int((wrong > 0).nonzero()[0])
    number = min((first + 1) * LINK, launches - 1)  # S is what the last launch that writes it leaves
    raise CheckFailed(
        Status.RACE,
        f"{case.problem}: {int(wrong[first])} elements of launch {number} of a chain of {launches} differ from those "
        f"of the same launches one at a time, in {chains} of {len(differing)} chains {how}: a launch reads or writes "
        "before the one ahead of it has ended",
    )


@dataclasses.dataclass(frozen=True)
class _Region:
    """Bytes of S, from ``start``."""

    start: int
    size: int

    @property
    def end(self) -> int:
        return self.start + self.size


class _Chain:
    """Memory of one chain: ``sets`` has the arguments of each launch in order; ``outputs`` are compared."""

    def __init__(self, case: Case, seed: int, device: torch.device | str) -> None:
        problem = case.problem
        self._case, self._device = case, device
        self._random = torch.Generator(device).manual_seed(seed)
        base = make_operands(problem, seed, source="codes", device=device)
        tensors = {name: tensor for name, tensor in base.tensors().items() if name != OUTPUT}
        self._workspace = torch.zeros(case.workspace_bytes, dtype=torch.uint8, device=device)
        self._y_bytes = argument_bytes(problem)[OUTPUT]
        regions = self._regions(tensors)
        self._shared = self._legal_bytes(max(region.end for region in regions.values()) + self._y_bytes)
        self._first = self._shared.clone()
        starts = self._places_of_y(regions)
        stride = _aligned(self._y_bytes)
        self._y = torch.empty((len(starts), stride), dtype=torch.uint8, device=device)
        shared = {name: self._shared[region.start : region.end] for name, region in regions.items()}
        common = {**tensors, WORKSPACE: self._workspace}
        reader = {**common, **shared, "wcscale": tensors["wcscale"] * READER_SCALE}
        writers = [
            {**common, "wcscale": torch.zeros_like(tensors["wcscale"]), "bias": self._bias()}
            for _ in range(BIASES)
        ]
        self.sets: list[Tensors] = []
        for link, start in enumerate(starts):
            place = self._shared[start : start + self._y_bytes]
            for turn in range(LINK - 1):
                self.sets.append({**writers[(link * (LINK - 1) + turn) % BIASES], OUTPUT: place})
            self.sets.append({**reader, OUTPUT: self._y[link, : self._y_bytes]})
        self.outputs = len(starts) + 1

    def reset(self) -> None:
        """As before the first launch, whatever the last chain left."""
        self._shared.copy_(self._first)
        self._y.fill_(POISON)
        self._workspace[self._case.zeroed_bytes :].fill_(POISON)

    def keep(self) -> None:
        """What lies there now is what is expected from now on."""
        self._expected = self._y[:, : self._y_bytes].clone(), self._shared.clone()

    def compare(self, counts: torch.Tensor) -> None:
        """Enqueue: how many halves of each output differ, into ``counts``; nothing waits."""
        own, shared = self._expected
        found = self._y[:, : self._y_bytes].view(torch.int16) != own.view(torch.int16)
        counts[:-1] = found.sum(dim=1)
        counts[-1] = (self._shared.view(torch.int16) != shared.view(torch.int16)).sum()

    def look_at_counters(self) -> None:
        if bool(self._workspace[: self._case.zeroed_bytes].any()):
            reason = f"{self._case.problem}: the workspace's counters are not zero after launches in chains"
            raise CheckFailed(Status.RACE, reason)

    def _regions(self, tensors: Tensors) -> dict[str, _Region]:
        """Where each operand lies in S, behind room for a y that ends with the first of them."""
        found, position = {}, _aligned(self._y_bytes)
        for name in CHAINED:
            size = tensors[name].nbytes
            ragged = name == "ascales" and self._case.problem.k % (SF_GROUPS * SF_VEC_SIZE)
            if size and not ragged:  # its padding along K must stay zero
                found[name] = _Region(position, size)
                position = _aligned(position + size)
        return found

    def _places_of_y(self, regions: Mapping[str, _Region]) -> list[int]:
        """Of writing launches: y begins where act does, then ends where each operand does, so that what is written
        first and what is written last are read, and each operand is reached by a y smaller than the others."""
        starts = [regions["act"].start]
        for name, region in regions.items():
            used_first = (
                name == "ascales" and self._case.problem.m < SF_ROWS
            )  # rows that are padding come behind
            starts.append(region.start if used_first else (region.end - self._y_bytes) // 16 * 16)
        return starts

    def _legal_bytes(self, count: int) -> torch.Tensor:
        """uint8 ``[count]`` rounded up to whole halves, of which every byte is a legal scale factor."""
        where = {"dtype": torch.uint8, "generator": self._random, "device": self._device}
        halves = -(-count // 2)
        low, high = (torch.randint(*span, (halves,), **where) for span in (LOW_BYTES, HIGH_BYTES))
        return torch.stack([low, high], dim=1).view(-1)

    def _bias(self) -> torch.Tensor:
        """fp32 ``[n]`` that the output format holds exactly."""
        problem = self._case.problem
        return self._legal_bytes(2 * problem.n).view(TORCH_DTYPES[problem.out_dtype]).float()


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT

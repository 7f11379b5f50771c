"""Launches that overlap, on a card made of a list: what a launch does before ``griddepcontrol.wait`` is done before the
rest of the launch ahead of it. Each way of not waiting is found; a kernel that waits passes. Kernels are torch models.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import pytest
import torch

from kernel_space.operators.svdquant_gemm.inputs import TORCH_DTYPES
from kernel_space.operators.svdquant_gemm.on_card.chain import CHAINED
from kernel_space.operators.svdquant_gemm.operands import argument_bytes, make_operands
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tests.operators.svdquant_gemm.model_kernels import Model, shaped
from tuner.card.worker.candidate import Case
from tuner.card.worker.chains import LINK, chain_bytes, chains_for, check_chains
from tuner.card.worker.check import CheckFailed
from tuner.trials.outcome import Status

pytestmark = pytest.mark.usefixtures("one_thread")

WIDE = GemmProblem.parse("37,128,96,16")  # y is larger than act, scales and lora_act_in together
NARROW = GemmProblem.parse("5,512,8,16")  # y is a small part of each
RAGGED = GemmProblem.parse("37,96,24,0")
Tensors = Mapping[str, torch.Tensor]
Early = dict[str, torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Kernel:
    """``early``: what is read before the wait; ``late_rows``: share of y that is stored when the next launch has run;
    ``at_once``: nothing waits, half of the rows are done before the launch ahead has ended."""

    problem: GemmProblem
    early: tuple[str, ...] = ()
    late_rows: float = 0.0
    at_once: bool = False
    expands: bool = False  # act to the workspace before the wait, and from there after it

    def begin(self, tensors: Tensors) -> Early:
        if self.at_once:
            self.store(tensors, self.result(tensors), 0.0, 0.5)
        if self.expands:
            tensors["workspace"][: tensors["act"].numel()] = tensors["act"].view(-1)
        return {name: tensors[name].clone() for name in self.early}

    def end(self, tensors: Tensors, early: Early) -> torch.Tensor | None:
        """The result, while some of it is not stored yet."""
        if self.at_once:
            self.store(tensors, self.result(tensors), 0.5, 1.0)
            return None
        operands = {**tensors, **early}
        if self.expands:
            operands["act"] = tensors["workspace"][: tensors["act"].numel()]
        result = self.result(operands)
        self.store(tensors, result, 0.0, 1.0 - self.late_rows)
        return result if self.late_rows else None

    def result(self, operands: Tensors) -> torch.Tensor:
        model = Model(step=128)
        return model(shaped(dict(operands), self.problem), TORCH_DTYPES[self.problem.out_dtype])

    def store(self, tensors: Tensors, result: torch.Tensor, first: float, last: float) -> None:
        rows = slice(int(first * len(result)), int(last * len(result)))
        y = tensors["y"].view(result.dtype).view(result.shape)
        y[rows] = result[rows]


class Overlapping:
    """``chains.Lane``: in a chain the early part of a launch comes before the late part of the one ahead of it."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.launches = 0
        self.sets: Sequence[Tensors] = ()
        self.chain: list[int] | None = None
        self.in_graphs = 0

    def bind(self, sets: Sequence[Tensors]) -> Callable[[int], None]:
        self.sets = sets

        def launch(index: int) -> None:
            self.launches += 1
            if self.chain is None:
                self._run([index])
            else:
                self.chain.append(index)

        return launch

    def eager(self, launch: Callable[[int], None], count: int) -> None:
        self.chain = []
        for index in range(count):
            launch(index)
        chain, self.chain = self.chain, None
        self._run(chain)

    def graph(self, launch: Callable[[int], None], count: int) -> Callable[[], None]:
        def replay() -> None:
            self.in_graphs += count
            self._run(list(range(count)))

        return replay

    def wait(self, what: str) -> None:
        assert str(self.kernel.problem) in what

    def _run(self, chain: list[int]) -> None:
        ahead: tuple[int, Early] | None = None
        for index in chain:
            early = self.kernel.begin(self.sets[index])
            if ahead is not None:
                self._finish(*ahead)
            ahead = index, early
        if ahead is not None:
            self._finish(*ahead)
        self._store_rest()

    _rest: tuple[int, torch.Tensor] | None = None

    def _finish(self, index: int, early: Early) -> None:
        result = self.kernel.end(self.sets[index], early)
        self._store_rest()
        self._rest = None if result is None else (index, result)

    def _store_rest(self) -> None:
        if self._rest is not None:
            index, result = self._rest
            self.kernel.store(self.sets[index], result, 1.0 - self.kernel.late_rows, 1.0)
            self._rest = None


def case_of(kernel: Kernel) -> Case:
    act = argument_bytes(kernel.problem)["act"]
    return Case(problem=kernel.problem, workspace_bytes=act if kernel.expands else 0)


def run(kernel: Kernel, seed: int = 0, repeats: int = 1) -> Overlapping:
    lane = Overlapping(kernel)
    found = check_chains(lane, case_of(kernel), repeats=repeats, seed=seed, device="cpu")
    one_chain = len(lane.sets)
    assert found == lane.launches - one_chain + lane.in_graphs > 0, (
        "each chain once alone, the rest in chains"
    )
    return lane


@pytest.mark.parametrize("problem", [WIDE, NARROW, RAGGED], ids=str)
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_a_kernel_that_waits_passes(problem: GemmProblem, dtype: str) -> None:
    problem = dataclasses.replace(problem, lora_dtype=dtype, out_dtype=dtype)
    for seed in range(3):
        run(Kernel(problem, early=("wgt", "wscales", "lora_up", "wcscale", "bias")), seed)


WAYS = {
    "reads act early": {"early": ("act",)},
    "reads the scales of act early": {"early": ("ascales",)},
    "reads lora_act_in early": {"early": ("lora_act_in",)},
    "waits for nothing": {"at_once": True},
    "stores when the next has run": {"late_rows": 0.1},
    "expands early": {"expands": True},
}


@pytest.mark.parametrize("problem", [WIDE, NARROW], ids=str)
@pytest.mark.parametrize("name", WAYS)
def test_a_kernel_that_does_not_wait_is_found(name: str, problem: GemmProblem) -> None:
    late = WAYS[name]
    if name.startswith("stores") and problem is NARROW:
        late = {"late_rows": 0.5}  # of five rows
    with pytest.raises(CheckFailed) as failure:
        run(Kernel(problem, **late))
    assert failure.value.status is Status.RACE
    words = str(failure.value)
    assert "\n" not in words and words.startswith(f"{problem}: ") and "of a chain of 12" in words
    assert "in 4 of 4 chains launched eagerly" in words


def test_a_fault_in_graphs_only_is_found() -> None:
    class InGraphs(Overlapping):
        def eager(self, launch: Callable[[int], None], count: int) -> None:
            for index in range(count):
                launch(index)

    lane = InGraphs(Kernel(WIDE, early=("act",)))
    with pytest.raises(CheckFailed, match="in 4 of 4 chains in a CUDA graph"):
        check_chains(lane, case_of(lane.kernel), repeats=1, seed=0, device="cpu")


def test_counters_that_are_left_are_found() -> None:
    class Counts(Overlapping):
        def eager(self, launch: Callable[[int], None], count: int) -> None:
            super().eager(launch, count)
            self.sets[0]["workspace"][3] = 1

    lane = Counts(Kernel(WIDE))
    with pytest.raises(CheckFailed, match="counters are not zero after launches in chains"):
        check_chains(
            lane, Case(problem=WIDE, workspace_bytes=256, zeroed_bytes=256), repeats=1, seed=0, device="cpu"
        )


@pytest.mark.parametrize("problem", [WIDE, NARROW, RAGGED], ids=str)
def test_what_stands_in_a_chain_is_legal_and_every_operand_is_written(problem: GemmProblem) -> None:
    """Bytes that may be scale factors: no NaN, no sign. All launches but each third write over what the others read."""
    lane = run(Kernel(problem))
    readers = lane.sets[LINK - 1 :: LINK]
    shared = [name for name in CHAINED if readers[0][name].data_ptr() == readers[1][name].data_ptr()]
    written = [(y.data_ptr(), y.data_ptr() + y.numel()) for y in (one["y"] for one in lane.sets[::LINK])]
    base = make_operands(problem, 0, source="codes").tensors()
    chained = [
        name
        for name in shared
        if readers[0][name].numel() and not torch.equal(_bytes(readers[0][name]), _bytes(base[name]))
    ]
    assert chained == [
        name
        for name in CHAINED
        if not (name == "ascales" and problem is RAGGED) and not (name == "lora_act_in" and problem.r == 0)
    ]
    for name in chained:
        start, size = readers[0][name].data_ptr(), readers[0][name].nbytes
        assert any(first < start + size and start < last for first, last in written), (
            f"{name} is never written"
        )
        assert int(_bytes(readers[0][name]).max()) <= 0x7E
    assert len({one["y"].data_ptr() for one in readers}) == len(readers), "each has a y of its own"
    assert all(one["y"].data_ptr() % 16 == 0 for one in lane.sets)
    first, second = lane.sets[0], lane.sets[1]
    assert first["y"].data_ptr() == second["y"].data_ptr() and not torch.equal(first["bias"], second["bias"])


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def test_results_of_a_chain_are_finite() -> None:
    """Infinities would hide what went into them."""
    for dtype in ("fp16", "bf16"):
        problem = dataclasses.replace(WIDE, lora_dtype=dtype, out_dtype=dtype, m=5, k=2048)
        lane = run(Kernel(problem))
        for one in lane.sets[LINK - 1 :: LINK]:
            y = one["y"].view(TORCH_DTYPES[dtype])
            assert y.isfinite().float().mean() > 0.99 and y.float().std() > 1.0


def test_how_much_is_spent() -> None:
    """By the estimate of 5 us a launch and 500 million products a microsecond: a millisecond per repeat and way."""
    assert chains_for(GemmProblem.parse("1,3840,3072,128"), 8, 15) == 32, (
        "never more than four for each repeat"
    )
    assert chains_for(GemmProblem.parse("4352,3840,3072,128"), 8, 15) == 2  # 217 us a launch
    assert chains_for(GemmProblem.parse("4352,15360,3840,0"), 8, 15) == 1
    assert chains_for(GemmProblem.parse("4352,3840,3072,128"), 50, 15) == 15
    assert 12 * 2 * 4352 * 3072 < chain_bytes(GemmProblem.parse("4352,3840,3072,128")) < 20 * 2 * 4352 * 3072

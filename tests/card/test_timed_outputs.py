"""What is left behind by graphs that are timed: judged after the last replay, against launches one at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tests.card.fake_card import FakeTelemetry
from tuner.card.samples.samples import State
from tuner.card.worker.bench import QUICK, FinalsOptions, interleave, time_launches
from tuner.card.worker.check import CheckFailed
from tuner.card.worker.timed_outputs import TimedOutputs
from tuner.trials.outcome import Status

STEADY = FakeTelemetry(lambda: State(sm_mhz=1700))
PROBLEM = GemmProblem(m=3, k=64, n=8, r=0)


class Replaying:
    """``bench.Gpu`` that runs the launches of a graph, 1 ms each."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.in_graph = False

    def graph(self, launch: Callable[[int], None], order: Sequence[int]) -> Callable[[], None]:
        def replay() -> None:
            self.in_graph = True
            for index in order:
                launch(index)
                self.now_ms += 1.0
            self.in_graph = False

        return replay

    def mark(self) -> float:
        return self.now_ms

    def ms(self, begin: float, end: float) -> float:
        return end - begin

    def finish(self) -> None:
        pass


def candidate(
    gpu: Replaying, outputs: list[torch.Tensor], value: float, wrong: set[int] | None = None
) -> tuple[Callable[[int], None], TimedOutputs]:
    """Writes ``value`` plus its set's number; in a graph, sets in ``wrong`` get but one element."""

    def launch(index: int) -> None:
        if wrong is not None and gpu.in_graph and index in wrong:
            outputs[index][1, 2] = -1.0
            return
        outputs[index].fill_(value + index)

    return launch, TimedOutputs(PROBLEM, launch, [{"y": y} for y in outputs], lambda what: None)


@pytest.fixture
def outputs() -> list[torch.Tensor]:
    return [torch.zeros(3, 8, dtype=torch.float16) for _ in range(4)]


def test_outputs_of_a_right_candidate_pass(outputs: list[torch.Tensor]) -> None:
    gpu = Replaying()
    launch, judged = candidate(gpu, outputs, 1.0)
    samples = time_launches(launch, 4, QUICK, STEADY, outputs=judged, gpu=gpu)
    assert samples.us[0] == pytest.approx(1000.0)


def test_a_launch_that_is_wrong_or_missing_in_a_graph_is_a_race(outputs: list[torch.Tensor]) -> None:
    gpu = Replaying()
    launch, judged = candidate(gpu, outputs, 1.0, wrong={1, 3})
    with pytest.raises(CheckFailed) as failure:
        time_launches(launch, 4, QUICK, STEADY, outputs=judged, gpu=gpu)
    assert failure.value.status is Status.RACE
    assert str(failure.value) == (
        "3,64,8,0: after the launches that were timed, the outputs of 2 of 4 operand sets differ from those of the "
        "same launches one at a time: 24 elements of y of set 1"
    )


def test_finalists_share_operands_and_each_is_judged_by_its_own(outputs: list[torch.Tensor]) -> None:
    gpu = Replaying()
    right = [candidate(gpu, outputs, value) for value in (1.0, 100.0)]
    options = FinalsOptions(rounds=3, warm_up_ms=1.0)
    found = interleave(
        [one for one, _ in right], 4, options, STEADY, outputs=[judged for _, judged in right], gpu=gpu
    )
    assert len(found) == 2
    wrong = candidate(gpu, outputs, 1.0, wrong={2})
    with pytest.raises(CheckFailed, match="1 of 4 operand sets"):
        interleave([right[0][0], wrong[0]], 4, options, STEADY, outputs=[right[0][1], wrong[1]], gpu=gpu)

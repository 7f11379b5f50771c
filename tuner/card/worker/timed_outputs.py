"""What launches that were timed have written, against the same launches one at a time.

The graphs of ``bench`` let launches follow one another without a gap and, with programmatic dependent launch, overlap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tuner.card.worker.check import CheckFailed
from tuner.trials.outcome import Status


class TimedOutputs:
    """``bench.Outputs``: ``outputs[i]`` is what ``launch(i)`` writes.

    ``wait(what)`` returns when everything enqueued has ended.
    """

    def __init__(
        self,
        problem: GemmProblem,
        launch: Callable[[int], None],
        outputs: Sequence[torch.Tensor],
        wait: Callable[[str], None],
    ) -> None:
        self._problem, self._launch, self._outputs, self._wait = problem, launch, outputs, wait

    def blank(self) -> None:
        """NaN everywhere, for whatever stream writes next."""
        for y in self._outputs:
            y.fill_(math.nan)
        self._wait(f"blanking outputs of {self._problem}")

    def judge(self) -> None:
        """Launch each set alone. Raises ``CheckFailed`` if that does not give what lies in the outputs now."""
        found = [y.clone() for y in self._outputs]
        self.blank()
        for index in range(len(found)):
            self._launch(index)
            self._wait(f"launch {index + 1} on {self._problem}, alone")
        differing = [
            (first.view(torch.int16) != second.view(torch.int16)).sum()
            for first, second in zip(found, self._outputs, strict=True)
        ]
        counts = torch.stack(differing).tolist()
        wrong = [index for index, count in enumerate(counts) if count]
        if wrong:
            raise CheckFailed(
                Status.RACE,
                f"{self._problem}: after the launches that were timed, the outputs of {len(wrong)} of {len(counts)} "
                "operand sets differ from those of the same launches one at a time: "
                f"{counts[wrong[0]]} elements of set {wrong[0]}",
            )

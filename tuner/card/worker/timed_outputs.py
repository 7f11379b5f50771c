"""What launches that were timed have written, against the same launches one at a time.

The graphs of ``bench`` let launches follow one another without a gap and, with programmatic dependent launch, overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from kernel_space.core.problem import Problem
from kernel_space.numerics.tensors import bytes_of
from tuner.card.worker.check import CheckFailed, as_integers
from tuner.trials.outcome import Status

BLANK = 0xFF  # in every byte: NaN in every float format


class TimedOutputs:
    """``bench.Outputs``: ``outputs[i]`` is what ``launch(i)`` writes, by the names of the outputs.

    ``wait(what)`` returns when everything enqueued has ended.
    """

    def __init__(
        self,
        problem: Problem,
        launch: Callable[[int], None],
        outputs: Sequence[Mapping[str, torch.Tensor]],
        wait: Callable[[str], None],
    ) -> None:
        self._problem, self._launch, self._outputs, self._wait = problem, launch, outputs, wait

    def blank(self) -> None:
        """``BLANK`` everywhere, for whatever stream writes next."""
        for tensors in self._outputs:
            for tensor in tensors.values():
                bytes_of(tensor).fill_(BLANK)
        self._wait(f"blanking outputs of {self._problem}")

    def judge(self) -> None:
        """Launch each set alone. Raises ``CheckFailed`` if that does not give what lies in the outputs now."""
        found = [{name: tensor.clone() for name, tensor in tensors.items()} for tensors in self._outputs]
        self.blank()
        for index in range(len(found)):
            self._launch(index)
            self._wait(f"launch {index + 1} on {self._problem}, alone")
        names = list(found[0])
        differing = [
            torch.stack([(as_integers(first[name]) != as_integers(second[name])).sum() for name in names])
            for first, second in zip(found, self._outputs, strict=True)
        ]
        counts = torch.stack(differing).tolist()  # [sets][outputs]
        wrong = [index for index, of_set in enumerate(counts) if any(of_set)]
        if wrong:
            name, count = next(pair for pair in zip(names, counts[wrong[0]], strict=True) if pair[1])
            raise CheckFailed(
                Status.RACE,
                f"{self._problem}: after the launches that were timed, the outputs of {len(wrong)} of {len(counts)} "
                "operand sets differ from those of the same launches one at a time: "
                f"{count} elements of {name} of set {wrong[0]}",
            )

"""What Optuna's TPE proposes across the kernels of a space: a kernel by one study, its knobs by a study of its own.

A single study over all kernels would have parameters that exist for some trials only; a study per kernel has the same
for all of its trials, so that its multivariate TPE sees every knob, and the good ones of each kernel are compared with
their like. The choice of the kernel learns from all trials. With one kernel this is one TPE over its knobs.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping

import optuna

from tuner.space.space import KERNEL, SearchSpace

_Distributions = dict[str, optuna.distributions.BaseDistribution]


@dataclasses.dataclass(frozen=True)
class Proposal:
    """A point that the sampler hears of: ``params`` are the kernel and its knobs, ``trials`` Optuna's."""

    params: Mapping[str, str]
    trials: tuple[tuple[optuna.Study, optuna.Trial], ...]


class Sampler:
    """Proposes points of ``space``, legal or not, and learns from all that it is told."""

    def __init__(self, space: SearchSpace, seed: int) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        # Another seed than for the knobs: the first draws of both are random, and must not go together.
        self._choice = _new_study(random.Random(f"{seed} {KERNEL}").getrandbits(32))
        self._kernels = _distributions({KERNEL: tuple(space.kernels)})
        self._studies = {name: _new_study(seed) for name in space.kernels}
        self._knobs = {
            name: _distributions({knob: own.choices for knob, own in one.knobs.items()})
            for name, one in space.kernels.items()
        }

    def propose(self) -> Proposal:
        return self._asked(None)

    def learn(self, params: Mapping[str, str]) -> Proposal:
        """A point that it did not propose."""
        return self._asked(params)

    def tell(self, proposal: Proposal, us: float) -> None:
        for study, trial in proposal.trials:
            study.tell(trial, us)

    def refuse(self, proposal: Proposal, constraint: str) -> None:
        """There is no time: ``constraint`` is violated."""
        for study, trial in proposal.trials:
            trial.set_constraint(constraint, 1.0)
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)

    def _asked(self, params: Mapping[str, str] | None) -> Proposal:
        chosen = _ask(self._choice, self._kernels, params and {KERNEL: params[KERNEL]})
        kernel = chosen.params[KERNEL]
        study, distributions = self._studies[kernel], self._knobs[kernel]
        knobs = _ask(study, distributions, params and {name: params[name] for name in distributions})
        return Proposal({**chosen.params, **knobs.params}, ((self._choice, chosen), (study, knobs)))


def _ask(
    study: optuna.Study, distributions: _Distributions, params: Mapping[str, str] | None
) -> optuna.Trial:
    if params is not None:
        study.enqueue_trial(dict(params))
    return study.ask(distributions)


def _distributions(choices: Mapping[str, tuple[str, ...]]) -> _Distributions:
    return {name: optuna.distributions.CategoricalDistribution(own) for name, own in choices.items()}


def _new_study(seed: int) -> optuna.Study:
    return optuna.create_study(direction="minimize", sampler=optuna.samplers.TPESampler(seed=seed))

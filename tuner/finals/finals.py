"""Finals of a tune on a card: successive halving among the leaders, then finalists timed round by round.

Everything is timed by ``bench.interleave``. The worker only replays; who stays and who wins is decided here.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol

from kernel_space.core.problem import Problem
from kernel_space.core.rules import Legal
from tuner.card.samples.samples import LEAST_UNMARKED, Samples
from tuner.card.samples.statistics import compare
from tuner.card.worker.bench import FinalsOptions
from tuner.finals.decision import Verdict, decide, undecided
from tuner.trials.disagreement import against
from tuner.trials.final_order import FINAL, PLACE, QUICK_US, RULED_OUT_BY, in_the_running, searched_us
from tuner.trials.outcome import Outcome, Trial
from tuner.trials.relative import Relative

if TYPE_CHECKING:
    from kernel_space.build.build import CompiledKernel

MOST_CONTENDERS, LEAST_CONTENDERS = 12, 4
WITHIN = 1.25  # of the fastest cheap timing; those are off by a few percent, not by a quarter
# Halving: so many rounds, after which so many stay (the default besides).
RUNGS = ((6, 6), (12, 4))
FINAL_ROUNDS = 24
FINAL_BATCHES = 3  # of FINAL_ROUNDS, while more rounds could separate someone from the fastest
WARM_UP_MS = 100.0
SETTLE_MS = 1500.0  # at most, before each set of rounds: while graphs are captured the card rests
EARLIER = ("quick_", "ruled_out_")  # evidence of before the final that stays
CARRIED = ("gpu_ms", "samples")  # of the cheap timing, kept beside the final's


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contender:
    """A trial that stands, with what launches it. ``default``: it is the default rule's."""

    trial: Trial
    compiled: CompiledKernel
    legal: Legal
    default: bool = False

    @property
    def name(self) -> str:
        return self.trial.resolved

    @property
    def size(self) -> tuple[int, str]:
        """What a tie prefers less of: shared memory (stages are in it), then the printed config."""
        return self.legal.budget.smem_bytes, self.name


class Interleaves(Protocol):
    """The part of a device that finals need."""

    def interleave(
        self, contenders: Sequence[tuple[CompiledKernel, Legal]], problem: Problem, options: FinalsOptions
    ) -> Future[list[Samples] | Outcome]:
        """``bench.interleave`` of them, or what went wrong with one of them."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinalResult:
    """``trials``: contenders with the final's time, and their place in the evidence, the winner first. ``failed``:
    those that failed in it, with the status of that. ``samples``: the deciding rounds of each finalist, by config.
    """

    trials: tuple[Trial, ...]
    failed: tuple[Trial, ...]
    verdict: Verdict | None
    samples: dict[str, Samples]

    def record(self) -> dict[str, Any]:
        """The deciding rounds as JSON: per finalist its time in each round, and the card's state beside it."""
        order = self.verdict.order if self.verdict else ()
        return {
            "verdict": self.verdict and self.verdict.why,
            "tied": list(self.verdict.tied) if self.verdict else [],
            "finalists": [{"config": name, **dataclasses.asdict(self.samples[name])} for name in order],
        }


def choose_leaders(trials: Sequence[Trial]) -> list[Trial]:
    """Of usable ``trials`` those that could be the fastest, by their cheap timings: near the best of them, and not
    ruled out by early rounds."""
    return in_the_running(_near_the_best(trials), among=trials)


def choose_contenders(trials: Sequence[Trial], default: str | None) -> list[Trial]:
    """The best leaders and the best of those that early rounds ruled out, which may well be the runner-up; where fewer
    than ``LEAST_CONTENDERS`` are left, more of these, so that a final says how far behind the others are; and the
    default in any case.
    """
    chosen = choose_leaders(trials)[:MOST_CONTENDERS]
    others = [
        trial for trial in _near_the_best(trials) if trial.evidence.get(RULED_OUT_BY) and trial not in chosen
    ]
    chosen += others[: max(1, LEAST_CONTENDERS - len(chosen))]
    return chosen + [trial for trial in trials if trial.resolved == default and trial not in chosen]


def _near_the_best(trials: Sequence[Trial]) -> list[Trial]:
    by_time = sorted(trials, key=lambda trial: (searched_us(trial) or 0.0, trial.number))
    limit = WITHIN * min((searched_us(trial) or 0.0 for trial in by_time), default=0.0)
    return [trial for trial in by_time if (searched_us(trial) or 0.0) <= limit]


def run_final(
    device: Interleaves, contenders: Sequence[Contender], problem: Problem, name: str, *, seed: int = 0
) -> FinalResult:
    """Halve, then decide. ``name`` identifies this final in the evidence; ``seed`` shuffles the rounds.

    A contender that fails is found out, dropped and reported; the others go on without it.
    """
    card = Rounds(device, problem, seed)
    alive = list(contenders)
    out: list[_Lost] = []
    for rounds, survivors in RUNGS:
        if len(alive) <= survivors + 1:
            continue
        times = card.run(alive, rounds)
        order = _by_median(alive, times)
        alive, lost = _halve(order, survivors)
        out = [(one, times[one.name], _against_default(one, order, times)) for one in lost] + out
    samples: dict[str, Samples] = {}
    for _ in range(FINAL_BATCHES if alive else 0):
        more = card.run(alive, FINAL_ROUNDS)
        samples = {one: joined(samples.get(one), more[one]) for one in more}  # who failed is not in ``more``
        if not samples or not undecided(_deciding_times(samples)):
            break
    verdict = _verdict(alive, samples)
    return FinalResult(
        trials=tuple(_placed(verdict, alive, samples, out, name)),
        failed=tuple(card.failed),
        verdict=verdict,
        samples=samples,
    )


def joined(first: Samples | None, second: Samples) -> Samples:
    """Samples of two batches of rounds as one."""
    if first is None:
        return second
    return dataclasses.replace(
        second,
        us=first.us + second.us,
        states=first.states + second.states,
        warm_up_ms=first.warm_up_ms + second.warm_up_ms,
        settled=bool(first.settled and second.settled),
        gpu_ms=first.gpu_ms + second.gpu_ms,
    )


class Rounds:
    """Asks the device for rounds, and finds out who is to blame when it cannot give them. ``failed``: those, so far;
    their reason begins with ``where``."""

    def __init__(
        self, device: Interleaves, problem: Problem, seed: int, *, where: str = "in the final"
    ) -> None:
        self._device, self._problem, self._seed, self._where = device, problem, seed, where
        self.failed: list[Trial] = []

    def run(
        self,
        contenders: list[Contender],
        rounds: int,
        *,
        warm_up_ms: float = WARM_UP_MS,
        settle_ms: float = SETTLE_MS,
    ) -> dict[str, Samples]:
        """Samples per contender; those that fail leave the list. Raises ``FinalError``."""
        while contenders:
            answer = self._ask(contenders, rounds, warm_up_ms, settle_ms)
            if not isinstance(answer, Outcome):
                return {one.name: samples for one, samples in zip(contenders, answer, strict=True)}
            if not self._drop_culprits(contenders):
                raise FinalError(
                    f"{self._problem}: contenders fail {self._where}, each alone does not: {answer.reason}"
                )
        return {}

    def _ask(
        self, contenders: Sequence[Contender], rounds: int, warm_up_ms: float, settle_ms: float
    ) -> list[Samples] | Outcome:
        self._seed += 1
        options = FinalsOptions(rounds=rounds, seed=self._seed, warm_up_ms=warm_up_ms, settle_ms=settle_ms)
        pairs = [(one.compiled, one.legal) for one in contenders]
        return self._device.interleave(pairs, self._problem, options).result()

    def _drop_culprits(self, contenders: list[Contender]) -> bool:
        """Time each alone; those that fail then are out. Was there one?"""
        before = len(contenders)
        for one in list(contenders):
            answer = self._ask([one], 1, WARM_UP_MS, 0.0)
            if isinstance(answer, Outcome):
                contenders.remove(one)
                reason = f"{self._where}: {answer.reason}"
                self.failed.append(dataclasses.replace(one.trial, status=answer.status, reason=reason))
        return len(contenders) < before


# Who was halved away: its rounds until then, and its evidence against the default in them.
_Lost = tuple[Contender, Samples, dict[str, Any]]


class FinalError(RuntimeError):
    """The device cannot time contenders together that it can time alone: one line."""


def _by_median(contenders: Sequence[Contender], samples: dict[str, Samples]) -> list[Contender]:
    return sorted(contenders, key=lambda one: (statistics.median(samples[one.name].us), one.size))


def _halve(order: Sequence[Contender], survivors: int) -> tuple[list[Contender], list[Contender]]:
    """The first ``survivors`` and the default, and the others."""
    stay = [one for index, one in enumerate(order) if index < survivors or one.default]
    return stay, [one for one in order if one not in stay]


def _deciding_times(samples: dict[str, Samples]) -> dict[str, list[float]]:
    """Microseconds of the rounds in which no finalist was throttled, where there are enough of those, else of all."""
    rounds = range(min(len(one.us) for one in samples.values()))
    calm = [index for index in rounds if not any(one.states[index].throttled for one in samples.values())]
    used = calm if len(calm) >= LEAST_UNMARKED else list(rounds)
    return {name: [one.us[index] for index in used] for name, one in samples.items()}


def _verdict(finalists: Sequence[Contender], samples: dict[str, Samples]) -> Verdict | None:
    """None without finalists."""
    if not finalists:
        return None
    default = next((one.name for one in finalists if one.default), None)
    return decide(_deciding_times(samples), default, {one.name: one.size for one in finalists})


def _placed(
    verdict: Verdict | None,
    finalists: Sequence[Contender],
    samples: dict[str, Samples],
    lost: Sequence[_Lost],
    final: str,
) -> list[Trial]:
    """Trials with their places: finalists as the verdict orders them, then those who were halved away."""
    if verdict is None:
        return []
    by_name = {one.name: one for one in finalists}
    about = {FINAL: final, "finalists": len(finalists), "finals_verdict": verdict.why}
    placed: list[Trial] = []
    for name in verdict.order:
        beside = {**_against_winner(verdict, name), **_against_default(by_name[name], finalists, samples)}
        evidence = {**about, PLACE: len(placed) + 1, **beside}
        placed.append(_retimed(by_name[name].trial, samples[name], evidence))
    for one, rung, beside in lost:
        placed.append(_retimed(one.trial, rung, {FINAL: final, PLACE: len(placed) + 1, **beside}))
    return placed


def _against_default(
    one: Contender, others: Sequence[Contender], samples: dict[str, Samples]
) -> dict[str, Any]:
    """Its time over the default's in the same rounds, which another card agrees on (``relative``); without a default
    among ``others``, nothing."""
    default = next((other for other in others if other.default), None)
    if default is None:
        return {}
    if one.default:
        return Relative.of_default(one.name).evidence()
    times = _deciding_times(samples)
    found = compare(times[default.name], times[one.name])
    return Relative(default=default.name, ratio=found.ratio, low=found.low, high=found.high).evidence()


def _against_winner(verdict: Verdict, name: str) -> dict[str, Any]:
    """How the runner-up stands to the winner, for the winner's own evidence; else how ``name`` does."""
    other = name if name != verdict.winner else next(iter(verdict.order[1:]), None)
    if other is None:
        return {}
    found = verdict.against[other]
    return {
        "versus": "runner-up" if name == verdict.winner else "winner",
        "ratio": round(found.ratio, 6),
        "ratio_low": round(found.low, 6),
        "ratio_high": round(found.high, 6),
        "p_value": float(f"{found.p_value:.3g}"),
        "rounds": found.rounds,
    }


def _retimed(trial: Trial, samples: Samples, evidence: dict[str, Any]) -> Trial:
    """``trial`` with the final's time; what the search was told stays beside it."""
    timing = samples.timing()
    quick = {f"quick_{name}": trial.evidence[name] for name in CARRIED if name in trial.evidence}
    earlier = {name: value for name, value in trial.evidence.items() if name.startswith(EARLIER)}
    return trial.with_timing(
        dataclasses.replace(
            timing,
            evidence={
                **timing.evidence,
                **against(trial.evidence, timing.us),
                **quick,
                **earlier,
                QUICK_US: searched_us(trial),
                **evidence,
            },
        )
    )

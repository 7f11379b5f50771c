"""The stream of candidates: asked, compiled by the pool, judged, journalled, told; then the leaders validated and, on a
card, timed against one another."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

from kernel_space.core.arch import Arch
from kernel_space.core.config import KernelConfig
from kernel_space.core.problem import ProblemClass
from kernel_space.core.rules import Legal
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tuner.devices.device import ChecksAhead, ChecksWinner, Device, RanksLeaders, TimesAhead
from tuner.search.evaluate import blamed_trial, evaluate, is_checked, utc_now, validate, validate_full
from tuner.search.prefilter import count_filtered
from tuner.search.progress import Progress, State
from tuner.search.usage import Usage
from tuner.space.candidate import Asks, Candidate
from tuner.space.count import Legalize
from tuner.trials.final_order import RULED_OUT_BY, contenders_of, in_the_running, latest_final, searched_us
from tuner.trials.outcome import REFUTED, TRANSIENT, Status, Trial
from tuner.trials.rank_stability import ranked
from tuner.trials.study import Study

if TYPE_CHECKING:
    from kernel_space.build.build import CompiledKernel
    from tuner.compile.pool import CompileResult
    from tuner.finals.early_rounds import Refinement
    from tuner.finals.finals import Contender, FinalResult

LEADERS = 10  # validated where that is dear: the winner and those that could take its place
IN_FLIGHT_PER_JOB = 2  # one compiles, one waits: workers are never idle, and little is lost at the end
POLL_S = 0.5  # seconds between two looks at the clock while nothing finishes


class Pool(Protocol):
    """What the loop needs of ``CompilePool``; a result is a value whatever happens to the worker."""

    def submit(
        self, config: KernelConfig, problem_class: ProblemClass, arch: Arch
    ) -> concurrent.futures.Future[CompileResult]: ...


class OutOfTime(Exception):
    """The deadline has passed."""


class Loop:
    """Evaluates what ``search`` asks, with ``pool`` compiling and ``device`` judging, into ``study``.

    ``resume``: trials of the journal answer for their candidates; without it everything is evaluated anew.
    ``deadline`` is a time of ``time.monotonic()``, None for none. ``default``: the default rule's resolved config,
    which is in every final. ``ahead``: what is being compiled already, by resolved config.
    """

    def __init__(
        self,
        *,
        problem: GemmProblem,
        device: Device,
        search: Asks,
        study: Study,
        pool: Pool,
        jobs: int,
        legalize: Legalize,
        progress: Progress,
        resume: bool = True,
        deadline: float | None = None,
        default: str | None = None,
        ahead: Mapping[str, concurrent.futures.Future[CompileResult]] | None = None,
    ) -> None:
        self._problem, self._device, self._search, self._study = problem, device, search, study
        self._pool, self._jobs, self._legalize, self._progress = pool, jobs, legalize, progress
        self._deadline, self._default = deadline, default
        self._resume = resume
        self._ahead = dict(ahead or {})
        self._refinement = _refinement(device, problem)
        self._answers = dict(study.trials) if resume else {}
        self._in_flight: dict[concurrent.futures.Future[CompileResult], Candidate] = {}
        self._compiled: dict[str, CompiledKernel] = {}
        self._legals: dict[str, Legal] = {}
        self.fresh: dict[str, Trial] = {}  # evaluated by this run
        self.known: dict[str, Trial] = {}  # answered by the journal
        self.final: FinalResult | None = None  # of this run
        self.usage = Usage()

    def search(self) -> None:
        """Run until the search is done. Raises ``OutOfTime`` and ``KeyboardInterrupt``; the journal is whole then."""
        while True:
            self._check_time()
            if not self._asks_meanwhile():
                self._fill()
            self._progress.update(self.state)
            if not self._in_flight:
                return
            self._collect()

    def validate_leaders(self) -> None:
        """Have the device check the fastest until ``LEADERS`` of them stand. Raises as ``search`` does."""
        asked: set[str] = set()
        while unchecked := [trial for trial in self.leaders() if trial.resolved not in asked]:
            self._check_time()
            for trial in unchecked[: self._jobs]:
                self._validate_ahead(trial)
            asked.add(unchecked[0].resolved)
            self._validate(unchecked[0])

    def rank_leaders(self) -> None:
        """Have a device that can do so time the leaders against one another, unless the latest final did just that."""
        if not isinstance(self._device, RanksLeaders) or not self._without_final():
            return
        if self._hold_final(self._device) and self._reinstated():
            self.rank_leaders()

    def _chosen(self) -> list[Trial]:
        from tuner.finals.finals import choose_contenders

        return choose_contenders(ranked(self._study.trials.values()), self._default)

    def _without_final(self) -> list[Trial]:
        """Those of the chosen that were not in the latest final."""
        trials = self._study.trials.values()
        there = contenders_of(trials, latest_final(trials))
        return [trial for trial in self._chosen() if trial.resolved not in there]

    def _reinstated(self) -> bool:
        """Is somebody owed a final because the kernel that ruled it out has failed since?"""
        running = in_the_running(self._without_final(), among=self._study.trials.values())
        return any(RULED_OUT_BY in trial.evidence for trial in running)

    def _hold_final(self, device: RanksLeaders) -> bool:
        """Did a contender fail in it?"""
        from tuner.finals.finals import FinalError, run_final

        chosen = self._chosen()
        contenders = [one for trial in chosen if (one := self._contender(trial)) is not None]
        name = f"{utc_now()} {self._problem}"
        try:
            with self.usage.busy():
                self.final = run_final(device, contenders, self._problem, name, seed=len(self._study.trials))
        except FinalError as error:
            self._progress.say(f"{error}; the order is that of the search")
            return False
        for trial in (*self.final.trials, *self.final.failed):
            self._keep(trial)
        return bool(self.final.failed)

    def validate_winner(self) -> None:
        """Have a device that can do so run the real problem on the winner, and on the next if that fails."""
        while isinstance(self._device, ChecksWinner) and (leaders := self.leaders()):
            self._check_time()
            trial = leaders[0]
            if (compiled := self.compiled(trial)) is None:
                checked = _not_rebuilt(trial)
            else:
                legal = self._legal(trial)
                with self.usage.busy():
                    checked = validate_full(trial, compiled, legal, self._problem, self._device)
            self._replace(trial, checked)
            if checked.ok:
                return
            self.validate_leaders()
            if self._reinstated():
                self.rank_leaders()

    def refuted(self) -> set[str]:
        """Configs that were found wrong, whatever a table says of them."""
        return {trial.resolved for trial in self._study.trials.values() if trial.status in REFUTED}

    def leaders(self) -> list[Trial]:
        """The best trials against which nothing speaks, in the order of ``rank_stability``."""
        return ranked(self._study.trials.values())[:LEADERS]

    def cancel(self) -> None:
        """Give up what is still being compiled."""
        for future in (*self._in_flight, *self._ahead.values()):
            future.cancel()
        self._in_flight.clear()
        self._ahead.clear()

    def compiled(self, trial: Trial) -> CompiledKernel | None:
        """The kernel of ``trial``; from the build cache when an earlier run compiled it. None if that fails now."""
        if trial.resolved not in self._compiled:
            if (result := self._submit(trial.resolved_config).result()).compiled is None:
                return None
            self._compiled[trial.resolved] = result.compiled
        return self._compiled[trial.resolved]

    @property
    def state(self) -> State:
        trials = [*self.known.values(), *self.fresh.values()]
        best = min((trial for trial in trials if trial.ok), key=lambda trial: trial.us or 0, default=None)
        return State(
            done=len(trials),
            total=self._search.planned,
            known=len(self.known),
            failed=sum(trial.status is not Status.OK for trial in trials),
            filtered=count_filtered(self._search.rejected),
            compiling=len(self._in_flight),
            best_us=best and best.us,
            kind=str(self._device.kind),
        )

    def _check_time(self) -> None:
        if self._deadline is not None and time.monotonic() >= self._deadline:
            raise OutOfTime

    def _fill(self) -> None:
        while len(self._in_flight) < IN_FLIGHT_PER_JOB * self._jobs and (candidate := self._search.ask()):
            known = self._answers.get(candidate.resolved)
            if known is not None and known.status not in TRANSIENT:
                if candidate.resolved in self._ahead:
                    self._ahead.pop(candidate.resolved).cancel()
                self.known[known.resolved] = known
                self._search.tell(candidate.number, searched_us(known))
            elif self._resume and (reason := self._study.blame(candidate.resolved)):
                self._take(candidate, blamed_trial(candidate, reason, self._problem, self._device))
            else:
                future = self._ahead.pop(candidate.resolved, None) or self._submit(candidate.legal.config)
                self._in_flight[future] = candidate
                self._time_ahead(future, candidate)

    def _submit(self, config: KernelConfig) -> concurrent.futures.Future[CompileResult]:
        return self._pool.submit(config, self._problem.problem_class, self._device.arch)

    def _time_ahead(self, future: concurrent.futures.Future[CompileResult], candidate: Candidate) -> None:
        """Have a device that can do so begin with the time as soon as the kernel is there."""
        device = self._device
        if not isinstance(device, TimesAhead):
            return

        def begin(done: concurrent.futures.Future[CompileResult]) -> None:
            if not done.cancelled() and done.exception() is None and done.result().compiled is not None:
                device.time_ahead(done.result().compiled, candidate.legal, self._problem)

        future.add_done_callback(begin)

    def _collect(self) -> None:
        """Judge the first candidate that is compiled. One at a time: workers get the next to compile meanwhile."""
        finished = [future for future in self._in_flight if future.done()]
        if not finished and (self._refine() or self._check_again()):
            return
        if not finished:
            finished, _ = concurrent.futures.wait(
                self._in_flight, timeout=self._patience(), return_when=concurrent.futures.FIRST_COMPLETED
            )
        if not finished:
            return
        future = min(finished, key=lambda future: self._in_flight[future].number)
        result = future.result()
        candidate = self._in_flight.pop(future)
        with self.usage.busy(), self._announced(candidate), self._asking_meanwhile():
            trial = evaluate(candidate, result, self._problem, self._device)
        if result.compiled is not None:
            self._compiled[trial.resolved] = result.compiled
        self._take(candidate, trial)

    def _asks_meanwhile(self) -> bool:
        """Is a candidate there, with which a card will be busy while the next ones are chosen?"""
        return self._device.eager_validation and any(future.done() for future in self._in_flight)

    @contextlib.contextmanager
    def _asking_meanwhile(self) -> Iterator[None]:
        """Choose and submit the next candidates in a block that leaves search and journal alone: on a card that is what
        it would wait for most. What is asked does not depend on when (``search``)."""
        if not self._device.eager_validation:
            yield
            return
        with concurrent.futures.ThreadPoolExecutor(1) as helper:
            asked = helper.submit(self._fill)
            yield
        asked.result()

    def _refine(self) -> bool:
        """Use the wait for a compiler: leaders are timed against one another, which leaves fewer for the final."""
        if self._refinement is None:
            return False
        from tuner.finals.finals import FinalError, choose_leaders

        leaders = choose_leaders(ranked(self._study.trials.values()))
        there = [self._contender(trial) for trial in leaders if trial.resolved in self._compiled]
        group = self._refinement.next_group([one for one in there if one is not None])
        if not group:
            return False
        try:
            with self.usage.refining():
                found = self._refinement.run(group)
        except FinalError as error:
            self._progress.say(f"{error}; there will be no more early rounds")
            self._refinement = None
            return True
        self.usage.rounds = self._refinement.rounds
        self.usage.ruled_out += len(found.lost)
        for trial in (*found.lost, *found.failed):
            self._keep(trial)
        return True

    def _check_again(self) -> bool:
        """Use what is left of the wait: a card checks a leader on fresh operands. Races may be rare."""
        if not self._device.eager_validation:
            return False
        leaders = [trial for trial in self.leaders() if trial.resolved in self._compiled]
        if (trial := self.usage.least_checked(leaders)) is None:
            return False
        compiled, legal = self._compiled[trial.resolved], self._legal(trial)
        with self.usage.spare(trial.resolved):
            checked = validate(trial, compiled, legal, self._problem, self._device)
        if not checked.ok:
            self._keep(checked)
        return True

    def _take(self, candidate: Candidate, trial: Trial) -> None:
        """Write the trial down, then let the search go on from it."""
        self._study.append(trial)
        self.fresh[trial.resolved] = trial
        self._search.tell(candidate.number, trial.us)

    def _announced(self, candidate: Candidate) -> contextlib.AbstractContextManager[None]:
        """A candidate that runs on a card is written down first: it may take this process or the machine with it."""
        if self._device.eager_validation:
            return self._study.attempt(candidate.resolved)
        return contextlib.nullcontext()

    def _patience(self) -> float:
        if self._deadline is None:
            return POLL_S
        return max(0.0, min(POLL_S, self._deadline - time.monotonic()))

    def _validate_ahead(self, trial: Trial) -> None:
        if not isinstance(self._device, ChecksAhead) or is_checked(trial):
            return
        if (compiled := self.compiled(trial)) is not None:
            self._device.validate_ahead(compiled, self._legal(trial), self._problem)

    def _validate(self, trial: Trial) -> None:
        if is_checked(trial):
            return
        compiled = self.compiled(trial)
        if compiled is None:
            checked = _not_rebuilt(trial)
        else:
            checked = validate(trial, compiled, self._legal(trial), self._problem, self._device)
        self._replace(trial, checked)

    def _legal(self, trial: Trial) -> Legal:
        if trial.resolved not in self._legals:
            legal = self._legalize(trial.resolved_config, self._problem, self._device.arch)
            if not isinstance(legal, Legal):
                raise AssertionError(f"the journal holds {trial.resolved}, which is not legal: {legal}")
            self._legals[trial.resolved] = legal
        return self._legals[trial.resolved]

    def _contender(self, trial: Trial) -> Contender | None:
        """What a final needs of ``trial``; None when it cannot be rebuilt."""
        from tuner.finals.finals import Contender

        if (compiled := self.compiled(trial)) is None:
            self._keep(_not_rebuilt(trial))
            return None
        return Contender(
            trial=trial,
            compiled=compiled,
            legal=self._legal(trial),
            default=trial.resolved == self._default,
        )

    def _replace(self, trial: Trial, checked: Trial) -> None:
        if (checked.status, checked.validation) != (trial.status, trial.validation):
            self._keep(checked)

    def _keep(self, trial: Trial) -> None:
        """The journal's latest word on a candidate that was evaluated before."""
        self._study.append(trial)
        for group in (self.fresh, self.known):
            if trial.resolved in group:
                group[trial.resolved] = trial


def _refinement(device: Device, problem: GemmProblem) -> Refinement | None:
    """Rounds between leaders, of a device that can time them."""
    if not (device.eager_validation and isinstance(device, RanksLeaders)):
        return None
    from tuner.finals.early_rounds import Refinement

    return Refinement(device, problem)


def _not_rebuilt(trial: Trial) -> Trial:
    return dataclasses.replace(trial, status=Status.COMPILE_FAILED, reason="cannot be rebuilt")

"""Which candidate to try next: the default, the neighbours' winners, then steps from the best known and Optuna's TPE in
turn (or everything), across all kernels of the space.

The sequence of candidates depends on the seed and on the values told, never on when they arrive: result number
``i`` reaches the sampler exactly when candidate ``i + WINDOW`` is asked for, however many jobs run. Illegal points
and repetitions never leave this module: the sampler hears at once that a point is illegal, and the value of a
candidate that was asked before.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import random
import time
from collections.abc import Iterable, Iterator

from kernel_space.core.arch import Arch
from kernel_space.core.config import AUTO, KernelConfig
from kernel_space.core.problem import Problem
from kernel_space.core.rules import Legal, Rejection, legalize
from tuner.search.guided import Guide
from tuner.search.prefilter import PREFILTER, Prefilter, count_filtered
from tuner.search.ranked import Estimate, with_fast_links
from tuner.search.sampler import Proposal, Sampler
from tuner.search.window import WINDOW
from tuner.space.changes import one_knob_changes, several_knobs_changed
from tuner.space.count import Legalize
from tuner.space.space import SearchSpace
from tuner.trials.candidate import Candidate
from tuner.trials.outcome import Origin

TRIALS = 200
COUNT_LIMIT = 2000  # legal points counted before a search starts, to know whether it can have all it wants
EXHAUSTIVE_LIMIT = 300  # at most this many legal points: all of them are tried
FRUITLESS_LIMIT = 16  # asks in a row that gave nothing new before a random legal point is taken instead
# Where candidates come from in turn: one knob of the best known changed, the sampler, several of a good one changed.
# A sampler alone needs many results before it knows that most of a large space is slow or illegal.
STEP, LEAP, SAMPLER, GUIDE = "step", "leap", "sampler", "guide"
MIX = (STEP, STEP, LEAP, SAMPLER)
# Where times can be estimated, or at least learnt from.
GUIDED_MIX = (GUIDE, GUIDE, GUIDE, STEP, GUIDE, GUIDE, GUIDE, SAMPLER)
GOOD = 3  # leaps start from one of so many of the best, steps from the best
RANDOM_LIMIT = 20_000  # random points tried before the space counts as used up


@dataclasses.dataclass(kw_only=True)
class _Asked:
    """A candidate on its way. ``us`` is None when it has failed."""

    candidate: Candidate
    proposals: list[Proposal]  # the sampler's, one per time it was proposed
    told: bool = False
    applied: bool = False
    us: float | None = None


class Search:
    """Ask for candidates, tell their times.

    ``trials`` bounds the distinct legal candidates; None means 200, or all of them when at most 300 are legal.
    ``first`` holds configs of neighbouring problems, tried after the default; then comes ``published``, if it is a
    point of the space. ``planned`` is how many will come.
    ``rejected`` collects the points that were proposed and are no trials, each once: illegal ones with the rule, and
    those that ``prefilter`` finds hopeless. ``window``: results that the sampler may lag behind.
    """

    def __init__(
        self,
        space: SearchSpace,
        problem: Problem,
        arch: Arch,
        *,
        seed: int = 0,
        trials: int | None = None,
        first: Iterable[KernelConfig] = (),
        window: int = WINDOW,
        published: KernelConfig | None = None,
        rules: Legalize = legalize,
        prefilter: Prefilter | None = None,
        estimate: Estimate | None = None,
    ) -> None:
        self._space, self._problem, self._arch, self._rules = space, problem, arch, rules
        self._prefilter, self._estimate = prefilter, estimate
        self._limit = trials or TRIALS
        enough = max(EXHAUSTIVE_LIMIT + 1, min(self._limit, COUNT_LIMIT))
        legal_count = space.legal_up_to(enough, problem, arch, rules)
        self.exhaustive = legal_count <= EXHAUSTIVE_LIMIT and (trials is None or trials >= legal_count)
        all_counted = legal_count < enough
        self._legal_count = legal_count if all_counted else None
        self._most = legal_count if self.exhaustive else self._limit
        self._all = space.legal_points(problem, arch, rules) if all_counted else None
        self.rejected: dict[KernelConfig, Rejection] = {}
        self.seed = seed
        self._window = window
        self._asked: dict[str, _Asked] = {}
        self._by_number: list[_Asked] = []
        self._waiting: collections.deque[_Asked] = collections.deque()  # the sampler has not heard of these
        self._fixed = self._fixed_points(tuple(first), published)
        self._used_up = False
        self._random = random.Random(seed)
        self._sources = itertools.cycle(GUIDED_MIX if estimate else MIX)
        self._guide = Guide(
            space, problem, arch, estimate=estimate or _unknown, rules=rules,
            generator=random.Random(f"{seed} guide"),
        )  # fmt: skip
        self._base: KernelConfig | None = None  # where steps start, and those that are left
        self._steps: Iterator[KernelConfig] = iter(())
        self._sampler = Sampler(space, seed)

    @property
    def planned(self) -> int:
        """How many candidates will come, as far as is known now."""
        if self._legal_count is None:
            return self._most
        return min(self._most, self._legal_count - self.filtered)

    @property
    def filtered(self) -> int:
        """Legal points that were proposed and not tried."""
        return count_filtered(self.rejected)

    @property
    def done(self) -> bool:
        """No candidate will come any more."""
        return self._used_up or (not self.exhaustive and len(self._by_number) >= self._limit)

    def ask(self) -> Candidate | None:
        """The next candidate; None when the search is done or waits for a value to be told."""
        if self.done or not self._make_room():
            return None
        start = time.perf_counter()
        candidate = self._next_fixed()
        if candidate is None and not self.exhaustive:
            candidate = self._sample() or self._unsampled()
        if candidate is None:
            self._used_up = True
            return None
        return dataclasses.replace(candidate, seconds=round(time.perf_counter() - start, 6))

    def tell(self, number: int, us: float | None) -> None:
        """The time of candidate ``number`` in microseconds, None when it failed; in any order, each once."""
        asked = self._by_number[number]
        if asked.told:
            raise ValueError(f"candidate {number} was told before")
        asked.told, asked.us = True, us

    def _fixed_points(
        self, first: tuple[KernelConfig, ...], published: KernelConfig | None
    ) -> Iterator[tuple[Origin, KernelConfig]]:
        yield Origin.DEFAULT, self._space.default(self._problem)
        for config in first:
            yield Origin.NEIGHBOUR, self._carried_over(config)
        if published and self._in_space(published):
            yield Origin.PUBLISHED, published
        if self.exhaustive:
            yield from ((Origin.EXHAUSTIVE, legal.config) for legal in self._all or ())
            return
        starts: Iterable[KernelConfig] = self._space.starts(self._problem)
        if self._estimate:
            starts = with_fast_links(
                starts,
                self._space,
                self._problem,
                self._arch,
                self._estimate,
                others=first,
                rules=self._rules,
            )
        yield from ((Origin.SAMPLED, start) for start in starts if self._in_space(start))

    def _carried_over(self, config: KernelConfig) -> KernelConfig:
        """A neighbour's winner for this problem, with other stage counts where its own do not fit: one of the two may
        lack a ring that the other has.
        """
        if isinstance(self._rules(config, self._problem, self._arch), Legal):
            return config
        own = self._space.of(config)
        return config.replace(**dict.fromkeys(own.solved if own else (), AUTO))

    def _next_fixed(self) -> Candidate | None:
        for origin, config in self._fixed:
            if candidate := self._admit(config, origin, self._learnt(config)):
                return candidate
        return None

    def _make_room(self) -> bool:
        """At most ``window`` values may be outstanding; the oldest goes to the sampler when there are as many."""
        if len(self._waiting) < self._window:
            return True
        oldest = self._waiting[0]
        if not oldest.told:
            return False
        self._waiting.popleft()
        oldest.applied = True
        self._guide.tell(oldest.candidate.legal.config, oldest.us)
        for proposal in oldest.proposals:
            self._tell_sampler(proposal, oldest.us)
        return True

    def _sample(self) -> Candidate | None:
        for _ in range(FRUITLESS_LIMIT):
            source = next(self._sources)
            config, proposal = self._proposal(source)
            if config and (candidate := self._admit(config, Origin.SAMPLED, proposal)):
                return candidate
        return None

    def _proposal(self, source: str) -> tuple[KernelConfig | None, Proposal | None]:
        """A point from one of the sources, as the sampler knows it."""
        if source == SAMPLER:
            proposal = self._sampler.propose()
            return self._space.config(proposal.params), proposal
        if source == GUIDE:
            guided = self._guide.propose([one.candidate.legal.config for one in self._waiting])
            return guided, self._learnt(guided) if guided else None
        good = self._good()
        draws: Iterator[KernelConfig]
        if source == LEAP:
            draws = (
                several_knobs_changed(self._space, self._random.choice(good), self._problem, self._random)
                for _ in range(RANDOM_LIMIT)
            )
        else:
            if good[0] != self._base:
                self._base = good[0]
                self._steps = one_knob_changes(self._space, good[:1], self._problem, self._random)
            draws = self._steps
        config = next(filter(self._new, draws), None)
        return config, self._learnt(config) if config else None

    def _good(self) -> list[KernelConfig]:
        """The best of those whose time the sampler knows, best first; before there is one, the default."""
        timed = [asked for asked in self._by_number if asked.applied and asked.us is not None]
        timed.sort(key=lambda asked: (asked.us, asked.candidate.number))
        return [asked.candidate.config for asked in timed[:GOOD]] or [self._space.default(self._problem)]

    def _new(self, config: KernelConfig) -> bool:
        legal = self._rules(config, self._problem, self._arch)
        return isinstance(legal, Legal) and str(legal.config) not in self._asked and self._in_space(config)

    def _in_space(self, config: KernelConfig) -> bool:
        return self._space.spell(config, self._problem, self._arch, self._rules) is not None

    def _unsampled(self) -> Candidate | None:
        """A new legal point without the sampler's advice, None when there is none left."""
        for config in self._random_configs() if self._all is None else (legal.config for legal in self._all):
            legal = self._rules(config, self._problem, self._arch)
            if not isinstance(legal, Legal) or str(legal.config) in self._asked:
                continue
            if self._hopeless(legal, Origin.SAMPLED) is None:
                return self._admit(config, Origin.SAMPLED, self._learnt(config))
        return None

    def _hopeless(self, legal: Legal, origin: Origin) -> Rejection | None:
        if self._prefilter is None:
            return None
        return self._prefilter.rejection(legal, wanted=origin not in (Origin.SAMPLED, Origin.EXHAUSTIVE))

    def _random_configs(self) -> Iterator[KernelConfig]:
        return (self._space.random_config(self._random) for _ in range(RANDOM_LIMIT))

    def _admit(self, config: KernelConfig, origin: Origin, proposal: Proposal | None) -> Candidate | None:
        """The candidate when ``config`` is legal and new; otherwise the sampler is answered from what is known."""
        legal = self._rules(config, self._problem, self._arch)
        if isinstance(legal, Rejection):
            self.rejected.setdefault(config, legal)
            if proposal:
                self._sampler.refuse(proposal, "legal")
            return None
        if asked := self._asked.get(str(legal.config)):
            if proposal and asked.applied:
                self._tell_sampler(proposal, asked.us)
            elif proposal:
                asked.proposals.append(proposal)
            return None
        if rejection := self._hopeless(legal, origin):
            self.rejected.setdefault(config, rejection)
            self._guide.leave_out(legal.config)
            if proposal:
                self._sampler.refuse(proposal, PREFILTER)
            return None
        number = len(self._by_number)
        candidate = Candidate(number=number, config=config, legal=legal, origin=origin, seed=self.seed)
        asked = _Asked(candidate=candidate, proposals=[proposal] if proposal else [])
        self._asked[candidate.resolved] = asked
        self._guide.leave_out(legal.config)
        self._by_number.append(asked)
        self._waiting.append(asked)
        return candidate

    def _learnt(self, config: KernelConfig) -> Proposal | None:
        """What makes the sampler learn from a point it did not propose; None if it cannot spell it."""
        params = self._space.spell(config, self._problem, self._arch, self._rules)
        return None if self.exhaustive or params is None else self._sampler.learn(params)

    def _tell_sampler(self, proposal: Proposal, us: float | None) -> None:
        if us is None:
            self._sampler.refuse(proposal, "evaluated")
        else:
            self._sampler.tell(proposal, us)


def _unknown(config: KernelConfig) -> None:
    """No estimate of anything."""

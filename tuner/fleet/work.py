"""One problem of a sweep on a cluster, from end to end: the same in the tuner's process and in one of several."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.fleet.devices import device_of
from tuner.fleet.engine import Access
from tuner.fleet.fleet import Fleet
from tuner.fleet.pools import FleetPool

if TYPE_CHECKING:
    from kernel_space.core.problem import Problem
    from tuner.compile.manifest import Entry
    from tuner.search.progress import Progress
    from tuner.tune.driver import TuneOptions
    from tuner.tune.tune_result import TuneResult


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """What all problems of a sweep have in common; can be sent to a process.

    ``device``: as ``devices.resolved`` gave it. ``objects``: a folder that answers before the compilers do.
    ``given``: by problem the candidates of that folder, which are all there is to judge: nothing is compiled.
    """

    access: Access
    device: str
    objects: Path | None = None
    given: Mapping[Problem, tuple[Entry, ...]] | None = None

    def adopt(self, fleet: Fleet) -> None:
        """Be about objects of the folder's compiler, whatever is installed here."""
        from tuner.compile.manifest import Manifest

        if self.given is not None and self.objects is not None:
            Manifest.load(self.objects).adopt(device_of(fleet, self.device, say=lambda line: None).arch)

    def tune(self, fleet: Fleet, problem: Problem, options: TuneOptions, progress: Progress) -> TuneResult:
        """Raises what ``tune`` does. Another tuner that is at the problem is waited for."""
        from tuner.tune.driver import tune
        from tuner.tune.turns import in_turn

        device = device_of(fleet, self.device, say=progress.say)
        pool, search = self._candidates(fleet, problem, options, device.arch)
        turn = in_turn([problem], options.out, device.name, say=progress.say)
        try:
            return tune(next(turn), device, options, pool=pool, search=search, progress=progress)
        finally:
            turn.close()
            if (card := getattr(device, "worker", None)) is not None:
                card.close()

    def _candidates(self, fleet: Fleet, problem: Problem, options: TuneOptions, arch: Any) -> tuple[Any, Any]:
        """What compiles, and what is searched; None: the space."""
        from tuner.compile.given import GivenCandidates, ObjectsPool

        if self.given is not None and self.objects is not None:
            entries = self.given[problem]
            return ObjectsPool(self.objects, entries), GivenCandidates(entries, problem, arch)
        pool = FleetPool(fleet, options.compile_timeout_s, options.cache_dir)
        return (pool if self.objects is None else ObjectsPool(self.objects, otherwise=pool)), None

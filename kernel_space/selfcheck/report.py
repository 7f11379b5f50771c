"""The outcome of a selfcheck: one judgement per probe, counts, and what was not run."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kernel_space.selfcheck.compare import Comparison, Verdict, compare
from kernel_space.selfcheck.driver import CardInfo
from kernel_space.selfcheck.known import reason_of
from kernel_space.selfcheck.machine import descriptors, run_in_machine
from kernel_space.selfcheck.text.probe import Probe, Result


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """``not_run``: probes for which the card gave no result, because it is of another architecture."""

    card: CardInfo
    comparisons: tuple[Comparison, ...]
    not_run: tuple[Probe, ...]

    @property
    def counts(self) -> Counter[Verdict]:
        return Counter(item.verdict for item in self.comparisons)

    @property
    def news(self) -> tuple[Comparison, ...]:
        """Differences that nobody has written down yet."""
        return tuple(item for item in self.comparisons if _is_new(item))

    def record(self) -> dict[str, Any]:
        """The report as JSON values."""
        return {
            "card": dataclasses.asdict(self.card),
            "counts": {str(verdict): self.counts[verdict] for verdict in Verdict},
            "new_differences": [item.probe.name for item in self.news],
            "not_run": [probe.name for probe in self.not_run],
            "probes": [
                {"name": item.probe.name, "asks": item.probe.asks, "verdict": item.verdict, "detail": item.detail,
                 "known": reason_of(item.probe.name) if item.verdict is Verdict.DIFFER else ""}
                for item in self.comparisons
            ],
        }  # fmt: skip

    def lines(self) -> Iterable[str]:
        """The report as text: a line per probe, details indented, counts last."""
        for item in self.comparisons:
            yield f"{item.verdict:<12}{item.probe.name}"
            if item.verdict is Verdict.DIFFER:
                reason = reason_of(item.probe.name)
                yield f"            {item.detail}" + (f"\n            known: {reason}" if reason else "")
            elif item.detail and item.verdict is not Verdict.AGREE:
                yield f"            {item.detail}"
        for probe in self.not_run:
            yield f"{'not run':<12}{probe.name} (needs {probe.target})"
        counts = ", ".join(f"{self.counts[verdict]} {verdict}" for verdict in Verdict)
        yield f"{self.card.name}, driver for CUDA {self.card.driver}: {counts}; {len(self.not_run)} not run"


def _is_new(item: Comparison) -> bool:
    return item.verdict is Verdict.DIFFER and not reason_of(item.probe.name)


def judge(probe: Probe, card: Result) -> Comparison:
    """Run the probe in the machine and compare with what the card did, tensor maps included."""
    for number, (theirs, ours) in enumerate(zip(card.descriptors, descriptors(probe), strict=False)):
        if theirs != ours:
            detail = f"tensor map {number}: driver {theirs.hex()}, this project {ours.hex()}"
            return Comparison(probe=probe, verdict=Verdict.DIFFER, detail=detail)
    return compare(probe, card, run_in_machine(probe))


def judge_all(probes: Sequence[Probe], card: CardInfo, results: Mapping[str, Result]) -> Report:
    ran = tuple(judge(probe, results[probe.name]) for probe in probes if probe.name in results)
    left = tuple(probe for probe in probes if probe.name not in results)
    return Report(card=card, comparisons=ran, not_run=left)

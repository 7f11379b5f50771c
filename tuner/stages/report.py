"""Report: what a tune leaves for people, and the deciding rounds of its final."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from kernel_space.core.errors import InputError
from kernel_space.core.plain_files import AnyPath
from kernel_space.core.problem import Problem
from kernel_space.core.rules import Legal, legalize
from tuner.devices.device import Device
from tuner.devices.recorded import recorded_class
from tuner.report.write import (
    ReportFiles,
    Sweep,
    read_facts,
    read_trials,
    report_files,
    report_folder,
    write_final,
    write_report,
)
from tuner.search.prefilter import prefilter_fact
from tuner.search.trial_of import illegal_trial, utc_now
from tuner.space.count import Count
from tuner.stages.journal import count_space, identity
from tuner.stages.record import renew_index, versions
from tuner.stages.run import Run
from tuner.stages.stage import When
from tuner.tables.row import Row
from tuner.trials.candidate import distinct
from tuner.trials.final_order import FINAL, PLACE, row_first
from tuner.trials.outcome import NEVER_COMPILED, Kind, Trial
from tuner.trials.rank_stability import JUDGE, ranked
from tuner.trials.renewed import RENEWED, renewed, renewed_fact


class Report:
    """Of all of the journal. Points of the space are counted for it, unless somebody is waiting for the end."""

    name = "report"
    when = When.ALWAYS

    def run(self, run: Run) -> bool:
        run.seconds = time.monotonic() - run.start
        problem, device, options = run.problem, run.device, run.options
        if not run.stopped:
            count(run)
        run.illegal = tuple(illegal_trial(*point, problem, device) for point in run.search.rejected.items())
        run.facts = _facts(run)
        if run.final is not None:
            write_final(report_folder(options.out, device.name, problem), run.final.record())
        trials = [*run.study.trials.values(), *run.illegal]
        run.report = self._renew(run, trials) if options.retimes else self._write(run, trials, run.facts)
        return True

    def _write(
        self, run: Run, trials: Sequence[Trial], facts: Mapping[str, str], ahead: Collection[str] = ()
    ) -> ReportFiles:
        return write_sweep(
            run.options.out,
            run.problem,
            run.device,
            trials,
            space=run.counted,
            facts=facts,
            cache_dir=run.options.cache_dir,
            ahead=ahead,
        )

    def _renew(self, run: Run, trials: Sequence[Trial]) -> ReportFiles:
        """The page of the sweep stays, with what is known anew in it: convergence and all its other candidates are
        not made again."""
        files = report_files(report_folder(run.options.out, run.device.name, run.problem))
        path = files.parquet
        if run.stopped and path.is_file():  # of the row, which stays as well
            return files
        try:
            sweep = read_trials(path) if path.is_file() else []
        except InputError as error:
            run.progress.say(f"{error}; its page is made anew")
            sweep = []
        again = {trial.resolved: trial for trial in trials if trial.resolved}
        if not {trial.resolved for trial in sweep if trial.resolved} - set(again):
            return self._write(run, trials, run.facts)
        shown = renewed(sweep, again)
        new = {
            name: fact for name, fact in run.facts.items() if name not in ("search", "duration", "prefilter")
        }
        count = sum(trial.status not in NEVER_COMPILED for trial in shown)
        told = {RENEWED: renewed_fact(len(again), count, utc_now(), recorded_words(sweep))}
        return self._write(run, shown, {**read_facts(path), **new, **told}, ahead=again)


def count(run: Run) -> None:
    """Points of the space for the report, unless that was done."""
    if run.options.count_space and run.counted is None:
        run.counted = count_space(run.study, run.space, run.problem, run.device)


def _facts(run: Run) -> dict[str, str]:
    facts = {
        "search": f"seed {run.options.seed}, {len(run.fresh)} new and {len(run.known)} known trials",
        "duration": f"{run.seconds:.1f} s with {run.options.jobs} compile workers",
    }
    facts |= prefilter_fact(run.search.rejected)
    if run.final is not None and run.final.verdict is not None:
        facts["final"] = f"{len(run.final.trials)} contenders; winner: {run.final.verdict.why}"
    if run.device.kind is Kind.MEASURED:
        facts["card"] = str(run.usage)
    if run.stopped:
        facts["stopped by"] = run.stopped
    if run.decision is not None:
        facts["dispatch row"] = (
            f"{'recorded' if run.decision.recorded else 'not recorded'}: {run.decision.reason}"
        )
    return facts


def write_sweep(
    out: AnyPath,
    problem: Problem,
    device: Device,
    trials: Sequence[Trial],
    *,
    space: Count | None = None,
    facts: Mapping[str, str] | None = None,
    provenance: Mapping[str, str] | None = None,
    earlier: Mapping[str, str] | None = None,
    cache_dir: Path | None = None,
    row: Row | None = None,
    ahead: Collection[str] = (),
    pages_only: bool = False,
) -> ReportFiles:
    """The report of ``trials``, illegal points among them or not; its timelines are of kernels in ``cache_dir``.
    ``row``: of the dispatch table; its trial, if it is here and usable, is the winner, else the best ranked one.
    ``provenance``: where the times come from, when not from ``device`` as it is today. ``earlier``: facts of the
    sweep, when the report is written again. ``ahead``: resolved configs whose trials rank before all others, as they
    are of another judge. ``pages_only``: the trials were read from beside the page, where they stay as they are.
    The device's index follows. Raises ``StoreError``."""
    trials = distinct(trials)
    order = sorted(ranked(trials), key=lambda trial: bool(ahead) and trial.resolved not in ahead)
    if row is not None:
        order = row_first(order, row.config, row.kind)
    made = _provenance_facts(problem, device) if provenance is None else provenance
    budget = None
    if order:
        legal = legalize(order[0].resolved_config, problem, device.arch)
        budget = legal.budget if isinstance(legal, Legal) else None
    sweep = Sweep(
        problem=problem,
        device=device.name,
        arch=device.arch,
        sm_count=device.sm_count,
        device_class=recorded_class(out, device.name),
        trials=trials,
        winner=order[0] if order else None,
        runner_up=runner_up_of(order, row),
        budget=budget,
        space=space,
        facts={**(earlier or {}), **made, **(facts or {})},
        cache_dir=cache_dir,
    )
    files = write_report(report_folder(out, device.name, problem), sweep, pages_only=pages_only)
    renew_index(out, device)
    return files


def runner_up_of(order: Sequence[Trial], row: Row | None) -> Trial | None:
    """Of ``order``, whose first is the winner: whom the row names, else the next one of the final that the winner is
    of, else the next one."""
    if len(order) < 2:
        return None
    winner, *others = order
    named = row.runner_up.config if row and row.runner_up and row.config == winner.resolved else ""
    if found := next((one for one in others if one.resolved == named), None):
        return found
    final = winner.evidence.get(FINAL)
    placed = [one for one in others if final and one.evidence.get(FINAL) == final]
    return min(placed, key=lambda one: one.evidence[PLACE], default=others[0])


def recorded_provenance(trials: Iterable[Trial]) -> dict[str, str]:
    """What ``trials`` themselves say of how their times were made: for a report by somebody who did not make them."""
    timed = [trial for trial in trials if trial.kind is not None]
    found = {
        "times": [trial.kind for trial in timed],
        "protocol": [trial.evidence.get("timing_protocol") for trial in timed],
        "driver": [trial.evidence.get("driver") for trial in timed],
        "judge": [trial.evidence.get(JUDGE) for trial in timed],
        "kernel source": [trial.build.get("source_hash") for trial in timed],
        "nvidia-cutlass-dsl": [trial.build.get("dsl_version") for trial in timed],
    }
    words = {
        name: ", ".join(sorted({str(value) for value in given if value})) for name, given in found.items()
    }
    dates = sorted(trial.finished for trial in timed if trial.finished)
    words["finished"] = f"{dates[0]} to {dates[-1]}" if dates else ""
    return {name: text for name, text in words.items() if text}


def recorded_words(trials: Iterable[Trial]) -> str:
    """What ``recorded_provenance`` of one sweep says that changes with sources, toolchain, driver and judge."""
    known = recorded_provenance(trials)
    names = ("driver", "judge", "kernel source", "nvidia-cutlass-dsl")
    return ", ".join(f"{name} {known[name]}" for name in names if name in known)


def _provenance_facts(problem: Problem, device: Device) -> dict[str, str]:
    about = dataclasses.asdict(identity(problem, device))
    return {
        "times": f"{device.kind}; judge {device.judge}",
        "kernel source": about["source_hash"],
        **versions(),
    }

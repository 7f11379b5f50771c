"""``measure``: check and time on a card what ``compile-only`` left in a folder. Needs neither the DSL nor Optuna."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import time
from collections.abc import Iterator

from kernel_space.build.build import cached_build
from kernel_space.core.errors import InputError
from kernel_space.core.plain_files import below
from kernel_space.core.problem import Problem
from tuner.card.worker.candidate import Loadable
from tuner.cli.options.common import check_out, named_problems
from tuner.cli.tune.on_cluster import no_cluster, opened
from tuner.cli.tune.peers import PeersProcess, cuda_device, has_peers, measure_peers, without_peers
from tuner.cli.tune.tune import show_results
from tuner.compile.given import GivenCandidates, ObjectsPool
from tuner.compile.manifest import OBJECTS, Entry, Manifest
from tuner.devices.card import CudaDevice
from tuner.fleet.identity import card_offer
from tuner.search.progress import Progress
from tuner.stages.report import write_sweep
from tuner.trials.outcome import Kind
from tuner.tune.driver import INTERRUPTED as STOPPED_BY_USER
from tuner.tune.driver import TuneOptions, TuneResult, tune
from tuner.tune.turns import in_turn

# Of a budget, per problem: the final takes 1 to 4 s of the card, the winner's last check and the files a few more.
RESERVE_S = 8.0
PEERS_RESERVE_S = 15.0
LEAST_S = 3.0


def measure_command(args: argparse.Namespace) -> int:
    """0 when every problem has a winner. Raises ``InputError`` for a folder or a card that does not fit."""
    start = time.monotonic()
    check_out(args.out)
    manifest = Manifest.load(args.folder)
    if args.cluster is not None:
        return _on_cluster(manifest, args, start)
    no_cluster(args)
    device = cuda_device(args.device or "cuda:0")
    work = _work(manifest, args)
    manifest.adopt(device.arch)
    Progress().say(device.note)
    if device.name != manifest.device:
        Progress().say(
            f"the objects were chosen for {manifest.device}; the results are those of {device.name}"
        )
    return show_results(_measure_all(work, device, args, start), device, as_json=args.json)


def _on_cluster(manifest: Manifest, args: argparse.Namespace, start: float) -> int:
    """On cards of the class for which the objects were chosen, unless ``--device`` names another."""
    if args.peers:
        raise InputError("--peers times them on a card of this machine: leave it or --cluster out")
    if args.device is None:
        args.device = card_offer(manifest.device)
    work = _work(manifest, args)
    deadline = None if args.budget_seconds is None else start + args.budget_seconds

    def options(to_come: int, side: int) -> TuneOptions | None:
        plain = TuneOptions(out=args.out, jobs=1, count_space=False)
        if deadline is None:
            return plain
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            Progress().say(f"the budget is spent: {to_come} problems are left for the next run")
            return None
        return dataclasses.replace(plain, timeout_s=_share(left_s, -(-to_come // side), peers=False))

    with opened(args, lambda problem: Progress(str(problem or "")), compiles=False) as cluster:
        if cluster.shown.kind is not Kind.MEASURED:
            raise InputError(
                f"measure needs a card, {cluster.shown.name} is simulated; name card-{cluster.shown.name}"
            )
        manifest.adopt(cluster.shown.arch)
        results = cluster.tune(list(work), options, objects=args.folder, given=work)
        return show_results(results, cluster.shown, as_json=args.json)


def _work(manifest: Manifest, args: argparse.Namespace) -> dict[Problem, tuple[Entry, ...]]:
    """What is to be measured: the problems named, or all."""
    named = named_problems(args)
    missing = [str(problem) for problem in named if problem not in manifest.problems]
    if missing:
        there = "; ".join(map(str, manifest.problems)) or "none"
        raise InputError(f"{args.folder} has nothing for {'; '.join(missing)}, it has {there}")
    return {problem: manifest.problems[problem] for problem in named or manifest.problems}


def _measure_all(
    work: dict[Problem, tuple[Entry, ...]], device: CudaDevice, args: argparse.Namespace, start: float
) -> Iterator[TuneResult]:
    """One result per problem, until the user interrupts; what is left of the budget is shared by those to come.

    Another ``measure`` into the same folder, on another card of this machine, takes the problems that are not begun.
    """
    deadline = None if args.budget_seconds is None else start + args.budget_seconds
    turns = in_turn(work, args.out, device.name, say=Progress().say, deadline=deadline)
    with contextlib.ExitStack() as stack:
        peers = stack.enter_context(PeersProcess(device.card.index)) if args.peers else None
        stack.enter_context(contextlib.closing(turns))
        if deadline is not None:
            _ = device.judge  # makes the card ready, 20 s and more, which are the first problem's share else
        measured = 0
        for problem in turns:
            left_s = None if deadline is None else deadline - time.monotonic()
            if measured and left_s is not None and left_s <= 0:
                break
            options = TuneOptions(out=args.out, jobs=1, count_space=False)
            if left_s is not None:
                share_s = _share(left_s, len(work) - measured, args.peers)
                options = dataclasses.replace(options, timeout_s=share_s)
            result = _measure(problem, work[problem], device, args, options, peers)
            measured += 1
            yield result
            if result.stopped == STOPPED_BY_USER:
                return
        if measured < len(work):
            Progress().say(f"the budget is spent: {len(work) - measured} problems are left for the next run")


def _measure(
    problem: Problem,
    entries: tuple[Entry, ...],
    device: CudaDevice,
    args: argparse.Namespace,
    options: TuneOptions,
    peers: PeersProcess | None,
) -> TuneResult:
    search = GivenCandidates(entries, problem, device.arch)
    result = tune(problem, device, options, pool=ObjectsPool(args.folder, entries), search=search)
    if peers is not None and result.stopped != STOPPED_BY_USER:
        _peers(peers, result, device, args)
    return result


def _share(left_s: float, problems: int, peers: bool) -> float:
    """Seconds for the candidates of the next problem, when ``problems`` are still to come, it among them."""
    return max(LEAST_S, left_s / problems - RESERVE_S - (PEERS_RESERVE_S if peers else 0.0))


def _peers(process: PeersProcess, result: TuneResult, device: CudaDevice, args: argparse.Namespace) -> None:
    """Beside the winner of this visit; the report then shows them."""
    problem, config, own = result.problem, None, None
    if not has_peers(problem):
        Progress(str(problem)).say(without_peers(problem))
        return
    if result.winner is not None:
        config = result.winner.resolved_config
        compiled = cached_build(
            config, problem.problem_class, device.arch, cache_dir=below(args.folder, OBJECTS), foreign=True
        )
        own = Loadable.of(compiled, config) if compiled else None
    measure_peers(process, problem, device, args.out, config, own, Progress(str(problem)))
    trials = [*result.trials, *result.illegal]
    write_sweep(args.out, problem, device, trials, space=result.space, facts=result.facts)

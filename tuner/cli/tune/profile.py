"""``profile``: one config, or two side by side, under Nsight Compute on a card; what counters say, beside the clock's
prediction where the card has a simulator."""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from tuner.card.counters import runner
from tuner.card.counters.calls import by_call
from tuner.card.counters.export import read_export
from tuner.card.counters.ncu import counting_command, export_command, find_ncu, run_ncu, version
from tuner.card.counters.utilization import mfu
from tuner.card.locks import card_lock
from tuner.card.worker.candidate import Case, Loadable
from tuner.cli.look.chosen import Chosen, chosen_configs, legal_config
from tuner.cli.options import text
from tuner.cli.options.common import problems_of, results_of
from tuner.cli.options.exits import CommandError
from tuner.cli.tune.peers import bundled, cuda_device
from tuner.cli.tune.profile_table import Predicted, Side, markdown, print_sides, record
from tuner.devices.card import CudaDevice
from tuner.devices.select import has_simulator
from tuner.files.store import atomic_write, make_folder
from tuner.search.progress import Progress

if TYPE_CHECKING:
    from kernel_space.build.build import CompiledKernel
    from kernel_space.core.rules import Legal


def profile_command(args: argparse.Namespace) -> int:
    """0 when everything asked for was profiled. Raises ``InputError`` without a card, without ncu or without the right
    to its counters, and ``CommandError`` for a config that does not compile."""
    problems = problems_of(args)
    results_of(args)  # a mistyped folder is said on machines without a card too
    device = cuda_device(args.device)
    ncu = find_ncu()
    asked = [_chosen(args, args.config, problems, device)]
    if args.against is not None:
        asked.append(_chosen(args, args.against, problems, device))
    for chosen in asked:  # before anything is compiled
        for problem in problems:
            legal_config(problem, chosen[problem], device)
    profiler = f"Nsight Compute {version(ncu)}".strip()
    documents = []
    for number, problem in enumerate(problems):
        with _folder(args.keep, problem) as folder:
            sides = [
                _profiled(name, problem, chosen[problem], device, ncu, folder, args)
                for name, chosen in zip("AB", asked, strict=False)
            ]
            if args.keep is not None:
                atomic_write(folder / "profile.md", markdown(problem, sides, device, profiler))
        documents.append({**text.problem_record(problem), "profiles": [record(side) for side in sides]})
        if not args.json:
            print("\n" * min(number, 1), end="")
            print_sides(problem, sides, device, profiler)
    if args.json:
        text.print_json({"device": text.device_record(device), "profiler": profiler, "results": documents})
    return 0


def _chosen(
    args: argparse.Namespace, config: str | None, problems: list[Problem], device: CudaDevice
) -> dict[Problem, Chosen]:
    return chosen_configs(argparse.Namespace(**{**vars(args), "config": config}), problems, device)


@contextlib.contextmanager
def _folder(keep: Path | None, problem: Problem) -> Iterator[Path]:
    """Where the profiler writes: below ``--keep``, or a folder that goes again."""
    if keep is not None:
        yield make_folder(keep / problem.operator / problem.slug, option="--keep")
        return
    with tempfile.TemporaryDirectory(prefix="svdquant-tune-profile-") as folder:
        yield Path(folder)


def _profiled(
    name: str,
    problem: Problem,
    chosen: Chosen,
    device: CudaDevice,
    ncu: str,
    folder: Path,
    args: argparse.Namespace,
) -> Side:
    legal = legal_config(problem, chosen, device)
    loadable, compiled = _candidate(legal, problem, device, args.out)
    progress = Progress(f"{problem} {name}")
    if not args.quiet:
        progress.say(f"counting {args.calls} calls of {legal.config}")
    request = {
        "candidate": loadable.record(),
        "case": Case.of(legal.config, problem).record(),
        "calls": args.calls,
    }
    with card_lock(device.worker.uuid, say=progress.say):
        export, ratio = _count(ncu, request, device.card.index, folder / name, args.timeout)
    counts = by_call(read_export(export), args.calls)
    return Side(
        name=name,
        config=legal.config,
        source=chosen.source,
        worst=ratio,
        counts=counts,
        mfu=mfu(problem, device.arch, device.sm_count, counts.cycles),
        predicted=_predicted(compiled, legal, problem, device),
    )


def _count(ncu: str, request: dict[str, Any], card: int, base: Path, limit_s: float) -> tuple[str, float]:
    """(the raw export, the first call's worst error in tolerances). Leaves ``base``.ncu-rep and ``base``.csv."""
    report = base.with_suffix(".ncu-rep")
    with tempfile.TemporaryDirectory(prefix="svdquant-tune-run-") as scratch:
        asked, answer = Path(scratch) / "request.json", Path(scratch) / "answer.json"
        asked.write_text(json.dumps(request))
        try:
            run_ncu(counting_command(ncu, report, runner.program(card, asked, answer)), limit_s)
        finally:
            found = json.loads(answer.read_text()) if answer.is_file() else {}
            if "error" in found:  # says more than that ncu saw no kernel
                raise InputError(f"the config cannot be profiled: {found['error']}")
    if not found or not report.is_file():
        raise InputError("the profiled process left no answer: ncu did not let it run to its end")
    export = run_ncu(export_command(ncu, report), limit_s)
    atomic_write(base.with_suffix(".csv"), export)
    return export, float(found["max_ratio"])


def _candidate(
    legal: Legal, problem: Problem, device: CudaDevice, out: Path
) -> tuple[Loadable, CompiledKernel | None]:
    """Compiled here, or without a compiler the table's object of that config. Raises ``InputError`` for none."""
    from kernel_space.build.build import CompileError, build

    try:
        compiled = build(legal.config, problem.problem_class, device.arch)
    except CompileError as error:
        raise CommandError(f"{legal.config} does not compile for {device.arch.name}: {error}") from None
    except InputError as error:  # no compiler
        if (loadable := bundled(legal.config, problem, device, out)) is None:
            raise InputError(
                f"no object of {legal.config} is at hand, and none can be made: {error}"
            ) from None
        return loadable, None
    return Loadable.of(compiled, legal.config), compiled


def _predicted(
    compiled: CompiledKernel | None, legal: Legal, problem: Problem, device: CudaDevice
) -> Predicted | str:
    """The clock's time of the same kernel, or why there is none."""
    if not has_simulator(device.arch):
        return f"{device.name} has no simulator"
    if compiled is None:
        return "a bundled object has no PTX to simulate"
    from kernel_space.machine.values.faults import Fault, Unsupported
    from tuner.simulated.time import simulate

    try:
        time = simulate(compiled, legal.config, problem, device)
    except (Unsupported, Fault, InputError) as error:
        return f"the clock cannot run it: {error}"
    tensor_us = sum(us for cause, us in time.terms.items() if cause.startswith("tensor"))
    return Predicted(
        us=time.us, low_us=time.low_us, high_us=time.high_us, bound=time.bound, tensor_us=tensor_us
    )

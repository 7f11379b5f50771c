"""``check``: run one config in the PTX machine: verdict, error figures, and for a failure what the machine saw.

Exit code 0 when every check passed, 1 when one failed, 2 for bad input. Times are not what this command is about.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
from pathlib import Path
from typing import Any

from kernel_space.build.build import CompiledKernel, CompileError, build
from kernel_space.check.result import CheckResult, ScheduleRun
from kernel_space.check.validate import ALL, check_candidate, check_full
from kernel_space.core.errors import InputError
from kernel_space.core.kernel import Kernel
from kernel_space.core.operator import Comparison
from kernel_space.core.problem import Problem
from kernel_space.core.registry import kernel_of, kernels_of
from kernel_space.core.rules import Legal
from kernel_space.core.traits import traits_of
from kernel_space.machine.observe.trace import Timeline
from kernel_space.machine.run.schedules import SCHEDULES
from tuner.cli.judge.sweep import require_alone, sweeps
from tuner.cli.look.chosen import chosen_configs, legal_config
from tuner.cli.options import text
from tuner.cli.options.common import problems_of
from tuner.cli.options.exits import CommandError
from tuner.devices.device import Device
from tuner.devices.select import select_device
from tuner.files.store import atomic_write
from tuner.search.progress import Progress

EVERY, LIST = "all", "list"


def check_command(args: argparse.Namespace) -> int:
    require_alone(args)
    if args.inject == LIST:
        return _list_mutations(args)
    problems, device = problems_of(args), select_device(args.device)
    chosen = chosen_configs(args, problems, device)
    schedules = _schedules(args.schedule)
    legals = [(problem, legal_config(problem, chosen[problem], device)) for problem in problems]
    if args.inject is not None:
        for problem, legal in legals:
            _mutation(problem, legal, args.inject)
    if args.sweep:
        built = [_build(problem, legal, device) for problem, legal in legals]
        return sweeps(legals, built, [chosen[problem].source for problem, _ in legals], schedules, args)
    checked = [(problem, legal, _check(problem, legal, device, schedules, args)) for problem, legal in legals]
    if args.json:
        records = [
            {**_record(problem, legal, results, args), "config_from": chosen[problem].source}
            for problem, legal, results in checked
        ]
        text.print_json({"device": text.device_record(device), "results": records})
    else:
        for number, (problem, legal, results) in enumerate(checked):
            print("\n" * min(number, 1), end="")
            _print(problem, legal, results, args, chosen[problem].source)
    return 0 if all(result.ok for _, _, results in checked for result in results) else 1


def _schedules(name: str) -> tuple[str, ...]:
    if name == EVERY:
        return ALL
    if name not in SCHEDULES:
        raise InputError(f"--schedule must be {EVERY}, {', '.join(SCHEDULES)}, got {name!r}")
    return (name,)


def _check(
    problem: Problem, legal: Legal, device: Device, schedules: tuple[str, ...], args: argparse.Namespace
) -> list[CheckResult]:
    """The check of the candidate and, if that passes and is wanted, of the full problem."""
    compiled = _build(problem, legal, device)
    ptx = _mutated(compiled, problem, legal, args.inject)
    progress = Progress(str(problem), terminal=False)  # lines, and no bar of trials
    timeline = Timeline() if args.trace is not None else None
    progress.stage(f"running under {', '.join(schedules)}")
    found = check_candidate(
        compiled, legal.config, problem, schedules=schedules, seed=args.seed, ptx=ptx, observer=timeline
    )
    if timeline is not None:
        atomic_write(args.trace, json.dumps(timeline.document()), follow=True)
    if not (args.full and found.ok):
        return [found]
    progress.stage("running the full problem")
    return [
        found,
        check_full(compiled, legal.config, problem, limit_s=math.inf, seed=args.seed, ptx=ptx),
    ]


def _build(problem: Problem, legal: Legal, device: Device) -> CompiledKernel:
    try:
        return build(legal.config, problem.problem_class, device.arch)
    except CompileError as error:
        raise CommandError(f"{legal.config} does not compile for {device.arch.name}: {error}") from None


def _mutated(compiled: CompiledKernel, problem: Problem, legal: Legal, name: str | None) -> str | None:
    """Raises ``InputError`` when the kernel lacks what the mutation changes."""
    if name is None:
        return None
    suite, mutation = _mutation(problem, legal, name)
    case = suite.CASES[mutation.case]
    context = suite.MutationContext.of(legal.config, problem.problem_class, compiled.arch)
    try:
        return mutation.apply(compiled.ptx, context)
    except suite.NotApplicable as error:
        raise InputError(
            f"--inject {name} does not apply to this kernel ({error}); it does to --shape {case.shape} "
            f'--config "{case.config}"'
        ) from None


def _suite(kernel: Kernel) -> Any:
    """The module with the mutations of a kernel's PTX. Raises ``InputError`` for a kernel that brings none."""
    if not (module := traits_of(kernel).mutations):
        raise InputError(
            f"--inject changes the PTX of kernels that bring mutations, {kernel.full_name} brings none"
        )
    return importlib.import_module(module)


def _mutation(problem: Problem, legal: Legal, name: str) -> tuple[Any, Any]:
    """(the suite of the config's kernel, its mutation ``name``). Raises ``InputError``."""
    suite = _suite(kernel_of(legal.config, problem))
    if name not in suite.MUTATIONS:
        raise InputError(
            f"unknown mutation {name!r:.80}; --inject {LIST} names the {len(suite.MUTATIONS)} there are"
        )
    return suite, suite.find_mutation(name)


def _list_mutations(args: argparse.Namespace) -> int:
    """Of every kernel of the operator for the device that brings some."""
    kernels = kernels_of(args.op, select_device(args.device).arch)
    suites = [_suite(one) for one in kernels if traits_of(one).mutations]
    if not suites:
        raise InputError(f"no kernel of {args.op} brings mutations for --inject")
    records = {name: _mutation_record(suite, name) for suite in suites for name in suite.MUTATIONS}
    if args.json:
        text.print_json(records)
        return 0
    for name, one in records.items():
        print(f"{name}: {one['what']}")
        print(f'    reported as {" or ".join(one["expected"])}; --config "{one["config"]}"')
    return 0


def _mutation_record(suite: Any, name: str) -> dict[str, Any]:
    mutation = suite.MUTATIONS[name]
    case = suite.CASES[mutation.case]
    return {"what": mutation.what, "expected": mutation.expected, "config": case.config, "shape": case.shape}


def _record(
    problem: Problem, legal: Legal, results: list[CheckResult], args: argparse.Namespace
) -> dict[str, Any]:
    return {
        **text.problem_record(problem),
        "config": str(legal.config),
        "ok": all(result.ok for result in results),
        "injected": args.inject,
        "seed": args.seed,
        "checks": [_check_record(result) for result in results],
    }


def _check_record(result: CheckResult) -> dict[str, Any]:
    return {
        "status": str(result.status),
        "reason": result.reason,
        "shape": str(result.problem),
        "also": [str(problem) for problem in result.also],
        "sms": result.sms,
        "race_checking": result.races,
        "schedules": [_run_record(run) for run in result.runs],
        "same_under_all_schedules": result.bitwise,
        "outputs": {name: _output_record(output) for name, output in result.outputs.items()},
        "instructions": result.instructions,
        "seconds": round(result.seconds, 3),
        "findings": result.findings,
    }


def _run_record(run: ScheduleRun) -> dict[str, Any]:
    return {
        "name": run.schedule,
        "calls": run.calls,
        "shape": str(run.problem),
        "status": str(run.status),
        "instructions": run.instructions,
        "seconds": round(run.seconds, 3),
        "outputs_sha256": run.digest,
    }


def _output_record(output: Comparison) -> dict[str, Any]:
    return {name: _finite(value) for name, value in vars(output).items()}


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: their names."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _print(
    problem: Problem, legal: Legal, results: list[CheckResult], args: argparse.Namespace, source: str
) -> None:
    injected = []
    if args.inject:
        _, mutation = _mutation(problem, legal, args.inject)
        injected = [("injected", f"{args.inject}: {mutation.what}")]
    text.print_block(
        [("problem", text.describe_problem(problem)), ("config", legal.config), ("from", source), *injected],
    )
    for result in results:
        print()
        _print_result(result)
    if args.trace is not None:
        trace: Path = args.trace
        print(
            f"\ntrace of schedule {results[0].runs[0].schedule} in {trace} (chrome://tracing, ui.perfetto.dev)"
        )


def _print_result(result: CheckResult) -> None:
    races = "with race checking" if result.races else "without race checking"
    shapes = "; ".join(text.describe_problem(problem) for problem in result.problems)
    runs = (f"{run.name} {run.status}" for run in result.runs if run.problem == result.problem)
    text.print_block(
        [
            ("verdict", f"{result.status}{f': {result.reason}' if result.reason else ''}"),
            ("ran", f"{shapes} on {result.sms} SMs, {races}"),
            *_errors(result),
            ("schedules", ", ".join(runs)),
            (next(iter(result.outputs)) if len(result.outputs) == 1 else "outputs", _same(result)),
            ("simulated", f"{result.instructions} warp-instructions in {result.seconds:.2f} s"),
        ]
    )
    if result.findings:
        print(f"\n{result.findings}")


def _errors(result: CheckResult) -> list[tuple[str, object]]:
    if not result.outputs:
        return [("errors", "no run came to its end")]
    named = len(result.outputs) > 1
    return [("errors", f"{name}: {output}" if named else output) for name, output in result.outputs.items()]


def _same(result: CheckResult) -> str:
    if result.bitwise is None:
        return "compared under one schedule only"
    return "bitwise the same under all" if result.bitwise else "differs between schedules"

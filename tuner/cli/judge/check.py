"""``check``: run one config in the sm_100a machine: verdict, error figures, and for a failure what the machine saw.

Exit code 0 when every check passed, 1 when one failed, 2 for bad input. Times are not what this command is about.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

from kernel_space.build.build import CompiledKernel, CompileError, build
from kernel_space.check.mutations.suite import CASES, MUTATIONS, MutationContext, NotApplicable, find_mutation
from kernel_space.check.validate import ALL, CheckResult, check_candidate, check_full
from kernel_space.core.errors import InputError
from kernel_space.core.rules import Legal
from kernel_space.machine.observe.trace import Timeline
from kernel_space.machine.run.schedules import SCHEDULES
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tuner.cli.look.explain import legal_config
from tuner.cli.options import text
from tuner.cli.options.common import check_out, config_of, problems_of
from tuner.cli.options.exits import CommandError
from tuner.devices.device import Device
from tuner.devices.select import has_simulator, select_device
from tuner.files.store import atomic_write

EVERY, LIST = "all", "list"


def check_command(args: argparse.Namespace) -> int:
    if args.inject == LIST:
        return _list_mutations(args.json)
    problems, device = problems_of(args), _machine_device(args.device)
    config = config_of(args, device.arch)
    check_out(args.out)
    schedules = _schedules(args.schedule)
    if args.trace is not None:
        _check_trace(args.trace)
    if args.inject is not None:
        find_mutation(args.inject)
    legals = [(problem, legal_config(problem, config, device)) for problem in problems]
    checked = [(problem, legal, _check(problem, legal, device, schedules, args)) for problem, legal in legals]
    if args.json:
        records = [_record(problem, legal, results, args) for problem, legal, results in checked]
        text.print_json({"device": text.device_record(device), "results": records})
    else:
        for number, (problem, legal, results) in enumerate(checked):
            print("\n" * min(number, 1), end="")
            _print(problem, legal, results, args)
    return 0 if all(result.ok for _, _, results in checked for result in results) else 1


def _machine_device(name: str) -> Device:
    device = select_device(name)
    if not has_simulator(device.arch):
        raise InputError(
            f"the machine runs kernels of b200 and b300, not of {device.name}; use --device b200"
        )
    return device


def _check_trace(path: Path) -> None:
    if path.is_dir() or not path.parent.is_dir():
        raise InputError(f"--trace must name a file in a folder that exists, got {path}")


def _schedules(name: str) -> tuple[str, ...]:
    if name == EVERY:
        return ALL
    if name not in SCHEDULES:
        raise InputError(f"--schedule must be {EVERY}, {', '.join(SCHEDULES)}, got {name!r}")
    return (name,)


def _check(
    problem: GemmProblem, legal: Legal, device: Device, schedules: tuple[str, ...], args: argparse.Namespace
) -> list[CheckResult]:
    """The check of the candidate and, if that passes and is wanted, of the full problem."""
    compiled = _build(problem, legal, device)
    ptx = _mutated(compiled, problem, legal, args.inject)
    timeline = Timeline() if args.trace is not None else None
    found = check_candidate(
        compiled, legal.config, problem, schedules=schedules, seed=args.seed, ptx=ptx, observer=timeline
    )
    if timeline is not None:
        atomic_write(args.trace, json.dumps(timeline.document()), follow=True)
    if not (args.full and found.ok):
        return [found]
    return [
        found,
        check_full(compiled, legal.config, problem, limit_s=math.inf, seed=args.seed, ptx=ptx),
    ]


def _build(problem: GemmProblem, legal: Legal, device: Device) -> CompiledKernel:
    try:
        return build(legal.config, problem.problem_class, device.arch)
    except CompileError as error:
        raise CommandError(f"{legal.config} does not compile for {device.arch.name}: {error}") from None


def _mutated(compiled: CompiledKernel, problem: GemmProblem, legal: Legal, name: str | None) -> str | None:
    """Raises ``InputError`` when the kernel lacks what the mutation changes."""
    if name is None:
        return None
    mutation = find_mutation(name)
    case = CASES[mutation.case]
    context = MutationContext.of(legal.config, problem.problem_class, compiled.arch)
    try:
        return mutation.apply(compiled.ptx, context)
    except NotApplicable as error:
        raise InputError(
            f"--inject {name} does not apply to this kernel ({error}); it does to --shape {case.shape} "
            f'--config "{case.config}"'
        ) from None


def _list_mutations(as_json: bool) -> int:
    if as_json:
        text.print_json({name: _mutation_record(name) for name in MUTATIONS})
        return 0
    for name, mutation in MUTATIONS.items():
        print(f"{name}: {mutation.what}")
        print(f'    reported as {" or ".join(mutation.expected)}; --config "{CASES[mutation.case].config}"')
    return 0


def _mutation_record(name: str) -> dict[str, Any]:
    mutation = MUTATIONS[name]
    case = CASES[mutation.case]
    return {"what": mutation.what, "expected": mutation.expected, "config": case.config, "shape": case.shape}


def _record(
    problem: GemmProblem, legal: Legal, results: list[CheckResult], args: argparse.Namespace
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
        "sms": result.sms,
        "race_checking": result.races,
        "schedules": [
            {
                "name": run.schedule,
                "status": str(run.status),
                "instructions": run.instructions,
                "seconds": round(run.seconds, 3),
                "y_sha256": run.digest,
            }
            for run in result.runs
        ],
        "same_under_all_schedules": result.bitwise,
        "output": result.output and {name: _finite(value) for name, value in vars(result.output).items()},
        "instructions": result.instructions,
        "seconds": round(result.seconds, 3),
        "findings": result.findings,
    }


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: their names."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _print(problem: GemmProblem, legal: Legal, results: list[CheckResult], args: argparse.Namespace) -> None:
    injected = [("injected", f"{args.inject}: {MUTATIONS[args.inject].what}")] if args.inject else []
    text.print_block(
        [("problem", text.describe_problem(problem)), ("config", legal.config), *injected],
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
    text.print_block(
        [
            ("verdict", f"{result.status}{f': {result.reason}' if result.reason else ''}"),
            ("ran", f"{text.describe_problem(result.problem)} on {result.sms} SMs, {races}"),
            ("errors", result.output if result.output is not None else "no run came to its end"),
            ("schedules", ", ".join(f"{run.schedule} {run.status}" for run in result.runs)),
            ("y", _same(result)),
            ("simulated", f"{result.instructions} warp-instructions in {result.seconds:.2f} s"),
        ]
    )
    if result.findings:
        print(f"\n{result.findings}")


def _same(result: CheckResult) -> str:
    if result.bitwise is None:
        return "compared under one schedule only"
    return "bitwise the same under all" if result.bitwise else "differs between schedules"

"""``time``: the simulated time of one config by cause, the bound, the next-best change, the clocked timeline."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from kernel_space.build.build import CompileError, build
from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from kernel_space.core.rules import Legal
from kernel_space.machine.clock.chip import Record
from kernel_space.machine.values.faults import Fault, Unsupported
from tuner.cli.look.chosen import Chosen, chosen_configs, legal_config
from tuner.cli.options import text
from tuner.cli.options.common import problems_of, results_of
from tuner.devices.device import Device
from tuner.devices.select import has_simulator, select_device, simulated_names
from tuner.files.store import atomic_write
from tuner.report.data.tail_wave import tail_wave
from tuner.search.next_change import Change, best_changes
from tuner.search.progress import Progress
from tuner.simulated.time import SimulatedTime, simulate


def time_command(args: argparse.Namespace) -> int:
    problems, device = problems_of(args), select_device(args.device, results=args.out)
    results_of(args)
    if not has_simulator(device.arch):
        raise InputError(f"times are simulated for {simulated_names()} only, got {device.name}")
    if args.trace is not None and len(problems) > 1:
        raise InputError(f"--trace writes one timeline, but {len(problems)} shapes were given; give one")
    chosen = chosen_configs(args, problems, device)
    documents = [_one(args, problem, chosen[problem], device) for problem in problems]
    if args.json:
        text.print_json({"device": text.device_record(device), "results": documents})
    return 0


def _one(args: argparse.Namespace, problem: Problem, chosen: Chosen, device: Device) -> dict[str, Any]:
    legal = legal_config(problem, chosen, device)
    progress = Progress(str(problem), terminal=False)  # lines, and no bar of trials
    try:
        compiled = build(legal.config, problem.problem_class, device.arch)
        progress.stage("simulating")
        time = simulate(
            compiled, legal.config, problem, device, cold=not args.warm, record=args.trace is not None
        )
    except (CompileError, Unsupported, Fault) as error:
        raise InputError(f"the config has no simulated time: {error}") from error
    if args.trace is not None and time.run.record is not None:
        write_trace(args.trace, time.run.record, time)
    if args.warm or not args.changes:
        changes = []
    else:
        changes = best_changes(
            chosen.config, time, problem, device, limit=args.changes, begins=progress.stage
        )
    if not args.json:
        _print(problem, legal, time, changes, device, chosen.source)
    return {**_record(problem, legal, time, changes), "config_from": chosen.source}


def _record(problem: Problem, legal: Legal, time: SimulatedTime, changes: list[Change]) -> dict[str, Any]:
    return {
        **text.problem_record(problem),
        "config": str(legal.config),
        "simulated": {
            "us": time.us,
            "low_us": time.low_us,
            "high_us": time.high_us,
            "bound": time.bound,
            "terms_us": time.terms,
            "constant_sets": len(time.sets_us),
        },
        "changes": [
            {"knob": one.knob, "choice": one.choice, "config": one.config}
            | {"us": one.time.us, "faster_in": one.faster_in}
            for one in changes
        ],
    }  # fmt: skip


def _print(
    problem: Problem, legal: Legal, time: SimulatedTime, changes: list[Change], device: Device, source: str
) -> None:
    tail = tail_wave(time, legal.config, problem, device.sm_count)
    waves = (
        [("tail wave", f"{tail[1]}: {tail[0]:.2f} us of the tile loop are idle on average")] if tail else []
    )
    text.print_block(
        [
            ("problem", text.describe_problem(problem)),
            ("device", f"{device.name} ({device.arch.name}, {device.sm_count} SMs), times are simulated"),
            ("config", legal.config),
            ("from", source),
            ("time", text.describe_time(time.us, time.low_us, time.high_us, "simulated")),
            ("bound", time.bound),
            *waves,
        ]
    )
    print(f"\nsimulated time by cause (the busiest cluster)\n{text.terms_lines(time.terms)}")
    if not changes:
        return
    print("\none knob changed (simulated)")
    for one in changes:
        share = f"faster in {one.faster_in:.0%} of the {len(time.sets_us)} sets of constants"
        print(
            f"  {one.time.us:8.2f} us  {one.time.us / time.us - 1:+z6.1%}  {one.knob}={one.choice}: {share}"
        )
    best = changes[0]
    if best.time.us < time.us:
        print(f"\nnext-best change: {best.knob}={best.choice} -> {best.config}")
    else:
        print("\nnext-best change: none of these is faster")


def write_trace(path: Path, record: Record, time: SimulatedTime) -> None:
    """One cluster's clocked timeline as a trace that ui.perfetto.dev opens; times are simulated, nominal constants."""
    per_cycle = (time.us - time.terms["launch"]) / float(time.run.cycles[0])
    lanes = {lane: number for number, lane in enumerate(sorted({lane for lane, *_ in record}), 1)}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": number, "args": {"name": lane}}
        for lane, number in lanes.items()
    ]
    for lane, what, begin, end in record:
        span = {"ts": begin * per_cycle, "dur": (end - begin) * per_cycle}
        events.append({"ph": "X", "name": what, "pid": 1, "tid": lanes[lane], **span})
    document = {"traceEvents": events, "otherData": {"kind": "simulated"}}
    atomic_write(path, json.dumps(document), follow=True)

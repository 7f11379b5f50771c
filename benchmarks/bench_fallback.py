"""How near the kernel that is launched for a problem without a row comes to the best of a short tune, on a card.

    python -m benchmarks.bench_fallback compile DIR [--device h200] [--results results] [--trials 24] [--jobs N]
        [--at-once N] [--op NAME] [--shape M,K,N,R ...]
    python tune.py measure DIR --device cuda:0 --out OUT [--budget-seconds S]
    python -m benchmarks.bench_fallback compare DIR OUT [--results results] [--lines FILE]

``compile`` needs the DSL and no card: the fallback, as ``lookup`` gives it, is the first after the default of the
candidates of each problem. ``--at-once``: so many problems at a time, among which ``--jobs`` compilers are divided;
choosing candidates takes a core some ten seconds a problem. ``--device``: the class of the card; one without rows
borrows a sibling's, as a launch on it does.

``compare`` prints fallback / best of each problem, what was estimated of both, geometric mean and worst; ``--lines``
writes the same as a JSON object a line. What was not measured is named and counted. The measured trials are below OUT:
``tune.py calibrate results/h200 OUT --out results`` fits with them. Problems without a row only, and by default of
layers that have none: of FLUX.1 and Qwen-Image (K or N of 3072), Wan 14B (5120) and Llama-3-8B (4096).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kernel_space.build.cache import default_cache_dir
from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from kernel_space.core.registry import operator, parse_config
from tuner.calibration.measured_trials import Measurement, read_measured
from tuner.compile.manifest import Folder, fill
from tuner.compile.pool import CompilePool
from tuner.devices.classes import DEVICE_CLASSES, DeviceClass
from tuner.devices.select import device_class_of, select_device
from tuner.files.store import atomic_write, make_folder, read_json, update_json
from tuner.runtime.choice.choose import Library
from tuner.search.offline_search import choose_candidates
from tuner.space.space import SearchSpace
from tuner.stages.run import COMPILE_TIMEOUT_S
from tuner.trials.candidate import Candidate
from tuner.tune.near_rows import NEIGHBOURS
from tuner.tune.prepare import readable_configs
from tuner.tune.promising import promising

SHAPES = (
    "1,3072,12288,128",
    "1,4096,6144,128",
    "1,4096,28672,128",
    "1,14336,4096,128",
    "64,3072,9216,128",
    "64,4096,4096,128",
    "64,5120,13824,128",
    "64,12288,3072,128",
    "256,3072,3072,128",
    "256,3072,9216,128",
    "256,4096,28672,128",
    "256,5120,5120,128",
    "1024,3072,12288,128",
    "1024,4096,6144,128",
    "1024,5120,5120,128",
    "1024,13824,5120,128",
    "4608,3072,9216,128",
    "4608,4096,4096,128",
    "4608,5120,5120,128",
    "4608,12288,3072,128",
)
CHOSEN = "fallback.json"
TRIALS_FILES = ("trials.parquet", "*.jsonl", "trials.csv")  # the first kind of which there are any


def compile_all(args: argparse.Namespace) -> None:
    """Raises ``InputError`` when nothing can be launched for a problem, or a process of one failed."""
    problems = [operator(args.op).problem.parse(shape) for shape in args.shapes or SHAPES]
    if args.at_once > 1 and len(problems) > 1:
        _at_once(problems, args)
        return
    device_class = device_class_of(args.device)
    library = Library.of_class(args.results, device_class, cache_dir=default_cache_dir())
    folder = Folder(args.folder, device_class.name, device_class.arch)
    with CompilePool(args.jobs, COMPILE_TIMEOUT_S) as pool:
        for problem in problems:
            choice = library.choose(problem)
            one = {"op": args.op, "config": str(choice.config), "reason": str(choice.reason)}
            entries = fill(folder, problem, _candidates(problem, library, args), pool, device_class.arch)
            _remember(args.folder, str(problem), one)
            print(f"{problem}: {sum(one.status == 'ok' for one in entries)} objects", flush=True)


def _remember(folder: Path, shape: str, one: dict[str, str]) -> None:
    update_json(make_folder(folder) / CHOSEN, lambda known: {**(known or {}), shape: one})


def _at_once(problems: Sequence[Problem], args: argparse.Namespace) -> None:
    """Each problem by this script in a process of its own: choosing is Python, which has one core a process."""
    with ThreadPoolExecutor(args.at_once) as pool:
        ended = pool.map(lambda problem: subprocess.run(_command(problem, args), check=False), problems)
        failed = [str(problem) for problem, one in zip(problems, ended, strict=True) if one.returncode]
    if failed:
        raise InputError(f"what was to be compiled for {'; '.join(failed)} is not there: see above")


def _command(problem: Problem, args: argparse.Namespace) -> list[str]:
    options = {"shape": problem, "op": args.op, "device": args.device, "trials": args.trials,
               "jobs": max(1, args.jobs // args.at_once), "results": args.results}  # fmt: skip
    named = [f"--{name}={value}" for name, value in options.items()]
    return [sys.executable, "-m", "benchmarks.bench_fallback", "compile", str(args.folder), *named]


def _candidates(problem: Problem, library: Library, args: argparse.Namespace) -> list[Candidate]:
    """The fallback first: it counts as the best known."""
    arch, table = library.arch, library.table
    space = SearchSpace.load(problem.operator, arch)
    near = [row.config for row in table.neighbours(problem, NEIGHBOURS)]
    first = list(readable_configs(problem.operator, near, arch))
    device = select_device(args.device, results=args.results)
    found = promising(space, problem, device, args.results, limit=args.trials // 2, first=first)
    return choose_candidates(
        space,
        problem,
        arch,
        trials=args.trials,
        first=first,
        best=[library.choose(problem).config],
        ranked=found,
    )


def compare(args: argparse.Namespace) -> None:
    """Raises ``InputError`` for a folder without candidates, and where no fallback was measured."""
    chosen = read_json(args.folder / CHOSEN)
    if chosen is None:
        raise InputError(f"{args.folder} must hold what compile wrote, but has no {CHOSEN}")
    measured = read_measured(_trials_below(args.out))
    device = DEVICE_CLASSES[measured[0].device]
    library = Library.of_class(args.results, device, cache_dir=default_cache_dir())
    found, missing = [], []
    for shape, one in chosen.items():
        problem = operator(one["op"]).problem.parse(shape)
        compared = _compared(problem, one["config"], measured, library, device)
        found += [compared] if compared else []
        missing += [] if compared else [shape]
    _say(found, missing)
    if args.lines:
        atomic_write(args.lines, "".join(json.dumps(one) + "\n" for one in found))


def _trials_below(out: Path) -> list[Path]:
    for name in TRIALS_FILES:
        if paths := sorted(out.rglob(name)):
            return paths
    raise InputError(f"{out} must hold what measure wrote, but has no {' or '.join(TRIALS_FILES)}")


def _compared(
    problem: Problem, config: str, measured: list[Measurement], library: Library, device: DeviceClass
) -> dict[str, Any] | None:
    """None where the fallback was not measured."""
    own = {one.config: one.us for one in measured if one.problem == problem}
    if config not in own:
        return None
    best = min(own, key=own.__getitem__)
    return {
        "op": problem.operator, "problem": str(problem), "device": device.name, "kind": "measured",
        "trials": len(own), "ratio": round(own[config] / own[best], 4),
        "fallback_us": own[config], "fallback_estimated_us": _estimated(config, problem, library, device),
        "fallback": config,
        "best_us": own[best], "best_estimated_us": _estimated(best, problem, library, device), "best": best,
    }  # fmt: skip


def _estimated(text: str, problem: Problem, library: Library, device: DeviceClass) -> float | None:
    estimates: Any = library.table.estimates
    found = estimates.of(parse_config(problem.operator, device.arch, text), problem)
    return None if found is None else round(found.us, 4)


def _say(found: Sequence[dict[str, Any]], missing: Sequence[str]) -> None:
    for one in found:
        estimated = [f"estimated {one[f'{name}_estimated_us'] or 'nothing'}" for name in ("fallback", "best")]
        print(
            f"{one['problem']}: fallback {one['fallback_us']:.2f} us ({estimated[0]}), best of {one['trials']} "
            f"{one['best_us']:.2f} us ({estimated[1]}): {one['ratio']:.3f}\n  fallback {one['fallback']}\n"
            f"  best     {one['best']}"
        )
    print(f"the fallback was not measured: {'; '.join(missing) or 'of none'}")
    if not found:
        raise InputError("no fallback was measured, so there is nothing to compare")
    mean = math.exp(sum(math.log(one["ratio"]) for one in found) / len(found))
    worst = max(found, key=lambda one: one["ratio"])
    print(
        f"fallback / best, measured on {worst['device']}: geometric mean {mean:.3f}, largest {worst['ratio']:.3f} "
        f"({worst['problem']}), of {len(found)} problems"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("compile")
    one.add_argument("folder", type=Path)
    one.add_argument("--shape", action="append", dest="shapes")
    one.add_argument("--op", default="svdquant_gemm")
    one.add_argument("--device", default="h200")
    one.add_argument("--trials", type=int, default=24)
    one.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    one.add_argument("--at-once", type=int, default=1)
    one.set_defaults(run=compile_all)
    other = commands.add_parser("compare")
    other.add_argument("folder", type=Path)
    other.add_argument("out", type=Path)
    other.add_argument("--lines", type=Path)
    other.set_defaults(run=compare)
    for each in (one, other):
        each.add_argument("--results", type=Path, default=Path("results"))
    args = parser.parse_args()
    try:
        args.run(args)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

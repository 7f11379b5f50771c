"""How near the kernel that is launched for a problem without a row comes to the best of a short tune, on a card.

    python -m benchmarks.bench_fallback compile DIR [--results results] [--trials 24] [--op NAME] [--shape M,K,N,R ...]
    python tune.py measure DIR --device cuda:0 --out OUT
    python -m benchmarks.bench_fallback compare DIR OUT

``compile`` needs the DSL and no card: the fallback, as ``lookup`` gives it, is the first after the default of the
candidates of each problem. ``compare`` prints fallback / best and what was estimated. The measured trials are below
OUT: ``tune.py calibrate results/h200 OUT --out results`` fits with them. Problems without a row only: by default layers
of FLUX.1, Qwen-Image, Wan 14B and Llama-3-8B.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from pathlib import Path
from typing import Any

from kernel_space.build.cache import default_cache_dir
from kernel_space.core.problem import Problem
from kernel_space.core.registry import operator, parse_config
from tuner.calibration.measured_trials import Measurement, read_measured
from tuner.compile.manifest import Folder, fill
from tuner.compile.pool import CompilePool
from tuner.devices.classes import DEVICE_CLASSES, DeviceClass
from tuner.devices.select import select_device
from tuner.runtime.choice.choose import Library
from tuner.search.offline_search import choose_candidates
from tuner.space.space import SearchSpace
from tuner.stages.run import COMPILE_TIMEOUT_S
from tuner.trials.candidate import Candidate
from tuner.tune.prepare import NEIGHBOURS, readable_configs
from tuner.tune.promising import promising

SHAPES = (
    "1,4096,6144,128",
    "1,14336,4096,128",
    "64,4096,4096,128",
    "64,3072,9216,128",
    "64,5120,13824,128",
    "256,3072,9216,128",
    "256,5120,5120,128",
    "256,4096,28672,128",
    "1024,3072,12288,128",
    "1024,13824,5120,128",
    "4608,3072,9216,128",
    "4608,5120,5120,128",
)
CHOSEN = "fallback.json"


def compile_all(args: argparse.Namespace) -> None:
    device_class = DEVICE_CLASSES[args.device]
    library = Library.of_class(args.results, device_class, cache_dir=default_cache_dir())
    folder = Folder(args.folder, device_class.name, device_class.arch)
    chosen = {}
    with CompilePool(args.jobs, COMPILE_TIMEOUT_S) as pool:
        for shape in args.shapes or SHAPES:
            problem = operator(args.op).problem.parse(shape)
            choice = library.choose(problem)
            chosen[shape] = {"op": args.op, "config": str(choice.config), "reason": str(choice.reason)}
            entries = fill(folder, problem, _candidates(problem, library, args), pool, device_class.arch)
            print(f"{problem}: {sum(one.status == 'ok' for one in entries)} objects", flush=True)
    (args.folder / CHOSEN).write_text(json.dumps(chosen, indent=1) + "\n")


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
    chosen = json.loads((args.folder / CHOSEN).read_text())
    paths = sorted(args.out.rglob("trials.parquet")) or sorted(args.out.rglob("*.jsonl"))
    measured, ratios = read_measured(paths), []
    device = DEVICE_CLASSES[measured[0].device]
    library = Library.of_class(args.results, device, cache_dir=default_cache_dir())
    for shape, one in chosen.items():
        found = _compared(operator(one["op"]).problem.parse(shape), one["config"], measured, library, device)
        if found:
            ratios.append(found)
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    print(f"fallback / best: geometric mean {mean:.3f}, largest {max(ratios):.3f}, of {len(ratios)} problems")


def _compared(
    problem: Problem, config: str, measured: list[Measurement], library: Library, device: DeviceClass
) -> float | None:
    own = {one.config: one.us for one in measured if one.problem == problem}
    if config not in own:
        print(f"{problem}: the fallback was not measured")
        return None
    best = min(own, key=own.__getitem__)
    estimates = [_estimated(text, problem, library, device) for text in (config, best)]
    print(
        f"{problem}: fallback {own[config]:.2f} us (estimated {estimates[0]}), best of {len(own)} {own[best]:.2f} us "
        f"(estimated {estimates[1]}): {own[config] / own[best]:.3f}\n  fallback {config}\n  best     {best}"
    )
    return own[config] / own[best]


def _estimated(text: str, problem: Problem, library: Library, device: DeviceClass) -> str:
    estimates: Any = library.table.estimates
    found = estimates.of(parse_config(problem.operator, device.arch, text), problem)
    return "nothing" if found is None else f"{found.us:.2f}"


def main() -> None:
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
    one.add_argument("--jobs", type=int, default=os.cpu_count())
    one.set_defaults(run=compile_all)
    other = commands.add_parser("compare")
    other.add_argument("folder", type=Path)
    other.add_argument("out", type=Path)
    other.set_defaults(run=compare)
    for each in (one, other):
        each.add_argument("--results", type=Path, default=Path("results"))
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()

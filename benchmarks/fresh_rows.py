"""Tunes every problem of the shipped b200 table again, each as if nothing had ever been tuned.

    python -m benchmarks.fresh_rows --out DIR [--op NAME] [--shape M,K,N,R ...] [--trials 60] [--seed 0] [--jobs N]

A problem is tuned in a folder of its own, ``DIR/alone/OPERATOR-SIZES``, which begins empty: no neighbour's winner and
no row of its own is there to begin from, so that the convergence in its report shows the search. Then its results are
merged into ``DIR``, a folder of results like any other. Operators made of others come last and are tuned in ``DIR``:
their search begins with the rows of their links.

A run that was stopped goes on: a problem that ``DIR`` has a row for is passed over, one that was begun is resumed.
Ends with a table: problem, seconds, shipped time, time now, and says which are slower by more than 1 %.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.bench_search import CLOSE, DEVICE
from kernel_space.core.problem import Problem
from kernel_space.core.registry import operator_of
from kernel_space.places import shipped
from tuner.devices.classes import DEVICE_CLASSES
from tuner.tables.dispatch import FILE_NAME, DispatchTable

ROOT = Path(__file__).resolve().parents[1]


def rows_of(folder: Path) -> dict[Problem, float]:
    """Problem -> microseconds of its row; none where there is no table."""
    if not (folder / DEVICE / FILE_NAME).is_file():
        return {}
    table = DispatchTable.load(folder / DEVICE, arch=DEVICE_CLASSES[DEVICE].arch)
    return {row.key.problem: row.time_us for row in table.rows.values()}


def in_order(problems: Sequence[Problem]) -> list[Problem]:
    """Those of one kernel first, quick ones before slow ones."""
    return sorted(problems, key=lambda one: (is_chain(one), one.operator, tuple(one.sizes.values())))


def is_chain(problem: Problem) -> bool:
    return operator_of(problem).composed is not None


def tune_one(problem: Problem, out: Path, args: argparse.Namespace) -> None:
    """Raises ``CalledProcessError`` when a command fails; it has said why."""
    alone = out if is_chain(problem) else out / "alone" / f"{problem.operator}-{problem.slug}"
    options = [f"--option={name}={value}" for name, value in problem.options.items()]
    tune = ["--op", problem.operator, "--shape", str(problem), *options, "--out", str(alone)]
    tune += ["--device", DEVICE, "--trials", str(args.trials), "--seed", str(args.seed)]
    command([*tune, *(["--jobs", str(args.jobs)] if args.jobs else [])])
    if alone != out:
        command(["merge", str(alone), "--out", str(out)])


def command(arguments: Sequence[str]) -> None:
    subprocess.run([sys.executable, str(ROOT / "tune.py"), *arguments], cwd=ROOT, check=True)


def main() -> int:
    args = _arguments()
    before = rows_of(shipped("results"))
    wanted = [one for one in before if args.op in (None, one.operator)]
    wanted = [one for one in wanted if not args.shape or str(one) in args.shape]
    seconds: dict[Problem, float] = {}
    for problem in in_order(wanted):
        if problem in rows_of(args.out):
            continue
        start = time.monotonic()
        tune_one(problem, args.out, args)
        seconds[problem] = time.monotonic() - start
    return show(before, rows_of(args.out), seconds)


def show(before: dict[Problem, float], now: dict[Problem, float], seconds: dict[Problem, float]) -> int:
    """Prints the table; 1 if a row is slower than the shipped one by more than 1 %."""
    print("\n| operator | problem | seconds | shipped us | now us |\n|---|---|---|---|---|")
    slower = []
    for problem in in_order([one for one in now if one in before]):
        spent = f"{seconds[problem]:.0f}" if problem in seconds else ""
        cells = [problem.operator, problem, spent, f"{before[problem]:.4g}", f"{now[problem]:.4g}"]
        print(f"| {' | '.join(map(str, cells))} |")
        if now[problem] > CLOSE * before[problem]:
            slower.append(str(problem))
    print(f"slower than the shipped row by more than 1 %: {', '.join(slower) or 'none'}")
    return 1 if slower else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--op")
    parser.add_argument("--shape", action="append", default=[])
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

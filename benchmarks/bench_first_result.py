"""Time from the start of ``tune.py`` to its first finished trial and to its end, measured on this CPU.

Run from the repository root: ``python -m benchmarks.bench_first_result [--shape 4352,3840,3072,128] [--trials 8]``.
The first result counts from the moment its line is in the journal, where it survives whatever follows. Once with an
empty build cache, once with the cache that the first run left (its trials are evaluated anew).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
POLL_S = 0.01


def main() -> None:
    parser = argparse.ArgumentParser(description="time from the start of tune.py to the first result")
    parser.add_argument("--shape", default="4352,3840,3072,128")
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    print(
        f"measured on this CPU ({os.cpu_count()} cores): {options.shape}, {options.trials} trials, {options.jobs} jobs"
    )
    print(f"{'build cache':<14}{'first trial, s':>16}{'all, report, table, s':>24}")
    with tempfile.TemporaryDirectory() as folder:
        for name in ("empty", "warm"):
            first, end = _run(options, Path(folder) / name, Path(folder) / "cache")
            print(f"{name:<14}{first:>16.2f}{end:>24.2f}")


def _run(options: argparse.Namespace, out: Path, cache: Path) -> tuple[float, float]:
    """(seconds to the first trial in the journal, seconds to the exit)."""
    command = [
        "env",
        f"XDG_CACHE_HOME={cache}",
        sys.executable,
        str(ROOT / "tune.py"),
        "--device",
        "b200",
        "--json",
    ]
    command += [
        "--shape",
        options.shape,
        "--trials",
        str(options.trials),
        "--jobs",
        str(options.jobs),
        "--out",
        str(out),
    ]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    first = None
    while process.poll() is None:
        if first is None and _has_time(out):
            first = time.perf_counter() - start
        time.sleep(POLL_S)
    end = time.perf_counter() - start
    if process.returncode or (first is None and not _has_time(out)):
        told = process.stderr.read() if process.stderr else ""
        raise SystemExit(f"tune.py ended with {process.returncode} and no result: {told[-1000:]}")
    return first or end, end


def _has_time(out: Path) -> bool:
    """A whole line of a journal below ``out`` holds a trial with a time."""
    for journal in out.glob(".studies/*/*.jsonl"):
        for line in journal.read_bytes().split(b"\n")[1:-1]:
            if json.loads(line).get("us") is not None:
                return True
    return False


if __name__ == "__main__":
    main()

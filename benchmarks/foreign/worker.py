"""One foreign kernel in a process of its own: compiled, run in the machine, compared. Writes a JSON document.

    python -m benchmarks.foreign.worker RESULT ARCH SCHEDULES SMS PATH[,PATH...] SCRIPT [ARGUMENT ...]

``SCRIPT`` is a Python file that runs as ``__main__`` with the arguments, or ``module:function`` of this package, which
gets them. The folders of ``PATH`` are what it imports from. Whatever happens, the document says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import sys
import tempfile
import time
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

STATUSES = {
    "exact": "no finding, and every comparison is exact",
    "within tolerance": "no finding, and the program's own tolerance holds",
    "finding": "the machine reports something",
    "unsupported": "the machine does not know an instruction or a call",
    "wrong": "a comparison fails",
    "stopped": "the program ends with an exception",
    "not compared": "the program ran, and compared nothing",
    "not launched": "the program launched no kernel",
}


def main(argv: list[str]) -> None:
    result, arch, schedules, sms, paths, script, *arguments = argv
    os.environ["CUTE_DSL_ARCH"] = arch
    os.environ["CUTE_DSL_KEEP_PTX"] = "1"
    os.environ["QUACK_CACHE_ENABLED"] = "0"
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="foreign-") as dump:
        os.environ["CUTE_DSL_DUMP_DIR"] = dump
        sys.path[:0] = paths.split(",")
        document = _run(arch, tuple(schedules.split(",")), int(sms), script, arguments)
    document["seconds"] = round(time.perf_counter() - started, 1)
    Path(result).write_text(json.dumps(document))


def _run(
    arch: str, schedules: tuple[str, ...], sms: int, script: str, arguments: list[str]
) -> dict[str, Any]:
    from benchmarks.foreign import card as cards
    from benchmarks.foreign import cuda_calls, dsl_launch, oracle

    if not script.endswith(
        ".py"
    ):  # what quack and flash-attention import lists torch's functions, unpatched ones
        import_module("torch._dynamo")
    card = cards.Card()
    machine = dsl_launch.Machine(card, sms, schedules)
    cuda_calls.answer(arch, sms)
    dsl_launch.install(machine)
    seen = oracle.watch()
    error: BaseException | None = None
    try:
        with card:
            _call(script, arguments)
    except SystemExit as stop:
        error = stop if stop.code not in (None, 0) else None
    except BaseException as problem:
        error = problem
        traceback.print_exc()
    return {
        **_verdict(machine, seen, error),
        "launches": len(machine.results),
        "instructions": sum(result.instructions for result in machine.results[:: len(schedules)]),
        "machine_seconds": round(sum(sum(result.seconds.values()) for result in machine.results), 2),
        "comparisons": seen.count,
        "worst": seen.worst,
        "largest": seen.largest,
    }


def _call(script: str, arguments: list[str]) -> None:
    if script.endswith(".py"):
        sys.argv = [script, *arguments]
        sys.path.insert(0, str(Path(script).parent))
        runpy.run_path(script, run_name="__main__")
        return
    module, function = script.split(":")
    getattr(import_module(f"benchmarks.foreign.{module}"), function)(*arguments)


def _verdict(machine: Any, seen: Any, error: BaseException | None) -> dict[str, Any]:
    texts = [finding.text for result in machine.results for finding in result.findings] + machine.differences
    statuses = {str(result.status.value) for result in machine.results if not result.ok}
    if statuses == {"UNSUPPORTED"}:
        status = "unsupported"
    elif texts:
        status = "finding"
    elif isinstance(error, AssertionError) and machine.results:
        status = "wrong"
    elif error is not None:
        status = "stopped"
    elif not machine.results:
        status = "not launched"
    elif not seen.count:
        status = "not compared"
    else:
        status = "exact" if seen.worst == 0 else "within tolerance"
    return {"status": status, "machine": sorted(statuses), "findings": texts, "error": _line(error)}


def _line(error: BaseException | None) -> str:
    """The exception in one line."""
    if error is None:
        return ""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines)[:400]}"


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(sys.argv[1:])

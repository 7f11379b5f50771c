"""``day-one``: what one does first with a new card, into one folder to share: selfcheck, measure, calibrate, peers.

Every step is a process with a time limit. What fails is said, and the rest goes on. ``day-one.json`` is written after
every step, so that the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernel_space.core.errors import InputError
from tuner import __version__
from tuner.cli.day.process import Ended, command_of, run_step
from tuner.cli.day.steps import SHAPES, STEPS, Skipped, Step, Visit, shapes_text, usual_problems
from tuner.cli.day.summary import summary
from tuner.cli.options import text
from tuner.cli.options.common import named_problems
from tuner.cli.options.day_one import BUDGET_S, SHARES
from tuner.cli.tune.peers import cuda_device
from tuner.devices.card import CudaDevice
from tuner.files.store import atomic_write, locked, make_folder, read_json
from tuner.search.progress import Progress
from tuner.search.trial_of import utc_now

FILE_NAME, PAGE, SCHEMA = "day-one.json", "summary.md", 1
DONE, FAILED, SKIPPED, LATE = "done", "failed", "skipped", "out of time"
GOOD = (DONE, SKIPPED)


def day_one_command(args: argparse.Namespace) -> int:
    """0 when every step was done or does not apply, else 1. Raises ``InputError`` without a card, and for a folder
    that is of another one."""
    device = cuda_device(args.device)
    problems = tuple(named_problems(args)) or usual_problems(args.op)
    folder = args.folder or Path(f"day-one-{device.name}")
    visit = Visit(
        device=device,
        problems=problems,
        folder=make_folder(folder, option="--folder").absolute(),
        objects=None if args.objects is None else args.objects.absolute(),
        operators=tuple(str(Path(one).absolute()) for one in args.operators),
    )
    with locked(visit.folder / FILE_NAME, timeout_s=1.0):
        record = _go(visit, _Budget(args.budget), _begun(visit, again=args.again), args.quiet)
    if args.json:
        text.print_json(record)
    else:
        for name, step in record["steps"].items():
            text.print_block([(name, ": ".join(filter(None, (step["status"], step["what"]))))])
        text.print_block([("share", visit.folder), ("", visit.folder / PAGE)])
    return 0 if all(step["status"] in GOOD for step in record["steps"].values()) else 1


class _Budget:
    """Seconds for each step: what was said of it, else its share of what is left of all."""

    def __init__(self, said: list[tuple[str, float]]) -> None:
        self._own = {name: seconds for name, seconds in said if name}
        whole = [seconds for name, seconds in said if not name]
        self._deadline = time.monotonic() + (whole[-1] if whole else BUDGET_S)

    def seconds(self, step: str) -> float:
        if step in self._own:
            return self._own[step]
        names = list(SHARES)
        rest = [name for name in names[names.index(step) :] if name not in self._own]
        reserved = sum(self._own.get(name, 0.0) for name in names[names.index(step) :])
        left = self._deadline - time.monotonic() - reserved
        return max(0.0, left) * SHARES[step] / sum(SHARES[name] for name in rest)


def _begun(visit: Visit, *, again: bool) -> dict[str, Any]:
    """The record to go on with. Steps of other problems are not kept. Raises ``InputError`` for another card's."""
    device = {"class": visit.device.name, "card": visit.device.card.name, "driver": visit.device.driver}
    problems = [text.problem_record(one) for one in visit.problems]
    fresh = {"schema": SCHEMA, "version": __version__, "device": device, "problems": problems, "steps": {}}
    found = read_json(visit.folder / FILE_NAME)
    if not isinstance(found, dict) or found.get("schema") != SCHEMA or again:
        return fresh
    if found.get("device") != device:
        raise InputError(
            f"{visit.folder} is of {found.get('device')}, this is {device}; take another --folder"
        )
    same = found.get("problems") == problems and found.get("version") == __version__
    steps = found.get("steps") if same else None
    kept = steps if isinstance(steps, dict) else {}
    return {**fresh, "steps": {name: one for name, one in kept.items() if _is_step(name, one)}}


def _is_step(name: str, one: Any) -> bool:
    """Whether a file that may have been edited holds a step that is done."""
    if name not in SHARES or not isinstance(one, dict) or one.get("status") != DONE:
        return False
    words = all(isinstance(one.get(key), str) for key in ("what", "date"))
    return words and isinstance(one.get("seconds"), float)


def _go(visit: Visit, budget: _Budget, record: dict[str, Any], quiet: bool) -> dict[str, Any]:
    say = _mute if quiet else Progress("day-one").say
    atomic_write(visit.folder / SHAPES, shapes_text(visit.problems))
    steps = record["steps"]
    for step in STEPS:
        if steps.get(step.name, {}).get("status") == DONE:
            say(f"{step.name}: done on {steps[step.name]['date']}")
            continue
        limit_s = budget.seconds(step.name)
        say(f"{step.name}: at most {limit_s:.0f} s")
        steps[step.name] = {"date": utc_now(), **_result(step, visit, limit_s, quiet)}
        _write(visit, record)
        say(f"{step.name}: {steps[step.name]['status']}, {steps[step.name]['what']}")
    _write(visit, record)
    return record


def _write(visit: Visit, record: Mapping[str, Any]) -> None:
    ordered = {
        **record,
        "steps": {one.name: record["steps"][one.name] for one in STEPS if one.name in record["steps"]},
    }
    atomic_write(visit.folder / FILE_NAME, json.dumps(ordered, indent=1) + "\n")
    atomic_write(visit.folder / PAGE, summary(ordered, visit))


def _result(step: Step, visit: Visit, limit_s: float, quiet: bool) -> dict[str, Any]:
    """``status``, ``what`` in one line, ``seconds``."""
    try:
        arguments = step.arguments(visit, limit_s)
    except Skipped as reason:
        return {"status": SKIPPED, "what": str(reason), "seconds": 0.0}
    except InputError as error:
        return {"status": FAILED, "what": str(error), "seconds": 0.0}
    if limit_s < 1:
        return {"status": LATE, "what": "the budget was spent before it began", "seconds": 0.0}
    command = _on_card(command_of(arguments), visit.device)
    ended = run_step(command, visit.folder, step.name, limit_s, _mute if quiet else _tell)
    return {**_verdict(step, ended, limit_s), "seconds": round(ended.seconds, 1)}


def _verdict(step: Step, ended: Ended, limit_s: float) -> dict[str, str]:
    headline = ""
    if ended.document is not None:
        with contextlib.suppress(KeyError, TypeError, StopIteration):  # a document that was cut short
            headline = step.headline(ended.document)
    if ended.late:
        return {"status": LATE, "what": f"ended after {limit_s:.0f} s{f'; {headline}' if headline else ''}"}
    if ended.code:
        said = ended.said.removeprefix("error: ") or "nothing said"
        return {"status": FAILED, "what": f"exit code {ended.code}: {headline or said}"}
    return {"status": DONE, "what": headline}


def _on_card(command: list[str], device: CudaDevice) -> list[str]:
    """For ``selfcheck``, which takes the first card that it sees; the others are told the card's number."""
    if device.card.index == 0 or "selfcheck" not in command or not device.card.uuid:
        return command
    name = device.card.uuid if device.card.uuid.startswith(("GPU-", "MIG-")) else f"GPU-{device.card.uuid}"
    return ["env", f"CUDA_VISIBLE_DEVICES={name}", *command]


def _tell(line: str) -> None:
    print(f"  {line}", file=sys.stderr, flush=True)


def _mute(line: str) -> None:
    """``--quiet``: the log has it."""

"""``retime --same-code``: stale rows whose kernel is still the code that was timed are fresh again, without a card."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from kernel_space.build.key import toolchain
from kernel_space.core.errors import InputError
from kernel_space.core.plain_files import below
from kernel_space.places import COMMAND, layers
from tuner.cli.options import text
from tuner.cli.options.common import check_out
from tuner.cli.options.retime import rows_named
from tuner.devices.select import select_device
from tuner.files.store import make_folder
from tuner.search.progress import Progress
from tuner.stages.record import current, renew_index
from tuner.tables.bundle import Bundle
from tuner.tables.dispatch import FILE_NAME, record
from tuner.tune.retime import outdated_rows, table_of_device
from tuner.tune.same_code import SameCode, same_code


def same_code_command(args: argparse.Namespace) -> int:
    """0, however many rows are still stale then: those are ``retime``'s. Raises ``InputError``, also for a damaged
    bundle, and ``StoreError``."""
    if args.all or args.objects is not None:
        raise InputError("--same-code builds stale rows here and times nothing: without --all and --objects")
    check_out(args.out)
    toolchain()
    device = select_device(args.device, results=args.out)
    now = dataclasses.replace(current(device), driver="")  # another driver does not change what runs
    stale = outdated_rows(table_of_device(args.out, device), now, operator=args.op, problems=rows_named(args))
    folders = [below(layer, device.name) for layer in layers(args.out)] if stale else []
    bundles = [Bundle.over([folder], device.arch) for folder in folders]
    progress, found = Progress(), []
    path = below(args.out, device.name, FILE_NAME)
    for outdated in stale:
        one = same_code(outdated, now, bundles, device.arch)
        if one.row is not None:
            make_folder(path.parent)
            (decision,) = record(path, [one.row], now, say=progress.say)
            if not decision.recorded:
                one = dataclasses.replace(
                    one, row=None, reason=f"the table keeps another row: {decision.reason}"
                )
        found.append(one)
        if not args.json:
            print(_line(one), flush=True)
    same = sum(one.row is not None for one in found)
    if same:
        renew_index(args.out, device)
    if args.json:
        text.print_json(
            {"device": text.device_record(device), "table": str(path), "results": [*map(_record, found)]}
        )
    elif not found:
        print("nothing is stale")
    else:
        print(_summary(same, len(found), device.name))
    return 0


def _line(one: SameCode) -> str:
    key = one.outdated.row.key
    return f"{key}: {one.reason or 'the same code: its row stands'}"


def _summary(same: int, stale: int, device: str) -> str:
    rest = f"; the rest is for {COMMAND} retime on a card of class {device}" if same < stale else ""
    return f"{same} of {stale} stale rows are the code that was timed{rest}"


def _record(one: SameCode) -> dict[str, Any]:
    key = one.outdated.row.key
    return {
        "op": key.op,
        "problem": str(key.problem),
        "options": dict(key.problem.options),
        "changed": one.outdated.reason,
        "same_code": one.row is not None,
        "reason": one.reason,
    }

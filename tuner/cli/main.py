"""Commands of ``tune.py``: which there are, their options, and how errors end.

Exit codes: 0 done; 1 nothing to show for it (every trial failed, a compilation or a check failed, the disk
refused results); 2 bad input, or the system refused the cache or the output, one line on stderr; 130 interrupted, with
everything found so far written down. Modules that are slow to import are imported by the command that needs them.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import TextIO

from kernel_space.core import registry
from kernel_space.core.errors import InputError
from kernel_space.places import COMMAND
from tuner import __version__
from tuner.cli.judge.selfcheck import add_selfcheck_options
from tuner.cli.options import common as options
from tuner.cli.options.calibrate import add_calibrate_options
from tuner.cli.options.card import (
    add_compile_only_options,
    add_measure_options,
    add_merge_options,
    add_peers_options,
)
from tuner.cli.options.day_one import add_day_one_options
from tuner.cli.options.early import check_early
from tuner.cli.options.exits import BAD_INPUT, INTERRUPTED, REFUSALS, CommandError
from tuner.cli.options.fleet import add_cluster_options, add_worker_options
from tuner.cli.options.profile import add_profile_options
from tuner.cli.options.retime import add_retime_options
from tuner.cli.options.shell import add_clean_options, add_completion_options, add_help_options
from tuner.cli.options.streams import open_streams
from tuner.cli.options.sweep import add_sweep_options
from tuner.cli.options.time import add_time_options
from tuner.files.store import StoreError
from tuner.search.progress import quiet

DEFAULT_COMMAND = "tune"
LONGEST_LINE = 2000  # characters of an error: it may repeat what was typed
EXAMPLES = f"""examples:
  {COMMAND} --shape 4352,3840,3072,128                          tune one problem, without a card
  {COMMAND} --shapes problems.yaml --device cuda:0 --timeout 600  tune several on a card, ten minutes each
  {COMMAND} lookup --shape 17,3840,3072,128 --device h200       what is launched for a problem, and why
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """``function``: ``module:name``, called with the parsed options, returns the exit code."""

    function: str
    summary: str
    adders: tuple


_COMMON = (options.add_problem_options, options.add_device_options, options.add_json_option)
COMMANDS = {
    "tune": Command(
        function="tuner.cli.tune.tune:tune_command",
        summary="search, compile, judge, write dispatch table and report",
        adders=(*_COMMON, options.add_tune_options, add_cluster_options),
    ),
    "retime": Command(
        function="tuner.cli.tune.retime:retime_command",
        summary="rebuild, check and time rows, runner-ups and defaults after a change",
        adders=(options.add_device_options, options.add_json_option, add_retime_options),
    ),
    "explain": Command(
        function="tuner.cli.look.explain:explain_command",
        summary="budgets, legality with its reason, modelled time by term",
        adders=(*_COMMON, options.add_config_option),
    ),
    "time": Command(
        function="tuner.cli.judge.time:time_command",
        summary="simulated time by cause, the bound, the next-best change, a timeline",
        adders=(*_COMMON, options.add_config_option, add_time_options),
    ),
    "calibrate": Command(
        function="tuner.cli.judge.calibrate:calibrate_command",
        summary="choose the constants of simulated or estimated times by measured ones",
        adders=(options.add_json_option, add_calibrate_options),
    ),
    "profile": Command(
        function="tuner.cli.tune.profile:profile_command",
        summary="hardware counters of one config, or of two side by side (Nsight Compute)",
        adders=(
            options.add_problem_options,
            options.add_json_option,
            options.add_config_option,
            add_profile_options,
        ),
    ),
    "compile": Command(
        function="tuner.cli.look.compile:compile_command",
        summary="resources and paths of PTX, cubin, SASS and object",
        adders=(*_COMMON, options.add_config_option),
    ),
    "check": Command(
        function="tuner.cli.judge.check:check_command",
        summary="run a config in the PTX machine: right, deadlocked or racing; --sweep: would it be seen if broken",
        adders=(*_COMMON, options.add_config_option, options.add_check_options, add_sweep_options),
    ),
    "selfcheck": Command(
        function="tuner.cli.judge.selfcheck:selfcheck_command",
        summary="the same small programs on this card and in the machine, byte against byte",
        adders=(options.add_json_option, add_selfcheck_options),
    ),
    "compile-only": Command(
        function="tuner.cli.tune.compile_only:compile_only_command",
        summary="choose and compile candidates for a machine with a card",
        adders=(
            options.add_problem_options,
            options.add_json_option,
            add_compile_only_options,
            add_cluster_options,
        ),
    ),
    "measure": Command(
        function="tuner.cli.tune.measure:measure_command",
        summary="check and time on a card what compile-only left; writes table and report",
        adders=(
            options.add_problem_options,
            options.add_json_option,
            add_measure_options,
            add_cluster_options,
        ),
    ),
    "worker": Command(
        function="tuner.cli.tune.worker:worker_command",
        summary="offer this host's compilers and cards to a cluster (--cluster)",
        adders=(add_worker_options,),
    ),
    "merge": Command(
        function="tuner.cli.tune.merge:merge_command",
        summary="take over results that were made elsewhere: table rows, journals, reports",
        adders=(options.add_operators_option, options.add_json_option, add_merge_options),
    ),
    "peers": Command(
        function="tuner.cli.tune.peers:peers_command",
        summary="time cuBLAS and torch.compile on a card beside the table's kernel",
        adders=(options.add_problem_options, options.add_json_option, add_peers_options),
    ),
    "day-one": Command(
        function="tuner.cli.day.one:day_one_command",
        summary="first visit to a card: selfcheck, measure, calibrate, peers, in one folder",
        adders=(options.add_problem_options, options.add_json_option, add_day_one_options),
    ),
    "lookup": Command(
        function="tuner.cli.look.lookup:lookup_command",
        summary="what the dispatch table launches",
        adders=_COMMON,
    ),
    "bundle": Command(
        function="tuner.cli.tune.bundle:bundle_command",
        summary="copy the table's objects beside it, to launch without a compiler",
        adders=(
            options.add_operators_option,
            options.add_device_options,
            options.add_json_option,
            options.add_bundle_options,
        ),
    ),
    "report": Command(
        function="tuner.cli.look.report:report_command",
        summary="write the report again from the journal, and the index of all",
        adders=(*_COMMON, options.add_all_option),
    ),
    "ops": Command(
        function="tuner.cli.look.ops:ops_command",
        summary="the operators, how their problems are written, their kernels and devices",
        adders=(options.add_operators_option, options.add_json_option),
    ),
    "space": Command(
        function="tuner.cli.look.space:space_command",
        summary="size of the search space, legal points, rejections by rule",
        adders=_COMMON,
    ),
    "clean": Command(
        function="tuner.cli.look.clean:clean_command",
        summary="remove compiled kernels and verdicts: the next tune makes them again",
        adders=(options.add_json_option, add_clean_options),
    ),
    "completion": Command(
        function="tuner.cli.look.completion:completion_command",
        summary="print what a shell needs to complete commands and options",
        adders=(add_completion_options,),
    ),
    "help": Command(
        function="tuner.cli.look.completion:help_command",
        summary="what a command does, and its options",
        adders=(add_help_options,),
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    open_streams()
    try:
        return _ended(list(sys.argv[1:] if argv is None else argv))
    except InputError as error:
        return _fail(str(error), BAD_INPUT)
    except (CommandError, StoreError) as error:
        return _fail(str(error), 1)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # Whoever read the output has gone; nothing may be written at exit either.
        _drop_output()
        return 1
    except OSError as error:
        if error.errno not in REFUSALS:  # a bug of ours
            raise
        return _refused(error)


def parser_of(name: str) -> argparse.ArgumentParser:
    command = COMMANDS[name]
    default = name == DEFAULT_COMMAND
    parser = options.Parser(
        prog=COMMAND if default else f"{COMMAND} {name}",
        usage=f"{COMMAND} [COMMAND] [OPTION ...]" if default else None,
        description=command.summary,
        epilog=f"{_overview()}\n\n{EXAMPLES}" if default else None,
    )
    parser.add_argument("--version", action=options.Version, text=f"{COMMAND} {__version__}")
    for add in command.adders:
        add(parser)
    return parser


def _ended(argv: list[str]) -> int:
    """The exit code, after all output was taken."""
    try:
        code = _run(argv)
    except SystemExit as done:  # --help, --version
        if done.code:
            raise InputError(
                f"code that was loaded ends the program with {done.code!r:.80}; mend it"
            ) from None
        code = 0
    sys.stdout.flush()
    return code


def _run(argv: list[str]) -> int:
    name = DEFAULT_COMMAND
    if argv and not argv[0].startswith("-"):
        name = argv.pop(0)
    if name not in COMMANDS:
        raise InputError(f"unknown command {name!r:.80}; the commands are {', '.join(COMMANDS)}")
    args = parser_of(name).parse_args(argv)
    for folder in getattr(args, "operators", ()):  # before anything asks which operators there are
        registry.add_folder(folder)
    check_early(args)
    module, _, function = COMMANDS[name].function.partition(":")
    with quiet() if getattr(args, "quiet", False) else contextlib.nullcontext():
        return getattr(importlib.import_module(module), function)(args)


def _overview() -> str:
    lines = [f"  {name:<13}{command.summary}" for name, command in COMMANDS.items()]
    return "commands (tune is the default):\n" + "\n".join(lines)


def _refused(error: OSError) -> int:
    """The system refuses a file of the cache, or the output."""
    _drop_output()
    what = f"cannot use {error.filename}" if error.filename else "cannot write the output"
    return _fail(f"{what}: {error.strerror}", BAD_INPUT)


def _drop_output() -> None:
    """What is still waiting to be written would fail once more at exit."""
    _drop(sys.stdout)


def _drop(stream: TextIO) -> None:
    with contextlib.suppress(io.UnsupportedOperation):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _fail(message: str, code: int) -> int:
    line = " ".join(message.split())
    shown = line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}... ({len(line)} characters)"
    try:
        print(f"error: {shown}", file=sys.stderr, flush=True)
    except OSError:  # nobody is there to be told
        _drop(sys.stderr)
    return code

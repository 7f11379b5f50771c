"""Options of the command line: parsed at the edge, every mistake one ``InputError`` line."""

from __future__ import annotations

import argparse
import functools
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from kernel_space.core import registry
from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from kernel_space.operators import DEFAULT
from kernel_space.places import COMMAND, user_results
from tuner.cli.options.shapes import (
    MOST_CHARACTERS,
    SHAPES_KEY,
    Entry,
    add_model_options,
    model_values,
    parse_shape,
    read_model,
    read_shapes,
)

MOST_JOBS = 1024
MOST_SEED = 2**32 - 1  # what numpy's generators take


class Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` whose errors are one line without usage."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def print_help(self, file: Any = None) -> None:
        """argparse's own passes over an output that takes nothing."""
        (file or sys.stdout).write(self.format_help())

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see {self.prog} --help")


class Version(argparse.Action):
    """Prints ``text`` and ends; argparse's own passes over an output that takes nothing."""

    def __init__(self, option_strings: Sequence[str], dest: str, text: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help="print the version")
        self.text = text

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(self.text)
        parser.exit()


def add_operator_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--op", default=DEFAULT, metavar="NAME", help=f"operator ({DEFAULT}); {COMMAND} ops lists them"
    )
    add_operators_option(parser)


def add_operators_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--operators",
        action="append",
        default=[],
        metavar="DIR",
        help="also find the operators in this folder, each a folder NAME with operator.py; their code is run",
    )


def add_problem_options(parser: argparse.ArgumentParser) -> None:
    add_operator_options(parser)
    add_problem_selectors(parser)


def add_problem_selectors(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="SIZES",
        help="sizes of one problem in the operator's form; may be repeated",
    )
    parser.add_argument(
        "--shapes",
        type=Path,
        metavar="FILE.yaml",
        help=f"shapes from a YAML list, or a list under {SHAPES_KEY}:; entries with calls: most gain first",
    )
    add_model_options(parser)
    parser.add_argument(
        "--dtype",
        metavar="D",
        help="dtypes of the problem: one for all options that can have it, or one for each, as fp16/bf16",
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="one option of the problem by its name; may be repeated",
    )


def add_device_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device",
        default="auto",
        metavar="D",
        help="auto (default: a supported card, else b200 simulated), cuda:N, or a class: b200, b300, h200, h100, "
        "h100-pcie, h100-nvl, or one of a card that was tuned below --out",
    )
    add_out_option(parser)


def add_out_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out",
        type=folder,
        default=user_results(),
        metavar="DIR",
        help="where results are kept (SVDQUANT_TUNE_RESULTS, else your data folder: %(default)s)",
    )


def add_all_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--all",
        action="store_true",
        help="every problem of the device that has trials below --out, and the index",
    )


def add_config_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        metavar="KNOBS",
        help='"kernel=NAME knob=value ..." (knobs not named keep their default), or winner (the row of the table), '
        "default (the default rule), published; without it the row where there is one, for explain the default rule",
    )


def add_json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout, nothing else")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr; warnings stay")


def add_tune_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trials", type=whole(1), metavar="N", help="distinct candidates (200)")
    parser.add_argument(
        "--timeout", type=seconds_above_0, metavar="S", help="stop each search after so many seconds"
    )
    parser.add_argument("--json-lines", action="store_true", help="print events on stdout, one JSON per line")
    parser.add_argument(
        "--jobs", type=whole(1, MOST_JOBS), metavar="N", help="compile workers (one per core)"
    )
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help="same seed, same trials (0)")
    parser.add_argument(
        "--no-resume", action="store_true", help="evaluate anew what the journal of an earlier run answers"
    )
    parser.add_argument(
        "--objects",
        type=Path,
        metavar="DIR",
        help="take what compile-only left there instead of compiling it",
    )


def add_check_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--schedule",
        default="all",
        metavar="S",
        help="all (default), eager, random, slow_tma, slow_tensor or slow_epilogue: the order in which things happen",
    )
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help="of operands and random order (0)")
    parser.add_argument(
        "--full", action="store_true", help="then run the shape itself once (minutes if large)"
    )
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="write the timeline of the first schedule as Chrome/Perfetto JSON",
    )
    parser.add_argument(
        "--inject",
        metavar="MUTATION",
        help="break the kernel first, to see the report; 'list' names the ways",
    )


def add_bundle_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--also-dtype",
        action="append",
        default=[],
        metavar="D",
        help="also compile every row's config for these dtypes: bf16, or one for each option as fp16/bf16; repeatable",
    )
    parser.add_argument(
        "--objects", type=Path, metavar="DIR", help="take objects from what compile-only left there, too"
    )
    parser.add_argument(
        "--only-spares",
        action="store_true",
        help="only the kernels without a row that calibrate --spares chose; objects of rows stay as they are",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="bundle nothing; check each bundled object that was never judged on the card of --device",
    )


def problems_of(args: argparse.Namespace) -> list[Problem]:
    """Every problem named, each once, in order. Raises ``InputError`` when there is none."""
    if not (problems := named_problems(args)):
        asked = registry.operator(args.op).problem
        example = f", for example --shape {asked.example}" if asked.example else ""
        raise InputError(f"say which problem: --shape {asked.form()}{example}")
    return problems


def named_problems(args: argparse.Namespace) -> list[Problem]:
    """``problems_of`` where there may be none."""
    return list(dict.fromkeys(entry.problem for entry in named_entries(args)))


def counted_problems(args: argparse.Namespace) -> dict[Problem, int | None]:
    """``problems_of`` with the calls of each, of several entries together; None where nobody counted."""
    found: dict[Problem, int | None] = dict.fromkeys(problems_of(args))
    for entry in named_entries(args):
        if entry.calls is not None:
            found[entry.problem] = (found[entry.problem] or 0) + entry.calls
    return found


def named_entries(args: argparse.Namespace) -> list[Entry]:
    """What ``--shape``, ``--shapes`` and ``--model`` name, in order. Raises ``InputError``."""
    kind = registry.operator(args.op).problem
    options_for = functools.partial(options_of, args)
    entries = [Entry(problem=parse_shape(text, kind, options_for(kind))) for text in args.shape]
    if args.shapes is not None:
        entries += read_shapes(args.shapes, args.op, options_for)
    values = model_values(args)
    if args.model is not None:
        entries += read_model(args.model, values, options_for)
    return entries


def check_out(path: Path) -> Path:
    """``path`` may be missing, but neither it nor what it lies in may be a file. Creates nothing."""
    try:
        for part in (path, *path.parents):
            if part.is_dir():
                return path
            if os.path.lexists(part):
                raise InputError(
                    f"--out must be a folder, got {path} but {part} is a file; choose another path"
                )
    except OSError as error:  # a name that is too long, a circle of links
        raise InputError(f"--out must be a folder, got {str(path)[:80]}...: {error.strerror}") from None
    return path


def results_of(args: argparse.Namespace) -> Path:
    """``--out`` of a command that only reads: a folder that was named must be there. Raises ``InputError``."""
    path: Path = check_out(args.out)
    if path != user_results() and not path.is_dir():
        raise InputError(f"--out must be a folder of results, got {path}, which is not there")
    return path


def options_of(args: argparse.Namespace, kind: type[Problem]) -> dict[str, str]:
    """Options of a problem by ``--dtype`` and ``--option``. Raises ``InputError``."""
    found = {} if args.dtype is None else dtypes_of(args.dtype, kind)
    named: dict[str, str] = {}
    for text in args.option:
        name, equals, value = text.partition("=")
        if not equals or name not in kind.option_names():
            known = " ".join(kind.option_names()) or "none"
            raise InputError(f"--option must be NAME=VALUE with NAME one of {known}, got {text!r}")
        if name in named:
            raise InputError(f"--option {name} is given twice, {named[name]!r} and {value!r}; leave one out")
        named[name] = value
    return found | named


def dtypes_of(text: str, kind: type[Problem]) -> dict[str, str]:
    """Option -> dtype, of ``bf16`` (for every option that can have it) or ``fp16/bf16`` (one for each in order).

    Raises ``InputError``.
    """
    parts, forms = text.split("/"), kind.forms()
    names = tuple(name for name in kind.option_names() if not forms[name].unsaid)
    if len(parts) == 1:
        found = {name: text for name in names if text in forms[name].choices}
    else:
        found = dict(zip(names, parts, strict=False)) if len(parts) == len(names) else {}
    if not found or any(value not in forms[name].choices for name, value in found.items()):
        each = "/".join(name.upper() for name in names)
        choices = ", ".join(dict.fromkeys(choice for name in names for choice in forms[name].choices))
        raise InputError(
            f"--dtype must be one of {choices}, or {each}, got {text!r}"
            if names
            else f"{kind.operator} has no dtypes to choose, got --dtype {text!r}"
        )
    return found


def whole(least: int, most: int = 10**9) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdecimal()) or int(text[:MOST_CHARACTERS]) < least:
            raise argparse.ArgumentTypeError(f"must be a whole number of at least {least}, got {text!r:.80}")
        if len(text) > MOST_CHARACTERS or int(text) > most:
            raise argparse.ArgumentTypeError(f"must be a whole number of at most {most}, got {text!r:.80}")
        return int(text)

    return parse


def seed(text: str) -> int:
    return whole(0, MOST_SEED)(text)


def folder(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("must name a folder, got ''")
    return Path(text)


def seconds_above_0(text: str) -> float:
    try:
        seconds = float(text) if text.isascii() else math.nan
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, got {text!r:.80}")
    return seconds

"""Options of the command line: parsed at the edge, every mistake one ``InputError`` line."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from kernel_space.core.arch import Arch
from kernel_space.core.config import KernelConfig
from kernel_space.core.errors import InputError
from kernel_space.core.registry import parse_config
from kernel_space.operators.svdquant_gemm.problem import HALF_DTYPES, GemmProblem

DEFAULT_OUT = "results"
SHAPES_KEY = "problems"


class Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` whose errors are one line without usage."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see {self.prog} --help")


def add_problem_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="M,K,N,R",
        help="sizes and LoRA rank (0: none); may be repeated",
    )
    parser.add_argument(
        "--shapes",
        type=Path,
        metavar="FILE.yaml",
        help=f"shapes from a YAML list, or a list under {SHAPES_KEY}:",
    )
    parser.add_argument(
        "--dtype",
        default="fp16",
        metavar="D",
        help="dtype of the LoRA operands and of y: fp16 (default), bf16, or two as fp16/bf16",
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
        type=Path,
        default=Path(DEFAULT_OUT),
        metavar="DIR",
        help=f"where results are kept ({DEFAULT_OUT})",
    )


def add_config_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        metavar="KNOBS",
        help='"knob=value ...": knobs not named keep their default; without --config, the default rule',
    )


def add_json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout, nothing else")


def add_tune_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trials", type=whole(1), metavar="N", help="distinct candidates (200)")
    parser.add_argument(
        "--timeout", type=seconds_above_0, metavar="S", help="stop each search after so many seconds"
    )
    parser.add_argument("--jobs", type=whole(1), metavar="N", help="compile workers (one per core)")
    parser.add_argument("--seed", type=whole(0), default=0, metavar="N", help="same seed, same trials (0)")
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
    parser.add_argument(
        "--seed", type=whole(0), default=0, metavar="N", help="of operands and random order (0)"
    )
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
        help="also compile every row's config for these dtypes of LoRA and y: bf16, or two as fp16/bf16; repeatable",
    )
    parser.add_argument(
        "--objects", type=Path, metavar="DIR", help="take objects from what compile-only left there, too"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="bundle nothing; check each bundled object that was never judged on the card of --device",
    )


def problems_of(args: argparse.Namespace) -> list[GemmProblem]:
    """Every problem named, each once, in order. Raises ``InputError`` when there is none."""
    if not (problems := named_problems(args)):
        raise InputError("say which problem: --shape M,K,N,R, for example --shape 4352,3840,3072,128")
    return problems


def named_problems(args: argparse.Namespace) -> list[GemmProblem]:
    """``problems_of`` where there may be none."""
    lora_dtype, out_dtype = dtypes_of(args.dtype)
    problems = [GemmProblem.parse(text, lora_dtype=lora_dtype, out_dtype=out_dtype) for text in args.shape]
    if args.shapes is not None:
        problems += _read_shapes(args.shapes, lora_dtype, out_dtype)
    return list(dict.fromkeys(problems))


def config_of(args: argparse.Namespace, arch: Arch) -> KernelConfig | None:
    """The config of ``--config`` for the kernel of ``arch``, None without the option."""
    return None if args.config is None else parse_config(GemmProblem.operator, arch, args.config)


def check_out(path: Path) -> Path:
    """``path`` may be missing, but neither it nor what it lies in may be a file. Creates nothing."""
    for part in (path, *path.parents):
        if part.is_dir():
            return path
        if os.path.lexists(part):
            raise InputError(f"--out must be a folder, got {path} but {part} is a file; choose another path")
    return path


def dtypes_of(text: str) -> tuple[str, str]:
    """(LoRA, y) of ``bf16`` or ``fp16/bf16``. Raises ``InputError``."""
    parts = text.split("/")
    if len(parts) > 2 or any(part not in HALF_DTYPES for part in parts):
        raise InputError(
            f"--dtype must be {' or '.join(HALF_DTYPES)}, or LORA/OUT such as fp16/bf16, got {text!r}"
        )
    return parts[0], parts[-1]


def _read_shapes(path: Path, lora_dtype: str, out_dtype: str) -> Iterator[GemmProblem]:
    from tuner.files.plain_yaml import load_yaml

    try:
        document = load_yaml(path)
    except OSError as error:
        raise InputError(f"cannot read --shapes {path}: {error.strerror}") from None
    except InputError as error:
        raise InputError(f"--shapes {error}") from None
    entries = document.get(SHAPES_KEY) if isinstance(document, dict) else document
    if not isinstance(entries, list) or not entries:
        raise InputError(f"--shapes {path} must hold a list of M,K,N,R, or one under {SHAPES_KEY}:")
    for number, entry in enumerate(entries, start=1):
        try:
            yield _problem_entry(entry, lora_dtype, out_dtype)
        except InputError as error:
            raise InputError(f"{path}, entry {number}: {error}") from None


def _problem_entry(entry: Any, lora_dtype: str, out_dtype: str) -> GemmProblem:
    """``4352,3840,3072,128``, or a mapping with ``shape`` and, if wanted, ``lora_dtype`` and ``out_dtype``."""
    fields = entry if isinstance(entry, dict) else {"shape": entry}
    return GemmProblem.parse(
        str(fields.get("shape")),
        lora_dtype=str(fields.get("lora_dtype", lora_dtype)),
        out_dtype=str(fields.get("out_dtype", out_dtype)),
    )


def whole(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"must be a whole number of at least {least}, got {text!r}")
        return int(text)

    return parse


def seconds_above_0(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, got {text!r}")
    return seconds

"""What can be told wrong before a command loads what it works with, which takes seconds."""

from __future__ import annotations

import argparse
from pathlib import Path

from kernel_space.core import registry
from kernel_space.core.errors import InputError
from kernel_space.operators import DEFAULT
from tuner.cli.options.common import check_out, options_of
from tuner.cli.options.shapes import parse_shape


def check_early(args: argparse.Namespace) -> None:
    """``--op``, problems by ``--shape``, ``--out`` and ``--trace``; files are read once, by the command. Raises
    ``InputError``."""
    if (name := getattr(args, "op", None)) is not None:
        registry.operator(name)
    if shapes := getattr(args, "shape", None):
        kind = registry.operator(args.op or DEFAULT).problem
        options = options_of(args, kind)
        for text in shapes:
            parse_shape(text, kind, options)
    if (out := getattr(args, "out", None)) is not None:
        check_out(out)
    if (trace := getattr(args, "trace", None)) is not None:
        _check_trace(trace)


def _check_trace(path: Path) -> None:
    """A file, or none yet in a folder that is there."""
    try:
        path.lstat()
        good = path.is_file()
    except FileNotFoundError:
        good = path.parent.is_dir()
    except NotADirectoryError:
        good = False
    except OSError as error:  # a name that is too long
        raise InputError(f"--trace cannot be {str(path)[:80]}: {error.strerror}") from None
    if not good:
        raise InputError(f"--trace must name a file in a folder that exists, got {path}")

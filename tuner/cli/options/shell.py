"""Options of the commands that are about the command line itself."""

from __future__ import annotations

import argparse

SHELLS = ("bash", "zsh", "fish")


def add_clean_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cache", action="store_true", help="compiled kernels and verdicts of the machine")


def add_completion_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=" or ".join(SHELLS))


def add_help_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "command", nargs="?", metavar="COMMAND", help="which command; without one, all of them"
    )

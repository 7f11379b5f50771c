"""Folders besides the code: what this installation ships, and where this user's results and compiled kernels lie.

The only place that reads environment variables for folders:

``SVDQUANT_TUNE_RESULTS``  results, instead of ``svdquant-tune`` in the platform's data folder
``SVDQUANT_TUNE_CACHE``    compiled kernels and verdicts, instead of ``svdquant-tune`` in the cache folder
``XDG_DATA_HOME``, ``XDG_CACHE_HOME``  the platform's folders, where they are not ``~/.local/share`` and ``~/.cache``
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_NAME = "svdquant-tune"
_ROOT = Path(__file__).resolve().parents[1]  # the checkout, or site-packages
_DATA = _ROOT / "svdquant_tune_data"  # of an installed wheel; setup.py puts it there
INSTALLED = _DATA.is_dir()
COMMAND = _NAME if INSTALLED else "tune.py"
"""What messages call the command line: how it is started here."""
TO_TUNE = f"{_NAME}[tune]" if INSTALLED else "-r requirements.txt"
"""What pip is asked to install for compiler and search."""


def shipped(name: str) -> Path:
    """A folder of data of this project (``results``, ``search_spaces``): of the checkout, or of the installed wheel."""
    return (_DATA if INSTALLED else _ROOT) / name


def user_results() -> Path:
    """Where this user's results lie unless a command is told otherwise. Made by who writes there."""
    named = os.environ.get("SVDQUANT_TUNE_RESULTS")
    return Path(named) if named else _data_home() / _NAME


def cache_folder() -> Path:
    """Where compiled kernels and verdicts of the machine lie. Made by who writes there."""
    named = os.environ.get("SVDQUANT_TUNE_CACHE")
    return Path(named) if named else _home("XDG_CACHE_HOME", ".cache") / _NAME


def layers(results: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Folders that answer for ``results``, the first that has something decides.

    The user's own folder lies over what is shipped. Any other folder stands for itself alone.
    """
    own, below = Path(results), shipped("results")
    mine = own.absolute() == user_results().absolute()
    return (own, below) if mine and own.resolve() != below.resolve() else (own,)


def _data_home() -> Path:
    return _home(
        "XDG_DATA_HOME", "Library/Application Support" if sys.platform == "darwin" else ".local/share"
    )


def _home(variable: str, otherwise: str) -> Path:
    named = os.environ.get(variable)
    return Path(named) if named else Path(os.path.expanduser("~")) / otherwise

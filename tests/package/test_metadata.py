"""``pyproject.toml`` against the requirements of a checkout and against what the code imports."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import tuner

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Distribution -> what it is imported as, where the names differ.
MODULES = {
    "pyyaml": "yaml",
    "scikit-learn": "sklearn",
    "nvidia-cutlass-dsl": "cutlass",
    "nvidia-cuda-cuobjdump": "nvidia",
    "nvidia-cuda-nvdisasm": "nvidia",
}


def names(path: str) -> set[str]:
    lines = (line.partition("#")[0].strip() for line in (ROOT / path).read_text().splitlines())
    return {line for line in lines if line and not line.startswith("-")}


def module(distribution: str) -> str:
    return MODULES.get(distribution, distribution)


def imports(*packages: str) -> set[str]:
    """Top-level modules that code of the project imports, wherever."""
    files = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    nodes = [node for path in files for node in ast.walk(ast.parse(path.read_text()))]
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    named = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    return {name.split(".")[0] for name in plain | named}


def test_a_checkout_installs_the_core_and_what_tunes() -> None:
    core, extras = PROJECT["dependencies"], PROJECT["optional-dependencies"]
    assert names("requirements.txt") == {*core, *extras["tune"]}
    assert set(extras) == {"tune", "models", "fleet"}


def test_everything_that_is_imported_is_declared() -> None:
    """``cuda`` comes with the DSL, ``triton`` with torch for cards."""
    declared = [
        *PROJECT["dependencies"],
        *(one for names in PROJECT["optional-dependencies"].values() for one in names),
    ]
    known = {module(one) for one in declared} | {
        *sys.stdlib_module_names,
        "kernel_space",
        "tuner",
        "cuda",
        "triton",
    }
    assert imports("kernel_space", "tuner") <= known


def test_pinned_versions_cover_the_checkout() -> None:
    pinned = {line.partition("==")[0].lower() for line in names("constraints.txt")}
    assert names("requirements.txt") <= pinned


def test_there_is_one_name_and_one_version() -> None:
    assert PROJECT["name"] == "svdquant-tune" and PROJECT["dynamic"] == ["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", tuner.__version__)
    assert PROJECT["scripts"] == {"svdquant-tune": "tuner.cli.start:start"}

"""Which operators there are, and where: found, not listed.

1. folders below ``kernel_space/operators/``,
2. folders below those that ``$SVDQUANT_OPERATORS`` names (``--operators DIR`` sets it), so that worker processes find
   the same ones,
3. entry points of installed packages, group ``svdquant_autotuner.operators``: ``name = "module"``.

A folder is an operator when it has an ``operator.py``. Nothing of an operator is imported before it is asked for.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import re
import sys
from pathlib import Path

from kernel_space.core.arch import Arch
from kernel_space.core.config import KernelConfig
from kernel_space.core.errors import InputError
from kernel_space.core.kernel import Kernel
from kernel_space.core.operator import Operator, load_kernel, load_part
from kernel_space.core.problem import Problem, ProblemClass

OWN = "kernel_space.operators"
VARIABLE = "SVDQUANT_OPERATORS"
ENTRY_POINTS = "svdquant_autotuner.operators"
_HERE = Path(__file__).resolve().parents[1] / "operators"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


def add_folder(folder: str | os.PathLike[str]) -> None:
    """Also find the operators below ``folder``, in this process and those that it starts.

    Raises ``InputError`` for a folder without operators and for one whose operator has the name of another module.
    """
    path = Path(folder).resolve()
    names = [found.parent.name for found in sorted(path.glob("*/operator.py"))] if path.is_dir() else []
    if not names:
        raise InputError(f"--operators must be a folder with NAME/operator.py in it, got {folder}")
    if bad := [name for name in names if not _NAME.fullmatch(name)]:
        raise InputError(
            f"an operator's folder must be named by small letters, digits and _, got {path / bad[0]}; rename it"
        )
    if os.pathsep in str(path):
        raise InputError(f"--operators must be a folder without {os.pathsep!r} in its path, got {path}")
    before = os.environ.get(VARIABLE, "")
    known = [item for item in before.split(os.pathsep) if item]
    os.environ[VARIABLE] = os.pathsep.join(dict.fromkeys([*known, str(path)]))
    forget()
    try:
        _modules()
    except InputError:
        os.environ[VARIABLE] = before
        forget()
        raise


def forget() -> None:
    """Look again: folders have changed."""
    _modules.cache_clear()
    operator.cache_clear()
    kernel.cache_clear()
    _parsed.cache_clear()


def operator_names() -> tuple[str, ...]:
    """Every operator that can be found, in the order of their names."""
    return tuple(sorted(_modules()))


@functools.cache
def operator(name: str) -> Operator:
    """The operator ``name``. Raises ``InputError`` for one that is not there or cannot be imported."""
    module = _module_of(name)
    found = load_part(module, "OPERATOR", Operator, f"operator {name}")
    if found.name != name:
        raise InputError(f"{module} must hold the operator {name}, it has {found.name!r}")
    return found


@functools.cache
def kernel(operator_name: str, name: str) -> Kernel:
    """A kernel of an operator. Raises ``InputError`` for one that is not there."""
    found = operator(operator_name)
    if name not in found.kernels:
        raise InputError(
            f"{operator_name} has no kernel {name!r}; its kernels are {', '.join(found.kernels)}"
        )
    if found.composed is not None:
        return found.composed.kernel(name)
    return load_kernel(package_of(operator_name), operator_name, name)


def operator_of(problem: Problem | ProblemClass) -> Operator:
    return operator(problem.operator)


def kernels_of(operator_name: str, arch: Arch) -> tuple[Kernel, ...]:
    """The kernels of an operator for ``arch``, in the order in which it names them; may be none."""
    found = (kernel(operator_name, name) for name in operator(operator_name).kernels)
    return tuple(one for one in found if arch.name in one.archs)


def kernel_of(config: KernelConfig, problem: Problem | ProblemClass) -> Kernel:
    """The kernel whose config ``config`` is. Raises ``InputError`` when the operator has no such kernel."""
    found = kernel(problem.operator, config.kernel)
    if not isinstance(config, found.config_class):
        raise TypeError(
            f"{found.full_name} takes a {found.config_class.__name__}, got {type(config).__name__}"
        )
    return found


def parse_config(operator_name: str, arch: Arch, text: str) -> KernelConfig:
    """A candidate from its printed form ``kernel=NAME knob=value …``; ``kernel=`` may be left out where the operator
    has one kernel for ``arch``. Raises ``InputError``.
    """
    return _parsed(operator_name, arch, text)


@functools.lru_cache(maxsize=4096)  # a report parses the same configs again and again
def _parsed(operator_name: str, arch: Arch, text: str) -> KernelConfig:
    first, _, rest = text.strip().partition(" ")
    kernels = kernels_of(operator_name, arch)
    names = ", ".join(one.name for one in kernels) or "none"
    if first.startswith("kernel="):
        name, text = first.removeprefix("kernel="), rest
    elif len(kernels) == 1:
        name = kernels[0].name
    else:
        raise InputError(
            f"a candidate of {operator_name} on {arch.name} must begin with kernel=NAME, one of {names}; "
            f"got {text!r:.80}"
        )
    for one in kernels:
        if one.name == name:
            return one.config_class.parse(text)
    raise InputError(f"kernel must be one of {names} for {operator_name} on {arch.name}, got {name!r:.80}")


def package_of(operator_name: str) -> str:
    """The package that holds an operator's module, and its kernels' folders."""
    return _module_of(operator_name).rpartition(".")[0]


def folder_of(operator_name: str) -> Path:
    """The folder of an operator's module."""
    spec = importlib.util.find_spec(package_of(operator_name))
    if spec is None or not spec.submodule_search_locations:
        raise InputError(f"operator {operator_name} must be a folder, it is a single module")
    return Path(next(iter(spec.submodule_search_locations)))


def _module_of(name: str) -> str:
    if _NAME.fullmatch(name) and (_HERE / name / "operator.py").is_file():
        return f"{OWN}.{name}.operator"  # without asking for the installed packages, which takes a while
    found = _modules()
    if name not in found:
        raise InputError(f"there is no operator {name!r:.80}; the operators are {', '.join(sorted(found))}")
    return found[name]


@functools.cache
def _modules() -> dict[str, str]:
    """Operator -> its module."""
    found = {name: f"{OWN}.{name}.operator" for name in _names_in(_HERE)}
    for folder in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        for name in _names_in(Path(folder)):
            _refuse_twice(name, found, folder)
            found[name] = _importable(name, Path(folder))
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        _refuse_twice(entry.name, found, f"the package of entry point {entry.value}")
        found[entry.name] = entry.value
    return found


def _names_in(folder: Path) -> list[str]:
    return [
        path.parent.name for path in sorted(folder.glob("*/operator.py")) if _NAME.fullmatch(path.parent.name)
    ]


def _refuse_twice(name: str, found: dict[str, str], where: object) -> None:
    if name in found:
        raise InputError(f"two operators are called {name}: {found[name]} and one in {where}; rename one")


def _importable(name: str, folder: Path) -> str:
    """The module of an operator outside of the project: its folder is a package of its own name."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    spec = importlib.util.find_spec(name)
    locations = [Path(item).resolve() for item in (spec.submodule_search_locations or ())] if spec else []
    if (folder / name).resolve() not in locations:
        raise InputError(
            f"the operator {folder / name} must have a name that no other module has; rename the folder"
        )
    return f"{name}.operator"

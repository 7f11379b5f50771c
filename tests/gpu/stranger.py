"""Objects of operators that the project does not know (``tests/plugins``), for a card without the DSL.

    python -m tests.gpu.stranger .pack/stranger     # with the DSL, no GPU

The tests look for them in ``.pack/stranger``, else build them when the DSL is installed. ``rowstats`` is a single
operator, ``twice`` a chain of two.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernel_space.core import registry
from kernel_space.core.arch import SM90A, Arch
from kernel_space.core.arguments import Argument

FOLDER = Path(__file__).resolve().parents[2] / ".pack" / "stranger"
NAME, CHAIN = "rowstats", "twice"
ARCH = SM90A
_FACTS = "facts.json"
_OBJECT = "kernel.o"


def pack(folder: Path, arch: Arch = ARCH) -> None:
    """Compile the kernel of each with its default config into ``folder``. Needs the DSL."""
    for name in (NAME, CHAIN):
        compiled, own = build(arch, name), folder / name
        own.mkdir(parents=True, exist_ok=True)
        (own / _OBJECT).write_bytes(compiled.object_path.read_bytes())
        facts = {
            "arch": arch.name,
            "prefix": compiled.prefix,
            "object_sha256": compiled.object_sha256,
            "arguments": [dataclasses.asdict(argument) for argument in compiled.arguments],
        }
        (own / _FACTS).write_text(json.dumps(facts, indent=1) + "\n")


def default_config(name: str) -> Any:
    (kernel,) = registry.operator(name).kernels
    return registry.kernel(name, kernel).config_class()


def build(arch: Arch, name: str) -> Any:
    from kernel_space.build.build import build as compile_or_fetch

    return compile_or_fetch(default_config(name), registry.operator(name).problem.class_of(), arch)


def compiled_for(arch: Arch, name: str = NAME) -> Any:
    """As ``build`` gives it."""
    own = FOLDER / name
    if (own / _FACTS).is_file():
        facts = json.loads((own / _FACTS).read_text())
        if facts.pop("arch") == arch.name:
            arguments = tuple(Argument(**argument) for argument in facts.pop("arguments"))
            return SimpleNamespace(object_path=own / _OBJECT, arguments=arguments, **facts)
    if importlib.util.find_spec("cutlass") is None:
        pytest.fail(f"no object of {name} for {arch.name}: python -m tests.gpu.stranger {FOLDER}")
    return build(arch, name)


if __name__ == "__main__":
    import tests.conftest  # noqa: F401 - finds the operator

    pack(Path(sys.argv[1]))

"""The object of an operator that the project does not know (``tests/plugins/rowstats``), for a card without the DSL.

    python -m tests.gpu.stranger .pack/stranger     # with the DSL, no GPU

The tests look for it in ``.pack/stranger``, else build it when the DSL is installed.
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
NAME = "rowstats"
ARCH = SM90A
_FACTS = "facts.json"
_OBJECT = "kernel.o"


def pack(folder: Path, arch: Arch = ARCH) -> None:
    """Compile the kernel with its default config into ``folder``. Needs the DSL."""
    compiled = build(arch)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _OBJECT).write_bytes(compiled.object_path.read_bytes())
    facts = {
        "arch": arch.name,
        "prefix": compiled.prefix,
        "object_sha256": compiled.object_sha256,
        "arguments": [dataclasses.asdict(argument) for argument in compiled.arguments],
    }
    (folder / _FACTS).write_text(json.dumps(facts, indent=1) + "\n")


def build(arch: Arch) -> Any:
    from kernel_space.build.build import build as compile_or_fetch

    config = registry.kernel(NAME, "rows").config_class()
    return compile_or_fetch(config, registry.operator(NAME).problem.class_of(), arch)


def compiled_for(arch: Arch) -> Any:
    """As ``build`` gives it."""
    if (FOLDER / _FACTS).is_file():
        facts = json.loads((FOLDER / _FACTS).read_text())
        if facts.pop("arch") == arch.name:
            arguments = tuple(Argument(**argument) for argument in facts.pop("arguments"))
            return SimpleNamespace(object_path=FOLDER / _OBJECT, arguments=arguments, **facts)
    if importlib.util.find_spec("cutlass") is None:
        pytest.fail(f"no object of {NAME} for {arch.name}: python -m tests.gpu.stranger {FOLDER}")
    return build(arch)


if __name__ == "__main__":
    import tests.conftest  # noqa: F401 - finds the operator

    pack(Path(sys.argv[1]))

"""A foreign kernel to run: where it is, what it is run with."""

from __future__ import annotations

import dataclasses
from pathlib import Path


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """``script``: a Python file below the corpus's folder, or ``module:function`` of this package.

    ``sizes``: what the arguments ask for, in words; ``corpora``: the folders it needs, by name. ``settled``: whose a
    finding is and why, where it is not the machine's.
    """

    name: str
    arch: str
    script: str
    arguments: tuple[str, ...]
    corpora: tuple[str, ...]
    sms: int = 8
    settled: str = ""

    @property
    def sizes(self) -> str:
        return " ".join(self.arguments)

    def location(self, folders: dict[str, Path]) -> str:
        return str(folders[self.corpora[0]] / self.script) if self.script.endswith(".py") else self.script

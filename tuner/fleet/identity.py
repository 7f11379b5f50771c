"""What a host is: the sources and the compiler that it has, its cards; and whether it may work for a tuner.

Tasks ask the engine for a host's offer (``compile``, ``simulate``, ``card-<class>``) and for tags, which are resources
too: one that is named after the sources, and for a compilation one that is named after the compiler. So the engine
itself never gives a task to a host of others, whenever it joined.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import platform
import socket
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self

from kernel_space.core.errors import InputError

if TYPE_CHECKING:
    from tuner.devices.classes import Card

COMPILE, SIMULATE, CARD = "compile", "simulate", "card-"
_ROOT = Path(__file__).resolve().parents[2]
ENDLESS = 1_000_000.0  # of a tag: it bounds nothing


@dataclasses.dataclass(frozen=True, kw_only=True)
class Identity:
    """``sources``: a hash of this project's and of the operators' code; ``compiler``: packages, none where there is no
    compiler; ``python``: the version by which values are sent; ``machine``: whose host code is compiled."""

    sources: str
    compiler: tuple[str, ...]
    python: str
    machine: str

    @classmethod
    def here(cls) -> Self:
        from kernel_space.build.key import toolchain

        try:
            compiler = toolchain().packages
        except InputError:
            compiler = ()
        return cls(
            sources=sources_hash(_operators_elsewhere()),
            compiler=compiler,
            python=".".join(map(str, sys.version_info[:2])),
            machine=platform.machine(),
        )

    @property
    def sources_tag(self) -> str:
        return f"sources-{_digest(self.sources, self.python)}"

    @property
    def compiler_tag(self) -> str:
        return f"compiler-{_digest(*self.compiler, self.machine)}"

    @property
    def tags(self) -> dict[str, float]:
        """What a host of this identity offers besides its work."""
        tags = {self.sources_tag: ENDLESS}
        return tags | {self.compiler_tag: ENDLESS} if self.compiler else tags

    def needs(self, offer: str) -> dict[str, float]:
        """What a task of a tuner of this identity asks for."""
        needs = {offer: 1.0, self.sources_tag: 1.0}
        return needs | {self.compiler_tag: 1.0} if offer == COMPILE else needs

    def refusal(self, other: Identity, offer: str) -> str:
        """Why a host that is ``other`` may not do ``offer`` for a tuner that is this; empty if it may."""
        if other.sources != self.sources:
            return f"its sources are {other.sources[:12]}, this tuner's {self.sources[:12]}"
        if other.python != self.python:
            return f"it runs Python {other.python}, this tuner {self.python}"
        if offer == COMPILE and (other.compiler, other.machine) != (self.compiler, self.machine):
            return f"its compiler is {_words(other)}, this tuner's {_words(self)}"
        return ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Description:
    """What a member of the cluster says of itself. ``card``: that it owns, None of one that has none; ``driver``: the
    card's."""

    host: str
    identity: Identity
    card: Card | None = None
    driver: str = ""


def card_offer(class_name: str) -> str:
    return f"{CARD}{class_name}"


def offers_in(resources: Mapping[str, float]) -> list[str]:
    """What a member of the cluster does for a tune; none of one that is not of a fleet."""
    return [name for name, count in resources.items() if count >= 1 and _is_offer(name)]


def host_name() -> str:
    return socket.gethostname()


def sources_hash(folders: Iterable[Path]) -> str:
    """SHA-256 over the Python files of the project and of ``folders``, byte for byte, with their names from the folder
    on. Comments count: who has the same release or the same commit has the same hash, and it takes milliseconds."""
    return _hash_of(tuple(folders))


@functools.lru_cache(maxsize=4)
def _hash_of(folders: tuple[Path, ...]) -> str:
    digest = hashlib.sha256()
    for folder in (_ROOT / "kernel_space", _ROOT / "tuner", *folders):
        for path in sorted(folder.rglob("*.py")):
            text = path.read_bytes()
            digest.update(f"{folder.name}/{path.relative_to(folder)} {len(text)}\n".encode() + text)
    return digest.hexdigest()


def _operators_elsewhere() -> list[Path]:
    """Folders of operators that are not the project's."""
    from kernel_space.core.registry import folder_of, operator_names

    folders = [folder_of(name).resolve() for name in operator_names()]
    return [folder for folder in folders if _ROOT not in folder.parents]


def _is_offer(name: str) -> bool:
    return name in (COMPILE, SIMULATE) or name.startswith(CARD)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _words(identity: Identity) -> str:
    return f"{', '.join(identity.compiler) or 'none'} on {identity.machine}"

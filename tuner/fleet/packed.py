"""Compiled kernels as bytes: what a host sends back, and what a host that simulates or owns a card is sent.

Whoever receives one keeps it in a build cache, under the key that it would have there, and asks that cache.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from kernel_space.core.errors import InputError

if TYPE_CHECKING:
    from kernel_space.build.build import CompiledKernel


@dataclasses.dataclass(frozen=True, kw_only=True)
class Packed:
    """One entry of a build cache: its key, its record, its files."""

    key: str
    meta: dict[str, Any]
    files: dict[str, bytes]

    @classmethod
    def of(cls, compiled: CompiledKernel) -> Self:
        """Raises ``InputError`` when the entry is not whole any more."""
        from kernel_space.build.cache import BuildCache

        cache = BuildCache(compiled.directory.parent, foreign=compiled.foreign)
        if (meta := cache.load(compiled.key)) is None:
            raise InputError(
                f"{compiled.directory} must hold a whole object, it does not; run the command again"
            )
        names = meta.pop("files")
        return cls(
            key=compiled.key, meta=meta, files={name: cache.read(compiled.key, name) for name in names}
        )

    def unpack(self, folder: Path) -> Path:
        """Keep it in the build cache ``folder``; returns the entry's own folder."""
        from kernel_space.build.cache import BuildCache

        cache = BuildCache(folder)
        found = cache.load(self.key)
        if found is not None and {**found, "files": None} == {**_plain(self.meta), "files": None}:
            return cache.path(self.key)
        if found is not None:  # of the same candidate, by another compilation: the newer one is meant
            cache.discard(self.key)
        return cache.store(self.key, self.files, self.meta)


def _plain(meta: dict[str, Any]) -> Any:
    """As JSON gives it back."""
    return json.loads(json.dumps(meta))

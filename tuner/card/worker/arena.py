"""One allocation with named buffers between guards: a write that leaves its buffer is seen, and where it went.

Bytes between the buffers belong to the guards, down to the first byte behind a buffer's end, so that a store one
element too far is found as well as one that is off by a tile.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import torch

ALIGNMENT = 256  # what cudaMalloc gives, and more than any operand needs (TMA: 16 bytes for global addresses)
GUARD_BYTES = 1 << 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Damage:
    """Bytes that are not as they were. ``str()`` says where.

    ``region`` is a buffer's name; ``offset`` of the first changed byte counts from the buffer's start, so it is
    negative before it and at least ``size`` (the buffer's bytes) behind it. ``count`` is of changed bytes.
    """

    region: str
    offset: int
    size: int
    count: int

    def __str__(self) -> str:
        if self.offset < 0:
            return (
                f"{self.count} bytes changed before {self.region}, the first {-self.offset} bytes ahead of it"
            )
        if self.offset >= self.size:
            return f"{self.count} bytes changed behind {self.region}, the first {self.offset - self.size} past its end"
        return f"{self.count} bytes changed in {self.region}, the first at byte {self.offset} of {self.size}"


@dataclasses.dataclass(frozen=True)
class _Buffer:
    start: int
    size: int
    guard_start: int  # of the guard behind it, which reaches to ``guard_end``
    guard_end: int


class Arena:
    """Device memory of one set of launches: ``sizes`` are bytes by name, ``guards`` the least bytes on either side.

    Raises ``torch.OutOfMemoryError``.
    """

    def __init__(
        self, sizes: Mapping[str, int], device: torch.device | str, *, guards: Mapping[str, int] | None = None
    ) -> None:
        guards = guards or {}
        self._buffers: dict[str, _Buffer] = {}
        names = list(sizes)
        position = self._first = _aligned(guards.get(names[0], GUARD_BYTES))
        for name, following in zip(names, [*names[1:], None], strict=True):
            end = position + sizes[name]
            least = max(guards.get(name, GUARD_BYTES), guards.get(following, 0) if following else 0)
            after = _aligned(end + least)
            self._buffers[name] = _Buffer(position, sizes[name], end, after)
            position = after
        self._memory = torch.empty(position + ALIGNMENT, dtype=torch.uint8, device=device)
        shift = -self._memory.data_ptr() % ALIGNMENT  # a CPU allocation is aligned to 64 bytes only
        self._memory = self._memory[shift : shift + position]

    @property
    def nbytes(self) -> int:
        return self._memory.numel()

    def bytes_of(self, name: str) -> torch.Tensor:
        """uint8 view of a buffer."""
        buffer = self._buffers[name]
        return self._memory[buffer.start : buffer.start + buffer.size]

    def view(self, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        return self.bytes_of(name).view(dtype).view(shape)

    def address(self, name: str) -> int:
        """0 for an empty buffer: a pointer that must not be used."""
        return self.bytes_of(name).data_ptr() if self._buffers[name].size else 0

    def fill_guards(self, byte: int) -> None:
        for start, end in self._guards():
            self._memory[start:end].fill_(byte)

    def damaged_guards(self, byte: int) -> list[Damage]:
        """Guards in which a byte is not ``byte``, each named by the buffer that its first such byte is nearest to."""
        found = []
        for start, end in self._guards():
            differs = self._memory[start:end] != byte
            if bool(differs.any()):
                found.append(self._damage(self._nearest(start + _first(differs)), start, differs))
        return found

    def snapshot(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        return {name: self.bytes_of(name).clone() for name in names}

    def changed(self, snapshot: Mapping[str, torch.Tensor]) -> list[Damage]:
        """Buffers that differ from their snapshot."""
        found = []
        for name, before in snapshot.items():
            differs = self.bytes_of(name) != before
            if bool(differs.any()):
                found.append(self._damage(name, self._buffers[name].start, differs))
        return found

    def _guards(self) -> list[tuple[int, int]]:
        """(start, end): the one ahead of the first buffer, then the one behind each."""
        behind = [(buffer.guard_start, buffer.guard_end) for buffer in self._buffers.values()]
        return [(0, self._first), *behind]

    def _nearest(self, position: int) -> str:
        def distance(name: str) -> int:
            buffer = self._buffers[name]
            return max(buffer.start - position, position - buffer.guard_start + 1)

        return min(self._buffers, key=distance)

    def _damage(self, name: str, start: int, differs: torch.Tensor) -> Damage:
        buffer = self._buffers[name]
        offset = start + _first(differs) - buffer.start
        return Damage(region=name, offset=offset, size=buffer.size, count=int(differs.sum()))


def _first(differs: torch.Tensor) -> int:
    return int(differs.to(torch.uint8).argmax())


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT

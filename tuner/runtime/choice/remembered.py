"""What the run time remembers of calls: bounded for the whole process, as M is whatever the user's batch is."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Any, Generic, TypeVar

MAX_CALLS = 4096
"""Shapes of calls that are remembered; one costs about 5 KB with its plan."""

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


_of_tables: list[Recent] = []


def forget_tables() -> None:
    """Other tables are in use now. What is resolved from the old ones meanwhile is known by its generation."""
    for recent in _of_tables:
        recent.clear()


class Recent(Generic[Key, Value]):
    """At most ``limit`` values, those used last. Safe to share between threads.

    What is new is put into ``hot``; when that holds half of ``limit`` it becomes ``cold``, and what was cold is
    forgotten. What is found in ``cold`` becomes hot again. So a value that is used stays, a hit in ``hot`` is one
    access of a dict, and ``hot.get`` may be called by anybody at any time: a miss only means to ask ``get``.
    """

    __slots__ = ("_cold", "_lock", "_most", "hot")

    def __init__(self, limit: int, *, of_tables: bool = False) -> None:
        """``of_tables``: what was resolved from tables, which ``forget_tables`` drops."""
        if of_tables:
            _of_tables.append(self)
        self._most = limit // 2
        self._lock = threading.Lock()
        self._cold: dict[Key, Value] = {}
        self.hot: dict[Key, Value] = {}

    def get(self, key: Key, default: Any = None) -> Any:
        """The value of ``key``, or ``default``."""
        found: Any = self.hot.get(key, self)
        if found is not self:
            return found
        with self._lock:
            found = self._cold.pop(key, self)
            if found is self:
                return self.hot.get(key, default)
            self._put(key, found)
        return found

    def put(self, key: Key, value: Value) -> None:
        with self._lock:
            self._cold.pop(key, None)
            self._put(key, value)

    def clear(self) -> None:
        with self._lock:
            self.hot, self._cold = {}, {}

    def __len__(self) -> int:
        return len(self.hot) + len(self._cold)

    def _put(self, key: Key, value: Value) -> None:
        if len(self.hot) >= self._most and key not in self.hot:
            self.hot, self._cold = {}, self.hot
        self.hot[key] = value

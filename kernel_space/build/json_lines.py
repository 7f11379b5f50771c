"""A file of JSON objects, one on a line, that several processes add to: what is known, by key.

Each addition is one line, and begins a new one whatever the last writer left behind. A line that is no object, because
its writer was killed, is passed over: it costs finding out again what it said, nothing else.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects in their order; none when the file is missing or cannot be read."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError):
                found = json.loads(line)
                if isinstance(found, dict):
                    yield found


def add_line(path: Path, record: dict[str, Any]) -> None:
    """A folder that cannot be written costs the next process what is in ``record``, so that is not an error."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(f"\n{json.dumps(record)}")

"""YAML from files that somebody else may have written: small, shallow, and without aliases.

An alias lets ten lines of YAML stand for gigabytes. No file of this project needs one, so they are refused before
anything is built; so are documents that are large or nested deeply, on which a parser spends memory and stack.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from kernel_space.core.errors import InputError
from kernel_space.core.plain_files import read_plain

MOST_BYTES = 1 << 16
MOST_DEPTH = 16
MOST_NODES = 10_000
MOST_TEXT = 4096  # characters of one scalar
MOST_DIGITS = 20


def load_yaml(path: Path) -> Any:
    """The document in ``path``, which the user named. Raises ``InputError`` for what is no such document, ``OSError``
    when it cannot be read."""
    data = read_plain(path, limit=MOST_BYTES, follow=True)
    try:
        return yaml.load(data.decode(), Loader=_Loader)
    except yaml.YAMLError as error:
        raise InputError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not a text file") from None
    except (ValueError, TypeError, OverflowError, RecursionError) as error:  # a date or a number that is none
        raise InputError(f"{path} is not YAML: {' '.join(str(error).split())[:200]}") from None


class _Loader(yaml.SafeLoader):
    """Refuses while it reads the events, before anything is built of them."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._nodes = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise self._refusal("has an alias or an anchor, write it out", event)
        if isinstance(event, yaml.ScalarEvent):
            self._check_scalar(event)
        self._depth += 1
        self._nodes += 1
        if self._depth > MOST_DEPTH or self._nodes > MOST_NODES:
            raise self._refusal(
                f"is nested more than {MOST_DEPTH} deep or has over {MOST_NODES} parts", event
            )
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def _check_scalar(self, event: yaml.ScalarEvent) -> None:
        if len(event.value) > MOST_TEXT:
            raise self._refusal(f"has text of more than {MOST_TEXT} characters", event)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        if len(node.value) > MOST_DIGITS:
            raise yaml.constructor.ConstructorError(
                None, None, f"a number of more than {MOST_DIGITS} digits", node.start_mark
            )
        return super().construct_yaml_int(node)

    def _refusal(self, what: str, event: yaml.Event) -> yaml.YAMLError:
        return yaml.composer.ComposerError(None, None, f"it {what}", event.start_mark)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)

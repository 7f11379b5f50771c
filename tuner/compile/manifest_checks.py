"""What a manifest from elsewhere must hold before its parts are believed: types and names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kernel_space.build.key import Toolchain
from kernel_space.core.errors import InputError
from tuner.files.record_checks import check_numbers, check_texts, check_whole, shown

_PACKAGE = re.compile(r"[A-Za-z0-9_.-]{1,100}==[A-Za-z0-9_.+!-]{1,100}")


def checked(entry: Any) -> Any:
    """``entry`` of a manifest, if its fields are what they should be. Raises ``InputError``."""
    check_texts(entry, ("config", "resolved", "reason"))
    check_whole(entry, ("seed",))
    check_numbers(entry, ("seconds",))
    return entry


def text_of(record: Mapping[str, Any], name: str) -> str:
    """Raises ``InputError``."""
    if not isinstance(record[name], str):
        raise InputError(f"{name} must be text, got {shown(record[name])}")
    return record[name]


def checked_toolchain(made_by: Toolchain) -> Toolchain:
    """Raises ``InputError``."""
    check_texts(made_by, ("dsl_version", "variant"))
    for package in made_by.packages:
        if not isinstance(package, str) or not _PACKAGE.fullmatch(package):
            raise InputError(f"a package must be name==version, got {shown(package)}")
    return made_by

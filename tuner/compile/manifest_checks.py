"""What a manifest from elsewhere must hold before its parts are believed: types, names, and sizes that can be added."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kernel_space.build.key import Toolchain
from kernel_space.core.errors import InputError
from tuner.files.record_checks import check_numbers, check_texts, check_whole, shown

RINGS = frozenset({"ab", "dq", "lora", "acc", "c", "one"})
_PACKAGE = re.compile(r"[A-Za-z0-9_.-]{1,100}==[A-Za-z0-9_.+!-]{1,100}")
# Fields of a footprint beside ``smem``, by the arch with which its key begins.
_FIELDS = {
    "sm_90a": frozenset(),
    "sm_100a": frozenset({"acc_cols", "sfa_cols", "sfb_cols", "num_epi_subtiles"}),
}
_FIELDS["sm_103a"] = _FIELDS["sm_100a"]


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


def check_footprints(footprints: Any) -> None:
    """Legality adds these numbers. Raises ``InputError``."""
    if not isinstance(footprints, dict):
        raise InputError(f"footprints must be an object, got {shown(footprints)}")
    for key, fields in footprints.items():
        try:
            _check_footprint(key.partition(" ")[0], fields)
        except (TypeError, ValueError, KeyError, AttributeError):
            raise InputError(f"the footprint of {shown(key)} is none") from None


def _check_footprint(arch: str, fields: Mapping[str, Any]) -> None:
    sizes = {name: value for name, value in fields.items() if name != "smem"}
    if set(sizes) != _FIELDS[arch]:
        raise ValueError
    for name, size, ring in fields["smem"]:
        sizes[name] = size
        if not isinstance(name, str) or ring not in RINGS:
            raise ValueError
    if not all(type(size) is int and size >= 0 for size in sizes.values()):
        raise ValueError

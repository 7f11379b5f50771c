"""What configs of all kernels have in common: knobs are dataclass fields, each with its form.

A config prints as it parses.

A kernel's own config is a subclass, which names the kernel; a knob is one line there:

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class RowsConfig(KernelConfig, kernel="rows"):
        rows: int = number(16)
        order: str = word("m", "n")  # its choices, the default first
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar, Self

from kernel_space.core.errors import InputError

AUTO = "auto"
ALL = "all"

_FORM = "form"
_WORD = "word"


@dataclasses.dataclass(frozen=True, kw_only=True)
class KernelConfig:
    """One point of a kernel's space, which is a candidate: base of the config classes, without knobs of its own.

    ``kernel``: name of the kernel. Prints ``kernel=NAME knob=value …``. Legality is not decided here but by the
    kernel's rules; configs only know spelling and types.
    """

    kernel: ClassVar[str] = ""

    def __init_subclass__(cls, *, kernel: str = "", **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.kernel = kernel or cls.kernel

    @classmethod
    def parse(cls, text: str) -> Self:
        """``"split_k=4 num_ab_stage=3"`` -> config; knobs not named keep their default. ``kernel=`` may be there.

        Raises ``InputError`` for another kernel, an unknown or repeated knob and a value of the wrong form.
        """
        fields = _split_fields(text)
        if (kernel := fields.pop("kernel", cls.kernel)) != cls.kernel:
            raise InputError(f"these are knobs of kernel={cls.kernel}, got kernel={kernel}")
        return cls.from_fields(fields)

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Self:
        """Knob name -> value or its printed form. Raises ``InputError`` as ``parse`` does."""
        return cls(**{name: cls.parse_knob(name, value) for name, value in fields.items()})

    @classmethod
    def knob_names(cls) -> tuple[str, ...]:
        return tuple(field.name for field in dataclasses.fields(cls))

    @classmethod
    def stage_names(cls) -> tuple[str, ...]:
        """Knobs that may be left to the stage solver: ``auto``."""
        return tuple(field.name for field in dataclasses.fields(cls) if field.metadata[_WORD] == AUTO)

    @classmethod
    def parse_knob(cls, name: str, value: Any) -> Any:
        """The value of knob ``name`` from its printed form (or from the value itself). Raises ``InputError``."""
        if (form := _forms(cls).get(name)) is None:  # type: ignore[arg-type]  # classes can be hashed
            raise InputError(f"unknown knob {name!r}; the knobs are {' '.join(cls.knob_names())}")
        return form(name, print_knob(tuple(value) if isinstance(value, list) else value))

    def fields(self) -> dict[str, str]:
        """Knob name -> printed form, in the order of the dataclass."""
        return {name: print_knob(getattr(self, name)) for name in self.knob_names()}

    def replace(self, **changes: Any) -> Self:
        return dataclasses.replace(self, **changes)

    @property
    def ctas_per_sm(self) -> int:
        """CTAs that share an SM; a kernel may make it a knob."""
        return 1

    @property
    def cluster_size(self) -> int:
        """CTAs of a cluster; a kernel may have a knob for it."""
        return 1

    @property
    def launches_early(self) -> bool:
        """Whether its launch may overlap the one before it (programmatic dependent launch)."""
        return bool(getattr(self, "use_pdl", False))

    def max_active_clusters(self, sm_count: int) -> int:
        """Clusters that a chip of ``sm_count`` SMs holds at once: the launch argument of that name."""
        return sm_count * self.ctas_per_sm // self.cluster_size

    def __str__(self) -> str:
        return " ".join(
            [f"kernel={self.kernel}", *(f"{name}={text}" for name, text in self.fields().items())]
        )


@functools.cache
def _forms(config_class: type[KernelConfig]) -> dict[str, Callable[[str, str], Any]]:
    return {field.name: field.metadata[_FORM] for field in dataclasses.fields(config_class)}


def kernel_name(text: str) -> str:
    """Of a printed config the kernel; empty when it does not begin with one."""
    first = text.lstrip().partition(" ")[0]
    return first.removeprefix("kernel=") if first.startswith("kernel=") else ""


def print_knob(value: Any) -> str:
    """One spelling for logs, YAML, Optuna, cache keys and tables."""
    if isinstance(value, tuple):
        return "x".join(str(part) for part in value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


# -- forms of a knob: the default of its field, and how its text is read ----------------------------------------


def number(default: int | str, word: str | None = None) -> Any:
    """A whole number, or ``word`` if there is one."""

    def parse(name: str, text: str) -> int | str:
        if word is not None and text == word:
            return text
        if not _is_number(text):
            hint = f" or {word}" if word else ""
            raise InputError(f"{name} must be a whole number{hint}, got {text!r}")
        return int(text)

    return _knob(default, parse, word)


def stages() -> Any:
    """Slots of a ring: a number, or ``auto`` for what the solver finds (the default)."""
    return number(AUTO, AUTO)


def sizes(*default: int, form: str) -> Any:
    """As many whole numbers as the default has, written with ``x`` between them; ``form`` shows it in errors."""

    def parse(name: str, text: str) -> tuple[int, ...]:
        parts = text.split("x")
        if len(parts) != len(default) or not all(_is_number(part) for part in parts):
            raise InputError(f"{name} must be {form}, got {text!r}")
        return tuple(int(part) for part in parts)

    return _knob(default, parse)


def word(*choices: str) -> Any:
    """One of ``choices``, by default the first."""

    def parse(name: str, text: str) -> str:
        if text not in choices:
            raise InputError(f"{name} must be one of {', '.join(choices)}, got {text!r}")
        return text

    return _knob(choices[0], parse)


def flag(default: bool = False) -> Any:
    """``true`` or ``false``."""

    def parse(name: str, text: str) -> bool:
        if text not in ("true", "false"):
            raise InputError(f"{name} must be true or false, got {text!r}")
        return text == "true"

    return _knob(default, parse)


def _knob(default: Any, parse: Callable[[str, str], Any], word: str | None = None) -> Any:
    return dataclasses.field(default=default, metadata={_FORM: parse, _WORD: word})


def _is_number(text: str) -> bool:
    """Decimal digits that ``int`` takes; ``isdigit`` alone also accepts superscripts."""
    return text.isascii() and text.isdigit()


def _split_fields(text: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for item in text.split():
        name, equals, value = item.partition("=")
        if not equals or not value:
            raise InputError(f"a config is written knob=value knob=value ..., got {item!r}")
        if name in fields:
            raise InputError(f"knob {name!r} is given twice")
        fields[name] = value
    return fields

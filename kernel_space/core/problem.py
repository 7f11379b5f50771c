"""What problems of all operators have in common: sizes and options are dataclass fields, each with its form.

An operator's own problem is a subclass; a size is one line there:

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class GemmProblem(Problem, operator="my_gemm"):
        m: int = size(batch=True)
        n: int = size(multiple=8)
        r: int = size(least=0, most=256, multiple=16, compiled=True)
        out_dtype: str = option("fp16", "bf16")  # its choices, the default first

A problem prints as it parses: its sizes with commas between them, in the order of the fields.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any, ClassVar, Self

from kernel_space.core.errors import InputError

MAX_EXTENT = 2**31 - 1  # sizes are int32 arguments of a host function


@dataclasses.dataclass(frozen=True)
class Form:
    """What a field of a problem may hold. ``choices``: of an option; a size has none. ``unsaid``: see ``option``."""

    least: int = 1
    most: int = MAX_EXTENT
    multiple: int = 1
    batch: bool = False
    compiled: bool = False
    choices: tuple[str, ...] = ()
    zero: str = ""
    unsaid: bool = False


def size(
    *,
    least: int = 1,
    most: int = MAX_EXTENT,
    multiple: int = 1,
    batch: bool = False,
    compiled: bool = False,
    zero: str = "",
) -> Any:
    """A size in elements. ``batch``: it changes from call to call, and rows that differ in nothing else stand in for
    one another. ``compiled``: a compiled object is for one value of it; other sizes are run-time arguments. ``zero``:
    what 0 means, for messages.
    """
    form = Form(least=least, most=most, multiple=multiple, batch=batch, compiled=compiled, zero=zero)
    return dataclasses.field(metadata={"form": form})


def option(*choices: str, unsaid: bool = False) -> Any:
    """One of ``choices``, by default the first: a dtype or a variant of the formula. Always compiled in.

    ``unsaid``: the default is left out of records, classes and names, so that those from before there was the option
    stay what they are. It is no dtype.
    """
    form = Form(choices=choices, compiled=True, unsaid=unsaid)
    return dataclasses.field(default=choices[0], metadata={"form": form})


@dataclasses.dataclass(frozen=True)
class ProblemClass:
    """What one compiled object is for besides its config: the compiled sizes and the options of a problem.

    Each is an attribute by its own name. Prints ``name=value name=value``. ``unsaid``: options that have their default
    and are not printed for it.
    """

    operator: str
    values: tuple[tuple[str, Any], ...]
    unsaid: tuple[tuple[str, Any], ...] = ()

    def __getattr__(self, name: str) -> Any:
        for which in ("values", "unsaid"):
            for own, value in object.__getattribute__(self, which):
                if own == name:
                    return value
        raise AttributeError(f"nothing called {name} is compiled into an object of {self}")

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.values)

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return type(self), (
            self.operator,
            self.values,
            self.unsaid,
        )  # ``__getattr__`` must not be asked before there are values


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    """One problem of an operator: base of the problem types, without fields of its own.

    Raises ``InputError`` on construction when a field is outside of the contract.
    """

    operator: ClassVar[str] = ""
    example: ClassVar[str] = ""  # a printed form, for messages

    def __init_subclass__(cls, *, operator: str = "", example: str = "", **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.operator = operator or cls.operator
        cls.example = example or cls.example

    def __post_init__(self) -> None:
        for name, form in self.forms().items():
            check = _check_option if form.choices else _check_size
            check(name, getattr(self, name), form)

    @classmethod
    def forms(cls) -> dict[str, Form]:
        """Field -> what it may hold, in order."""
        return _forms(cls)  # type: ignore[arg-type]  # classes can be hashed

    @classmethod
    def size_names(cls) -> tuple[str, ...]:
        return tuple(name for name, form in cls.forms().items() if not form.choices)

    @classmethod
    def option_names(cls) -> tuple[str, ...]:
        return tuple(name for name, form in cls.forms().items() if form.choices)

    @classmethod
    def form(cls) -> str:
        """How a problem is written: ``M,K,N,R``."""
        return ",".join(name.upper() for name in cls.size_names())

    @classmethod
    def parse(cls, text: str, **options: str) -> Self:
        """``"4352,3840,3072,128"`` -> the problem of these sizes. Raises ``InputError``."""
        names = cls.size_names()
        fields = [field.strip() for field in text.split(",")]
        if len(fields) != len(names) or not all(re.fullmatch(r"[0-9]+", field) for field in fields):
            count = {1: "one integer", 2: "two integers", 3: "three integers", 4: "four integers"}
            wanted = count.get(len(names), f"{len(names)} integers")
            example = f"; for example {cls.example}" if cls.example else ""
            raise InputError(f"a shape must be {wanted} {cls.form()}, got {text!r}{example}")
        return cls(**dict(zip(names, map(int, fields), strict=True)), **cls._known(options))

    @classmethod
    def from_record(cls, record: Any) -> Self:
        """The problem that ``record()`` gave. Raises ``InputError`` for anything else."""
        forms = cls.forms()
        unsaid = {name for name, form in forms.items() if form.unsaid}
        if not isinstance(record, dict) or not set(forms) - unsaid <= set(record) <= set(forms):
            raise InputError(
                f"a problem of {cls.operator} must have {' '.join(cls.forms())}, got {record!r:.80}"
            )
        return cls(**record)

    def record(self) -> dict[str, int | str]:
        """Name -> value of every field, as JSON holds it; without options whose default goes unsaid."""
        return {name: getattr(self, name) for name in self.forms() if self.says(name)}

    @classmethod
    def class_of(cls, **values: Any) -> ProblemClass:
        """The class of problems with these compiled sizes and options; options that are left out have their default.

        Raises ``InputError`` for a value outside of the contract or a name that is not compiled in.
        """
        compiled = {name: form for name, form in cls.forms().items() if form.compiled}
        if unknown := sorted(set(values) - set(compiled)):
            raise InputError(f"{unknown[0]} is not compiled in; what is: {' '.join(compiled)}")
        found = {}
        for name, form in compiled.items():
            if form.choices:
                found[name] = values.get(name, form.choices[0])
                _check_option(name, found[name], form)
            elif name in values:
                found[name] = values[name]
                _check_size(name, found[name], form)
            else:
                raise InputError(f"a class of {cls.operator} needs {name}")
        return cls._class(found)

    @property
    def problem_class(self) -> ProblemClass:
        return self._class(
            {name: getattr(self, name) for name, form in self.forms().items() if form.compiled}
        )

    @classmethod
    def _class(cls, compiled: dict[str, Any]) -> ProblemClass:
        forms = cls.forms()
        said = tuple((name, value) for name, value in compiled.items() if _is_said(forms[name], value))
        return ProblemClass(cls.operator, said, tuple(one for one in compiled.items() if one not in said))

    def says(self, name: str) -> bool:
        """Whether the field stands in records and names: all but an option with a default that goes unsaid."""
        return _is_said(self.forms()[name], getattr(self, name))

    @property
    def sizes(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.size_names()}

    @property
    def options(self) -> dict[str, str]:
        """Name -> value, without those whose default goes unsaid."""
        return {name: getattr(self, name) for name in self.option_names() if self.says(name)}

    @property
    def bucket(self) -> tuple[Any, ...]:
        """All but the batch sizes: problems that agree in it can stand in for one another."""
        return tuple(getattr(self, name) for name, form in self.forms().items() if not form.batch)

    @property
    def slug(self) -> str:
        """A name for files: the sizes, and the options unless all are the default: ``64x3072x3072x32-bf16-fp16``."""
        options = self.options
        usual = all(self.forms()[name].choices[0] == value for name, value in options.items())
        return "x".join(map(str, self.sizes.values())) + ("" if usual else "-" + "-".join(options.values()))

    def __str__(self) -> str:
        return ",".join(map(str, self.sizes.values()))

    @classmethod
    def _known(cls, options: dict[str, str]) -> dict[str, str]:
        if unknown := sorted(set(options) - set(cls.option_names())):
            known = " ".join(cls.option_names()) or "none"
            raise InputError(f"{cls.operator} has no option {unknown[0]}; its options are {known}")
        return options


def _is_said(form: Form, value: Any) -> bool:
    return not form.unsaid or value != form.choices[0]


@functools.cache
def _forms(problem: type[Problem]) -> dict[str, Form]:
    return {field.name: field.metadata["form"] for field in dataclasses.fields(problem)}


def _check_size(name: str, value: Any, form: Form) -> None:
    shown = name.upper()
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{shown} must be a whole number, got {value!r:.80}")
    if not form.least <= value <= form.most:
        zero = f" ({form.zero})" if form.zero and not form.least else ""
        raise InputError(f"{shown} must be between {form.least}{zero} and {form.most}, got {value}")
    if value % form.multiple:
        below = value - value % form.multiple
        near = f"{below} or {below + form.multiple}" if below else f"{form.multiple}"
        raise InputError(f"{shown} must be a multiple of {form.multiple}, got {value}; use {near}")


def _check_option(name: str, value: Any, form: Form) -> None:
    if value not in form.choices:
        raise InputError(f"{name} must be one of {', '.join(form.choices)}, got {value!r:.80}")

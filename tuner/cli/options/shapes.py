"""Problems from files: a list of shapes, what a model met at run time, and models that are known by name."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kernel_space.core import registry
from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from kernel_space.places import shipped

SHAPES_KEY = "problems"
MODELS = shipped("search_spaces") / "models.yaml"
MOST_CALLS = 1 << 40
MOST_CHARACTERS = 40  # of one number
_KEYS = ("shape", "op", "calls", "fallback")
_PLACE = re.compile(r"\{(\w+)\}")
OptionsFor = Callable[[type[Problem]], dict[str, str]]
_DIFFERENCE = re.compile(r"(\w+) - (\w+)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """``calls``: of one run of a model; None for a shape that nobody counted."""

    problem: Problem
    calls: int | None = None


def read_shapes(path: Path, op: str, options_for: OptionsFor) -> Iterator[Entry]:
    """Entries of a YAML list, or of one under ``SHAPES_KEY``: ``4352,3840,3072,128``, or a mapping with ``shape`` and,
    if wanted, ``op``, ``calls`` and options by their names. Raises ``InputError`` with the number of the entry.

    ``op``: of entries that name none; ``options_for``: the user's options of a problem type.
    """
    entries = _document(path, "--shapes")
    entries = entries.get(SHAPES_KEY) if isinstance(entries, dict) else entries
    if not isinstance(entries, list) or not entries:
        form = registry.operator(op).problem.form()
        raise InputError(f"--shapes {path} must hold a list of {form}, or one under {SHAPES_KEY}:")
    for number, entry in enumerate(entries, start=1):
        try:
            yield _entry(entry, op, options_for)
        except InputError as error:
            raise InputError(f"{path}, entry {number}: {error}") from None


def _document(path: Path, option: str) -> Any:
    from tuner.files.plain_yaml import load_yaml

    try:
        return load_yaml(path)
    except OSError as error:
        raise InputError(f"cannot read {option} {path}: {error.strerror}") from None
    except InputError as error:
        raise InputError(f"{option} {error}") from None


def _entry(entry: Any, op: str, options_for: OptionsFor) -> Entry:
    if not isinstance(entry, dict):
        kind = registry.operator(op).problem
        return Entry(problem=parse_shape(str(entry), kind, options_for(kind)))
    named = {str(name): str(value) for name, value in entry.items() if name not in _KEYS}
    kind = registry.operator(str(entry.get("op", op))).problem
    problem = parse_shape(str(entry.get("shape", "")), kind, {**options_for(kind), **named})
    return Entry(problem=problem, calls=_calls(entry.get("calls")))


def parse_shape(text: str, kind: type[Problem], options: dict[str, str]) -> Problem:
    """``kind.parse``, after what it would answer with a traceback or in pages. Raises ``InputError``."""
    for name, field in zip(kind.size_names(), text.split(","), strict=False):
        form = kind.forms()[name]
        if len(field) > MOST_CHARACTERS:
            raise InputError(
                f"{name.upper()} must be between {form.least} and {form.most}, got {len(field)} characters"
            )
        if re.fullmatch(r"\s*-[0-9]+\s*", field):
            raise InputError(
                f"{name.upper()} must be between {form.least} and {form.most}, got {field.strip()}"
            )
    return kind.parse(text, **options)


def _calls(value: Any) -> int | None:
    if value is None:
        return None
    if type(value) is not int or not 1 <= value <= MOST_CALLS:
        raise InputError(f"calls must be a whole number of at least 1, got {value!r:.40}")
    return value


# ------------------------------------------------------------------ models by name


def add_model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", metavar="NAME", help="layers of a known model, most gain first; an unknown name lists them"
    )
    for name, what in (
        ("tokens", "rows of its sequence"),
        ("text", "of them text"),
        ("rank", "of its branches"),
    ):
        parser.add_argument(f"--{name}", metavar="N", help=f"{what}, with --model")


def model_values(args: argparse.Namespace) -> dict[str, int]:
    """Values that the user replaces. Raises ``InputError`` for what is no number."""
    found = {name: getattr(args, name, None) for name in ("tokens", "text", "rank")}
    given = {name: text for name, text in found.items() if text is not None}
    for name, text in given.items():
        if args.model is None:
            raise InputError(f"--{name} is about the layers of --model, which is not given")
        if not (text.isascii() and text.isdecimal() and len(text) <= MOST_CHARACTERS):
            raise InputError(f"--{name} must be a whole number, got {text!r:.80}")
    return {name: int(text) for name, text in given.items()}


def read_model(
    name: str, given: Mapping[str, int], options_for: OptionsFor, path: Path = MODELS
) -> Iterator[Entry]:
    """Layers of model ``name`` with their calls; ``given`` replaces its values.

    Raises ``InputError`` for a name or a value that is not there.
    """
    models = _document(path, "--model")["models"]
    if name not in models:
        raise InputError(f"--model must be one of {', '.join(models)}, got {name!r}")
    model = models[name]
    values = _values(name, model["values"], given)
    kind = registry.operator(model["op"]).problem
    for layer in model["layers"]:
        shape = _PLACE.sub(lambda match: str(values[match[1]]), layer["shape"])
        options = {"dtype": model["dtype"], **options_for(kind)}
        yield Entry(problem=parse_shape(shape, kind, options), calls=layer["calls"])


def _values(name: str, own: Mapping[str, Any], given: Mapping[str, int]) -> dict[str, int]:
    if unknown := sorted(set(given) - set(own)):
        raise InputError(f"{name} has no --{unknown[0]}; its values are {', '.join(own)}")
    values = {key: given.get(key, value) for key, value in own.items()}
    for key, value in values.items():
        if isinstance(value, str) and (match := _DIFFERENCE.fullmatch(value)):
            values[key] = values[match[1]] - values[match[2]]
            if values[key] < 1:
                raise InputError(
                    f"--{match[1]} must be more than {match[2]}, got {values[match[1]]} and {values[match[2]]}"
                )
    return values

"""Reports' folders and journals of the version before, in today's form (``migrate_results``)."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from benchmarks.earlier_texts import OP, is_earlier, translated, translated_within
from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from kernel_space.core.registry import operator
from tuner.files.store import CorruptFile, atomic_write, make_folder, parse_json
from tuner.report.write import read_facts, report_folder, trials_csv, trials_parquet
from tuner.trials.journal_lines import ATTEMPT, GIVEN_UP, IDENTITY, NOTE, read_line, unsealed, write_line
from tuner.trials.outcome import Status, Trial
from tuner.trials.study import Identity

STUDIES = ".studies"
_FOLDER = re.compile(r"([0-9]+(?:x[0-9]+){3})(?:-(fp16|bf16)-(fp16|bf16))?")
_PROPOSED = (Status.ILLEGAL, Status.FILTERED)


def migrate_reports(device: Path, out: Path, shapes: Collection[str]) -> None:
    """Every folder of a problem below ``device`` goes below ``out``: pages as they are, the trials in today's form.
    ``shapes``: of these problems only, if there are any. Raises ``InputError`` for trials that cannot be read.
    """
    for folder in sorted(path for path in device.iterdir() if path.is_dir() and _FOLDER.fullmatch(path.name)):
        problem = _problem_of(folder.name)
        if shapes and str(problem) not in shapes:
            continue
        target = make_folder(report_folder(out, device.name, problem))
        for path in sorted(folder.iterdir()):
            if path.suffix in (".md", ".html"):
                atomic_write(target / path.name, path.read_bytes())
            elif path.suffix == ".json":
                document = translated_within(parse_json(path.read_bytes(), path))
                atomic_write(target / path.name, json.dumps(document, indent=1) + "\n")
        if (folder / "trials.parquet").is_file():
            trials = list(_trials(folder / "trials.parquet"))
            facts = read_facts(folder / "trials.parquet")
            atomic_write(target / "trials.parquet", trials_parquet(trials, facts))
            tried = [trial for trial in trials if trial.status not in _PROPOSED]
            atomic_write(target / "trials.csv", trials_csv(tried))


def migrate_journals(results: Path, out: Path) -> list[str]:
    """Every journal below ``results``; returns a line about each part that is passed over."""
    said = []
    for path in sorted((results / STUDIES).glob("*/*.jsonl")):
        try:
            said += _journal(path, out)
        except InputError as error:
            said.append(f"passed over: {path}: {error}")
    return said


def _options() -> tuple[str, ...]:
    """Those that there were."""
    return tuple(
        name for name, form in operator(OP).problem.forms().items() if form.choices and not form.unsaid
    )


def _problem_of(name: str) -> Problem:
    match = _FOLDER.fullmatch(name)
    assert match is not None, name
    known, options = operator(OP).problem, match.groups()[1:]
    given = dict(zip(_options(), options, strict=True)) if options[0] else {}
    return known.parse(match[1].replace("x", ","), **given)


def _trials(path: Path) -> Iterator[Trial]:
    import pyarrow.parquet

    for row in pyarrow.parquet.read_table(path).to_pylist():
        yield _trial(row | {name: json.loads(row[name] or "{}") for name in ("evidence", "build")})


def _trial(record: dict[str, Any]) -> Trial:
    """Raises ``InputError`` for a resolved config that no kernel of today has."""
    names = _options()
    rest = {name: value for name, value in record.items() if name not in names}
    rest["evidence"] = translated_within(rest["evidence"])
    for name in ("config", "resolved"):
        if is_earlier(rest[name]):
            rest[name] = _text(rest[name], name, rest["status"])
    return Trial.from_record({**rest, "op": OP, "options": {name: record[name] for name in names}})


def _text(text: str, name: str, status: str) -> str:
    """A point that no rule allows may have knobs that its kernel has not; then it stays as it was printed."""
    try:
        return translated(text, resolved=name == "resolved")
    except InputError:
        if name == "config" and status in _PROPOSED:
            return text
        raise


def _journal(path: Path, out: Path) -> list[str]:
    lines: list[bytes] = []
    identity: Identity | None = None
    bad = 0
    for text in path.read_bytes().split(b"\n")[:-1]:
        try:
            record = _record(text, path)
            if IDENTITY in record:
                identity = _identity(record)
                record = identity.header()
            lines.append(write_line(record))
        except (InputError, CorruptFile, KeyError, TypeError) as error:
            bad += 1
            reason = f"{type(error).__name__}: {error}"
    if identity is None:
        raise InputError("it does not say whose trials it holds")
    for line in lines:
        read_line(line[:-1])
    target = make_folder(identity.folder(out / STUDIES)) / identity.file_name
    atomic_write(target, b"".join(lines))
    return [f"passed over {bad} lines of {path} ({reason})"] if bad else []


def _record(text: bytes, path: Path) -> dict[str, Any]:
    """A line in today's form, but a header."""
    record = parse_json(unsealed(text)[0], path)
    if not isinstance(record, dict):
        raise InputError("no record")
    if IDENTITY in record:
        return record
    if any(word in record for word in (NOTE, ATTEMPT, GIVEN_UP)):
        return translated_within(record)
    return _trial(record).to_record()


def _identity(record: dict[str, Any]) -> Identity:
    names = _options()
    fields = dict(record[IDENTITY])
    options = {name: fields.pop(name) for name in names}
    return Identity(**fields, options=options)

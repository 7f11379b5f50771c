"""Results that the version before wrote, in today's form: tables, bundles, reports' trials and journals.

    git worktree add /tmp/before 634d3d0
    python -m benchmarks.migrate_results results --old /tmp/before --out /tmp/migrated

reads ``results`` and writes all of it anew below ``--out``, which must be empty: by operator, configs in the words of
today's kernels. A time that was measured stays the time of its kernel only if that is the same code, so the config of
every such row, and that of every bundled object, is compiled by the sources in ``--old`` and by today's, each with a
build cache of its own, and the PTX compared (``same_ptx.py``). Where it is equal, the row gets the hash of today's
sources, today's cubin and object, and says so (``evidence.migrated``); what a card said of a bundled object stands.
Where it is not, the row keeps the hash of its sources, so that it is stale, and its object goes. Computed times are of
their simulator: their rows get key and config, and nothing else.

Exit code 0; 1 when a row or an object could not be proven, each of which is named; 2 for bad input.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.earlier_texts import OP, translated, translated_within
from benchmarks.migrate_trials import migrate_journals, migrate_reports
from benchmarks.same_ptx import Job, Made, compile_with, digest_of
from kernel_space.build.key import toolchain
from kernel_space.core.arch import arch as find_arch
from kernel_space.core.arguments import Argument
from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from kernel_space.core.registry import operator, parse_config
from kernel_space.core.rules import Legal, legalize
from tuner.files.store import StoreError, atomic_write, make_folder, read_json
from tuner.tables.bundle import FOLDER, INDEX, Bundle, Entry, launch_facts, render_index
from tuner.tables.card_check import CardCheck
from tuner.tables.dispatch import FILE_NAME, DispatchTable, render_table
from tuner.tables.row import Row
from tuner.trials.outcome import Kind

EARLIER_SCHEMA = 1
PROOF = "PTX equal"
Found = dict[tuple[str, str, str], Made | str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Proofs:
    """What old and new sources made of jobs; ``before`` by the old text, ``now`` by the new one."""

    before: Found
    now: Found

    def of(self, old: Job, new: Job) -> Made | str:
        """Today's build, if it is the same code as that of before; else why there is no proof."""
        before, now = self.before[old.key], self.now[new.key]
        if isinstance(before, str) or isinstance(now, str):
            return f"it cannot be compiled {'before' if isinstance(before, str) else 'now'}: " + (
                before if isinstance(before, str) else str(now)
            )
        return now if digest_of(before) == digest_of(now) else "its PTX is another one"


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    try:
        if args.out.exists() and any(args.out.iterdir()):
            raise InputError(f"--out must be an empty folder or none, got {args.out}")
        make_folder(args.out)
        devices = sorted(path.parent for path in args.results.glob(f"*/{FILE_NAME}"))
        if not devices:
            raise InputError(f"{args.results} must be a folder of results: no folder in it has a {FILE_NAME}")
        unproven = [line for folder in devices for line in _migrate_device(folder, args)]
        passed_over = migrate_journals(args.results, args.out)
    except (InputError, StoreError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for line in [*passed_over, *(f"not proven: {line}" for line in unproven)]:
        print(line)
    return 1 if unproven else 0


def _parser() -> argparse.ArgumentParser:
    about, _, _ = (__doc__ or "").partition("\n\nExit")
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.migrate_results",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("results", type=Path, help="folder of results that the version before wrote")
    parser.add_argument(
        "--old", type=Path, required=True, help="checkout of the sources that they were made with"
    )
    parser.add_argument("--out", type=Path, required=True, help="empty folder for what is migrated")
    parser.add_argument(
        "--shape", action="append", default=[], help="only rows and objects of this M,K,N,R; may be repeated"
    )
    return parser


def _migrate_device(folder: Path, args: argparse.Namespace) -> list[str]:
    """One device's table, bundle and reports; returns what could not be proven."""
    rows, entries = _records(folder / FILE_NAME, "rows"), _records(folder / FOLDER / INDEX, "objects")
    if args.shape:
        rows = [one for one in rows if str(_problem(one)) in args.shape]
        entries = [one for one in entries if one["problem"] in args.shape]
    jobs = {id(one): _jobs(one) for one in [*rows, *entries]}
    proven = [one for one in [*rows, *entries] if one.get("kind", Kind.MEASURED) == Kind.MEASURED]
    proofs = _prove([jobs[id(one)] for one in proven], args.old)
    out = make_folder(args.out / folder.name)
    lines = _write_bundle(out, entries, jobs, proofs)
    lines += _write_table(out, rows, jobs, proofs)
    for name in ("device.json",):
        if (folder / name).is_file():
            atomic_write(out / name, (folder / name).read_bytes())
    migrate_reports(folder, args.out, args.shape)
    print(f"{folder.name}: {len(rows)} rows, {len(entries)} objects, {len(lines)} of them not proven")
    return [f"{folder.name}: {line}" for line in lines]


def _prove(jobs: Iterable[tuple[Job, Job]], old: Path) -> Proofs:
    pairs = list(jobs)
    if not pairs:
        return Proofs(before={}, now={})
    here = Path(__file__).resolve().parents[1]
    cache = Path(tempfile.mkdtemp(prefix="migrate-"))  # kept: what is written points to nothing in it
    return Proofs(
        before=compile_with(old.resolve(), (before for before, _ in pairs), cache / "before"),
        now=compile_with(here, (now for _, now in pairs), cache / "now"),
    )


def _records(path: Path, name: str) -> list[dict[str, Any]]:
    document = read_json(path)
    if document is None:
        return []
    if document.get("schema") != EARLIER_SCHEMA:
        raise InputError(f"{path} must have schema {EARLIER_SCHEMA}, got {document.get('schema')!r:.40}")
    return document[name]


def _problem(row: Mapping[str, Any]) -> Problem:
    """Of a row, or of an entry of a bundle, as they were."""
    known = operator(OP).problem
    if "problem_class" not in row:
        return known(**{name: row[name] for name, form in known.forms().items() if not form.unsaid})
    options = dict(item.split("=") for item in row["problem_class"].split())
    return known.parse(
        row["problem"], **{name: options[name] for name in known.option_names() if name in options}
    )


def _jobs(record: Mapping[str, Any]) -> tuple[Job, Job]:
    problem, arch = _problem(record), record["arch"]
    now = translated(record["config"])
    legal = legalize(parse_config(OP, find_arch(arch), now), problem, find_arch(arch))
    if not isinstance(legal, Legal) or str(legal.config) != now:
        said = legal if not isinstance(legal, Legal) else f"it resolves to {legal.config}"
        raise InputError(f"{now} must be legal and resolved for {problem}: {said}")
    return Job(arch, record["config"], problem), Job(arch, now, problem)


def _write_table(
    out: Path, rows: list[dict[str, Any]], jobs: dict[int, tuple[Job, Job]], proofs: Proofs
) -> list[str]:
    lines, made = [], []
    for one in rows:
        row = _row(one)
        if row.kind is Kind.MEASURED:
            proof = proofs.of(*jobs[id(one)])
            if isinstance(proof, str):
                lines.append(f"row {row.key}: {proof}")
            else:
                row = _proven(row, proof)
        made.append(row)
    made.sort(key=lambda row: row.key)
    atomic_write(out / FILE_NAME, render_table(made, made[0].key.arch if made else None))
    if made:
        DispatchTable.load(out, arch=find_arch(made[0].key.arch))  # it reads as it should
    return lines


def _row(record: dict[str, Any]) -> Row:
    """In today's form, of the sources that it is of."""
    problem = _problem(record)
    rest = {name: value for name, value in record.items() if name not in problem.forms()}
    return Row.from_record(translated_within({**rest, "problem": problem.record()}, resolved=True))


def _proven(row: Row, made: Made) -> Row:
    meta = _meta(made)
    migrated = {"from": row.provenance.kernel_source, "proof": PROOF}
    if meta["dsl_version"] != row.provenance.dsl_version:
        raise InputError(
            f"the row of {row.key} is of DSL {row.provenance.dsl_version}, here is {meta['dsl_version']}: "
            "its machine code would be another"
        )
    record = row.to_record()
    record["object"] = {"key": made.directory.name, "file": "kernel.o", "sha256": meta["object_sha256"]}
    record["evidence"] |= {"cubin_sha256": meta["cubin_sha256"], "migrated": migrated}
    record["evidence"]["provenance"] |= {"kernel_source": made.source}
    return Row.from_record(record)


def _write_bundle(
    out: Path, entries: list[dict[str, Any]], jobs: dict[int, tuple[Job, Job]], proofs: Proofs
) -> list[str]:
    if not entries:
        return []
    folder, lines, made = make_folder(out / FOLDER), [], []
    for one in entries:
        old, new = jobs[id(one)]
        proof = (
            proofs.of(old, new) if one["host"] == os.uname().machine else "it is for another kind of machine"
        )
        if isinstance(proof, str):
            lines.append(f"object of {new.problem} ({new.problem.problem_class}), left out: {proof}")
            continue
        entry, data = _entry(one, new, proof)
        atomic_write(folder / entry.file, data)
        made.append(entry)
    atomic_write(folder / INDEX, render_index(made))
    for entry in (bundle := Bundle.load(folder, find_arch(entries[0]["arch"]))).entries:
        bundle.file_of(entry).read()
    return lines


def _entry(record: dict[str, Any], job: Job, made: Made) -> tuple[Entry, bytes]:
    meta, data = _meta(made), (made.directory / "kernel.o").read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    entry = Entry(
        arch=job.arch,
        config=job.config,
        problem=job.problem,
        host=record["host"],
        file=f"{digest[:16]}.o",
        sha256=digest,
        cubin_sha256=meta["cubin_sha256"],
        prefix=meta["prefix"],
        arguments=tuple(Argument(**argument) for argument in meta["arguments"]),
        launch=launch_facts(parse_config(OP, find_arch(job.arch), job.config), job.problem),
        source_hash=meta["source_hash"],
        dsl_version=meta["dsl_version"],
        checked=CardCheck.from_record(record.get("checked")),
    )
    return Entry.from_record(entry.to_record()), data


def _meta(made: Made) -> dict[str, Any]:
    meta = json.loads((made.directory / "meta.json").read_bytes())
    if meta["dsl_version"] != toolchain().dsl_version:
        raise InputError(f"{made.directory} was made by another compiler")
    return meta


if __name__ == "__main__":
    sys.exit(main())

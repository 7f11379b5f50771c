"""Kernels that others wrote, in the machine: compiled here, run without a card, compared with their own references.

    python -m benchmarks.foreign_kernels --cutlass DIR --quack DIR --flash-attention DIR
        [--only NAME] [--json OUT] [--jobs N] [--timeout SECONDS] [--schedules eager,random]

``DIR`` are checkouts of NVIDIA/cutlass, Dao-AILab/quack and Dao-AILab/flash-attention; nothing of them is part of this
project. Every kernel runs in a process of its own, under each schedule from the same memory. A line says kernel, sizes,
verdict, worst error, seconds; findings stand below it, with what was found out of those that are the kernel's own
(docs/evidence/foreign_kernels.md). ``--site`` is a folder with the Python packages that quack and flash-attention
import and this project does not (``apache-tvm-ffi``, ``einops``). Exit code 1 where a verdict is neither good nor
settled, 2 for a folder that is not there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.foreign import cutlass_cases, flash_kernels, quack_kernels
from benchmarks.foreign.case import Case
from kernel_space.core.errors import InputError

ROOT = Path(__file__).resolve().parents[1]
CASES: list[Case] = [*cutlass_cases.CASES, *quack_kernels.CASES, *flash_kernels.CASES]
GOOD = ("exact", "within tolerance")
# What in each corpus is a folder to import from, and what tells that a folder is that corpus.
CORPORA = {
    "cutlass": (cutlass_cases.EXAMPLES, ""),
    "quack": ("quack", ""),
    "flash-attention": ("flash_attn/cute", ""),
}


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    try:
        folders = _folders(args)
        cases = _chosen(args.only, folders)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    with ThreadPoolExecutor(args.jobs) as pool:
        documents = []
        for document in pool.map(lambda case: run_case(case, folders, args), cases):
            print(line(document), flush=True)
            documents.append(document)
    if args.json:
        _write(args.json, documents)
    good = sum(document["status"] in GOOD for document in documents)
    settled = sum(document["status"] not in GOOD and bool(document["settled"]) for document in documents)
    print(f"{good} of {len(documents)} without a finding, {settled} settled")
    return 0 if good + settled == len(documents) else 1


def run_case(case: Case, folders: dict[str, Path], args: argparse.Namespace) -> dict[str, Any]:
    """The worker's document, or one that says how the worker ended."""
    with tempfile.TemporaryDirectory(prefix="foreign-") as temporary:
        out = Path(temporary) / "result.json"
        paths = [*_import_paths(folders), *([str(args.site.resolve())] if args.site else [])]
        command = [
            sys.executable, "-m", "benchmarks.foreign.worker", str(out), case.arch, args.schedules, str(case.sms),
            ",".join(paths), case.location(folders), *case.arguments,
        ]  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        log = subprocess.DEVNULL if not args.verbose else None
        try:
            ended = subprocess.run(
                command,
                cwd=temporary,
                env=environment,
                stdout=log,
                stderr=log,
                timeout=args.timeout,
                check=False,
            ).returncode
            document = json.loads(out.read_text()) if out.is_file() else _lost(f"exit code {ended}")
        except subprocess.TimeoutExpired:
            document = _lost(f"no answer within {args.timeout} s")
    return {"name": case.name, "arch": case.arch, "sizes": case.sizes, "settled": case.settled, **document}


def line(document: dict[str, Any]) -> str:
    """A kernel's line, and its findings below."""
    error = f"{document['worst']:.2g} of {document['largest']:.3g}" if document.get("comparisons") else "-"
    head = (
        f"{document['name']:38} {document['arch']:8} {document['status']:17} {error:18} "
        f"{document.get('seconds', '-'):>6} s  {document['sizes']}"
    )
    below = [text.splitlines()[0] for text in document.get("findings", [])[:6]]
    settled = f"settled: {document['settled']}" if document["settled"] and below else ""
    return "\n".join(
        [head, *(f"    {text}" for text in [*below, document.get("error", ""), settled] if text)]
    )


def _lost(why: str) -> dict[str, Any]:
    return {"status": "stopped", "error": why, "findings": []}


def _folders(args: argparse.Namespace) -> dict[str, Path]:
    """The corpora that were named. Raises ``InputError`` for none, and for a folder that is not one."""
    named = {name: getattr(args, name.replace("-", "_")) for name in CORPORA}
    folders = {name: path.resolve() for name, path in named.items() if path is not None}
    if not folders:
        raise InputError(f"name the folder of a corpus: {', '.join(f'--{name} DIR' for name in CORPORA)}")
    for name, path in folders.items():
        if not (path / CORPORA[name][0]).is_dir():
            raise InputError(f"--{name} {path} is no checkout of it: it has no folder {CORPORA[name][0]}")
    if args.site is not None and not args.site.is_dir():
        raise InputError(f"--site {args.site} is no folder")
    return folders


def _chosen(only: Sequence[str], folders: dict[str, Path]) -> list[Case]:
    cases = [case for case in CASES if set(case.corpora) <= set(folders)]
    exact = {case.name for case in cases}.intersection(only)
    chosen = [
        case
        for case in cases
        if not only or case.name in exact or any(text in case.name for text in {*only} - exact)
    ]
    if not chosen:
        raise InputError(
            f"no kernel is called {' or '.join(only)}; there are {', '.join(c.name for c in cases)}"
        )
    return chosen


def _import_paths(folders: dict[str, Path]) -> list[str]:
    return [str(path / (CORPORA[name][0] if name == "cutlass" else "")) for name, path in folders.items()]


def _write(path: Path, documents: list[dict[str, Any]]) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(documents, indent=1) + "\n")
    partial.replace(path)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in CORPORA:
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--site", type=Path, help="folder with the packages that the corpora import")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        help="the kernel of this name, else all whose name has this; repeatable",
    )
    parser.add_argument("--json", type=Path, help="also write everything there")
    parser.add_argument("--jobs", type=int, default=1, help="kernels at a time")
    parser.add_argument("--timeout", type=float, default=280, help="seconds for a kernel")
    parser.add_argument(
        "--schedules", default="eager,random", help="of the machine; the first one's bytes are compared"
    )
    parser.add_argument("--verbose", action="store_true", help="show what the kernels' own programs print")
    return parser


if __name__ == "__main__":
    sys.exit(main())

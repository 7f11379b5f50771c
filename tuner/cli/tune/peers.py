"""``peers``: time what else computes the operator on a card, beside this project's kernel, into ``peers.json``
and the report."""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from kernel_space.core.errors import InputError
from kernel_space.core.plain_files import below
from kernel_space.core.problem import Problem
from kernel_space.core.registry import operator_of
from kernel_space.places import COMMAND, layers
from tuner.card.locks import card_lock
from tuner.card.worker.candidate import Case, Loadable
from tuner.card.worker_process import worker_command
from tuner.cli.look.report import write_again
from tuner.cli.options import text
from tuner.cli.options.common import check_out, problems_of
from tuner.cli.options.exits import CommandError
from tuner.compile.manifest import OBJECTS, Manifest
from tuner.devices.card import CudaDevice
from tuner.devices.recorded import keep_class_of
from tuner.devices.select import select_device
from tuner.files.store import atomic_write, make_folder
from tuner.report.data.peers import FILE_NAME
from tuner.report.write import ReportFiles, report_folder
from tuner.search.progress import Progress
from tuner.search.trial_of import utc_now
from tuner.tables.bundle import Bundle
from tuner.tables.dispatch import DispatchTable

if TYPE_CHECKING:
    from kernel_space.core.config import KernelConfig

LIMIT_S = 300.0  # Inductor compiles two graphs per problem, some seconds each


def peers_command(args: argparse.Namespace) -> int:
    """0 when something was timed. Raises ``InputError`` without a card, and for an operator without peers."""
    problems = problems_of(args)
    for problem in problems:
        if not has_peers(problem):
            raise InputError(without_peers(problem))
    check_out(args.out)
    device = cuda_device(args.device)
    if args.objects is not None:
        Manifest.load(args.objects).adopt(device.arch)
    documents = []
    with PeersProcess(device.card.index) as process:
        for problem in problems:
            progress = Progress(str(problem))
            row = DispatchTable.over(_folders(args.out, device), arch=device.arch).lookup(problem)
            config = row.config if row.source == "exact" else None
            own = None if config is None else _own(config, problem, device, args)
            if own is None:
                progress.say(
                    f"{problem.operator} itself is not timed: no object of an exact row of the table is at hand"
                )
            documents.append(measure_peers(process, problem, device, args.out, config, own, progress))
            page = _page(args.out, problem, device, progress)
            if not args.json:
                print_peers(problem, documents[-1])
                text.print_block([] if page is None else [("report", page.html), ("", page.markdown)])
    if args.json:
        text.print_json({"device": text.device_record(device), "results": documents})
    return 0


def _page(out: Path, problem: Problem, device: CudaDevice, progress: Progress) -> ReportFiles | None:
    """The report with what was timed now. Without the compiler nobody knows which trials are today's: said, and the
    times are kept beside them for ``tune.py report``."""
    try:
        return write_again(out, problem, device)
    except InputError as error:
        progress.say(
            f"the page is not written again here ({error}); run {COMMAND} report where the compiler is"
        )
        return None


def _folders(out: Path, device: CudaDevice) -> list[Path]:
    return [below(layer, device.name) for layer in layers(out)]


def has_peers(problem: Problem) -> bool:
    return bool(operator_of(problem).peers)


def without_peers(problem: Problem) -> str:
    return f"{problem.operator} has no peers to time: name a module of them in its operator.py (peers=)"


def cuda_device(name: str) -> CudaDevice:
    """Raises ``InputError``; what it proposes is no device without a card."""
    device = select_device(name, otherwise="run this where the card is")
    if not isinstance(device, CudaDevice):
        raise InputError(f"a card is needed: --device cuda:N, got {name}; run this where one is")
    return device


def measure_peers(
    process: PeersProcess,
    problem: Problem,
    device: CudaDevice,
    out: Path,
    config: KernelConfig | None,
    own: Loadable | None,
    progress: Progress,
) -> dict[str, Any]:
    """Time the peers in their process and write ``peers.json`` beside the trials; returns the document.

    ``config`` (resolved), ``own`` (its object): this project's kernel, timed too. Raises ``CommandError`` when the
    process fails, ``StoreError`` when the disk refuses.
    """
    kernel = None
    if config is not None and own is not None:
        kernel = {"candidate": own.record(), "case": Case.of(config, problem).record()}
    request = {"op": problem.operator, "problem": problem.record(), "kernel": kernel}
    with card_lock(device.worker.uuid, say=progress.say):
        answer = process.ask(request)
    for peer, reason in answer.pop("missing").items():
        progress.say(f"{peer} is not timed: {reason}")
    document = {"device": device.card.name, "date": utc_now(), **answer}
    keep_class_of(out, device)
    folder = make_folder(report_folder(out, device.name, problem))
    atomic_write(folder / FILE_NAME, json.dumps(document, indent=1) + "\n")
    return document


def print_peers(problem: Problem, document: dict[str, Any]) -> None:
    """A line per peer, with its ratio to this project's kernel if that was timed."""
    own = next((row["us"] for row in document["rows"] if row["peer"] == problem.operator), None)
    print(f"{text.describe_problem(problem)}, measured on {document['device']}, driver {document['driver']}")
    for row in sorted(document["rows"], key=lambda row: row["us"]):
        ratio = f"{row['us'] / own:8.2f}" if own else ""
        print(
            f"  {row['peer']:<34}{row['us']:10.2f} us  ({row['low_us']:.2f} to {row['high_us']:.2f}){ratio}"
        )


def _own(
    config: KernelConfig, problem: Problem, device: CudaDevice, args: argparse.Namespace
) -> Loadable | None:
    """The object in ``--objects``, else in the user's build cache, else beside the table."""
    from kernel_space.build.build import cached_build

    folder = None if args.objects is None else below(args.objects, OBJECTS)
    with contextlib.suppress(InputError):  # no compiler here, so no name for what it would have built
        compiled = cached_build(
            config, problem.problem_class, device.arch, cache_dir=folder, foreign=folder is not None
        )
        if compiled is not None:
            return Loadable.of(compiled, config)
    return bundled(config, problem, device, args.out)


def bundled(config: KernelConfig, problem: Problem, device: CudaDevice, out: Path) -> Loadable | None:
    """The object beside the table; None where it has none of ``config`` (resolved)."""
    file = Bundle.over(_folders(out, device), device.arch).find(config, problem)
    return None if file is None else Loadable.of_bundled(file, config)


class PeersProcess:
    """The process that times peers, one for all problems of a visit: it imports torch while others use the card.

    Use it as a context manager; it ends with it, and with this process in any case.
    """

    def __init__(self, card: int) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        self._process = subprocess.Popen(
            worker_command(card, module="tuner.card.peers"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Raises ``CommandError`` when there is no answer within ``LIMIT_S``."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # the end of stdout tells it too
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        watchdog = threading.Timer(LIMIT_S, self._process.kill)
        watchdog.start()
        try:
            line = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        if not line:
            raise CommandError(f"the peers gave no answer: {self._last_words()}")
        return json.loads(line)

    def _last_words(self) -> str:
        code = self._process.wait()
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return f"code {code}, {lines[-1] if lines else 'nothing said'}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()

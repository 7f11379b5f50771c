"""Probes on the card, in child processes: a hang or a fault costs one probe and one process, never the run."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

from kernel_space.core.errors import InputError
from kernel_space.selfcheck.driver import Card, CardInfo
from kernel_space.selfcheck.text.probe import Ending, Probe, Result

START_SECONDS = 60.0  # driver initialisation
PROBE_SECONDS = 20.0  # JIT of one program included

Serve = Callable[[Connection], None]


def serve_probes(pipe: Connection) -> None:
    """Child: take the probes, say what card this is, then send one result per probe; stop after a fault."""
    probes: Sequence[Probe] = pipe.recv()
    try:
        card = Card()
    except InputError as error:
        pipe.send(error)
        return
    info = card.info()
    pipe.send(info)
    for probe in probes:
        result = card.run(probe) if info.runs(probe.target) else None
        pipe.send(result)
        if result is not None and result.ending is Ending.FAULT:
            break
    pipe.close()


class _Child:
    """One process that works through ``probes``; ``results`` ends early when it faults, hangs or dies."""

    def __init__(self, probes: Sequence[Probe], serve: Serve, probe_seconds: float) -> None:
        # A forked child would inherit a driver that another library has initialised, which CUDA does not allow.
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._probes, self._seconds = probes, probe_seconds
        self._process = context.Process(target=serve, args=(other,), daemon=True)
        self._process.start()
        other.close()
        # Through the pipe and not as arguments: a child that dies early would leave start() blocked on them.
        with contextlib.suppress(OSError):
            self._pipe.send(list(probes))

    def info(self) -> CardInfo:
        message = self._receive(START_SECONDS)
        if isinstance(message, Result):
            raise InputError(f"selfcheck cannot use the GPU: its process {message.detail}")
        if isinstance(message, InputError):
            raise message
        return message

    def results(self) -> Iterator[Result | None]:
        for _ in self._probes:
            result = self._receive(self._seconds)
            yield result
            if result is not None and result.ending in (Ending.FAULT, Ending.HANG):
                return

    def _receive(self, seconds: float) -> Any:
        if not self._pipe.poll(seconds):
            return Result(ending=Ending.HANG, detail=f"did not answer within {seconds:.0f} s")
        try:
            return self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(5)
            return Result(ending=Ending.FAULT, detail=f"ended with code {self._process.exitcode}")

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()


def run_on_card(
    probes: Sequence[Probe], *, serve: Serve = serve_probes, probe_seconds: float = PROBE_SECONDS
) -> tuple[CardInfo, dict[str, Result]]:
    """(the card, result by probe name); probes that the card cannot run are left out.

    ``serve`` is the child's function, ``serve_probes`` but in tests.

    Raises ``InputError`` when there is no card.
    """
    results: dict[str, Result] = {}
    left = list(probes)
    while True:
        child = _Child(left, serve, probe_seconds)
        try:
            info = child.info()
            for probe, result in zip(list(left), child.results(), strict=False):
                left.remove(probe)
                if result is not None:
                    results[probe.name] = result
        finally:
            child.end()
        if not left:
            return info, results

"""``local:N``: a scheduler and N hosts of one compiler each, as processes of this machine that end with this one."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
from collections.abc import Iterator, Sequence
from typing import IO, Any

from tuner.fleet.engine import LOOPBACK, Access, FleetLost, require_engine
from tuner.processes import call_command, start

START_S = 60.0


@contextlib.contextmanager
def local_cluster(hosts: int, cards: Sequence[int] = (), *, jobs: int = 1) -> Iterator[Access]:
    """Listens on the loopback alone. The first host also offers ``cards``. Raises ``InputError`` when the engine is
    missing or does not start."""
    require_engine()
    with contextlib.ExitStack() as stack:
        scheduler = stack.enter_context(_process("scheduler_main"))
        access = Access(address=_first_line(scheduler)["address"])
        processes = [
            stack.enter_context(
                _process("host_main", access.address, jobs, list(cards if number == 0 else ()))
            )
            for number in range(hosts)
        ]
        for process in processes:
            _first_line(process)
        yield access


@contextlib.contextmanager
def _process(function: str, *arguments: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that calls ``function`` of this module and is killed at the end, with all that it started."""
    process = start(
        call_command(__name__, function, os.getpid(), *arguments), stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()  # its own processes end with it
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _first_line(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What the process says when it is ready."""
    watchdog = threading.Timer(START_S, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
    finally:
        watchdog.cancel()
    if not line:
        raise FleetLost(
            f"a process of the local cluster did not start within {START_S:g} s; run the command again"
        )
    said: dict[str, Any] = json.loads(line)
    return said


def scheduler_main(parent: int) -> None:
    """A scheduler on the loopback; says its address on stdout."""
    import asyncio

    out = _alone_on_stdout(parent)

    async def run() -> None:
        import logging

        from distributed import Scheduler

        # A client that leaves while word of something is on its way to it is "critical" there, with a traceback.
        logging.getLogger("distributed").setLevel(logging.CRITICAL + 1)
        async with Scheduler(
            host=LOOPBACK, port=0, dashboard_address=f"{LOOPBACK}:0", dashboard=False
        ) as scheduler:
            _say(out, address=scheduler.address)
            await scheduler.finished()

    asyncio.run(run())


def host_main(parent: int, address: str, jobs: int, cards: list[int]) -> None:
    """A host on the loopback; says on stdout that it has joined."""
    from tuner.fleet.host import Host, host_name, own_cards
    from tuner.fleet.worker import member_names, serve

    out = _alone_on_stdout(parent)
    names = member_names(host_name(), cards)
    owned = {names[own.card.index]: own for own in own_cards(cards)} if cards else {}
    serve(
        Access(address=address), Host(jobs, owned), say=lambda line: None, ready=lambda: _say(out, ready=True)
    )


def _alone_on_stdout(parent: int) -> IO[str]:
    """What was stdout, for this module; whatever else prints goes to stderr. The process ends with ``parent``."""
    from tuner.processes import die_with

    die_with(parent)
    own = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return own


def _say(out: IO[str], **fields: Any) -> None:
    out.write(json.dumps(fields) + "\n")
    out.flush()

"""Real processes that are hosts, schedulers and tuners of a cluster, to be killed, stopped and started by tests."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCHEDULER = """
import asyncio, sys
from distributed import Scheduler, Security
options = {}
if sys.argv[3:]:
    ca, cert, key = sys.argv[3:]
    tls = Security(require_encryption=True, tls_ca_file=ca, tls_scheduler_cert=cert, tls_scheduler_key=key)
    options = {"security": tls, "protocol": "tls"}
async def run():
    async with Scheduler(host=sys.argv[1], port=int(sys.argv[2]), dashboard=False, **options) as scheduler:
        print(scheduler.address, flush=True)
        await scheduler.finished()
asyncio.run(run())
"""


class Process:
    """Started with its own group, so that a kill takes what it started; ``line`` is the first that it wrote."""

    def __init__(self, command: Sequence[str], folder: Path, prefix: Sequence[str] = ()) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        environment = os.environ | {
            "PYTHONPATH": str(ROOT),
            "SVDQUANT_TUNE_CACHE": str(folder / "cache"),
        }
        self.errors = folder / "stderr"
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [*prefix, sys.executable, *command],
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                cwd=ROOT,
                text=True,
                start_new_session=True,
            )
        self.line = ""

    def wait_until_ready(self) -> str:
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline().strip()
        assert self.line, self.errors.read_text()
        return self.line

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait()


class Cluster:
    """A scheduler and hosts on the loopback; all end with the block."""

    def __init__(self, folder: Path, tls: Sequence[Path] = (), listen: str = "127.0.0.1") -> None:
        self.folder = folder
        self.processes: list[Process] = []
        self.scheduler = self.start(["-c", SCHEDULER, listen, "0", *map(str, tls)], "scheduler")
        self.address = self.scheduler.wait_until_ready()

    def host(self, name: str, *options: str, wait: bool = True, prefix: Sequence[str] = ()) -> Process:
        command = ["-m", "tests.fleet.fake_host", self.address, "--name", name]
        started = self.start([*command, "--scratch", str(self.folder / name), *options], name, prefix)
        if wait:
            started.wait_until_ready()
        return started

    def tuner(self, *options: str) -> Process:
        return self.start(["tune.py", *options, "--cluster", self.address], "tuner")

    def restart_scheduler(self) -> None:
        port = re.sub(".*:", "", self.address)
        self.scheduler = self.start(["-c", SCHEDULER, "127.0.0.1", port], "scheduler")
        assert self.scheduler.wait_until_ready() == self.address

    def log(self, name: str) -> list[str]:
        """What a host did: ``<what> <config>``."""
        path = self.folder / name / "log"
        return path.read_text().splitlines() if path.exists() else []

    def start(self, command: Sequence[str], name: str, prefix: Sequence[str] = ()) -> Process:
        process = Process(command, self.folder / name, prefix)
        self.processes.append(process)
        return process


@contextlib.contextmanager
def cluster(folder: Path, tls: Sequence[Path] = (), listen: str = "127.0.0.1") -> Iterator[Cluster]:
    """``tls``: the authority's certificate, a certificate and its key."""
    started = Cluster(folder, tls, listen)
    try:
        yield started
    finally:
        for process in started.processes:
            process.signal(signal.SIGCONT)
            process.kill()

"""A host of a fleet whose compiler, machine and cards are made up; everything else is the real one.

``python -m tests.fleet.fake_host ADDRESS --name N`` joins; what it does is a log: a line per task, ``<what> <config>``.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kernel_space.build.build import PTX, cached_build
from kernel_space.build.cache import BuildCache
from kernel_space.build.key import build_key, kernel_source_hash, toolchain
from kernel_space.core.registry import kernel_of
from tests.fakes import fake_us
from tuner.card.card_worker import CardWorker, Limits
from tuner.compile.worker import CompileResult
from tuner.devices.classes import Card
from tuner.fleet.engine import Access, Tls
from tuner.fleet.host import Host, OwnCard
from tuner.fleet.identity import Identity
from tuner.fleet.worker import serve
from tuner.trials.outcome import Kind, Outcome, Status, Timing


class Log:
    def __init__(self, path: Path) -> None:
        self._path = path

    def line(self, *words: object) -> None:
        with self._path.open("a") as file:
            file.write(" ".join(map(str, words)) + "\n")


class FakeCompilers:
    """An object of any config in ``seconds``; what lies in the cache is what a real build leaves there."""

    def __init__(self, jobs: int, folder: Path, seconds: float, log: Log) -> None:
        self._folder, self._seconds, self._log = folder, seconds, log
        self._threads = ThreadPoolExecutor(jobs)

    def submit(self, config: Any, problem_class: Any, arch: Any) -> Future[CompileResult]:
        return self._threads.submit(self._build, config, problem_class, arch)

    def _build(self, config: Any, problem_class: Any, arch: Any) -> CompileResult:
        self._log.line("compile", config)
        time.sleep(self._seconds)
        store_fake(config, problem_class, arch, self._folder)
        found = cached_build(config, problem_class, arch, cache_dir=self._folder)
        assert found is not None
        return CompileResult(status=Status.OK, compiled=found, seconds=self._seconds)


def store_fake(config: Any, problem_class: Any, arch: Any, folder: Path) -> None:
    kernel = kernel_of(config, problem_class)
    data = f"object of {config} for {problem_class}".encode()
    digest = hashlib.sha256(data).hexdigest()
    meta = {
        "kernel": kernel.full_name,
        "arch": arch.name,
        "config": str(config),
        "problem_class": str(problem_class),
        "prefix": "k0",
        "arguments": [],
        "resources": dict.fromkeys(RESOURCES, 0),
        "source_hash": kernel_source_hash(kernel),
        "cubin_sha256": digest,
        "object_sha256": digest,
        "dsl_version": toolchain().dsl_version,
        "variant": toolchain().variant,
    }
    files = {PTX: data, "kernel.cubin": data, "kernel.o": data, "kernel.h": b""}
    BuildCache(folder).store(build_key(config, problem_class, arch), files, meta)


class FakeMachine:
    """A time by a hash of the config; every check is passed."""

    def __init__(self, jobs: int, seconds: float, log: Log) -> None:
        self._seconds, self._log = seconds, log
        self._threads = ThreadPoolExecutor(jobs)

    def submit(self, task: Any) -> Future[Any]:
        return self._threads.submit(self._run, task)

    def _run(self, task: Any) -> Any:
        config = task.compiled.config
        assert task.compiled.object_path.read_bytes().startswith(f"object of {config} ".encode())
        time.sleep(self._seconds)
        if hasattr(task, "chip"):
            self._log.line("time", config)
            us = fake_us(config)
            timing = Timing(kind=Kind.SIMULATED, us=us, low_us=us, high_us=us, evidence={"noise_us": 0.0})
            return Outcome(status=Status.OK, timing=timing)
        self._log.line("check", config)
        return {"status": "ok", "text": "checked in the sm_100a machine: made up", "seconds": 0.0}


RESOURCES: tuple[str, ...] = ()


def _resources() -> tuple[str, ...]:
    from kernel_space.build.resources import Resources

    return tuple(field.name for field in dataclasses.fields(Resources))


RESOURCES = _resources()


def fake_card(uuid: str, scratch: Path, seconds: float) -> OwnCard:
    """An H200 whose worker is ``fake_card``; its deeds lie in ``scratch``."""
    scratch.mkdir(parents=True, exist_ok=True)
    (scratch / "uuid").write_text(uuid)
    card = Card(index=0, name="NVIDIA H200", compute_capability=(9, 0), sm_count=132, uuid=uuid)
    command = [sys.executable, "-m", "tests.fleet.fake_card", str(scratch), str(seconds)]
    worker = CardWorker(0, uuid, limits=Limits(pause_s=0.01), command=command, lock_folder=scratch)
    return OwnCard(card=card, driver="580.1", judge=worker)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("--name", required=True)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--sources", default="")
    parser.add_argument("--compiler", default="")
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--card-seconds", type=float, default=0.0)
    parser.add_argument("--cards", nargs="*", default=[])
    parser.add_argument("--listen", default="127.0.0.1")
    parser.add_argument("--tls", nargs=3, type=Path)
    args = parser.parse_args()
    args.scratch.mkdir(parents=True, exist_ok=True)
    log = Log(args.scratch / "log")
    here = Identity.here()
    identity = dataclasses.replace(
        here,
        sources=args.sources or here.sources,
        compiler=(args.compiler,) if args.compiler else here.compiler,
    )
    host = Host(
        args.jobs,
        {
            f"{args.name}/{uuid}": fake_card(uuid, args.scratch / uuid, args.card_seconds)
            for uuid in args.cards
        },
        compilers=lambda jobs, _: FakeCompilers(jobs, args.scratch / "build", args.seconds, log),
        simulators=lambda jobs: FakeMachine(jobs, args.seconds, log),
        identity=identity,
        name=args.name,
    )
    tls = Tls(ca_file=args.tls[0], cert=args.tls[1], key=args.tls[2]) if args.tls else Tls()
    access = Access(address=args.address, tls=tls)

    def ready() -> None:
        print("ready", flush=True)

    serve(access, host, listen=args.listen, say=lambda line: None, ready=ready)


if __name__ == "__main__":
    main()

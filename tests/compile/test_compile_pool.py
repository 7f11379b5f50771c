"""The compile pool: nothing mixed up, and every kind of failure is one outcome that leaves the pool usable."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

from kernel_space.build.build import CompiledKernel, build
from kernel_space.build.resources import disassemble
from kernel_space.core.arch import SM100A
from kernel_space.core.config import KernelConfig
from kernel_space.core.errors import InputError
from kernel_space.core.registry import kernel, operator
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from tuner.compile.pool import CompilePool, WorkerError
from tuner.trials.outcome import Status

STAMP = SM100A
CLASS = operator("stamp").problem.class_of(r=0)
StampConfig = kernel("stamp", "stamp").config_class
# The codes of the operator's kernel.py, which cannot be imported here without the DSL.
FINE, HANG, EXIT, SEGFAULT, PTXAS_ERROR, TRACE_ERROR, WRONG_ARGUMENTS = 1, 101, 102, 103, 104, 105, 106


def config(value: int, code: int = FINE) -> KernelConfig:
    return StampConfig(value=value, behaviour=code, num_stage=1)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CompilePool]:
    with CompilePool(2, 3.0, tmp_path_factory.mktemp("cache")) as pool:
        yield pool


def submit(pool: CompilePool, value: int, code: int = FINE) -> Any:
    return pool.submit(config(value, code), CLASS, STAMP)


def test_workers_start_before_their_first_candidate(tmp_path: Path) -> None:
    others = set(workers_of(os.getpid()))
    with CompilePool(2, 60.0, tmp_path) as pool:
        pool.start(STAMP)
        deadline = time.monotonic() + 60
        while len(started := set(workers_of(os.getpid())) - others) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(started) == 2, "both, without a candidate"
        assert submit(pool, 1).result(timeout=60).status is Status.OK


def test_twenty_four_candidates_keep_their_own_artifacts(pool: CompilePool, tmp_path: Path) -> None:
    """Every PTX carries its candidate's constant; every fourth cubin is compared with a build made here."""
    futures = {value: submit(pool, value) for value in range(24)}
    results = {value: future.result(timeout=60) for value, future in futures.items()}
    assert {result.status for result in results.values()} == {Status.OK}
    for value, result in results.items():
        compiled = result.compiled
        assert f"{10_000_000 + value}" in compiled.ptx
        assert not any(f"{10_000_000 + other}" in compiled.ptx for other in results if other != value)
        assert compiled.cubin in compiled.object_path.read_bytes()
        assert compiled.config == str(config(value))
    for value in range(0, 24, 4):
        compiled = results[value].compiled
        serial = build(config(value), CLASS, STAMP, cache_dir=tmp_path)
        assert (compiled.cubin_sha256, compiled.object_sha256) == (serial.cubin_sha256, serial.object_sha256)
    assert len({result.compiled.cubin_sha256 for result in results.values()}) == 24


@pytest.mark.slow
def test_twenty_four_real_kernels_keep_their_own_code(tmp_path: Path) -> None:
    """Stage counts, schedules and raster of the SVDQuant GEMM, R = 64."""
    class_ = GemmProblem.class_of(r=64)
    configs = [
        KernelConfigSm100a(
            num_ab_stage=ab,
            num_lora_stage=1,
            num_acc_stage=acc,
            num_c_stage=2,
            lora_schedule=schedule,
            swizzle_size=swizzle,
        )
        for ab in (2, 3, 4)
        for acc in (1, 2)
        for schedule in ("interleave", "tail")
        for swizzle in (1, 2)
    ]
    with CompilePool(2, 60.0, tmp_path / "pool") as pool:
        futures = [pool.submit(config, class_, SM100A) for config in configs]
        built = [future.result(timeout=120).compiled for future in futures]
    for config, compiled in zip(configs, built, strict=True):
        assert compiled.config == str(config)
        assert compiled.cubin in compiled.object_path.read_bytes()
    assert len({compiled.ptx for compiled in built}) == 24
    codes = set()
    for config, compiled in list(zip(configs, built, strict=True))[::3]:
        serial = build(config, class_, SM100A, cache_dir=tmp_path / "serial")
        assert compiled.ptx == serial.ptx
        codes.add(code_without_registers(serial))
        assert code_without_registers(compiled) in codes
    assert len(codes) == 8


def code_without_registers(compiled: CompiledKernel) -> str:
    """ptxas swaps equal registers from run to run, so two cubins of one PTX may differ in their names."""
    return re.sub(r"\bU?[RP]\d+", "r", disassemble(compiled.cubin_path))


def test_a_second_request_comes_from_the_cache(pool: CompilePool) -> None:
    submit(pool, 1000).result(timeout=60)
    again = submit(pool, 1000)
    assert again.done()
    assert again.result().compiled.config == str(config(1000))
    assert again.result().seconds < 0.1


@pytest.mark.parametrize(
    ("code", "status", "reason"),
    [
        (PTXAS_ERROR, Status.COMPILE_FAILED, "ptxas: line "),
        (TRACE_ERROR, Status.COMPILE_FAILED, "no tile of width 0"),
        (EXIT, Status.COMPILE_CRASHED, "the compile worker exited with code 3: the last words"),
        (SEGFAULT, Status.COMPILE_CRASHED, "the compile worker was killed by SIGSEGV: Fatal Python error"),
    ],
)
def test_a_failure_is_one_outcome(pool: CompilePool, code: int, status: Status, reason: str) -> None:
    """Its neighbours in the queue are not affected, and the pool goes on."""
    before, bad, after = submit(pool, 2000 + code), submit(pool, 0, code), submit(pool, 3000 + code)
    result = bad.result(timeout=60)
    assert result.status is status
    assert reason in result.reason
    assert "\n" not in result.reason
    assert result.compiled is None
    assert before.result(timeout=60).status is after.result(timeout=60).status is Status.OK


def test_a_hanging_candidate_is_killed(pool: CompilePool) -> None:
    """The limit of 3 s counts from when the worker has it; the other worker compiles meanwhile."""
    hanging = submit(pool, 0, HANG)
    assert submit(pool, 4000).result(timeout=60).status is Status.OK
    assert not hanging.done()
    result = hanging.result(timeout=60)
    assert (result.status, result.reason) == (Status.COMPILE_TIMEOUT, "not compiled within 3 s")
    assert 3.0 <= result.seconds < 5.0
    assert submit(pool, 4001).result(timeout=60).status is Status.OK


def test_an_idle_worker_that_is_killed_is_replaced(pool: CompilePool) -> None:
    submit(pool, 5000).result(timeout=60)
    for pid in workers_of(os.getpid()):
        os.kill(pid, signal.SIGKILL)
    time.sleep(0.2)
    results = [submit(pool, 5001 + i).result(timeout=60) for i in range(4)]
    assert [result.status for result in results] == [Status.OK] * 4


def test_a_bug_is_an_exception_not_an_outcome(pool: CompilePool) -> None:
    broken = kernel("stamp", "broken").config_class(value=0, num_stage=1)
    with pytest.raises(WorkerError, match="this module has a bug"):
        pool.submit(broken, CLASS, STAMP).result(timeout=60)


def test_arguments_that_are_not_the_operator_s_fail_the_candidate(pool: CompilePool) -> None:
    result = submit(pool, 0, WRONG_ARGUMENTS).result(timeout=60)
    assert result.status is Status.COMPILE_FAILED
    assert "must take the arguments of its operator, (y pointer, stream stream)" in result.reason


def test_workers_are_replaced_after_their_tasks(tmp_path: Path) -> None:
    with CompilePool(1, 30.0, tmp_path, tasks_per_worker=2) as pool:
        pids = set()
        for value in range(4):
            future = submit(pool, value)
            future.result(timeout=60)
            pids |= set(workers_of(os.getpid()))
        assert len(pids) >= 2


def test_close_ends_what_runs_and_what_waits(tmp_path: Path) -> None:
    others = set(workers_of(os.getpid()))
    pool = CompilePool(1, 60.0, tmp_path)
    submit(pool, 0).result(timeout=60)
    running, waiting = submit(pool, 0, HANG), submit(pool, 1)
    time.sleep(0.3)
    start = time.monotonic()
    pool.close()
    assert time.monotonic() - start < 2
    with pytest.raises(WorkerError, match="was closed"):
        running.result(timeout=1)
    with pytest.raises(CancelledError):
        waiting.result(timeout=1)
    assert set(workers_of(os.getpid())) <= others
    with pytest.raises(RuntimeError, match="closed"):
        submit(pool, 2)


def test_bad_limits_are_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="jobs must be at least 1, got 0"):
        CompilePool(0, 1.0, tmp_path)
    with pytest.raises(InputError, match="timeout must be positive, got 0 s"):
        CompilePool(1, 0, tmp_path)


def test_what_a_killed_tuner_left_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (tmp_path / f"svdquant-autotuner-compile-pool-{ended.pid}-abc").mkdir()
    (tmp_path / f"svdquant-autotuner-compile-pool-{os.getppid()}-abc").mkdir()
    CompilePool(1, 1.0, tmp_path / "cache").close()
    assert [path.name for path in tmp_path.iterdir()] == [
        f"svdquant-autotuner-compile-pool-{os.getppid()}-abc"
    ]


TUNER = """
import sys, time
from pathlib import Path
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit it as ignored
from tests.compile.test_compile_pool import HANG, submit
from tuner.compile.pool import CompilePool
with CompilePool(2, 60.0, Path(sys.argv[1])) as pool:
    submit(pool, 0).result()
    hanging = [submit(pool, i, HANG) for i in range(2)]
    time.sleep(1)
    print("hanging", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda kind: kind.name)
def test_no_worker_survives_the_tuner(kind: signal.Signals, tmp_path: Path) -> None:
    """Even when both workers hang in a candidate."""
    tuner = subprocess.Popen(
        [sys.executable, "-c", TUNER, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert tuner.stdout is not None
    assert tuner.stdout.readline() == "hanging\n"
    workers = workers_of(tuner.pid)
    assert len(workers) == 2
    tuner.send_signal(kind)
    tuner.wait(timeout=10)
    end = time.monotonic() + 5
    while any(alive(pid) for pid in workers) and time.monotonic() < end:
        time.sleep(0.02)
    assert [pid for pid in workers if alive(pid)] == []


def workers_of(parent: int) -> list[int]:
    """Child processes of ``parent`` that run the worker's program, from /proc."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            status = (entry / "stat").read_text().rpartition(")")[2].split()
            if (
                int(status[1]) == parent
                and status[0] != "Z"
                and b"compile.worker" in (entry / "cmdline").read_bytes()
            ):
                found.append(int(entry.name))
    return found


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False

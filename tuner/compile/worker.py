"""The process that compiles: one candidate after another, over a pipe, with no GPU in sight.

Started by ``compile_pool``; it may hang, crash or leak memory (the DSL keeps 2.4 MB of each compilation) without
harm to anyone else.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import os
import tempfile
import time
import traceback
import warnings
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from kernel_space.core.arch import Arch
from kernel_space.core.config import KernelConfig
from kernel_space.core.errors import InputError
from kernel_space.core.problem import ProblemClass
from tuner.processes import die_with
from tuner.trials.outcome import Status


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompileResult:
    """What became of one compilation.

    ``status``: OK, COMPILE_FAILED (the compiler's reason), COMPILE_TIMEOUT or COMPILE_CRASHED (the worker's end).
    ``compiled``: a ``CompiledKernel`` if OK. ``seconds``: wall time, without waiting for a free worker. ``host``: of a
    fleet, which did it; empty of this machine.
    """

    status: Status
    reason: str = ""
    compiled: Any | None = None
    seconds: float = 0.0
    host: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    config: KernelConfig
    problem_class: ProblemClass
    arch: Arch
    cache_dir: Path


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerBug:
    """An exception that is no verdict on the candidate; its traceback."""

    trace: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Refusal:
    """An ``InputError``: nothing of this candidate, and nothing of ours; its line."""

    line: str


READY = "ready"


def main(descriptor: int, parent: int, arch_name: str, scratch: str) -> None:
    """Answers each ``Task`` from the pipe ``descriptor`` with a ``CompileResult``, ``Refusal`` or ``WorkerBug``.

    ``parent``: the process to die with. ``scratch``: where temporary files go, so that the pool can remove what a
    killed worker leaves.
    """
    die_with(parent)
    faulthandler.enable()
    warnings.simplefilter("ignore")
    # The DSL looks for devices on import; a tuner that measures must not find a context of ours on its GPU.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["CUTE_DSL_ARCH"] = arch_name
    tempfile.tempdir = scratch
    from kernel_space.build.dsl_env import import_dsl

    import_dsl(arch_name)
    connection = Connection(descriptor)
    connection.send(READY)
    while True:
        try:
            task = connection.recv()
        except EOFError:  # the pool is gone or wants another worker
            return
        connection.send(_answer(task))


def _answer(task: Task) -> CompileResult | Refusal | WorkerBug:
    from kernel_space.build.build import CompileError, build

    start = time.perf_counter()
    try:
        compiled = build(task.config, task.problem_class, task.arch, cache_dir=task.cache_dir)
    except CompileError as error:
        seconds = time.perf_counter() - start
        return CompileResult(status=Status.COMPILE_FAILED, reason=str(error), seconds=seconds)
    except InputError as error:  # a cache that cannot be written
        return Refusal(line=str(error))
    except Exception:
        return WorkerBug(trace=traceback.format_exc())
    return CompileResult(status=Status.OK, compiled=compiled, seconds=time.perf_counter() - start)

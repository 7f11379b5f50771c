"""Does a kernel of earlier sources make the same PTX as today's? Both are compiled, and symbol names taken out.

Names of kernels contain module and class, which move; ptxas may swap equal registers from run to run, so that cubins
say nothing. A comment, a source line or a path is no code.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from kernel_space.core.arch import arch as find_arch
from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from kernel_space.core.registry import parse_config

_DECLARED = re.compile(r"\.(?:entry|func)\s+(?:\([^)]*\)\s*)?([A-Za-z_$][\w$]*)")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_NO_CODE = re.compile(r"\s*\.(?:file|loc)\b")
_DEBUG = re.compile(r"\.section\s+\.debug.*", re.DOTALL)

_CHILD = r"""
import json, sys
from kernel_space.build.build import build
from kernel_space.core.arch import arch
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
try:
    from kernel_space.core.kernel_spec import parse_config
except ImportError:
    from kernel_space.core.registry import parse_config as find
    parse_config = lambda arch, text: find("svdquant_gemm", arch, text)
for job in json.load(sys.stdin):
    try:
        problem, chip = GemmProblem(**job["problem"]), arch(job["arch"])
        built = build(parse_config(chip, job["config"]), problem.problem_class, chip)
        said = {"directory": str(built.directory), "source": built.source_hash}
    except Exception as error:
        said = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(said), flush=True)
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Made:
    """An entry of a build cache: its folder, and the hash of the sources that it was made from."""

    directory: Path
    source: str

    @property
    def ptx(self) -> str:
        return (self.directory / "kernel.ptx").read_text()


@dataclasses.dataclass(frozen=True)
class Job:
    """A kernel: its config, printed by whichever version, for the class of ``problem``."""

    arch: str
    config: str
    problem: Problem

    @property
    def key(self) -> tuple[str, str, str]:
        """What decides its code."""
        return self.arch, self.config, str(self.problem.problem_class)


def code_of(ptx: str) -> str:
    """``ptx`` without comments, source lines and debug sections; kernels and functions are called by their order."""
    text = _DEBUG.sub("", _COMMENT.sub("", ptx))
    lines = (line.strip() for line in text.splitlines() if not _NO_CODE.match(line))
    text = "\n".join(line for line in lines if line)
    names = list(dict.fromkeys(_DECLARED.findall(text)))
    for number, name in sorted(enumerate(names), key=lambda item: -len(item[1])):
        text = re.sub(rf"(?<![\w$]){re.escape(name)}(?=[^\w$]|_param_)", f"SYMBOL{number}", text)
    return text


def digest_of(made: Made) -> str:
    return hashlib.sha256(code_of(made.ptx).encode()).hexdigest()


def compile_with(checkout: Path, jobs: Iterable[Job], cache: Path) -> dict[tuple[str, str, str], Made | str]:
    """Each job once, by the sources in ``checkout``, in a process of their own for each arch, with a build cache of
    their own below ``cache``; why not where it cannot be compiled. Raises ``InputError`` for what is no checkout.
    """
    if not (checkout / "kernel_space" / "build" / "build.py").is_file():
        raise InputError(
            f"{checkout} must be a checkout of this project: it has no kernel_space/build/build.py"
        )
    found: dict[tuple[str, str, str], Made | str] = {}
    once = {job.key: job for job in jobs}
    for arch in sorted({job.arch for job in once.values()}):
        own = [job for job in once.values() if job.arch == arch]
        for job, said in zip(own, _ask(checkout, own, cache), strict=True):
            found[job.key] = (
                said["error"]
                if "error" in said
                else Made(directory=Path(said["directory"]), source=said["source"])
            )
    return found


def _ask(checkout: Path, jobs: list[Job], cache: Path) -> list[dict[str, str]]:
    request = [{"arch": job.arch, "config": job.config, "problem": job.problem.record()} for job in jobs]
    environment = {**os.environ, "PYTHONPATH": str(checkout), "XDG_CACHE_HOME": str(cache)}
    environment.pop("CUTE_DSL_ARCH", None)
    done = subprocess.run(
        [sys.executable, "-c", _CHILD],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        cwd=checkout,
        env=environment,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or len(lines) != len(jobs):
        raise InputError(f"compiling with {checkout} failed: {done.stderr.strip()[-300:] or 'no answer'}")
    return [json.loads(line) for line in lines]


def resolved(op: str, arch: str, text: str) -> str:
    """``text`` as this version prints it. Raises ``InputError``."""
    return str(parse_config(op, find_arch(arch), text))

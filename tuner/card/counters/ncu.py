"""Nsight Compute from the outside: where it is, how it is called, and what its refusals mean."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from kernel_space.core.errors import InputError
from tuner.card.counters.quantities import COUNTERS
from tuner.processes import kill_group, start

FOLDERS = ("/usr/local/cuda/bin", "/usr/local/cuda-*/bin", "/opt/nvidia/nsight-compute/*")
NO_PERMISSION = "ERR_NVGPUCTRPERM"


def find_ncu(which: Callable[[str], str | None] = shutil.which, folders: Sequence[str] = FOLDERS) -> str:
    """On PATH, or where installers put it, the latest. Raises ``InputError`` when it is nowhere."""
    if found := which("ncu"):
        return found
    for pattern in folders:
        root, below = Path(pattern).anchor, str(Path(pattern).relative_to(Path(pattern).anchor))
        there = [path / "ncu" for path in Path(root).glob(below) if (path / "ncu").is_file()]
        if there:
            return str(max(there, key=_version_of))
    raise InputError(
        "profile needs Nsight Compute, but ncu is neither on PATH nor below /usr/local/cuda or "
        "/opt/nvidia/nsight-compute; install it (it comes with the CUDA toolkit) or put its folder on PATH"
    )


def counting_command(ncu: str, report: Path, program: Sequence[str]) -> list[str]:
    """Counts what ``program`` launches between cudaProfilerStart and cudaProfilerStop, into ``report``.

    Clocks stay as they are. Caches are flushed before every pass, as no launch of a tune finds its operands there.
    """
    options = ["--profile-from-start", "off", "--clock-control", "none", "--cache-control", "all"]
    return [
        ncu, *options, "--metrics", ",".join(COUNTERS), "--force-overwrite", "--export", str(report), *program
    ]  # fmt: skip


def export_command(ncu: str, report: Path) -> list[str]:
    return [ncu, "--import", str(report), "--csv", "--page", "raw", "--print-units", "base"]


def run_ncu(command: Sequence[str], limit_s: float) -> str:
    """Stdout of ``command``. Raises ``InputError`` in one line when it fails or takes longer; nothing of it is left
    running then."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        process = start(command, stdout=out, stderr=errors)
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise InputError(
                f"ncu did not end within {limit_s:g} s; does something else use the card?"
            ) from None
        finally:
            kill_group(process)
            process.wait()
        said = [_read(file) for file in (out, errors)]
    if reason := refusal("\n".join(said), process.returncode):
        raise InputError(reason)
    return said[0]


def refusal(text: str, code: int) -> str:
    """Why ``ncu``, which printed ``text`` and ended with ``code``, counted nothing; empty when it did."""
    if NO_PERMISSION in text:
        return (
            f"the driver keeps performance counters from you ({NO_PERMISSION}): run as root or with CAP_SYS_ADMIN, or "
            "load the driver with NVreg_RestrictProfilingToAdminUsers=0"
        )
    if "No kernels were profiled" in text:
        return f"ncu profiled no kernel{_last_error(text)}"
    return f"ncu failed with exit code {code}{_last_error(text)}" if code else ""


def version(ncu: str) -> str:
    """``2025.3.0.0``; empty when it does not say."""
    found = re.search(r"Version (\d[\w.]*)", run_ncu([ncu, "--version"], 60.0))
    return found[1] if found else ""


def _last_error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "==ERROR==" in line or "Error" in line] or lines
    return f": {errors[-1][:300]}" if errors else ""


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _version_of(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", str(path))]

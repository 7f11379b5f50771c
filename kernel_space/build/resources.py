"""What a cubin needs: registers, stack, spills, static shared memory, and its SASS instructions.

Read from the cubin itself with NVIDIA's binary utilities, which PyPI wheels bring (nvidia-cuda-cuobjdump,
nvidia-cuda-nvdisasm). Compiling the PTX again with a ptxas from elsewhere would describe another kernel.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import importlib.metadata
import re
import shutil
import subprocess
from pathlib import Path


class ToolError(RuntimeError):
    """A binary utility is missing or failed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resources:
    """Per thread: ``registers`` (32-bit), ``stack_bytes``; per CTA: ``static_smem_bytes``.

    ``spill_store_bytes`` and ``spill_load_bytes``: bytes of all local-memory stores and loads in the code,
    each instruction counted once, as ptxas reports spills. Stack arrays that live in local memory count too.
    ``static_smem_bytes`` is the size of the kernel's shared section: 1024 for a kernel with dynamic shared
    memory only, the part below 0x400 that CUDA reserves.
    """

    registers: int
    stack_bytes: int
    static_smem_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int

    @property
    def spill_bytes(self) -> int:
        return self.spill_store_bytes + self.spill_load_bytes


_FUNCTION = re.compile(r"^ Function (\S+):\n\s+(.*)$", re.M)
_FIELD = re.compile(r"(\w+)(?:\[\d+\])?:(\d+)")
# "/*0080*/  @!P0 STL.64 [R1+0x8], R2 ;" -> "STL.64"
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", re.M)
_WIDTH = re.compile(r"\.(8|16|32|64|128|U8|S8|U16|S16)\b")


def read_resources(cubin_path: Path) -> dict[str, Resources]:
    """Kernel name -> resources. Raises ``ToolError``."""
    report = _run("nvidia-cuda-cuobjdump", "cuobjdump", "-res-usage", str(cubin_path))
    usage = {name: _fields(line) for name, line in _FUNCTION.findall(report)}
    if not usage:
        raise ToolError(f"cuobjdump names no kernel in {cubin_path}")
    # Spill slots live on the stack, so without a stack there are none and the slow disassembly is not needed.
    spills = any(fields["STACK"] for fields in usage.values())
    listings = _listings(cubin_path) if spills else {}
    return {name: _resources(fields, listings.get(name, "")) for name, fields in usage.items()}


def largest(resources: dict[str, Resources]) -> Resources:
    """The largest of each number over the kernels of one object."""
    values = [dataclasses.asdict(item) for item in resources.values()]
    return Resources(**{name: max(value[name] for value in values) for name in values[0]})


def sass_counts(cubin_path: Path) -> dict[str, int]:
    """SASS mnemonic without modifiers (``UTCOMMA``, ``FFMA``) -> occurrences in the code of all kernels.

    Takes about 0.4 s. Raises ``ToolError``.
    """
    counts: collections.Counter[str] = collections.Counter()
    for listing in _listings(cubin_path).values():
        counts.update(name.partition(".")[0] for name in _INSTRUCTION.findall(listing))
    return dict(sorted(counts.items()))


def disassemble(cubin_path: Path, *, encoded: bool = False) -> str:
    """The SASS listing of nvdisasm; ``encoded``: with the 128 bits of each instruction. Raises ``ToolError``."""
    return _run("nvidia-cuda-nvdisasm", "nvdisasm", "-c", *["-hex"][:encoded], str(cubin_path))


def _listings(cubin_path: Path) -> dict[str, str]:
    """Kernel name -> its part of the listing."""
    parts = re.split(r"^//-+ \.text\.(\S+) -+$", disassemble(cubin_path), flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _fields(line: str) -> dict[str, int]:
    return {name: int(value) for name, value in _FIELD.findall(line)}


def _resources(fields: dict[str, int], listing: str) -> Resources:
    instructions = _INSTRUCTION.findall(listing)
    return Resources(
        registers=fields["REG"],
        stack_bytes=fields["STACK"],
        static_smem_bytes=fields["SHARED"],
        spill_store_bytes=sum(_bytes(name) for name in instructions if name.partition(".")[0] == "STL"),
        spill_load_bytes=sum(_bytes(name) for name in instructions if name.partition(".")[0] == "LDL"),
    )


def _bytes(instruction: str) -> int:
    width = _WIDTH.search(instruction)
    return int(width.group(1).lstrip("US")) // 8 if width else 4


def _run(distribution: str, tool: str, *arguments: str) -> str:
    done = subprocess.run(
        [_tool(distribution, tool), *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ToolError(f"{tool} failed on {arguments[-1]}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


@functools.cache
def _tool(distribution: str, tool: str) -> str:
    """The executable inside the installed wheel, else that of a CUDA toolkit on the path."""
    try:
        files = importlib.metadata.files(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == tool and Path(file.locate()).is_file():
            return str(file.locate())
    if found := shutil.which(tool):
        return found
    raise ToolError(f"{tool} is not installed; pip install {distribution}")

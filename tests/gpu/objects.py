"""Objects that the tests on a card run: real candidates, and kernels that go wrong.

    python -m tests.gpu.objects DIR     # with the DSL, no GPU: objects and manifest.json below DIR

The tests look for them in ``.pack/gpu``, else build them when the DSL is installed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kernel_space.core.arch import SM90A, Arch
from kernel_space.core.problem import Problem
from kernel_space.core.registry import add_folder, operator, parse_config
from kernel_space.core.rules import Legal, legalize
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tuner.card.ragged import ragged_problems
from tuner.card.worker.candidate import Case, Loadable

add_folder(Path(__file__).resolve().parents[1] / "plugins")

FOLDER = Path(__file__).resolve().parents[2] / ".pack" / "gpu"
MANIFEST = "manifest.json"
ARCH = SM90A

# Name -> problem and config: small, with several tiles and ragged edges; and a real one.
RIGHT = {
    "plain": (GemmProblem.parse("333,480,264,32"), "kernel=sm90a_ring"),
    "no-lora": (GemmProblem.parse("333,480,264,0"), "kernel=sm90a_ring"),
    "bf16": (
        GemmProblem.parse("333,480,264,32", lora_dtype="bf16", out_dtype="bf16"),
        "kernel=sm90a_ring",
    ),
    "split": (
        GemmProblem.parse("100,1056,264,32"),
        "kernel=sm90a_ring tile_mnk=128x64x128 split_k=3",
    ),
    "swapped": (
        GemmProblem.parse("16,1056,520,128"),
        "kernel=sm90a_ring register_operand=wgt tile_mnk=128x16x128 split_k=2",
    ),
    "clusters": (
        GemmProblem.parse("333,480,264,32"),
        "kernel=sm90a_expand tile_mnk=128x96x128 consumer_warpgroups=1 cluster_shape_mn=2x1",
    ),
    "few-rows": (
        GemmProblem.parse("13,1056,520,48"),
        "kernel=sm90a_small_m tile_mnk=32x16x128 split_k=3 use_pdl=true",
    ),
    "few-rows-wgmma": (
        GemmProblem.parse("61,1056,520,128", lora_dtype="bf16", out_dtype="bf16"),
        "kernel=sm90a_small_m register_operand=wgt tile_mnk=64x64x128 consumer_warpgroups=1 split_k=2 ctas_per_sm=2 "
        "use_pdl=true",
    ),
    "few-rows-weights-as-columns": (
        GemmProblem.parse("61,1056,520,128", lora_dtype="bf16", out_dtype="bf16"),
        "kernel=sm90a_small_m tile_mnk=64x104x128 consumer_warpgroups=1 num_dequant_warpgroups=2 split_k=4 "
        "ctas_per_sm=2 use_pdl=true",
    ),
    "stream-k": (
        GemmProblem.parse("250,1056,520,128"),
        "kernel=sm90a_expand tile_mnk=64x128x128 consumer_warpgroups=1 stream_k=true use_pdl=true",
    ),
    "large": (GemmProblem.parse("4352,3840,3072,128"), "kernel=sm90a_ring tile_mnk=256x136x128"),
}
# The same of an operator outside of the project: two outputs, one of them whole numbers.
STRANGER = operator("rowstats")
RIGHT_ROWS = {
    "rows": (STRANGER.problem.parse("333,1056"), "kernel=rows rows=4 vec=8"),
    "rows-two-launches": (STRANGER.problem.parse("333,1056"), "kernel=rows rows=8 vec=2 fused=false"),
    "rows-pdl": (STRANGER.problem.parse("100,2050"), "kernel=rows rows=2 vec=2 use_pdl=true"),
    "rows-large": (STRANGER.problem.parse("8192,8192"), "kernel=rows rows=4 vec=8"),
}
FAULT_PROBLEM = GemmProblem.parse("64,128,64,0")
# Two outputs of bytes, compared to the bit; no input of their dtype.
QUANTIZE = operator("nvfp4_quantize").problem
RIGHT_QUANTIZE = {
    "quantize": (QUANTIZE.parse("300,1056,0"), "kernel=rows"),
    "quantize-pdl": (
        QUANTIZE.parse("300,1056,0", x_dtype="bf16"),
        "kernel=rows tile_mk=16x512 row_loads=2 persistent=true use_pdl=true",
    ),
    "quantize-lora-mma": (QUANTIZE.parse("300,1056,48"), "kernel=lora_mma warps_m=2 warps_k=2 split_k=3"),
    "quantize-lora-tma": (
        QUANTIZE.parse("300,1056,128", x_dtype="bf16"),
        "kernel=lora_tma tile_m=40 quant_warps=4 split_k=3 ctas_per_sm=2 use_pdl=true",
    ),
}
ROWS_PROBLEM = STRANGER.problem.parse("128,256")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """What a test asks a worker for; ``ragged`` are variants of the case (legality of them needs the DSL)."""

    candidate: Loadable
    case: Case
    ragged: tuple[Case, ...] = ()


def build_all(folder: Path) -> dict[str, Entry]:
    """Compile everything into ``folder``. Needs the DSL."""
    from kernel_space.build.build import build

    folder.mkdir(parents=True, exist_ok=True)
    entries = {}
    for name, (problem, text) in (RIGHT | RIGHT_ROWS | RIGHT_QUANTIZE).items():
        config = _legal(problem, text).config
        compiled = build(config, problem.problem_class, ARCH)
        path = _write(folder, name, compiled.object_path.read_bytes())
        candidate = dataclasses.replace(Loadable.of(compiled, config), object_path=path)
        ragged = tuple(Case.of(config, variant) for variant in ragged_problems(config, problem, ARCH))
        entries[name] = Entry(candidate=candidate, case=Case.of(config, problem), ragged=ragged)
    entries |= dict(_faults(folder, ARCH))
    records = {name: _record(entry) for name, entry in entries.items()}
    (folder / MANIFEST).write_text(json.dumps(records, indent=1) + "\n")
    return load_all(folder)


def load_all(folder: Path) -> dict[str, Entry]:
    """What ``build_all`` left in ``folder``, wherever that lies now."""
    records = json.loads((folder / MANIFEST).read_text())
    return {name: _entry(folder, record) for name, record in records.items()}


def _record(entry: Entry) -> dict[str, Any]:
    return {
        "candidate": entry.candidate.record(),
        "case": entry.case.record(),
        "ragged": [case.record() for case in entry.ragged],
    }


def _entry(folder: Path, record: dict[str, Any]) -> Entry:
    candidate = Loadable.from_record(record["candidate"])
    here = dataclasses.replace(candidate, object_path=str(folder / candidate.object_path))
    ragged = tuple(Case.from_record(one) for one in record["ragged"])
    return Entry(candidate=here, case=Case.from_record(record["case"]), ragged=ragged)


def _legal(problem: Problem, text: str) -> Legal:
    legal = legalize(parse_config(problem.operator, ARCH, text), problem, ARCH)
    assert isinstance(legal, Legal), legal
    return legal


def _faults(folder: Path, arch: Arch) -> Iterator[tuple[str, Entry]]:
    """Kernels of ``tests/kernels`` by the name of their object: those that go wrong, and those that overlap."""
    from kernel_space.build.dsl_env import import_dsl

    import_dsl(arch.name)
    from tests.kernels import faulty, overlapping, wrong_rows

    config = str(_legal(FAULT_PROBLEM, "kernel=sm90a_ring").config)
    for fault in faulty.FAULTS:
        made = faulty.host_function(fault, FAULT_PROBLEM.problem_class, arch)
        case = Case(problem=FAULT_PROBLEM, workspace_bytes=1024, zeroed_bytes=256)
        options = faulty.OPTIONS.get(fault, "")
        yield f"fault-{fault}", _compiled(folder, f"fault_{fault}", made, case, config, arch, options)
    for way in overlapping.WAYS:
        made = overlapping.host_function(way, FAULT_PROBLEM.problem_class, arch)
        case = Case(problem=FAULT_PROBLEM, workspace_bytes=4 * FAULT_PROBLEM.m * FAULT_PROBLEM.n)
        yield f"overlap-{way}", _compiled(folder, f"overlap_{way}", made, case, config, arch)
    config = str(_legal(ROWS_PROBLEM, "kernel=rows").config)
    for way in wrong_rows.WAYS:
        made = wrong_rows.host_function(way)
        case = Case(problem=ROWS_PROBLEM)
        yield f"rows-{way}", _compiled(folder, f"rows_{way}", made, case, config, arch)


def _compiled(
    folder: Path,
    prefix: str,
    host: tuple[Any, tuple[Any, ...]],
    case: Case,
    config: str,
    arch: Arch,
    options: str = "",
) -> Entry:
    from kernel_space.build.dsl_compile import compile_function
    from kernel_space.core.arguments import arguments_from_header

    function, arguments = host
    _, made = compile_function(function, arguments, {}, arch=arch.name, prefix=prefix, options=options)
    assert made.header is not None
    candidate = Loadable(
        object_path=_write(folder, prefix, made.object_code),
        object_sha256=hashlib.sha256(made.object_code).hexdigest(),
        prefix=prefix,
        arguments=arguments_from_header(made.header),
        config=config,
    )
    return Entry(candidate=candidate, case=case)


def _write(folder: Path, name: str, data: bytes) -> str:
    (folder / f"{name}.o").write_bytes(data)
    return f"{name}.o"


if __name__ == "__main__":
    built = build_all(Path(sys.argv[1]))
    print(f"{len(built)} objects in {sys.argv[1]}")

"""Objects of ``smooth_lora_down`` that the tests on a card launch.

    python -m tests.gpu.smooth_objects DIR     # with the DSL, no GPU: objects and manifest.json below DIR

The tests look for them in ``.pack/gpu-smooth``, else build them when the DSL is installed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import sys
from pathlib import Path
from typing import Any

from kernel_space.core.arch import SM90A
from kernel_space.core.config import kernel_name
from kernel_space.core.registry import kernel
from kernel_space.core.rules import Legal, legalize
from kernel_space.operators.smooth_lora_down.problem import SmoothProblem

FOLDER = Path(__file__).resolve().parents[2] / ".pack" / "gpu-smooth"
MANIFEST = "manifest.json"

# Name -> config, dtype of x, smooth, R: all classes of each kernel, configs of the default rule, every kind of knob.
CASES = {
    **{
        f"{kind}-{x_dtype}-{smooth}": (text, x_dtype, smooth, r)
        for kind, text, r in (
            ("rows", "kernel=smooth_rows", 0),
            ("mma", "kernel=smooth_mma warps_m=4 split_k=8", 128),
            ("tma", "kernel=smooth_tma tile_m=104 quant_warps=12 split_k=3", 128),
        )
        for x_dtype in ("fp16", "bf16")
        for smooth in ("fp32", "none")
    },
    "rows-few": ("kernel=smooth_rows rows=8 row_loads=1 use_pdl=true", "bf16", "fp32", 0),
    "rows-wide": (
        "kernel=smooth_rows rows=64 threads_per_cta=256 threads_per_row=64 row_loads=8 ctas_per_sm=2",
        "fp16",
        "fp32",
        0,
    ),
    "rows-narrow": (
        "kernel=smooth_rows rows=128 threads_per_cta=64 threads_per_row=4 row_loads=4 ctas_per_sm=8",
        "bf16",
        "fp32",
        0,
    ),
    "mma-tall": (
        "kernel=smooth_mma rows_per_warp=32 warps_m=4 split_k=7 prefetch_dist=1 use_pdl=true",
        "fp16",
        "fp32",
        128,
    ),
    "mma-default": (
        "kernel=smooth_mma warps_m=1 warps_k=4 split_k=8 ctas_per_sm=1",
        "bf16",
        "fp32",
        128,
    ),
    "mma-few": (
        "kernel=smooth_mma warps_m=1 warps_k=8 split_k=8 split_r=4 ctas_per_sm=2 use_pdl=true",
        "bf16",
        "fp32",
        128,
    ),
    "mma-alone": ("kernel=smooth_mma warps_m=2 ctas_per_sm=1 num_b_stage=1", "fp16", "none", 16),
    "mma-256": ("kernel=smooth_mma warps_m=4 split_k=4", "bf16", "fp32", 256),
    "mma-48": ("kernel=smooth_mma rows_per_warp=32 warps_m=2 warps_k=2 split_k=3", "fp16", "fp32", 48),
    "tma-many": ("kernel=smooth_tma tile_m=64 split_k=8 ctas_per_sm=2", "bf16", "fp32", 128),
    "tma-few": (
        "kernel=smooth_tma tile_m=16 quant_warps=4 split_k=8 ctas_per_sm=2 use_pdl=true",
        "fp16",
        "fp32",
        128,
    ),
    "tma-tall": ("kernel=smooth_tma tile_m=136 split_k=4 use_pdl=true", "bf16", "fp32", 128),
    "tma-turns": (
        "kernel=smooth_tma tile_m=72 quant_warps=12 turns=3 split_k=2 use_pdl=true",
        "bf16",
        "fp32",
        128,
    ),
    "tma-ahead": (
        "kernel=smooth_tma tile_m=48 quant_warps=8 turns=4 split_k=5 prefetch_dist=8 use_pdl=true",
        "fp16",
        "fp32",
        128,
    ),
    "tma-alone": ("kernel=smooth_tma tile_m=64 num_stage=2", "bf16", "none", 16),
    "tma-256": ("kernel=smooth_tma tile_m=32 split_k=4", "fp16", "fp32", 256),
    "tma-48": ("kernel=smooth_tma tile_m=112 quant_warps=12 split_k=3", "fp16", "fp32", 48),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Object:
    """One object: where it lies, the prefix of its symbols, and what it is for."""

    path: Path
    prefix: str
    sha256: str
    config: Any
    x_dtype: str
    smooth: str
    r: int

    def problem(self, m: int, k: int) -> SmoothProblem:
        return SmoothProblem(m=m, k=k, r=self.r, x_dtype=self.x_dtype, smooth=self.smooth)


def build_all(folder: Path) -> dict[str, Object]:
    """Compile everything into ``folder``. Needs the DSL."""
    folder.mkdir(parents=True, exist_ok=True)
    records = {name: _build(folder, name) for name in CASES}
    (folder / MANIFEST).write_text(json.dumps(records, indent=1) + "\n")
    return load_all(folder)


def load_all(folder: Path) -> dict[str, Object]:
    records = json.loads((folder / MANIFEST).read_text())
    return {
        name: Object(path=folder / record["file"], prefix=record["prefix"], sha256=record["sha256"],
                     config=_config_class(record["config"]).parse(record["config"]), x_dtype=record["x_dtype"],
                     smooth=record["smooth"], r=record["r"])
        for name, record in records.items()
    }  # fmt: skip


def _config_class(text: str) -> Any:
    return kernel("smooth_lora_down", kernel_name(text)).config_class


def _build(folder: Path, name: str) -> dict[str, Any]:
    from kernel_space.build.dsl_compile import compile_function
    from kernel_space.build.dsl_env import import_dsl

    text, x_dtype, smooth, r = CASES[name]
    problem = SmoothProblem(m=4352, k=3840, r=r, x_dtype=x_dtype, smooth=smooth)
    legal = legalize(_config_class(text).parse(text), problem, SM90A)
    assert isinstance(legal, Legal), legal
    import_dsl(SM90A.name)
    module = importlib.import_module(kernel("smooth_lora_down", legal.config.kernel).source)
    function, arguments = module.host_function(legal.config, problem.problem_class, SM90A)
    prefix = name.replace("-", "_")
    _, made = compile_function(function, arguments, {}, arch=SM90A.name, prefix=prefix)
    (folder / f"{name}.o").write_bytes(made.object_code)
    return {
        "file": f"{name}.o",
        "prefix": prefix,
        "sha256": hashlib.sha256(made.object_code).hexdigest(),
        "config": str(legal.config),
        "x_dtype": x_dtype,
        "smooth": smooth,
        "r": r,
    }


if __name__ == "__main__":
    built = build_all(Path(sys.argv[1]))
    print(f"{len(built)} objects in {sys.argv[1]}")

"""Objects of ``nvfp4_quantize`` that the tests on a card launch.

    python -m tests.gpu.quantize_objects DIR     # with the DSL, no GPU: objects and manifest.json below DIR

The tests look for them in ``.pack/gpu-quantize``, else build them when the DSL is installed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import sys
from pathlib import Path
from typing import Any

from kernel_space.core.arch import SM90A, Arch
from kernel_space.core.config import kernel_name
from kernel_space.core.rules import Legal, legalize
from kernel_space.operators.nvfp4_quantize.lora_mma.config import LoraMmaConfig
from kernel_space.operators.nvfp4_quantize.lora_tma.config import LoraTmaConfig
from kernel_space.operators.nvfp4_quantize.problem import QuantizeProblem
from kernel_space.operators.nvfp4_quantize.rows.config import RowsConfig

FOLDER = Path(__file__).resolve().parents[2] / ".pack" / "gpu-quantize"
MANIFEST = "manifest.json"

# Name -> config, dtype of x, smooth: all classes with the default config, and configs of every kind.
CASES = {
    **{
        f"default-{x_dtype}-{smooth}": ("", x_dtype, smooth)
        for x_dtype in ("fp16", "bf16", "fp32")
        for smooth in ("fp32", "none")
    },
    "narrow": (
        "tile_mk=64x256 threads_per_cta=256 threads_per_row=8 vector_width=8 row_loads=2 ctas_per_sm=2 use_pdl=true",
        "bf16",
        "fp32",
    ),
    "wide": (
        "tile_mk=32x256 threads_per_cta=128 threads_per_row=8 vector_width=32 row_loads=1 ctas_per_sm=2",
        "fp16",
        "fp32",
    ),
    "persistent": ("tile_mk=16x512 row_loads=2 persistent=true use_pdl=true", "bf16", "fp32"),
    "one-row": (
        "tile_mk=1x1024 threads_per_cta=64 threads_per_row=64 row_loads=1 persistent=true",
        "fp32",
        "fp32",
    ),
    "blocks": (
        "tile_mk=128x64 threads_per_cta=64 threads_per_row=4 row_loads=8 ctas_per_sm=8",
        "fp16",
        "fp32",
    ),
}
# Of ``lora_mma``, or the kernel that is named: config, dtype of x, smooth, R.
LORA_CASES = {
    "lora-tall": ("rows_per_warp=32 warps_m=4 split_k=7 prefetch_dist=1 use_pdl=true", "fp16", "fp32", 128),
    "lora-tall-bf16": ("rows_per_warp=32 warps_m=4 split_k=7", "bf16", "none", 128),
    "lora-narrow": ("warps_m=4 split_k=8 ctas_per_sm=2 use_pdl=true", "bf16", "fp32", 128),
    "lora-few": (
        "warps_m=1 warps_k=8 split_k=8 split_r=4 ctas_per_sm=2 use_pdl=true",
        "fp16",
        "fp32",
        128,
    ),
    "lora-alone": ("warps_m=2 ctas_per_sm=1 num_b_stage=1", "fp16", "none", 16),
    "lora-256": ("warps_m=4 split_k=4", "bf16", "fp32", 256),
    "lora-48": ("rows_per_warp=32 warps_m=2 warps_k=2 split_k=3", "fp16", "fp32", 48),
    "tma-tall": ("kernel=lora_tma tile_m=136 split_k=4 use_pdl=true", "bf16", "fp32", 128),
    "tma-many": ("kernel=lora_tma tile_m=64 split_k=8 ctas_per_sm=2", "fp16", "none", 128),
    "tma-few": (
        "kernel=lora_tma tile_m=16 quant_warps=4 split_k=8 ctas_per_sm=2 use_pdl=true",
        "fp16",
        "fp32",
        128,
    ),
    "tma-turns": (
        "kernel=lora_tma tile_m=72 quant_warps=12 turns=3 split_k=2 use_pdl=true",
        "bf16",
        "fp32",
        128,
    ),
    "tma-ahead": (
        "kernel=lora_tma tile_m=48 quant_warps=8 turns=4 split_k=5 prefetch_dist=8 use_pdl=true",
        "fp16",
        "fp32",
        128,
    ),
    "tma-alone": ("kernel=lora_tma tile_m=64 num_stage=2", "bf16", "none", 16),
    "tma-256": ("kernel=lora_tma tile_m=32 split_k=4", "fp16", "fp32", 256),
    "tma-48": ("kernel=lora_tma tile_m=112 quant_warps=12 split_k=3", "fp16", "fp32", 48),
}
CONFIGS: dict[str, Any] = {"rows": RowsConfig, "lora_mma": LoraMmaConfig, "lora_tma": LoraTmaConfig}


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


def build_all(folder: Path, arch: Arch = SM90A) -> dict[str, Object]:
    """Compile everything into ``folder``. Needs the DSL."""
    folder.mkdir(parents=True, exist_ok=True)
    records = {name: _build(folder, name, arch) for name in (*CASES, *LORA_CASES)}
    (folder / MANIFEST).write_text(json.dumps(records, indent=1) + "\n")
    return load_all(folder)


def load_all(folder: Path) -> dict[str, Object]:
    """What ``build_all`` left in ``folder``, wherever that lies now."""
    records = json.loads((folder / MANIFEST).read_text())
    return {
        name: Object(path=folder / record["file"], prefix=record["prefix"], sha256=record["sha256"],
                     config=CONFIGS[kernel_name(record["config"])].parse(record["config"]), x_dtype=record["x_dtype"],
                     smooth=record["smooth"], r=int(record["r"]))
        for name, record in records.items()
    }  # fmt: skip


def _build(folder: Path, name: str, arch: Arch) -> dict[str, str]:
    from kernel_space.build.dsl_compile import compile_function
    from kernel_space.build.dsl_env import import_dsl

    text, x_dtype, smooth, r = LORA_CASES[name] if name in LORA_CASES else (*CASES[name], 0)
    kernel = kernel_name(text) if text.startswith("kernel=") else "lora_mma" if r else "rows"
    problem = QuantizeProblem.parse(f"4352,3840,{r}", x_dtype=x_dtype, smooth=smooth)
    legal = legalize(CONFIGS[kernel].parse(text), problem, arch)
    assert isinstance(legal, Legal), legal
    import_dsl(arch.name)
    module = importlib.import_module(f"kernel_space.operators.nvfp4_quantize.{kernel}.kernel")
    function, arguments = module.host_function(legal.config, problem.problem_class, arch)
    prefix = name.replace("-", "_")
    _, made = compile_function(function, arguments, {}, arch=arch.name, prefix=prefix)
    (folder / f"{name}.o").write_bytes(made.object_code)
    return {
        "file": f"{name}.o",
        "prefix": prefix,
        "sha256": hashlib.sha256(made.object_code).hexdigest(),
        "config": str(legal.config),
        "x_dtype": x_dtype,
        "smooth": smooth,
        "r": str(r),
    }


if __name__ == "__main__":
    built = build_all(Path(sys.argv[1]))
    print(f"{len(built)} objects in {sys.argv[1]}")

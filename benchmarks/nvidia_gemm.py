"""Compile NVIDIA's persistent block-scaled GEMM example, unmodified, and capture its launches, without a GPU.

    python -m benchmarks.nvidia_gemm --example PATH/dense_blockscaled_gemm_persistent.py --out DIR [--all]

The example is not part of this project. ``DIR`` (outside the repository) gets, for each tile of the published table,
``<tile>/kernel.ptx`` and one pickled ``Launch`` per shape; ``timed_vs_published`` and ``calibrate_clock`` read it.
With ``--all`` it gets ``<tile>-<cluster>`` for every tile and cluster that the example itself allows, which ``parity``
reads; what is there already is kept.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernel_space.build.dsl_env import import_dsl
from kernel_space.core.arch import SM100A
from kernel_space.launch.capture import CaptureRuntime, Launch, load
from kernel_space.machine.clock.constants import cluster_places
from kernel_space.machine.run.launch import Exported, export

Shape = tuple[int, int, int]
SHAPES = (
    (256, 3840, 3072),
    (4352, 3840, 3072),
    (4352, 3840, 15360),
    (4352, 15360, 3840),
    (4352, 10240, 3072),
)
# Rows of long launches (tests/data/cutlass_nvfp4_long_b200.csv), whose source does not name the tile.
LONG_SHAPES = (
    (37800, 5120, 15360),
    (37800, 13824, 5120),
    (37800, 5120, 13824),
    (37800, 5120, 10240),
    (37800, 5120, 5120),
    (18144, 14336, 3072),
    (18144, 3072, 14336),
    (18144, 3072, 9216),
    (18144, 3072, 6144),
)
TILES = {"128x256": ((128, 256), (1, 1)), "256x128": ((256, 128), (2, 1)), "256x256": ((256, 256), (2, 1))}
ALL_SHAPES = (*SHAPES, (128, 16384, 7168), (128, 7168, 4096), (128, 2048, 7168))
TILE_M, TILE_N, CLUSTER = (128, 256), (64, 128, 192, 256), (1, 2, 4)
SM_COUNT = 148
FIRST_ADDRESS, STEP = 0x7F00_0000_0000, 1 << 32


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--example", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--all", action="store_true", help="every tile and cluster, and the contest's shapes")
    args = parser.parse_args()
    import_dsl(SM100A.name)
    example = _import(args.example)
    shapes = ALL_SHAPES if args.all else (*SHAPES, *LONG_SHAPES)
    for name, (tile, cluster) in (all_options(example) if args.all else TILES).items():
        folder = args.out.resolve() / name
        last = folder / f"{'_'.join(map(str, shapes[-1]))}.pkl"
        if args.all and last.exists():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.chdir(folder):  # the compiler leaves a copy of the PTX where it runs
            _tile(example, tile, cluster, folder, shapes)
        print(f"{folder}: {len(shapes)} launches", flush=True)


def all_options(example: Any) -> dict[str, tuple[tuple[int, int], tuple[int, int]]]:
    """Name -> tile and cluster of everything that the example's own check lets through."""
    allowed = example.Sm100BlockScaledPersistentDenseGemmKernel.is_valid_mma_tiler_and_cluster_shape
    options = itertools.product(itertools.product(TILE_M, TILE_N), itertools.product(CLUSTER, CLUSTER))
    return {
        f"{tile[0]}x{tile[1]}-{cluster[0]}x{cluster[1]}": (tile, cluster)
        for tile, cluster in options
        if allowed(tile, cluster)
    }


def _import(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("nvidia_example", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _tile(
    example: Any, tile: tuple[int, int], cluster: tuple[int, int], folder: Path, shapes: Sequence[Shape]
) -> None:
    import cuda.bindings.driver as cuda
    import cutlass

    kernel = example.Sm100BlockScaledPersistentDenseGemmKernel(16, tile, cluster)
    fp4 = cutlass.Float4E2M1FN
    compiled = example.scaled_mm(
        kernel, fp4, fp4, cutlass.Float16, cutlass.Float8E4M3FN, "k", "k", "n",
        cluster_places(SM_COUNT, cluster[0] * cluster[1]), cuda.CUstream(0),
        options=f"--gpu-arch {SM100A.name} --keep-ptx",
    )  # fmt: skip
    exported = export(compiled, folder)
    (folder / "kernel.ptx").write_text(exported.ptx)
    for shape in shapes:
        launch = _capture(compiled, exported, shape)
        (folder / f"{'_'.join(map(str, shape))}.pkl").write_bytes(pickle.dumps(launch))


def _capture(compiled: Any, exported: Exported, shape: Shape) -> Launch:
    import cuda.bindings.driver as cuda
    import cutlass
    from cutlass import cute
    from cutlass.cute.runtime import make_ptr

    kinds = (cutlass.Float4E2M1FN,) * 2 + (cutlass.Float8E4M3FN,) * 2 + (cutlass.Float16,)
    pointers = [
        make_ptr(kind, FIRST_ADDRESS + STEP * number, cute.AddressSpace.gmem, assumed_align=32)
        for number, kind in enumerate(kinds)
    ]
    m, k, n = shape
    addresses, keep = compiled.generate_execution_args(*pointers, (m, n, k, 1), cuda.CUstream(0))
    runtime = CaptureRuntime(exported.ptx)
    with load(exported.object_path, exported.prefix, runtime) as loaded:
        loaded.call_pointers([getattr(address, "value", address) for address in addresses])
    del keep
    return runtime.launches[0]


if __name__ == "__main__":
    main()

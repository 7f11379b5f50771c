"""Simulated B200 times of kernels that memory bounds, written by others, against their bytes and published times.

    python -m benchmarks.memory_bound [--cutlass DIR] [--quack DIR] [--rows 2048 32768]

``DIR`` are checkouts of NVIDIA/cutlass and Dao-AILab/quack; nothing of them is part of this project, and quack needs
its own requirement apache-tvm-ffi. CUTLASS' elementwise addition is compiled as its main function does, quack's
RMSNorm and softmax for contiguous rows. Each is captured and clocked from a cold L2: seconds, whatever the grid.
Published: tests/data/memory_bound_b200.csv.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import dataclasses
import importlib
import importlib.util
import math
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kernel_space.build.dsl_env import import_dsl
from kernel_space.build.resources import read_resources
from kernel_space.core.arch import SM100A
from kernel_space.machine.clock.constants import cluster_places
from kernel_space.machine.clock.estimate import simulate_launch
from kernel_space.machine.clock.occupancy import SYSTEM_SMEM, ctas_per_sm
from kernel_space.machine.run.launch import prepare
from tuner.simulated.constants.sets import admissible_sets
from tuner.simulated.time import SimulatedTime, time_of

PUBLISHED = Path(__file__).parents[1] / "tests" / "data" / "memory_bound_b200.csv"
ADD = "examples/python/CuTeDSL/cute/ampere/kernel/elementwise/elementwise_add.py"
SM_COUNT, DRAM_TB_S = 148, 7.2
WIDTHS = (1024, 2048, 4096, 8192, 16384, 32768)
DTYPES = ("f32", "bf16")
OPTIONS = f"--gpu-arch {SM100A.name} --keep-ptx --keep-cubin"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
    """A compiled function with the arguments of one call and the tensors that it touches."""

    compiled: Any
    args: list[Any]
    tensors: list[Any]

    @property
    def moved(self) -> int:
        """Bytes, each tensor once."""
        return sum(self._bytes().values())

    def _bytes(self) -> dict[int, int]:
        return {tensor.data_ptr(): tensor.numel() * tensor.element_size() for tensor in self.tensors}

    def time(self) -> SimulatedTime:
        sets = admissible_sets(SM100A)
        ptx, launches, _ = prepare(self.compiled, self.args, ())
        (launch,) = launches
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            Path(file.name).write_bytes(self.compiled.__cubin__)
            needs = read_resources(Path(file.name))[launch.kernel_name]
        resident = ctas_per_sm(
            threads=math.prod(launch.block), registers=needs.registers, arch=SM100A,
            smem_bytes=launch.smem_bytes + max(0, needs.static_smem_bytes - SYSTEM_SMEM),
        )  # fmt: skip
        places = cluster_places(SM_COUNT, math.prod(launch.cluster)) * resident
        run = simulate_launch(
            launch, ptx, sets.clock, sm_count=SM_COUNT, places=places, resident=resident, tensors=self._bytes(),
            cold=True,
        )  # fmt: skip
        return time_of(run, sets)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cutlass", type=Path, help="a checkout of NVIDIA/cutlass")
    parser.add_argument("--quack", type=Path, help="a checkout of Dao-AILab/quack")
    parser.add_argument("--rows", type=int, nargs="+", default=[2048, 32768])
    args = parser.parse_args()
    args.quack = args.quack and args.quack.resolve()
    if not (args.cutlass or args.quack):
        parser.error("a checkout is needed: --cutlass DIR, --quack DIR")
    import_dsl(SM100A.name)
    kernels = {
        **(_of_cutlass(args.cutlass) if args.cutlass else {}),
        **(_of_quack(args.quack) if args.quack else {}),
    }
    published = read_published()
    print("| kernel | rows, columns | dtype | bytes / 7.2 TB/s, us | simulated us | interval ", end="")
    print("| TB/s | published us | error |\n|---|---|---|---|---|---|---|---|---|")
    for name, make in kernels.items():
        for dtype, rows, columns in _cases(args.rows):
            with (
                tempfile.TemporaryDirectory() as folder,
                contextlib.chdir(folder),
            ):  # the compiler leaves files there
                call = make(dtype, rows, columns)
            print(line_of(name, dtype, rows, columns, call, published), flush=True)


def _cases(rows: list[int]) -> Iterator[tuple[str, int, int]]:
    for dtype in DTYPES:
        for count in rows:
            for columns in WIDTHS:
                yield dtype, count, columns


def read_published() -> dict[tuple[str, str, int, int], float]:
    """(kernel, dtype, rows, columns) -> microseconds."""
    lines = [line for line in PUBLISHED.read_text().splitlines() if not line.startswith("#")]
    return {
        (record["kernel"], record["dtype"], int(record["rows"]), int(record["columns"])): float(record["us"])
        for record in csv.DictReader(lines)
    }


def line_of(
    name: str, dtype: str, rows: int, columns: int, call: Call, published: dict[tuple[str, str, int, int], float]
) -> str:  # fmt: skip
    time, us = call.time(), published.get((name, dtype, rows, columns))
    told = "| |" if us is None else f"{us:.1f} | {time.us / us - 1:+.0%}{_beyond(time, us)} |"
    return (
        f"| {name} | {rows}, {columns} | {dtype} | {call.moved / DRAM_TB_S * 1e-6:.1f} | {time.us:.1f} "
        f"| {time.low_us:.1f}-{time.high_us:.1f} | {call.moved / time.us * 1e-6:.2f} | {told}"
    )


def _beyond(time: SimulatedTime, us: float) -> str:
    return "" if time.low_us <= us <= time.high_us else ", outside"


# -- the kernels -------------------------------------------------------------------------------------------------
Make = Callable[[str, int, int], Call]


def _of_cutlass(folder: Path) -> dict[str, Make]:
    spec = importlib.util.spec_from_file_location("elementwise_add", folder / ADD)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def add(dtype: str, rows: int, columns: int) -> Call:
        from cutlass import cute

        tensors = [_empty(dtype, rows, columns) for _ in range(3)]
        args = [_dynamic(tensor) for tensor in tensors]
        return Call(
            compiled=cute.compile(module.elementwise_add, *args, options=OPTIONS), args=args, tensors=tensors
        )

    return {"cutlass elementwise_add": add}


def _of_quack(folder: Path) -> dict[str, Make]:
    _open_quack(folder)
    rmsnorms, configs, softmaxes = (
        importlib.import_module(f"quack.{name}") for name in ("rmsnorm", "rmsnorm_config", "softmax")
    )

    def rmsnorm(dtype: str, rows: int, columns: int) -> Call:
        import cutlass
        from cutlass import cute

        x, weight, out = _empty(dtype, rows, columns), _empty(dtype, columns), _empty(dtype, rows, columns)
        kind = _dsl_type(dtype)
        config = configs.RmsNormFwdConfig.from_analytical_heuristic(columns, kind.width, arch_major=10)
        table, vector = _of_shape(kind, cute.sym_int(), columns), _of_shape(kind, columns)
        rest = (None, None, None, cutlass.Float32(0))
        compiled = cute.compile(
            rmsnorms.RMSNorm(kind, columns, config=config), table, vector, None, None, table, *rest,
            cute.runtime.make_fake_stream(), options=OPTIONS,
        )  # fmt: skip
        args = [_dynamic(x), _dynamic(weight), None, None, _dynamic(out), *rest, _stream()]
        return Call(compiled=compiled, args=args, tensors=[x, weight, out])

    def softmax(dtype: str, rows: int, columns: int) -> Call:
        from cutlass import cute

        x, out, kind = _empty(dtype, rows, columns), _empty(dtype, rows, columns), _dsl_type(dtype)
        table = _of_shape(kind, cute.sym_int(), columns)
        compiled = cute.compile(
            softmaxes.Softmax(kind, columns), table, table, cute.runtime.make_fake_stream(), options=OPTIONS
        )
        return Call(compiled=compiled, args=[_dynamic(x), _dynamic(out), _stream()], tensors=[x, out])

    return {"quack rmsnorm": rmsnorm, "quack softmax": softmax}


def _open_quack(folder: Path) -> None:
    """The package without what its ``__init__``, its tuner and its cache load: Triton and a GPU."""
    package = types.ModuleType("quack")
    package.__dict__.update(__path__=[str(folder / "quack")], __version__="")
    sys.modules["quack"] = package
    for name, values in (
        ("quack.autotuner", {"autotune": lambda *_, **__: lambda function: function, "AutotuneConfig": dict}),
        ("quack.cache", {"jit_cache": lambda function: function}),
    ):
        module = types.ModuleType(name)
        module.__dict__.update(values)
        sys.modules[name] = module


def _empty(dtype: str, *shape: int) -> Any:
    """Addresses and sizes: nobody touches a byte of it."""
    import torch

    return torch.empty(*shape, dtype={"f32": torch.float32, "bf16": torch.bfloat16}[dtype])


def _dynamic(tensor: Any) -> Any:
    from cutlass.cute.runtime import from_dlpack

    return from_dlpack(tensor, assumed_align=16).mark_layout_dynamic(leading_dim=tensor.dim() - 1)


def _dsl_type(dtype: str) -> Any:
    import cutlass

    return {"f32": cutlass.Float32, "bf16": cutlass.BFloat16}[dtype]


def _of_shape(kind: Any, *shape: Any) -> Any:
    """A tensor of global memory to compile for: contiguous last dimension, rows aligned to 16 bytes."""
    from cutlass import cute

    aligned = 128 // kind.width
    strides = (*(cute.sym_int64(divisibility=aligned) for _ in shape[1:]), 1)
    return cute.runtime.make_fake_tensor(kind, shape, stride=strides, assumed_align=16)


def _stream() -> Any:
    import cuda.bindings.driver as cuda

    return cuda.CUstream(0)


if __name__ == "__main__":
    main()

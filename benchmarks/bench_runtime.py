"""Host time of a call by its parts, and device time of quantize_act, on this machine's card (measured).

    .venv/bin/python -m benchmarks.bench_runtime [--table DIR] [--shape M,K,N,R] [--json]

Without a card only what it costs to choose a kernel for an M that is new.

Host times: wall time of 300 calls that the device can follow, divided by 300; the least and the median of 15 rounds, of
the best of 4 passes over all parts.
Device times: CUDA graph of 20 calls, median of 15 replays.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from kernel_space.core import registry
from kernel_space.operators.svdquant_gemm.operands import make_operands
from kernel_space.operators.svdquant_gemm.packing import PackedSVDQuant
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tuner.devices.classes import DEVICE_CLASSES
from tuner.layers.gemm import run
from tuner.runtime import explain, launch, quantize_act, svdquant_gemm, use_table
from tuner.runtime import state as runtime_state
from tuner.runtime.load.trampoline import Mutex

ROUNDS = 15
CALLS = 300
GRAPH_CALLS = 20
PASSES = 4
NEW_MS = 3000


def host_us(call: Callable[[], object]) -> tuple[float, float]:
    """(least, median) microseconds of a call."""
    times = []
    for _ in range(ROUNDS + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        times.append((time.perf_counter() - start) / CALLS * 1e6)
    torch.cuda.synchronize()
    return min(times[1:]), statistics.median(times[1:])


def device_us(call: Callable[[], object]) -> float:
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(GRAPH_CALLS):
            call()
    times = []
    for _ in range(ROUNDS + 3):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / GRAPH_CALLS)
    return statistics.median(times[3:])


def bench_host(problem: GemmProblem) -> dict[str, tuple[float, float]]:
    """What is called -> (least, median) microseconds of host time."""
    cpu = make_operands(problem, 1, source="codes")
    packed = PackedSVDQuant(
        wgt=cpu.wgt, wscales=cpu.wscales, lora_up=cpu.lora_up, wcscale=cpu.wcscale, bias=cpu.bias
    ).to("cuda")
    act, ascales, lora, out = (tensor.cuda() for tensor in (cpu.act, cpu.ascales, cpu.lora_act_in, cpu.y))
    operands = (act, ascales, packed.wgt, packed.wscales, lora, packed.lora_up, packed.wcscale, packed.bias)
    operator = torch.ops.svdquant
    inputs = dict(zip(registry.operator_of(problem).signature.inputs, operands, strict=True))
    svdquant_gemm(act, ascales, packed, lora)
    plan = runtime_state.active()[0].plan(problem, 0)
    memory, mutex = torch.zeros(max(plan.workspace_bytes, 256), dtype=torch.uint8, device="cuda"), Mutex()
    parts: dict[str, Callable[[], object]] = {
        "svdquant_gemm": lambda: svdquant_gemm(act, ascales, packed, lora),
        "svdquant_gemm, out given": lambda: svdquant_gemm(act, ascales, packed, lora, out),
        "torch.ops.svdquant.gemm": lambda: operator.gemm.default(*operands, out.dtype),
        "torch.ops.svdquant.gemm_out": lambda: operator.gemm_out.default(*operands, out),
        "tuner.runtime.launch, by names": lambda: launch(problem.operator, problem, inputs),
        "  the long way": lambda: run(*operands, None, out.dtype),
        "  the launch alone": lambda: plan.launch(*operands, out, memory, mutex.address, 0),
        "  a new output": plan.new_outputs,
        "  torch.empty, for comparison": lambda: torch.empty(out.shape, dtype=out.dtype, device="cuda"),
        "  sin_ on 8 numbers, likewise": torch.zeros(8, device="cuda").sin_,
    }
    with torch.inference_mode():
        # Several passes over all: a slow moment of the host, as at the start of a process, must not fall on one part.
        passes = [{name: host_us(call) for name, call in parts.items()} for _ in range(PASSES)]
        times = {name: min(one[name] for one in passes) for name in parts}
        times["device time in a graph"] = (device_us(parts["svdquant_gemm"]),) * 2
    return times


def bench_new_m() -> None:
    """What it costs to choose a kernel for an M that was never met, of a layer that was. Needs no card."""
    device = DEVICE_CLASSES["h200"]
    problems = [GemmProblem.parse(f"{m},3840,3072,128") for m in range(1, 1 + NEW_MS)]
    tables = runtime_state.RuntimeState(runtime_state.active()[0].path)
    start = time.perf_counter()
    tables.choice(problems.pop(), device)
    first = (time.perf_counter() - start) * 1e6
    times = []
    for problem in problems:
        start = time.perf_counter()
        tables.choice(problem, device)
        times.append((time.perf_counter() - start) * 1e6)
    least, median = min(times), statistics.median(times)
    print(f"{'a new M':<32}{least:8.2f} {median:8.2f} us, measured (least, median); the first {first:.0f} us")


def bench_quantize(rows: int, k: int, r: int) -> None:
    x, smooth = torch.randn(rows, k, device="cuda").half(), torch.rand(k, device="cuda") + 0.5
    down = torch.randn(k, r, device="cuda").half()
    quantize = device_us(lambda: torch.ops.svdquant.quantize(x, smooth))
    both = device_us(lambda: quantize_act(x, smooth, down))
    moved = rows * k * 2.5625 / quantize / 1e3  # 2 bytes read, 9/16 written per element
    print(
        f"quantize {rows:>5} x {k}: {quantize:7.2f} us ({moved:.0f} GB/s), with lora_down {both:7.2f} us (measured)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--table", type=Path, help="a folder like results")
    parser.add_argument("--shape", action="append", metavar="M,K,N,R")
    parser.add_argument("--json", action="store_true", help="host times only, as one JSON document")
    args = parser.parse_args()
    with use_table(args.table) if args.table else contextlib.nullcontext():
        if not args.json:
            bench_new_m()
        if not torch.cuda.is_available():
            return print("no card here: calls are not timed")
        shapes = args.shape or ["16,3840,3072,128", "1024,3840,3072,128"]
        times = {shape: bench_host(GemmProblem.parse(shape)) for shape in shapes}
        if args.json:
            return print(json.dumps(times))
        for shape, parts in times.items():
            print(explain(shape))
            for name, (least, median) in parts.items():
                print(f"{name:<32}{least:8.2f} {median:8.2f} us, measured (least, median)")
    for rows in (1, 16, 256, 4352):
        bench_quantize(rows, 3840, 128)


if __name__ == "__main__":
    main()

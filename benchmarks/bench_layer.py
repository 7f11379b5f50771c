"""``SVDQuantLinear`` against the ``nn.Linear`` that it replaces, on this machine's card (measured).

    .venv/bin/python -m benchmarks.bench_layer [--shape M,K,N,R ...] [--behind-silu] [--json]

Device times: a CUDA graph of 24 calls, one after the other, over so many layers and inputs that weights do not stay in
the L2; median of 15 replays, divided by 24. ``linear``: ``torch.nn.functional.linear`` with bias on the bf16 weights
before they were quantized, in the same run; in brackets its time by the layer's. Weights are random: times do not
depend on them. ``--behind-silu``: each call comes behind a ``silu`` that makes its input, whose time alone is taken
off: a layer in a model mostly stands behind another kernel, which does not let it begin early as a layer would.

Host times: wall time of 300 eager calls of a small layer, which the device can follow, divided by 300; the least and
the median of 15 rounds.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.bench_runtime import ROUNDS, host_us
from kernel_space.operators.svdquant_linear.problem import LinearProblem
from tuner.layers.activations import ACTIVATIONS, AUTO, as_kind
from tuner.runtime import InputError, SVDQuantLinear, allow_early, explain

CALLS = 24
BEYOND_L2 = 4 * 60 * 2**20  # bytes of all weights that are read in turns
DTYPE = torch.bfloat16
MS = (1, 16, 64, 128, 256, 1024, 4352)
LAYERS = ((3840, 3072), (3072, 3072), (3072, 9216), (3072, 12288), (12288, 3072), (15360, 3840))
RANK = 128
KINDS = tuple(name for name in ACTIVATIONS if name != AUTO)


def graph_us(calls: Sequence[Callable[[], object]]) -> float:
    """Of one of ``CALLS`` calls that take turns with ``calls``."""
    chain = [calls[number % len(calls)] for number in range(CALLS)]
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [call() for call in chain]
    times = []
    for _ in range(ROUNDS + 3):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / CALLS)
    del kept
    return statistics.median(times[3:])


def random_layer(problem: LinearProblem, activations: str = AUTO) -> SVDQuantLinear:
    """With random codes and scales around one: no layer is decomposed for its time."""
    layer = SVDQuantLinear(
        problem.k, problem.n, rank=problem.r, dtype=DTYPE, device="cuda", activations=activations
    )
    layer.wgt.random_(0, 256)
    layer.wscales.random_(0x28, 0x40)
    for name, scale in (("lora_down_packed", 0.02), ("lora_up", 0.02)):
        layer.get_buffer(name).normal_(0, scale)
    layer.wcscale.fill_(0.01)
    layer.refresh_peaks()
    return layer


def has_row(problem: LinearProblem, activations: str) -> bool:
    """Whether this card's table launches anything for such a layer."""
    try:
        explain(as_kind(activations, problem))
    except InputError:
        return False
    return True


def sets(bytes_of_one: int) -> int:
    return max(2, min(CALLS, math.ceil(BEYOND_L2 / bytes_of_one)))


def behind(call: Callable[[torch.Tensor], object]) -> Callable[[torch.Tensor], object]:
    return lambda x: call(torch.nn.functional.silu(x))


def bench(problem: LinearProblem, *, behind_silu: bool = False) -> dict[str, Any]:
    """Microseconds of ``linear`` and of the layer with each kind of activations; what ``auto`` takes, and why."""
    m, k, n = problem.m, problem.k, problem.n
    inputs = [torch.randn(m, k, device="cuda", dtype=DTYPE) for _ in range(sets(2 * m * k))]

    def turns(made: Sequence[Callable[[torch.Tensor], object]]) -> list[Callable[[], object]]:
        return [
            functools.partial(made[number % len(made)], inputs[number % len(inputs)])
            for number in range(CALLS)
        ]

    def linears() -> list[Callable[[torch.Tensor], object]]:
        count, like = sets(2 * n * k), dict[str, Any](device="cuda", dtype=DTYPE)
        weights = [(torch.randn(n, k, **like), torch.randn(n, **like)) for _ in range(count)]
        return [
            functools.partial(torch.nn.functional.linear, weight=weight, bias=bias)
            for weight, bias in weights
        ]

    def layers(activations: str) -> list[Callable[[torch.Tensor], object]]:
        return [random_layer(problem, activations) for _ in range(sets(n * k // 2))]

    with torch.inference_mode():
        silu = graph_us(turns([torch.nn.functional.silu])) if behind_silu else 0.0

        def timed(made: Sequence[Callable[[torch.Tensor], object]]) -> float:
            return graph_us(turns([behind(call) for call in made] if behind_silu else made)) - silu

        linear = timed(linears())
        layer = {name: timed(layers(name)) for name in KINDS if has_row(problem, name)}
    chosen = random_layer(problem).chosen(m)
    return {
        "linear_us": linear,
        **{f"layer_{name}_us": time for name, time in layer.items()},
        **{f"linear_over_{name}": linear / time for name, time in layer.items()},
        "auto": chosen.activations,
        "reason": chosen.reason,
    }


def bench_host() -> tuple[float, float]:
    layer, x = (
        random_layer(LinearProblem.parse("16,3072,3072,128")),
        torch.randn(16, 3072, device="cuda", dtype=DTYPE),
    )
    with torch.inference_mode():
        for _ in range(3):
            layer(x)
        return host_us(lambda: layer(x))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", action="append", metavar="M,K,N,R")
    parser.add_argument("--behind-silu", action="store_true", help="each call behind a kernel of torch")
    parser.add_argument("--late", action="store_true", help="captured as CUDA does by itself (allow_early)")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    args = parser.parse_args()
    allow_early(not args.late)
    shapes = args.shape or [f"{m},{k},{n},{RANK}" for k, n in LAYERS for m in MS]
    found: dict[str, dict[str, Any]] = {}
    for shape in shapes:
        problem = LinearProblem.parse(shape, dtype="bf16")
        found[shape] = bench(problem, behind_silu=args.behind_silu)
        if not args.json:
            times = found[shape]
            both = "   ".join(
                f"{name} {times[f'layer_{name}_us']:8.2f} us ({times[f'linear_over_{name}']:.2f})"
                for name in KINDS
                if f"layer_{name}_us" in times
            )
            print(
                f"{shape:<22} linear {times['linear_us']:8.2f} us   {both}   auto {times['auto']}", flush=True
            )
    least, median = bench_host()
    if args.json:
        print(
            json.dumps({"device": torch.cuda.get_device_name(), "layers": found, "host_us": [least, median]})
        )
    else:
        print(f"host time of an eager call {least:.2f} us (least), {median:.2f} us (median), measured")


if __name__ == "__main__":
    main()

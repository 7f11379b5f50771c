"""Two sharded layers on several cards against the whole on one (``bench_model --what shard``)."""

from __future__ import annotations

import argparse
import datetime
import socket
import statistics
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from benchmarks.model_times import DTYPE, Lines, relative, turns
from tuner.layers.activations import ACTIVATIONS, AUTO, FP8
from tuner.runtime import SVDQuantLinear, shard

SIZES = (3072, 12288)  # of the pair: up and down
MS = (1, 16, 256, 4352)
TOLERANCE = 2.0**-6
FP8_TOLERANCE = (
    2.0**-4
)  # row shards scale rows of x and of weights by their own parts, so that all roundings differ


def run(args: argparse.Namespace, device: torch.device, lines: Lines) -> None:
    """A column-parallel layer, GELU, a row-parallel one, one all-reduce: as models have them."""
    count = torch.cuda.device_count() if device.type == "cuda" else 2
    if count < 2:
        lines.add("needs two cards", skipped="one card")
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = None if args.out is None else str(args.out.resolve())
    mp.spawn(_process, args=(2, port, device.type, args.small, args.rank, path), nprocs=2)


def _process(index: int, count: int, port: int, kind: str, small: bool, rank: int, out: str | None) -> None:
    device = torch.device(kind, index) if kind == "cuda" else torch.device("cpu")
    if kind == "cuda":
        torch.cuda.set_device(index)
    else:
        torch.set_num_threads(1)
    dist.init_process_group(
        "nccl" if kind == "cuda" else "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=index,
        world_size=count,
        timeout=datetime.timedelta(seconds=120),
    )
    lines = Lines(Path(out) if out is not None and not index else None, what="shard", small=small)
    try:
        _compare(index, count, device, small, rank, lines)
    finally:
        dist.destroy_process_group()


def _compare(index: int, count: int, device: torch.device, small: bool, rank: int, lines: Lines) -> None:
    width, hidden = (128, 256) if small else SIZES
    up, down = (_layer(n, k, rank, device) for k, n in ((width, hidden), (hidden, width)))
    own = shard(up, index, count, "column"), shard(down, index, count, "row")
    for m in (1, 9) if small else MS:
        x = torch.randn(m, width, generator=torch.Generator().manual_seed(m)).to(device, DTYPE)
        for kind in ACTIVATIONS:
            for layer in (up, down, *own):
                layer.activations = kind
            _one(index, x, kind, (up, down), own, lines)


def _layer(n: int, k: int, rank: int, device: torch.device) -> SVDQuantLinear:
    torch.manual_seed(n)
    linear = torch.nn.Linear(k, n, dtype=DTYPE)  # drawn on the CPU: the same everywhere
    return SVDQuantLinear.from_linear(linear.to(device), rank=rank)


Two = tuple[SVDQuantLinear, SVDQuantLinear]


def _one(index: int, x: torch.Tensor, kind: str, whole: Two, own: Two, lines: Lines) -> None:
    def call(pair: Two) -> torch.Tensor:
        with torch.inference_mode():
            y = pair[1](torch.nn.functional.gelu(pair[0](x)))
            if pair is own:
                dist.all_reduce(y)
        return y

    error = relative(call(own), call(whole))
    # Shards and whole may take different activations then, each by its own size.
    right = "not judged" if kind == AUTO else error < (FP8_TOLERANCE if kind == FP8 else TOLERANCE)
    times = turns([lambda: call(own), lambda: call(whole)], x.device)
    sharded, alone = (statistics.median(one) for one in times)
    if index == 0:
        lines.add(
            f"M = {x.shape[0]:4} {kind:6}: sharded {sharded:.3f} ms, whole {alone:.3f} ms, relative difference "
            f"{error:.5f}, right: {right}",
            m=x.shape[0],
            activations=kind,
            sharded_ms=sharded,
            whole_ms=alone,
            difference=error,
            right=right,
        )

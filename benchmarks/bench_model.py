"""Whole models, quantized against bf16, on this machine's card (measured).

    .venv/bin/python -m benchmarks.bench_model --what flux|dit-block|adapters|shard [--out FILE] [--small]

``flux``       FLUX.1's transformer, full configuration, random weights, 1024 x 1024 (4096 + 512 tokens): memory, time
               of quantizing, one forward eager, in a CUDA graph and compiled, error of the output; needs diffusers
``dit-block``  a block of width 3072 at four numbers of tokens, eager, compiled and in graphs
``adapters``   418 layers with room for adapters: time of a switch, and y against float64 between replays of a graph
``shard``      a pair of layers on two cards with NCCL against the whole pair on one

bf16 and quantized calls take turns. Weights are random: times do not depend on them, errors do.
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

import torch

from benchmarks.model_times import Lines, device_name
from tuner.runtime import allow_early

WHAT = {
    "flux": "benchmarks.model_flux",
    "dit-block": "benchmarks.model_block",
    "adapters": "benchmarks.model_adapters",
    "shard": "benchmarks.model_shard",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--what", choices=WHAT, default="flux")
    parser.add_argument("--rank", type=int, default=128, help="of the low-rank branch, default %(default)s")
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON lines are added to it")
    parser.add_argument("--small", action="store_true", help="toy sizes, to see that the script works")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--late", action="store_true", help="captured as CUDA does by itself (allow_early)")
    parser.add_argument("--keep-adanorm", action="store_true", help="flux: leave the AdaNorm linears in bf16")
    parser.add_argument("--calibrate", action="store_true", help="flux: smooth by one call of the model")
    parser.add_argument(
        "--shapes", type=Path, metavar="FILE", help="flux: where to save the problems it meets"
    )
    args = parser.parse_args()
    allow_early(not args.late)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    lines = Lines(args.out, what=args.what, small=args.small, rank=args.rank, device=device_name(device))
    importlib.import_module(WHAT[args.what]).run(args, device, lines)


if __name__ == "__main__":
    main()

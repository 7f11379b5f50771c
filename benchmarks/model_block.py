"""A block of a diffusion transformer of width 3072, in bf16 and quantized (``bench_model --what dit-block``)."""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable

import torch

from benchmarks.model_times import DTYPE, Lines, graph_ms, relative, table, turns, wait
from tuner.runtime import quantize_model

WIDTH, HEAD = 3072, 128
TOKENS = (64, 256, 1024, 4352)
BLOCKS = 4  # one behind the other, with weights of their own: 0.9 GB in bf16 and 0.3 quantized, beyond the L2


class Block(torch.nn.Module):
    """Attention and feed-forward, each with its norm before it and the residual around it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (torch.nn.LayerNorm(width, elementwise_affine=False) for _ in range(2))
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.fc1, self.fc2 = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)
        self.gelu = torch.nn.GELU(approximate="tanh")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[batch, tokens, width]``, in and out."""
        batch, tokens, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, tokens, 3, -1, HEAD).permute(2, 0, 3, 1, 4)
        seen = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.fc2(self.gelu(self.fc1(self.norm2(x))))


def blocks(width: int, device: torch.device) -> torch.nn.Module:
    """The same weights every time."""
    torch.manual_seed(0)
    with torch.device(device):
        made = torch.nn.Sequential(*(Block(width).to(DTYPE) for _ in range(BLOCKS)))
    return made.eval().requires_grad_(False)


def run(args: argparse.Namespace, device: torch.device, lines: Lines) -> None:
    """Times of one block, from ``BLOCKS`` in a row; eager and graphs for all sizes, then compiled."""
    width = 256 if args.small else WIDTH
    plain, quantized = blocks(width, device), blocks(width, device)
    start = time.monotonic()
    quantize_model(quantized, rank=args.rank, progress=False)
    wait(device)
    lines.add(f"quantized in {time.monotonic() - start:.1f} s", quantized_s=time.monotonic() - start)
    models: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"bf16": plain, "quantized": quantized}
    rows: dict[str, dict[str, float | None]] = {}
    sizes = [8, 24] if args.small else TOKENS
    for compiled in (False,) if args.no_compile else (False, True):
        for tokens in sizes:
            _size(tokens, width, compiled, models, device, lines, rows)
    lines.add(f"one block, ms:\n{table(rows)}", block_ms=rows)


def _size(
    tokens: int,
    width: int,
    compiled: bool,
    models: dict[str, Callable[[torch.Tensor], torch.Tensor]],
    device: torch.device,
    lines: Lines,
    rows: dict[str, dict[str, float | None]],
) -> None:
    x = torch.randn(1, tokens, width, generator=torch.Generator().manual_seed(tokens)).to(device, DTYPE)
    way = "compiled" if compiled else "eager"
    if compiled:
        torch._dynamo.reset()
        models = {name: torch.compile(one, fullgraph=True) for name, one in models.items()}
    with torch.inference_mode():
        exact, y = models["bf16"](x), models["quantized"](x)
        times = turns([functools.partial(one, x) for one in models.values()], device)
        for (name, model), took in zip(models.items(), times, strict=True):
            row = rows.setdefault(f"{tokens} {name}", {})
            row[way] = sorted(took)[len(took) // 2] / BLOCKS
            graph = graph_ms(functools.partial(model, x), device)
            row[f"{way}, graph"] = None if graph is None else graph / BLOCKS
    one, other = rows[f"{tokens} bf16"], rows[f"{tokens} quantized"]
    ratios = {
        name: before / after
        for name, before in one.items()
        if before is not None and (after := other.get(name)) is not None
    }
    shown = ", ".join(f"{name} {ratio:.3f}" for name, ratio in ratios.items())
    lines.add(
        f"{tokens} tokens: bf16 / quantized: {shown}; relative error {relative(y, exact):.4f}",
        tokens=tokens,
        way=way,
        bf16_ms=one,
        quantized_ms=other,
        ratios=ratios,
        relative_error=relative(y, exact),
    )

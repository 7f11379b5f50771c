"""FLUX.1's transformer with random weights: one forward in bf16 and quantized (``bench_model --what flux``)."""

from __future__ import annotations

import argparse
import collections
import gc
import time
from typing import Any

import torch

from benchmarks.model_times import DTYPE, Lines, captured, graph_ms, ms, relative, table, turns, wait
from tuner.layers.activations import ACTIVATIONS, AUTO
from tuner.runtime import SVDQuantLinear, quantize_model, record_problems

AROUND = ("x_embedder", "context_embedder", "time_text_embed.*", "norm_out.linear", "proj_out")
ADANORM = ("*.norm*.linear",)
FULL = {
    "guidance_embeds": True
}  # everything else is the default of the class: 19 double blocks, 38 single ones
SMALL: dict[str, Any] = {
    "num_layers": 2,
    "num_single_layers": 3,
    "attention_head_dim": 32,
    "num_attention_heads": 2,
    "joint_attention_dim": 64,
    "pooled_projection_dim": 64,
    "in_channels": 32,
    "axes_dims_rope": (8, 12, 12),
    "guidance_embeds": True,
}


def build(small: bool, device: torch.device) -> torch.nn.Module:
    """On ``device`` from the start, the same weights every time."""
    from diffusers import FluxTransformer2DModel

    before = torch.get_default_dtype()
    torch.manual_seed(0)
    torch.set_default_dtype(DTYPE)
    try:
        with torch.device(device):
            model: Any = FluxTransformer2DModel(**(SMALL if small else FULL))
    finally:
        torch.set_default_dtype(before)
    return model.eval().requires_grad_(False)


def inputs(model: torch.nn.Module, side: int, text: int, device: torch.device) -> dict[str, Any]:
    """Of a call with ``side`` x ``side`` image tokens."""
    config: Any = model.config
    draw = torch.Generator(device).manual_seed(1)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw, device=device, dtype=DTYPE)

    rows = torch.arange(side, device=device, dtype=DTYPE)
    ids = torch.zeros(side, side, 3, device=device, dtype=DTYPE)
    ids[..., 1], ids[..., 2] = rows[:, None], rows[None, :]
    return {
        "hidden_states": randn(1, side * side, config.in_channels),
        "encoder_hidden_states": randn(1, text, config.joint_attention_dim),
        "pooled_projections": randn(1, config.pooled_projection_dim),
        "timestep": torch.tensor([0.5], device=device, dtype=DTYPE),
        "guidance": torch.tensor([3.5], device=device, dtype=DTYPE),
        "img_ids": ids.view(-1, 3),
        "txt_ids": torch.zeros(text, 3, device=device, dtype=DTYPE),
        "return_dict": False,
    }


def gigabytes(model: torch.nn.Module) -> float:
    tensors = {one.data_ptr(): one for one in [*model.parameters(), *model.buffers()]}
    return sum(one.numel() * one.element_size() for one in tensors.values()) / 1e9


def compile_blocks(model: torch.nn.Module, yes: bool) -> None:
    """Every block with one compilation a kind, as diffusers' ``compile_repeated_blocks`` does; or eager again."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    kinds: tuple[str, ...] = model._repeated_blocks  # type: ignore[assignment]  # of diffusers
    for block in model.modules():
        if type(block).__name__ in kinds:
            if yes:
                block.compile(fullgraph=True)
            else:
                block._compiled_call_impl = None


class Pair:
    """The model in bf16 and quantized, and one call of each."""

    def __init__(self, args: argparse.Namespace, device: torch.device, lines: Lines) -> None:
        self.device, self.lines = device, lines
        skip = AROUND + (ADANORM if args.keep_adanorm else ())
        start = time.monotonic()
        self.quantized = build(args.small, device)
        self.inputs = inputs(self.quantized, 4 if args.small else 64, 8 if args.small else 512, device)
        wait(device)
        lines.add(f"built in {time.monotonic() - start:.1f} s", built_s=time.monotonic() - start)
        self.exact = self.call(self.quantized)
        before = gigabytes(self.quantized)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        start = time.monotonic()
        report = quantize_model(
            self.quantized,
            [self.inputs] if args.calibrate else None,
            rank=args.rank,
            skip=skip,
            progress=False,
        )
        wait(device)
        took = time.monotonic() - start
        gc.collect()
        peak = torch.cuda.max_memory_allocated(device) / 1e9 if device.type == "cuda" else None
        worst = max(report.layers, key=lambda one: one.relative_error)
        after = gigabytes(self.quantized)
        lines.add(
            f"{len(report.layers)} linears of {len(report.layers) + len(report.left)} quantized in {took:.1f} s, "
            f"{before:.2f} -> {after:.2f} GB (peak {peak or 0:.1f} GB meanwhile); worst weight {worst}",
            linears=len(report.layers),
            left=report.left,
            quantized_s=took,
            gb_before=before,
            gb_after=after,
            gb_peak=peak,
            worst_weight=worst.relative_error,
        )
        self.plain = build(args.small, device)

    def call(self, model: torch.nn.Module) -> torch.Tensor:
        with torch.inference_mode():
            return model(**self.inputs)[0]

    def calls(self) -> dict[str, Any]:
        return {"bf16": lambda: self.call(self.plain), "quantized": lambda: self.call(self.quantized)}


def run(args: argparse.Namespace, device: torch.device, lines: Lines) -> None:
    """Eager first, then what takes longer to get ready."""
    pair = Pair(args, device, lines)
    with record_problems() as seen:
        y = pair.call(pair.quantized)
    error = relative(y, pair.exact)
    same = torch.equal(pair.call(pair.plain), pair.exact)
    lines.add(
        f"relative error of the output {error:.4f} (random weights); bf16 twice the same: {same}",
        relative_error=error,
        finite=bool(torch.isfinite(y).all()),
        bf16_repeats=same,
    )
    if args.shapes is not None:
        seen.save(args.shapes)
    lines.add(f"problems of one forward:\n{seen}")
    rows: dict[str, dict[str, float | None]] = {"bf16": {}, "quantized": {}}
    _eager(pair, rows)
    _activations(pair)
    _graphs(pair, rows, "graph")
    if not args.no_compile:
        _compiled(pair, rows)
    lines.add(f"one forward, ms:\n{table(rows)}", forward_ms=rows)


def _add(pair: Pair, way: str, rows: dict[str, dict[str, float | None]], **more: Any) -> None:
    plain, quantized = rows["bf16"][way], rows["quantized"][way]
    if plain is not None and quantized is not None:
        text = f"{way}: bf16 {plain:.2f} ms, quantized {quantized:.2f} ms, ratio {plain / quantized:.3f}"
        text += "".join(f", {name} {value:.3g}" for name, value in more.items())
        pair.lines.add(text, way=way, bf16_ms=plain, quantized_ms=quantized, ratio=plain / quantized, **more)


def _eager(pair: Pair, rows: dict[str, dict[str, float | None]]) -> None:
    calls = pair.calls()
    for name, times in zip(calls, turns(list(calls.values()), pair.device), strict=True):
        rows[name]["eager"] = sorted(times)[len(times) // 2]
    _add(pair, "eager", rows)


def _activations(pair: Pair) -> None:
    """Eager with each kind of activations, and what ``auto`` took."""
    layers = [one for one in pair.quantized.modules() if isinstance(one, SVDQuantLinear)]
    for kind in ACTIVATIONS:
        for layer in layers:
            layer.activations = kind
        y = pair.call(pair.quantized)
        took, error = (
            ms(lambda: pair.call(pair.quantized), pair.device, 5),
            relative(y, pair.exact),
        )
        pair.lines.add(
            f"eager, activations {kind}: {took:.2f} ms, relative error {error:.4f}",
            activations=kind,
            eager_ms=took,
            relative_error=error,
        )
    for layer in layers:
        layer.activations = AUTO
    tokens = pair.inputs["hidden_states"].shape[1] + pair.inputs["encoder_hidden_states"].shape[1]
    taken = collections.Counter(
        f"{layer.in_features}->{layer.out_features} {layer.chosen(m).activations}"
        for layer in layers
        for m in (1 if layer.out_features > 4 * layer.in_features else tokens,)
    )
    pair.lines.add(f"auto took (M = 1 or {tokens}): {dict(taken)}", auto=dict(taken))


def _graphs(pair: Pair, rows: dict[str, dict[str, float | None]], way: str) -> None:
    for name, call in pair.calls().items():
        rows[name][way] = graph_ms(call, pair.device, count=5)
    if pair.device.type == "cuda":
        eager = pair.call(pair.quantized)
        replay, y = captured(pair.calls()["quantized"])
        with torch.inference_mode():
            y.zero_()
        replay()
        _add(pair, way, rows, difference_to_ungraphed=relative(y, eager))


def _compiled(pair: Pair, rows: dict[str, dict[str, float | None]]) -> None:
    for name, call in reversed(pair.calls().items()):  # the quantized one first
        model = pair.plain if name == "bf16" else pair.quantized
        eager = pair.call(model)
        compile_blocks(model, True)
        start = time.monotonic()
        y = call()
        wait(pair.device)
        took = time.monotonic() - start
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        rows[name]["compiled"] = ms(call, pair.device)
        rows[name]["compiled, graph"] = graph_ms(call, pair.device, count=5)
        pair.lines.add(
            f"{name} compiled in {took:.1f} s to {graphs} graphs: {rows[name]['compiled']:.2f} ms, "
            f"difference to eager {relative(y, eager):.3g}",
            compiled=name,
            compile_s=took,
            graphs=graphs,
            compiled_ms=rows[name]["compiled"],
            compiled_graph_ms=rows[name]["compiled, graph"],
        )
        compile_blocks(model, False)
    _add(pair, "compiled", rows)
    _add(pair, "compiled, graph", rows)

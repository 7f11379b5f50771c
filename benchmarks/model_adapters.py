"""Adapters of as many layers as FLUX.1 has, switched between replays of a graph (``bench_model --what adapters``)."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping

import torch

from benchmarks.model_times import DTYPE, WARM, Lines, captured, relative, wait
from tuner.runtime import SVDQuantLinear, reserve_adapters, set_adapters

RANK, ROOM, ADAPTER = 32, 128, 64  # of the layer, of all its adapters, of one
M = 16
LAYERS = {  # (K, N): how often FLUX.1 has it
    (3072, 3072): 8 * 19 + 3 * 38,
    (3072, 12288): 2 * 19 + 38,
    (12288, 3072): 2 * 19,
    (15360, 3072): 38,
}
SWITCHES = 15
TOLERANCE = 2.0**-6  # of y in bf16, of which some layers are rounded twice
Tensors = dict[str, tuple[torch.Tensor, torch.Tensor]]


def random_layer(k: int, n: int, device: torch.device) -> SVDQuantLinear:
    """With random codes and scales around one, and a small branch: nothing is decomposed."""
    layer = SVDQuantLinear(k, n, rank=RANK, dtype=DTYPE, device=device)
    layer.wgt.random_(0, 256)
    layer.wscales.random_(0x28, 0x40)
    layer.lora_down_packed[:, :RANK].normal_(0, 0.02)
    layer.lora_up[:, :RANK].normal_(0, 0.02)
    layer.wcscale.fill_(0.25 / k**0.5)
    layer.refresh_peaks()
    return layer


def model_of(small: bool, device: torch.device) -> torch.nn.ModuleDict:
    torch.manual_seed(0)
    sizes = {(64, 96): 3, (96, 64): 2} if small else LAYERS
    names = [(f"{k}-{n}-{number}", k, n) for (k, n), count in sizes.items() for number in range(count)]
    return torch.nn.ModuleDict({name: random_layer(k, n, device) for name, k, n in names})


def adapter_of(model: torch.nn.ModuleDict, device: torch.device, seed: int) -> Tensors:
    """One whose part of y is about as large as y."""
    draw = torch.Generator(device).manual_seed(seed)
    found: Tensors = {}
    for name, layer in model.items():
        assert isinstance(layer, SVDQuantLinear)
        k, n = layer.in_features, layer.out_features
        down = torch.randn(k, ADAPTER, generator=draw, device=device, dtype=DTYPE) / k**0.5
        up = torch.randn(n, ADAPTER, generator=draw, device=device, dtype=DTYPE) / ADAPTER**0.5
        found[name] = (down, up)
    return found


class All(torch.nn.Module):
    """Every layer once, on its own x; y of all."""

    def __init__(self, model: torch.nn.ModuleDict, device: torch.device) -> None:
        super().__init__()
        self.layers = model
        draw = torch.Generator(device).manual_seed(5)
        self.x = {
            name: torch.randn(M, int(layer.in_features), generator=draw, device=device, dtype=DTYPE)  # type: ignore[arg-type]  # of a layer
            for name, layer in model.items()
        }

    def forward(self) -> torch.Tensor:
        return torch.cat([layer(self.x[name]) for name, layer in self.layers.items()], dim=1)

    def wanted(self, base: torch.Tensor, given: Mapping[str, tuple[Tensors, float]]) -> torch.Tensor:
        """float64: ``base`` without adapters, and strength (x @ down) @ up.T of each."""
        added = []
        for name, x in self.x.items():
            parts = [
                strength * (x.double() @ tensors[name][0].double()) @ tensors[name][1].double().T
                for tensors, strength in given.values()
            ]
            width = int(self.layers[name].out_features)  # type: ignore[arg-type]  # of a layer
            added.append(sum(parts, torch.zeros(M, width, device=x.device, dtype=torch.float64)))
        return base.double() + torch.cat(added, dim=1)


def run(args: argparse.Namespace, device: torch.device, lines: Lines) -> None:
    start = time.monotonic()
    model = model_of(args.small, device)
    reserve_adapters(model, RANK + ROOM)
    every = All(model, device)
    given = {name: adapter_of(model, device, seed) for seed, name in enumerate("abc")}
    wait(device)
    lines.add(f"{len(model)} layers, three adapters of rank {ADAPTER}: {time.monotonic() - start:.1f} s")
    with torch.inference_mode():
        base = every().clone()
    replayed = _runs(every, device)
    states: dict[str, Mapping[str, tuple[Tensors, float]]] = {
        "a": {"a": (given["a"], 1.0)},
        "a weaker": {"a": (given["a"], 0.25)},
        "b": {"b": (given["b"], 0.5)},
        "a and b": {"a": (given["a"], -0.5), "b": (given["b"], 1.0)},
        "c": {"c": (given["c"], 1.0)},  # a and b fill the room
        "none": {},
    }
    for name, state in states.items():
        began = time.perf_counter()
        set_adapters(model, state)
        wait(device)
        took = (time.perf_counter() - began) * 1e3
        error = relative(replayed(), every.wanted(base, state))
        right = error < TOLERANCE
        lines.add(
            f"{name:9} first time {took:8.2f} ms, relative error of y {error:.5f}, right: {right}",
            adapters=name,
            first_ms=took,
            relative_error=error,
            right=right,
        )
    _switches(model, states, device, lines)


def _runs(every: All, device: torch.device) -> Callable[[], torch.Tensor]:
    """y of all layers, on a card from a graph that was captured once."""

    def called() -> torch.Tensor:
        with torch.inference_mode():
            return every()

    if device.type != "cuda":
        return called
    replay, y = captured(called)

    def replayed() -> torch.Tensor:
        replay()
        return y

    return replayed


def _switches(
    model: torch.nn.ModuleDict,
    states: Mapping[str, Mapping[str, tuple[Tensors, float]]],
    device: torch.device,
    lines: Lines,
) -> None:
    """From one state to another, tensors known: until the call is back, and until the card is done."""
    for one, other in (("a", "b"), ("a", "a weaker"), ("a", "a and b"), ("b", "c"), ("a", "none")):
        times: list[tuple[float, float]] = []
        for number in range(2 * (WARM + SWITCHES)):
            wait(device)
            began = time.perf_counter()
            set_adapters(model, states[other if number % 2 else one])
            back = time.perf_counter() - began
            wait(device)
            times.append((back * 1e3, (time.perf_counter() - began) * 1e3))
        host, whole = (statistics.median(column) for column in zip(*times[2 * WARM :], strict=True))
        lines.add(
            f"{one} <-> {other}: {whole:.2f} ms, the call itself {host:.2f} ms (median of {2 * SWITCHES})",
            switch=[one, other],
            ms=whole,
            host_ms=host,
        )

"""A chain of operators on a card: one call, all launches, right to the bit. The oracle is torch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from kernel_space.core import registry
from tests.gpu.stranger import CHAIN, compiled_for, default_config
from tests.gpu.test_stranger_gpu import SHAPES, x_of
from tuner.runtime import launch
from tuner.runtime.choice.choice import Prepared
from tuner.runtime.choice.remembered import forget_tables
from tuner.runtime.state import active, class_of_card

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def prepared() -> Iterator[None]:
    """The card's library has the chain's object, as ``prepare(compile=True)`` would have put it there."""
    device_class = class_of_card(0)
    library = active()[0].library(device_class)
    problem = registry.operator(CHAIN).problem(rows=64, width=256)
    compiled = compiled_for(device_class.arch, CHAIN)
    library.add(Prepared(problem=problem, config=default_config(CHAIN), compiled=compiled))
    forget_tables()
    yield
    forget_tables()


def right(x: torch.Tensor, found: dict[str, torch.Tensor]) -> bool:
    counts = (x > 0).sum(dim=1, dtype=torch.int32)
    return (
        torch.equal(found["half"], 2 * x)
        and torch.equal(found["y"], 4 * x)
        and torch.equal(found["before"], counts)
        and torch.equal(found["count"], counts)
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_every_output_of_every_link_is_right(shape: str) -> None:
    for seed in range(3):
        x = x_of(shape, seed)
        assert right(x, launch(CHAIN, shape, {"x": x}))


def test_a_graph_replays_both_launches() -> None:
    x = x_of("333,1026")
    launch(CHAIN, "333,1026", {"x": x})
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = launch(CHAIN, "333,1026", {"x": x})
    for seed in range(1, 20):
        x.copy_(x_of("333,1026", seed))
        graph.replay()
        torch.cuda.synchronize()
        assert right(x, found)


def test_streams_beside_each_other() -> None:
    streams = [torch.cuda.Stream() for _ in range(4)]
    inputs = [x_of("4352,256", seed) for seed in range(4)]
    found = []
    torch.cuda.synchronize()
    for _ in range(50):
        for stream, x in zip(streams, inputs, strict=True):
            with torch.cuda.stream(stream):
                found.append((x, launch(CHAIN, "4352,256", {"x": x})))
    torch.cuda.synchronize()
    assert all(right(x, made) for x, made in found)

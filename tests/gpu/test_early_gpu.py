"""On a card: layers captured behind kernels of torch begin early, and use what those write to the last byte."""

from __future__ import annotations

import pytest
import torch

from benchmarks.bench_layer import random_layer
from kernel_space.operators.svdquant_linear.problem import LinearProblem
from tests.gpu.test_runtime import bits
from tuner.runtime import SVDQuantLinear, allow_early
from tuner.runtime.load import early
from tuner.runtime.load.early import WHEN_ALL_BEGAN

pytestmark = pytest.mark.gpu

SHAPES = ["1,3840,3072,128", "16,3072,3072,128", "64,3840,3072,128", "128,3072,3072,128", "300,3072,3072,128",
          "4352,3072,3072,128"]  # fmt: skip
KINDS = ["nvfp4", "16bit", "fp8"]


def first_edge_of(call: SVDQuantLinear, x: torch.Tensor) -> tuple[torch.Tensor, early.Edge]:
    """y of a call that is being captured, and what stands at the edge from the kernel before it."""
    graphs, stream = early.driver_graphs(), torch.cuda.current_stream().cuda_stream
    assert graphs is not None
    _, (before,) = graphs.ends(stream)
    y = call(x)
    _, (node,) = graphs.ends(stream)
    while (edge := dict(graphs.edges_to(node)).get(before)) is None:
        node = graphs.edges_to(node)[0][0]
    return y, edge


def late_in_one_wave(source: torch.Tensor, m: int) -> torch.Tensor:
    """All blocks begin at once, and the last rows come after a millisecond."""
    return source[-m - 2048 :].cumsum(0)[-m:]


def late_in_the_last_of_many_waves(source: torch.Tensor, m: int) -> torch.Tensor:
    return torch.nn.functional.silu(source)[-m:]


@pytest.mark.parametrize("make", [late_in_one_wave, late_in_the_last_of_many_waves])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
@torch.inference_mode()
def test_y_is_of_what_the_kernel_before_wrote(shape: str, kind: str, make: object) -> None:
    """Bit for bit, in 20 replays with other inputs, three layers one behind the other."""
    problem = LinearProblem.parse(shape, dtype="bf16")
    layers = [random_layer(problem, kind) for _ in range(3)]
    source = torch.randn(problem.m + 20000, problem.k, device="cuda", dtype=torch.bfloat16)
    for layer in layers:
        layer(make(source, problem.m))  # type: ignore[operator]  # one of two functions
    graph, edges = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        found = []
        for layer in layers:
            y, edge = first_edge_of(layer, make(source, problem.m))  # type: ignore[operator]  # as above
            found.append(y)
            edges.append(edge)
    wrong = 0
    for _ in range(20):
        source.normal_()
        torch.cuda.synchronize()
        graph.replay()
        x = make(source, problem.m)  # type: ignore[operator]  # as above
        wrong += sum(not torch.equal(bits(y), bits(layer(x))) for y, layer in zip(found, layers, strict=True))
    assert wrong == 0
    # Rows of these are of kernels with programmatic launch that fill the card.
    if problem.m <= 128 and kind == "16bit":
        assert {edge.from_port for edge in edges} == {WHEN_ALL_BEGAN}, "nothing was tested"


@torch.inference_mode()
def test_it_is_faster_than_what_cuda_captures() -> None:
    from benchmarks.bench_layer import behind, graph_us

    problem = LinearProblem.parse("64,3072,3072,128", dtype="bf16")
    layers = [random_layer(problem, "16bit") for _ in range(24)]
    x = torch.randn(problem.m, problem.k, device="cuda", dtype=torch.bfloat16)
    calls = [lambda one=layer: behind(one)(x) for layer in layers]
    soon = graph_us(calls)
    try:
        allow_early(False)
        late = graph_us(calls)
    finally:
        allow_early(True)
    assert soon < late - 0.5, (soon, late)


SUMS = ["64,3072,9216,128", "128,3072,9216,128", "512,12288,3072,128"]  # stream-K: counters and partial sums


def captured(
    layers: list[SVDQuantLinear], x: torch.Tensor
) -> tuple[torch.cuda.CUDAGraph, list[torch.Tensor], int]:
    """A graph of a kernel of torch and layers, their outputs, and nodes between that are no kernels."""
    graphs, graph, others = early.driver_graphs(), torch.cuda.CUDAGraph(), 0
    assert graphs is not None
    with torch.cuda.graph(graph):
        stream = torch.cuda.current_stream().cuda_stream
        still = x + 0
        _, (first,) = graphs.ends(stream)
        found = [layer(still) for layer in layers]
        _, (node,) = graphs.ends(stream)
        while node != first:
            others += not graphs.is_kernel(node)
            ((node, _),) = graphs.edges_to(node)
    return graph, found, others


@pytest.mark.parametrize("shape", SUMS)
@torch.inference_mode()
def test_partial_sums_are_zeroed_once_for_all_replays_of_two_graphs_at_once(shape: str) -> None:
    """No memset in a graph, and its workspace is its own: each replay has the bits of eager calls."""
    problem = LinearProblem.parse(shape, dtype="bf16")
    layers = [random_layer(problem, "16bit") for _ in range(3)]
    inputs = [torch.randn(problem.m, problem.k, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    wanted = [[layer(x).clone() for layer in layers] for x in inputs]
    graphs = [captured(layers, x) for x in inputs]
    assert [others for _, _, others in graphs] == [0, 0]
    streams, wrong = [torch.cuda.Stream() for _ in graphs], 0
    torch.cuda.synchronize()
    for _ in range(200):
        for stream, (graph, _, _) in zip(streams, graphs, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        beside = [layer(inputs[0]) for layer in layers]
        torch.cuda.synchronize()
        for (_, found, _), expected in zip(graphs, wanted, strict=True):
            wrong += sum(not torch.equal(bits(y), bits(one)) for y, one in zip(found, expected, strict=True))
        wrong += sum(not torch.equal(bits(y), bits(one)) for y, one in zip(beside, wanted[0], strict=True))
    assert wrong == 0

"""Edges of captured launches: exchanged behind one kernel that began when all before it had ended, nowhere else.

The graph is a table of edges here, so no card is needed; tests/gpu/test_early_gpu.py asks CUDA.
"""

from __future__ import annotations

import ctypes
import itertools
import struct
import threading
from collections.abc import Callable
from typing import Any

import pytest

from kernel_space.launch.loading import HostCallError
from tuner.runtime.choice.contract import runtime_of
from tuner.runtime.load import early
from tuner.runtime.load.early import PLAIN, PROGRAMMATIC, WHEN_ALL_BEGAN, WHEN_LET, DriverGraphs, Edge

STREAM, GRAPH = 7, 70
LET, BEGAN = Edge(WHEN_LET, 0, PROGRAMMATIC), Edge(WHEN_ALL_BEGAN, 0, PROGRAMMATIC)


class Capture:
    """A graph as it is captured on one stream."""

    def __init__(self) -> None:
        self.numbers = itertools.count(1)
        self.kernels: set[int] = set()
        self.crowds = False
        self.edges: dict[tuple[int, int], Edge] = {}
        self.last: list[int] = []

    def add(self, *, kernel: bool = True, programmatic: bool = False) -> int:
        node = next(self.numbers)
        for one in self.last:
            self.edges[one, node] = LET if programmatic and one in self.kernels else Edge()
        if kernel:
            self.kernels.add(node)
        self.last = [node]
        return node

    def ends(self, stream: int) -> tuple[int, list[int]]:
        assert stream == STREAM
        return GRAPH, list(self.last)

    def is_kernel(self, node: int) -> bool:
        return node in self.kernels

    def may_crowd(self, node: int) -> bool:
        assert node in self.kernels
        return self.crowds

    def edges_to(self, node: int) -> list[tuple[int, Edge]]:
        return [(one, edge) for (one, other), edge in self.edges.items() if other == node]

    def exchange(self, graph: int, one: int, other: int, old: Edge, new: Edge) -> None:
        assert graph == GRAPH and self.edges[one, other] == old
        self.edges[one, other] = new


@pytest.fixture
def graph(monkeypatch: pytest.MonkeyPatch) -> Capture:
    made = Capture()
    monkeypatch.setattr(early, "driver_graphs", lambda: made)
    return made


def launcher(graph: Capture, *programmatic: bool, code: int = 0) -> Callable[..., int]:
    """Of a layer of so many kernels."""

    def launch(*values: Any) -> int:
        for one in programmatic:
            graph.add(programmatic=one)
        return code

    return early.captured(launch)


def test_a_layer_behind_a_foreign_kernel(graph: Capture) -> None:
    graph.add()
    graph.add()
    assert launcher(graph, True)("tensors", STREAM) == 0
    assert graph.edges == {(1, 2): Edge(), (2, 3): BEGAN}


def test_of_two_kernels_the_first(graph: Capture) -> None:
    graph.add()
    launcher(graph, True, True)(STREAM)
    assert graph.edges == {(1, 2): BEGAN, (2, 3): LET}


def test_one_that_waits_for_nothing_stays_behind_its_end(graph: Capture) -> None:
    """It has no attribute, so it does not wait for the kernel before itself."""
    graph.add()
    launcher(graph, False, True)(STREAM)
    assert graph.edges == {(1, 2): Edge(), (2, 3): LET}


def test_behind_one_that_began_early_itself(graph: Capture) -> None:
    """Three of ours behind a foreign one: the second begins when the first lets it."""
    graph.add()
    call = launcher(graph, True)
    for _ in range(3):
        call(STREAM)
    assert graph.edges == {(1, 2): BEGAN, (2, 3): LET, (3, 4): LET}


@pytest.mark.parametrize("kernel", [True, False])
def test_behind_two_that_were_joined_or_a_memset(graph: Capture, kernel: bool) -> None:
    one = graph.add(kernel=kernel)
    if kernel:
        graph.last = []  # another stream
        graph.last = [one, graph.add()]
    launcher(graph, True)(STREAM)
    assert BEGAN not in graph.edges.values()


def test_one_whose_ctas_might_share_an_sm(graph: Capture) -> None:
    graph.add()
    graph.crowds = True
    launcher(graph, True)(STREAM)
    assert graph.edges == {(1, 2): LET}


def test_first_in_its_graph(graph: Capture) -> None:
    launcher(graph, True)(STREAM)
    assert not graph.edges


def test_a_launch_that_failed_changes_nothing(graph: Capture) -> None:
    graph.add()
    assert launcher(graph, True, code=9)(STREAM) == 9
    assert graph.edges == {(1, 2): LET}


def test_behind_weights_just_written_by_this_thread_alone(graph: Capture) -> None:
    graph.add()
    with early.behind_writes():
        launcher(graph, True)(STREAM)
        graph.last, other = [1], threading.Thread(target=launcher(graph, True), args=(STREAM,))
        other.start()
        other.join()
    assert graph.edges == {(1, 2): LET, (1, 3): BEGAN}
    graph.last = [1]
    launcher(graph, True)(STREAM)
    assert graph.edges[1, 4] == BEGAN


def test_not_where_it_is_not_allowed(graph: Capture) -> None:
    graph.add()
    early.allow_early(False)
    try:
        launcher(graph, True)(STREAM)
    finally:
        early.allow_early(True)
    assert graph.edges == {(1, 2): LET}


def test_an_old_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early, "driver_graphs", lambda: None)
    assert early.captured(lambda *values: 5)(STREAM) == 5


KERNEL, FUNCTION, DEVICE, SMS = 600, 601, 3, 132


class Library:
    """Functions with the driver's signatures over a ``Capture``; ``refuses``: one that returns an error.

    Of each kernel so many CTAs fit an SM as ``fit`` says; it has 2 x 50 x 1 of 256 threads and 1000 bytes.
    """

    def __init__(self, graph: Capture, refuses: str = "", fit: int = 1, function: int | None = None) -> None:
        self.graph, self.fit, self.function = graph, fit, function
        pointer, out, size = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t
        forms: dict[str, Any] = {
            "cuStreamGetCaptureInfo_v3": (self.info, [pointer, out, out, out, out, out, out]),
            "cuGraphNodeGetType": (self.type, [pointer, out]),
            "cuGraphNodeGetDependencies_v2": (self.dependencies, [pointer, out, out, out]),
            "cuGraphRemoveDependencies_v2": (self.remove, [pointer, out, out, out, size]),
            "cuGraphAddDependencies_v2": (self.add, [pointer, out, out, out, size]),
            "cuGraphKernelNodeGetParams_v2": (self.params, [pointer, out]),
            "cuKernelGetFunction": (self.function_of, [out, pointer]),
            "cuOccupancyMaxActiveBlocksPerMultiprocessor": (
                self.occupancy,
                [out, pointer, ctypes.c_int, size],
            ),
            "cuCtxGetDevice": (self.device, [out]),
            "cuDeviceGetAttribute": (self.attribute, [out, ctypes.c_int, ctypes.c_int]),
        }
        for name, (function, types) in forms.items():
            form: Any = ctypes.CFUNCTYPE(ctypes.c_int, *types)
            setattr(self, name, form((lambda *_: 1) if name == refuses else function))

    def info(
        self, stream: int, status: int, number: Any, graph: int, nodes: int, edges: int, count: int
    ) -> int:
        assert stream == STREAM and number is None
        self.kept = (ctypes.c_void_p * 4)(*self.graph.last)
        ctypes.c_int.from_address(status).value = 1
        ctypes.c_void_p.from_address(graph).value = GRAPH
        ctypes.c_void_p.from_address(nodes).value = ctypes.addressof(self.kept)
        ctypes.c_void_p.from_address(edges).value = None
        ctypes.c_size_t.from_address(count).value = len(self.graph.last)
        return 0

    def type(self, node: int, kind: int) -> int:
        ctypes.c_int.from_address(kind).value = 0 if node in self.graph.kernels else 2
        return 0

    def params(self, node: int, into: int) -> int:
        """CUDA_KERNEL_NODE_PARAMS_v2: CUfunction, 7 unsigned, (padding,) void**, void**, CUkernel, CUcontext."""
        assert node in self.graph.kernels
        packed = struct.pack("@P7IPPPP", self.function or 0, 2, 50, 1, 256, 1, 1, 1000, 1, 2, KERNEL, 4)
        ctypes.memmove(into, packed, len(packed))
        return 0

    def function_of(self, function: int, kernel: int) -> int:
        ctypes.c_void_p.from_address(function).value = FUNCTION if kernel == KERNEL else 0
        return 0

    def occupancy(self, count: int, function: int, threads: int, shared: int) -> int:
        assert (function, threads, shared) == (FUNCTION, 256, 1000)
        ctypes.c_int.from_address(count).value = self.fit
        return 0

    def device(self, device: int) -> int:
        ctypes.c_int.from_address(device).value = DEVICE
        return 0

    def attribute(self, value: int, which: int, device: int) -> int:
        assert (which, device) == (16, DEVICE)
        ctypes.c_int.from_address(value).value = SMS
        return 0

    def dependencies(self, node: int, nodes: int | None, edges: int | None, count: int) -> int:
        found = self.graph.edges_to(node)
        ctypes.c_size_t.from_address(count).value = len(found)
        if nodes is not None and edges is not None:
            for index, (one, edge) in enumerate(found):
                ctypes.c_void_p.from_address(nodes + 8 * index).value = one
                ctypes.memmove(edges + 8 * index, bytes([*edge, 0, 0, 0, 0, 0]), 8)
        return 0

    def remove(self, graph: int, one: int, other: int, edge: int, count: int) -> int:
        key, data = self._read(one, other, edge)
        assert graph == GRAPH and count == 1
        return 0 if self.graph.edges.pop(key) == data else 1

    def add(self, graph: int, one: int, other: int, edge: int, count: int) -> int:
        key, data = self._read(one, other, edge)
        self.graph.edges[key] = data
        return 0

    def _read(self, one: int, other: int, edge: int) -> tuple[tuple[int, int], Edge]:
        first, second = (ctypes.c_void_p.from_address(at).value or 0 for at in (one, other))
        raw = ctypes.string_at(edge, 8)
        assert raw[3:] == bytes(5)  # reserved: zero
        return (first, second), Edge(*raw[:3])


def test_through_the_driver_s_functions(graph: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early, "driver_graphs", lambda: DriverGraphs(Library(graph)))
    graph.add()
    launcher(graph, True, True)(STREAM)
    assert graph.edges == {(1, 2): BEGAN, (2, 3): LET}
    graph.add(kernel=False)
    launcher(graph, True)(STREAM)
    assert graph.edges[4, 5] == Edge(0, 0, PLAIN)


@pytest.mark.parametrize("fit, sms, port", [(1, 132, BEGAN), (2, 132, LET), (2, 99, BEGAN), (2, 100, LET)])
@pytest.mark.parametrize("function", [None, FUNCTION])
def test_by_what_fits_an_sm(
    graph: Capture, monkeypatch: pytest.MonkeyPatch, fit: int, sms: int, port: Edge, function: int | None
) -> None:
    """100 CTAs: on 132 or 100 SMs one on each, on 99 two on one."""
    monkeypatch.setattr(__name__ + ".SMS", sms)
    monkeypatch.setattr(
        early, "driver_graphs", lambda: DriverGraphs(Library(graph, fit=fit, function=function))
    )
    graph.add()
    launcher(graph, True)(STREAM)
    assert graph.edges == {(1, 2): port}


@pytest.mark.parametrize("name", DriverGraphs.NAMES)
def test_a_driver_that_refuses_is_named(graph: Capture, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(early, "driver_graphs", lambda: DriverGraphs(Library(graph, refuses=name)))
    graph.add()
    with pytest.raises(HostCallError, match=f"{name} returned CUDA error 1 .*allow_early"):
        launcher(graph, True)(STREAM)


@pytest.mark.parametrize(
    "name, early_too",
    [
        ("svdquant_linear", True),
        ("svdquant_linear_16bit", True),
        ("svdquant_gemm", False),
        ("nvfp4_quantize", False),
    ],
)
def test_only_layers_say_that_no_graph_writes_their_weights(name: str, early_too: bool) -> None:
    """What a function takes for weights may have been made by the kernel in front."""
    assert runtime_of(name).early is early_too

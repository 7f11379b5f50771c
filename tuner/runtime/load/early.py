"""Launches captured into a CUDA graph begin before the kernel in front of them has ended, whoever's that is.

A kernel with programmatic dependent launch does what does not need its inputs (barriers, weights), then waits for the
launch before (``griddepcontrol.wait``). It begins when the launch before lets it, which kernels that know nothing of
this never do: behind one of torch's it begins when that has ended, and 2 to 4 us are lost (measured, H100, layers of 16
to 256 rows).

A graph can say otherwise. Its edges have a port at the kernel that goes first (CUDA driver API, CUgraphEdgeData):
CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC, by which CUDA captures such a launch, and ..._LAUNCH_ORDER, which opens when all
blocks of that kernel have begun. So the edge is exchanged after the capture of a launch. Nothing else changes: the
wait is for the end of that kernel and for all that it wrote. Only where that suffices:

* the launch stands behind one kernel and nothing else. Where streams were joined, what comes before is not the launch
  before alone, and may have written weights;
* that kernel itself began when all before it had ended. One that began earlier says itself when the next one may;
* the launch's CTAs lie no closer than on an empty card. Placed beside those of another kernel, two that fit an SM may
  share one where others stay free. A quantizer of 64 CTAs took 40 us instead of 29 with its GEMM (measured, H100).

As for launches in a row, the kernel in front must not write weights (docs/operator.md): they are read before the wait.
So it is for operators that say so (``EARLY``, choice/contract.py), the layers; what a function takes for weights may
have been made by the graph itself. Who has written some just now, as padding does, says so by ``behind_writes``.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from kernel_space.launch.loading import HostCallError
from tuner.runtime.load.captures import ACTIVE

KERNEL = 0  # CU_GRAPH_NODE_TYPE_KERNEL
PLAIN, PROGRAMMATIC = 0, 1  # CU_GRAPH_DEPENDENCY_TYPE_...
WHEN_LET, WHEN_ALL_BEGAN = 1, 2  # CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC, ..._LAUNCH_ORDER
MULTIPROCESSOR_COUNT = 16  # CU_DEVICE_ATTRIBUTE_...
MOST_NODES = 8  # that one launch adds

# torch.cuda.is_current_stream_capturing without its wrapper; a build of torch without CUDA captures nothing
capturing: Callable[[], bool] = (
    torch._C._cuda_isCurrentStreamCapturing if torch.backends.cuda.is_built() else lambda: False
)
_own = threading.local()
_allowed = True


class Edge(NamedTuple):
    """What stands at an edge of a graph, as in CUgraphEdgeData."""

    from_port: int = 0
    to_port: int = 0
    type: int = PLAIN


class Graphs(Protocol):
    """Of the driver: graphs that are being captured. Nodes and graphs are handles."""

    def ends(self, stream: int) -> tuple[int, list[int]]:
        """The graph that ``stream`` is captured into, and the nodes that its next one comes behind."""

    def is_kernel(self, node: int) -> bool: ...

    def may_crowd(self, node: int) -> bool:
        """Can more CTAs of this kernel lie on one SM than there must?"""

    def edges_to(self, node: int) -> list[tuple[int, Edge]]:
        """(node before, what stands at the edge)."""

    def exchange(self, graph: int, one: int, other: int, old: Edge, new: Edge) -> None:
        """The edge from ``one`` to ``other``."""


def allow_early(allowed: bool) -> None:
    """``False``: from now on launches are captured as CUDA does by itself."""
    global _allowed
    _allowed = allowed


@contextlib.contextmanager
def behind_writes() -> Iterator[None]:
    """Launches of this thread in here come behind a kernel that has written weights."""
    _own.waits = True
    try:
        yield
    finally:
        _own.waits = False


def captured(launch: Callable[..., int]) -> Callable[..., int]:
    """``launch(*values, stream)`` for a stream that is being captured."""

    def call(*values: Any) -> int:
        graphs = driver_graphs()
        if graphs is None or not _allowed or getattr(_own, "waits", False):
            return launch(*values)
        stream = values[-1]
        _, before = graphs.ends(stream)
        code = launch(*values)
        if code == 0 and len(before) == 1:
            begin_early(graphs, stream, before[0])
        return code

    return call


def begin_early(graphs: Graphs, stream: int, before: int) -> None:
    """What was captured on ``stream`` since ``before`` was its only end begins as soon as that allows."""
    graph, nodes = graphs.ends(stream)
    if not graphs.is_kernel(before) or any(edge.type != PLAIN for _, edge in graphs.edges_to(before)):
        return
    for _ in range(MOST_NODES):
        if len(nodes) != 1 or nodes == [before]:
            return
        (node,) = nodes
        edges = graphs.edges_to(node)
        nodes = [one for one, _ in edges]
        if nodes == [before]:
            edge = edges[0][1]
            if (edge.type, edge.from_port) == (PROGRAMMATIC, WHEN_LET) and not graphs.may_crowd(node):
                graphs.exchange(graph, before, node, edge, edge._replace(from_port=WHEN_ALL_BEGAN))


class _EdgeData(ctypes.Structure):
    _fields_ = [
        ("from_port", ctypes.c_ubyte),
        ("to_port", ctypes.c_ubyte),
        ("type", ctypes.c_ubyte),
        ("reserved", ctypes.c_ubyte * 5),
    ]


class _KernelParams(ctypes.Structure):
    _fields_ = [
        ("function", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("values", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    ]


class DriverGraphs:
    """``Graphs`` of the CUDA driver. Raises ``HostCallError`` where it refuses."""

    NAMES = (
        "cuStreamGetCaptureInfo_v3",
        "cuGraphNodeGetType",
        "cuGraphNodeGetDependencies_v2",
        "cuGraphRemoveDependencies_v2",
        "cuGraphAddDependencies_v2",
        "cuGraphKernelNodeGetParams_v2",
        "cuKernelGetFunction",
        "cuOccupancyMaxActiveBlocksPerMultiprocessor",
        "cuCtxGetDevice",
        "cuDeviceGetAttribute",
    )

    def __init__(self, library: Any) -> None:
        self._call = {name: getattr(library, name) for name in self.NAMES}
        for function in self._call.values():
            function.restype = ctypes.c_int

    def ends(self, stream: int) -> tuple[int, list[int]]:
        status, graph, count = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_size_t()
        nodes, edges = ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_void_p()
        self._ask(
            "cuStreamGetCaptureInfo_v3", ctypes.c_void_p(stream), ctypes.byref(status), None, ctypes.byref(graph),
            ctypes.byref(nodes), ctypes.byref(edges), ctypes.byref(count),
        )  # fmt: skip
        if status.value != ACTIVE:
            return 0, []
        return graph.value or 0, [nodes[index] or 0 for index in range(count.value)]

    def is_kernel(self, node: int) -> bool:
        kind = ctypes.c_int()
        self._ask("cuGraphNodeGetType", ctypes.c_void_p(node), ctypes.byref(kind))
        return kind.value == KERNEL

    def may_crowd(self, node: int) -> bool:
        params, on_one = _KernelParams(), ctypes.c_int()
        self._ask("cuGraphKernelNodeGetParams_v2", ctypes.c_void_p(node), ctypes.byref(params))
        function = ctypes.c_void_p(params.function)
        if not function:
            self._ask("cuKernelGetFunction", ctypes.byref(function), ctypes.c_void_p(params.kernel))
        self._ask(
            "cuOccupancyMaxActiveBlocksPerMultiprocessor", ctypes.byref(on_one), function,
            math.prod(params.block), ctypes.c_size_t(params.shared_bytes),
        )  # fmt: skip
        return on_one.value > -(-math.prod(params.grid) // self._sms())

    def _sms(self) -> int:
        device, count = ctypes.c_int(), ctypes.c_int()
        self._ask("cuCtxGetDevice", ctypes.byref(device))
        self._ask("cuDeviceGetAttribute", ctypes.byref(count), MULTIPROCESSOR_COUNT, device)
        return count.value

    def edges_to(self, node: int) -> list[tuple[int, Edge]]:
        count = ctypes.c_size_t()
        name, handle = "cuGraphNodeGetDependencies_v2", ctypes.c_void_p(node)
        self._ask(name, handle, None, None, ctypes.byref(count))
        nodes, edges = (ctypes.c_void_p * count.value)(), (_EdgeData * count.value)()
        if count.value:
            self._ask(name, handle, nodes, edges, ctypes.byref(count))
        return [
            (one or 0, Edge(edge.from_port, edge.to_port, edge.type))
            for one, edge in zip(nodes, edges, strict=True)
        ]

    def exchange(self, graph: int, one: int, other: int, old: Edge, new: Edge) -> None:
        before, behind = (ctypes.c_void_p * 1)(one), (ctypes.c_void_p * 1)(other)
        for name, edge in (("cuGraphRemoveDependencies_v2", old), ("cuGraphAddDependencies_v2", new)):
            data = (_EdgeData * 1)(_EdgeData(*edge))
            self._ask(name, ctypes.c_void_p(graph), before, behind, data, ctypes.c_size_t(1))

    def _ask(self, name: str, *arguments: Sequence[Any] | Any) -> None:
        code = self._call[name](*arguments)
        if code:
            raise HostCallError(
                f"{name} returned CUDA error {code} during a capture; tuner.runtime.allow_early(False) does without",
                code,
            )


@functools.cache
def driver_graphs() -> Graphs | None:
    """None with a driver older than CUDA 12.3, which knows no such edges."""
    try:
        return DriverGraphs(ctypes.CDLL("libcuda.so.1"))
    except (OSError, AttributeError):
        return None

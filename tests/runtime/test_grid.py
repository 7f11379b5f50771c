"""The grid that a call launches is the one with which the tuner timed its kernel.

Bundled objects run here with a CUDA runtime that is made up: it answers the driver's question for the clusters that
fit, and writes down what is launched.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernel_space.core.errors import InputError
from kernel_space.launch.capture import cluster_of
from kernel_space.launch.occupancy import OccupancyRuntime, grid_clusters
from kernel_space.launch.runtime_symbols import CudaRuntime
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.signature import SIGNATURE
from kernel_space.places import shipped
from tuner.card.worker import launch as tuner_launch
from tuner.card.worker.candidate import Loadable
from tuner.devices.classes import DEVICE_CLASSES
from tuner.runtime import explain, state
from tuner.runtime.choice.choice import Choice
from tuner.runtime.load import loaded
from tuner.runtime.load.loaded import Launchable, load_launchable
from tuner.runtime.load.plan import Plan
from tuner.runtime.load.workspace import Workspaces

SMS = 132
CLUSTERS = "4352,3840,15360,128"  # in clusters of two CTAs
SINGLE = "4352,3840,3072,128"
_OUT = ctypes.POINTER(ctypes.c_uint64)
_OUT_INT = ctypes.POINTER(ctypes.c_int32)
_INT, _ADDRESS = ctypes.c_int32, ctypes.c_uint64


class Card:
    """CUDA runtime and driver of a card that holds ``fit`` clusters. ``launched``: CTAs of the kernels in clusters, or
    of all if there are none.
    """

    def __init__(self, fit: int) -> None:
        self.fit = fit
        self.asked: list[int] = []
        self.launches: list[tuple[int, int]] = []
        self._kernels = 0
        functions: dict[str, tuple[Callable[..., int], tuple[Any, ...]]] = {
            "cudaLibraryLoadData": (self._give, (_OUT, *[_ADDRESS] * 7)),
            "cudaLibraryGetKernel": (self._give, (_OUT, _ADDRESS, ctypes.c_char_p)),
            "cudaGetDevice": (lambda device: self._set(device, 0), (_OUT_INT,)),
            "cudaDeviceGetAttribute": (
                lambda value, *_: self._set(value, 227 * 1024),
                (_OUT_INT, _INT, _INT),
            ),
            "cuKernelGetAttribute": (lambda value, *_: self._set(value, 0), (_OUT_INT, _INT, _ADDRESS, _INT)),
            "cudaFuncSetAttribute": (lambda *_: 0, (_ADDRESS, _INT, _INT)),
            "cudaKernelSetAttributeForDevice": (lambda *_: 0, (_ADDRESS, _INT, _INT, _INT)),
            "cudaLaunchKernelExC": (self._launch, (_ADDRESS, _ADDRESS, _ADDRESS)),
        }
        for name, (function, arguments) in functions.items():
            setattr(self, name, ctypes.CFUNCTYPE(_INT, *arguments)(function))

    def cudaFree(self, _: Any) -> int:
        return 0

    def cuOccupancyMaxActiveClusters(self, count: Any, kernel: Any, config: Any) -> int:
        self.asked.append(math.prod(cluster_of(config.value)))
        ctypes.cast(count, _OUT_INT)[0] = self.fit
        return 0

    def _give(self, handle: Any, *_: Any) -> int:
        self._kernels += 1
        return self._set(handle, self._kernels)

    def _set(self, place: Any, value: int) -> int:
        place[0] = value
        return 0

    def _launch(self, config: int, *_: Any) -> int:
        grid = struct.unpack("<3I", ctypes.string_at(config, 12))
        self.launches.append((math.prod(grid), math.prod(cluster_of(config))))
        return 0

    @property
    def launched(self) -> int:
        """CTAs of the last kernel: one that expands comes before it."""
        return self.launches[-1][0]


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Card]:
    def made(fit: int) -> Card:
        one = Card(fit)
        options = {"open_library": lambda name: one}
        monkeypatch.setattr(loaded, "CudaRuntime", functools.partial(CudaRuntime, **options))
        monkeypatch.setattr(loaded, "OccupancyRuntime", functools.partial(OccupancyRuntime, **options))
        monkeypatch.setattr(tuner_launch, "OccupancyRuntime", functools.partial(OccupancyRuntime, **options))
        return one

    monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(query=lambda: True))
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda index: SimpleNamespace(multi_processor_count=SMS)
    )
    return made


def launchable(choice: Choice) -> Launchable:
    return load_launchable(choice.object, 0, choice.config, choice.problem)


def run(choice: Choice, launchable: Launchable) -> None:
    plan = Plan(choice, launchable, Workspaces(0))
    tensors = [torch.zeros(64, dtype=torch.uint8) for _ in SIGNATURE.pointers]
    assert plan.launch(*tensors, 0, 0) == 0


def tuner_s(choice: Choice) -> int:
    """What a worker launches for the same object."""
    candidate = Loadable.of_bundled(choice.object, choice.config)
    return tuner_launch.max_active_clusters(candidate, choice.problem, 0, SMS)


@pytest.mark.parametrize(("fit", "clusters"), [(60, 60), (66, 66), (200, 66), (1, 1)])
def test_no_more_clusters_than_fit(card: Callable[[int], Card], fit: int, clusters: int) -> None:
    made, choice = card(fit), explain(CLUSTERS, "h200")
    assert choice.config.cluster_size == 2, "this row is no longer of clusters: take another"
    run(choice, launchable(choice))
    assert made.asked == [2] and made.launched == 2 * clusters
    assert tuner_s(choice) == clusters


def test_a_kernel_that_does_not_fit_is_refused(card: Callable[[int], Card]) -> None:
    card(0)
    with pytest.raises(InputError, match="no cluster of the kernel .* fits the card"):
        launchable(explain(CLUSTERS, "h200"))
    with pytest.raises(InputError, match="no cluster of the kernel .* fits the card"):
        tuner_s(explain(CLUSTERS, "h200"))


def test_single_ctas_are_not_asked_about(card: Callable[[int], Card]) -> None:
    made, choice = card(1), explain(SINGLE, "h200")
    assert choice.config.cluster_size == 1
    run(choice, launchable(choice))
    assert not made.asked and made.launched == SMS == tuner_s(choice)


def test_it_is_asked_once_for_an_object(card: Callable[[int], Card], monkeypatch: pytest.MonkeyPatch) -> None:
    made = card(50)
    monkeypatch.setattr(state, "class_of_card", lambda device: DEVICE_CLASSES["h200"])
    tables = state.RuntimeState(shipped("results"))
    plans = [tables.plan(GemmProblem.parse(f"{m},3840,15360,128"), 0) for m in (4352, 4353, 4360)]
    assert made.asked == [2]
    assert {plan.static.max_active_clusters for plan in plans} == {50}


@pytest.mark.parametrize(("fit", "clusters"), [(200, 57), (50, 50)])
def test_a_borrowed_kernel_has_the_grid_of_the_card_it_runs_on(
    card: Callable[[int], Card],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    fit: int,
    clusters: int,
) -> None:
    """An H100 PCIe has 114 SMs, which hold 57 clusters of two CTAs; the H200, whose row it is, 66."""
    made = card(fit)
    properties = SimpleNamespace(
        name="NVIDIA H100 PCIe", major=9, minor=0, multi_processor_count=114, uuid="GPU-1"
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    state.supported_class.cache_clear()
    try:
        tables = state.RuntimeState(shipped("results"))
        plans = [tables.plan(GemmProblem.parse(shape), 0) for shape in (CLUSTERS, SINGLE)]
    finally:
        state.supported_class.cache_clear()
    assert [plan.static.max_active_clusters for plan in plans] == [clusters, 114]
    assert made.asked == [2]
    assert {plan.choice.borrowed for plan in plans} == {"borrowed from h200: no table for h100-pcie"}
    assert capsys.readouterr().err.count("kernels of svdquant_gemm for h100-pcie are borrowed from h200") == 1


def test_the_grid_is_never_empty() -> None:
    assert grid_clusters(0, None) == 1
    assert grid_clusters(0, 5) == 1
    assert grid_clusters(7, 5) == 5

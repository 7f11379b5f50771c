"""Asking for the clusters that fit, with a driver that is made up: who is asked about what."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

from kernel_space.launch.occupancy import OccupancyRuntime

CONFIG = struct.Struct("<6IQQQI4x")  # cudaLaunchConfig_t of driver_types.h
ATTRIBUTE = struct.Struct("<I4x3I52x")  # cudaLaunchAttribute: id 4 is the cluster dimension


class Driver:
    """``cuOccupancyMaxActiveClusters`` answers 100 / (CTAs of the grid's x)."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        self.has_context = False

    def cudaFree(self, pointer: Any) -> int:
        """As the runtime's: the current device has a context from now on."""
        self.has_context = self.has_context or pointer.value is None
        return 0

    def cuOccupancyMaxActiveClusters(self, count: Any, kernel: Any, config: Any) -> int:
        if not self.has_context:
            return 201
        (grid,) = struct.unpack("<I", ctypes.string_at(config.value, 4))
        self.asked.append((kernel.value, grid))
        ctypes.cast(count, ctypes.POINTER(ctypes.c_int))[0] = 100 // grid
        return 0


def runtime() -> tuple[OccupancyRuntime, Driver]:
    driver = Driver()

    def open_library(name: str) -> Any:
        return driver

    return OccupancyRuntime(open_library=open_library), driver


def launch(of: OccupancyRuntime, kernel: int, grid: int, cluster: tuple[int, int, int] | None) -> int:
    attributes = ATTRIBUTE.pack(4, *cluster) if cluster else b""
    room = ctypes.create_string_buffer(attributes, max(1, len(attributes)))
    config = CONFIG.pack(grid, 1, 1, 128, 1, 1, 1024, 0, ctypes.addressof(room), int(cluster is not None))
    place = ctypes.create_string_buffer(config, len(config))
    return of._callback(ctypes.addressof(place), kernel, 0)


def test_only_launches_in_clusters_are_asked_about_and_nothing_is_launched() -> None:
    found, driver = runtime()
    assert found.clusters == 0
    assert launch(found, 7, 5, None) == 0 and launch(found, 7, 5, (1, 1, 1)) == 0
    assert found.clusters == 0 and not driver.asked
    assert launch(found, 8, 2, (2, 1, 1)) == 0
    assert (found.clusters, driver.asked) == (50, [(8, 2)])
    launch(found, 9, 4, (1, 4, 1))
    assert found.clusters == 25, "the least of several kernels"

"""An object file in this process, bound to one card."""

from __future__ import annotations

import dataclasses

import torch

from kernel_space.core.config import KernelConfig
from kernel_space.core.problem import Problem
from kernel_space.launch.loading import HostCallError, LoadedObject, load_bytes
from kernel_space.launch.occupancy import OccupancyRuntime, clusters_that_fit, grid_clusters
from kernel_space.launch.runtime_symbols import CudaRuntime
from tuner.runtime.load.trampoline import trampoline_of
from tuner.tables.bundle import ObjectFile


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Launchable:
    """``entry``: address of the host function, callable while this lives; ``sm_count`` of ``cuda:<device>``.

    ``clusters``: how many of its clusters the card holds at once; None for a kernel of single CTAs.
    """

    device: int
    entry: int
    sm_count: int
    clusters: int | None
    loaded: LoadedObject

    def grid(self, config: KernelConfig) -> int:
        """``max_active_clusters`` of a launch: that with which the tuner timed ``config`` on such a card."""
        return grid_clusters(config.max_active_clusters(self.sm_count), self.clusters)


def load_launchable(file: ObjectFile, device: int, config: KernelConfig, problem: Problem) -> Launchable:
    """Load ``file`` for ``cuda:<device>``; it is of ``config``, which is legal for ``problem``.

    Raises ``InputError`` for a damaged or foreign object, and for one that does not fit the card.
    """
    trampoline_of(problem.operator).check(file.arguments)
    data, clusters = file.read(), None
    with torch.cuda.device(device):
        torch.cuda.current_stream().query()  # makes the context, which loading a module needs
        sm_count = torch.cuda.get_device_properties(device).multi_processor_count
        if config.cluster_size > 1:
            runtime, meant = OccupancyRuntime((device,)), config.max_active_clusters(sm_count)
            clusters = clusters_that_fit(data, file.prefix, file.arguments, problem, runtime, meant=meant)
        loaded = load_bytes(data, file.prefix, CudaRuntime((device,)), arguments=file.arguments)
    return Launchable(
        device=device, entry=loaded.entry_address, sm_count=sm_count, clusters=clusters, loaded=loaded
    )


def launch_error(code: int, what: str) -> HostCallError:
    return HostCallError(f"launching {what} returned CUDA error {code}", code)

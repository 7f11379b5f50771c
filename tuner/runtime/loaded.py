"""An object file in this process, bound to one card."""

from __future__ import annotations

import dataclasses

import torch

from kernel_space.loading import HostCallError, LoadedObject, load_bytes
from kernel_space.runtime_symbols import CudaRuntime
from tuner.bundle import ObjectFile
from tuner.runtime.trampoline import check_signature


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Launchable:
    """``entry``: address of the host function, callable while this lives; ``sm_count`` of ``cuda:<device>``."""

    device: int
    entry: int
    sm_count: int
    loaded: LoadedObject


def load_launchable(file: ObjectFile, device: int) -> Launchable:
    """Load ``file`` for ``cuda:<device>``. Raises ``InputError`` for a damaged or foreign object."""
    check_signature(file.arguments)
    with torch.cuda.device(device):
        torch.cuda.current_stream().query()  # makes the context, which loading a module needs
        loaded = load_bytes(file.read(), file.prefix, CudaRuntime((device,)), arguments=file.arguments)
    return Launchable(
        device=device,
        entry=loaded.entry_address,
        sm_count=torch.cuda.get_device_properties(device).multi_processor_count,
        loaded=loaded,
    )


def launch_error(code: int, what: str) -> HostCallError:
    return HostCallError(f"launching {what} returned CUDA error {code}", code)

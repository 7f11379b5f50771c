"""What a program asks of the CUDA runtime beside launches, answered for a card that is none."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable
from typing import Any

CAPABILITY = {"sm_80": (8, 0), "sm_90a": (9, 0), "sm_100a": (10, 0)}


def answer(arch: str, sms: int) -> None:
    """Make torch, the DSL and ``cuda.bindings`` answer for a card of ``arch`` with ``sms`` SMs, in this process."""
    _torch(arch, sms)
    _dsl(sms)
    _bindings()


def _torch(arch: str, sms: int) -> None:
    import torch

    stream = types.SimpleNamespace(cuda_stream=0, synchronize=_nothing, wait_stream=_nothing)
    properties = types.SimpleNamespace(
        multi_processor_count=sms, major=CAPABILITY[arch][0], minor=CAPABILITY[arch][1], name=arch,
        L2_cache_size=1 << 20, total_memory=1 << 37, shared_memory_per_block_optin=227 * 1024,
    )  # fmt: skip
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "current_stream": lambda *_: stream,
        "default_stream": lambda *_: stream,
        "Stream": lambda *_, **__: stream,
        "stream": lambda *_: contextlib.nullcontext(),
        "device": lambda *_: contextlib.nullcontext(),
        "get_device_capability": lambda *_: CAPABILITY[arch],
        "get_device_properties": lambda *_: properties,
        "get_device_name": lambda *_: arch,
    }
    for name in ("synchronize", "set_device", "init", "empty_cache", "manual_seed", "manual_seed_all"):
        answers[name] = _nothing
    for name, value in answers.items():
        setattr(torch.cuda, name, value)


def _dsl(sms: int) -> None:
    import cutlass
    import cutlass.cute.testing as cute_testing
    import cutlass.testing as testing
    from cutlass.base_dsl.runtime import cuda as contexts
    from cutlass.utils import hardware_info

    for module in (contexts, cutlass.cuda):
        module.initialize_cuda_context = _nothing
    info = hardware_info.HardwareInfo
    replaced: dict[str, Callable[..., Any]] = {
        "__init__": lambda *_, **__: None,
        "get_max_active_clusters": lambda _, cluster_size, *__, **___: max(1, sms // cluster_size),
        "get_device_multiprocessor_count": lambda _: sms,
        "get_l2_cache_size_in_bytes": lambda _: 1 << 20,
    }
    for name, function in replaced.items():
        setattr(info, name, function)
    for module in (testing, cute_testing):
        module.benchmark = _benchmark
        module.get_workspace_count = lambda *_, **__: 1


def _benchmark(function: Callable[..., Any], *, kernel_arguments: Any = None, **_: Any) -> float:
    """Nothing is timed. Some programs leave the only launch of what they compare to this call."""
    if kernel_arguments is not None:
        function(*kernel_arguments.args, **kernel_arguments.kwargs)
    return 1.0


def _bindings() -> None:
    from cuda.bindings import driver, runtime

    for module, success in ((driver, driver.CUresult(0)), (runtime, runtime.cudaError_t(0))):
        for name in (
            "cuInit",
            "cuStreamSynchronize",
            "cuCtxSynchronize",
            "cudaDeviceSynchronize",
            "cudaStreamSynchronize",
        ):
            if hasattr(module, name):
                setattr(module, name, lambda *_, success=success: (success,))


def _nothing(*_: Any, **__: Any) -> None:
    """There is nothing to wait for, and one device."""

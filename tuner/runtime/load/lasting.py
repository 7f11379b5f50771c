"""Tensors that outlive the call that makes them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch


def lasting(make: Callable[[], torch.Tensor]) -> torch.Tensor:
    """``make()``, called in a thread of its own.

    While torch.compile warms up or records CUDA graphs, allocations of the calling thread come from the graph's
    pool, and torch refuses a graph whose pool holds memory it does not know of. Another thread allocates as ever.
    The calling thread waits, so what ``make`` launches on a stream comes before what the caller launches there.
    """
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(make).result()

"""Workspace of split-K launches: memory of the stream that launches, with its counters zeroed once.

The contract (``kernel_space/workspace.py``): the leading ``zeroed_bytes`` must be zero before the first launch and
every launch leaves them zero; the rest holds partial sums and may hold anything. So launches that follow each other on
a stream share memory when they agree on the number of leading bytes; launches on two streams never do.
"""

from __future__ import annotations

import threading

import torch

from tuner.runtime.lasting import lasting

ALIGN = 256
# torch.cuda.is_current_stream_capturing without its wrapper; absent from a build of torch without CUDA
_capturing = getattr(torch._C, "_cuda_isCurrentStreamCapturing", None)


class Workspaces:
    """The workspaces of one device. Safe to share between threads; the current device must be this one."""

    def __init__(self, device: int) -> None:
        self._device = torch.device("cuda", device)
        self._lock = threading.Lock()
        self._buffers: dict[tuple[int, int], torch.Tensor] = {}

    def take(self, size: int, zeroed: int, stream: int) -> torch.Tensor:
        """``size`` bytes or more for a launch on ``stream``, the current stream. Hold the tensor until it is launched.

        While ``stream`` is captured into a CUDA graph the memory is the graph's own and zeroed by it: a replay may run
        on another stream, at the same time as launches on this one.
        """
        if _capturing():
            return self._allocate(size, zeroed)
        buffer = self._buffers.get((stream, zeroed))
        return self._grow(size, zeroed, stream) if buffer is None or buffer.numel() < size else buffer

    def clear(self) -> None:
        """Give the memory back to torch's allocator."""
        with self._lock:
            self._buffers.clear()

    def _grow(self, size: int, zeroed: int, stream: int) -> torch.Tensor:
        with self._lock:
            buffer = self._buffers.get((stream, zeroed))
            if buffer is None or buffer.numel() < size:
                # The old one may still be in use by this stream, for which torch's allocator hands it out again only
                # in stream order.
                buffer = lasting(lambda: self._allocate_on(stream, size, zeroed))
                self._buffers[stream, zeroed] = buffer
            return buffer

    def _allocate_on(self, stream: int, size: int, zeroed: int) -> torch.Tensor:
        with (
            torch.cuda.device(self._device),
            torch.cuda.stream(torch.cuda.ExternalStream(stream, self._device)),
        ):
            return self._allocate(size, zeroed)

    def _allocate(self, size: int, zeroed: int) -> torch.Tensor:
        buffer = torch.empty(size, dtype=torch.uint8, device=self._device)
        if zeroed:
            buffer[:zeroed].zero_()
        if buffer.data_ptr() % ALIGN:
            raise AssertionError(f"torch's allocator must align to {ALIGN} bytes")
        return buffer

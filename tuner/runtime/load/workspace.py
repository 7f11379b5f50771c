"""Workspace of launches that need one: memory of the stream that launches, with its counters zeroed once.

The contract (``workspace.py`` of the operator): the leading ``zeroed_bytes`` must be zero before the first launch and
every launch leaves them zero; the rest holds partial sums and expanded activations and may hold anything. So launches
that follow each other on a stream share memory when they agree on the number of leading bytes; launches on two streams
never do. A launch may be two kernels that hand the memory over, which must follow each other: with the memory comes the
stream's mutex, which the launch holds (``trampoline.py``).
"""

from __future__ import annotations

import threading

import torch

from tuner.runtime.load.captures import Captures, relaxed
from tuner.runtime.load.early import capturing as _capturing
from tuner.runtime.load.lasting import lasting
from tuner.runtime.load.trampoline import Mutex

ALIGN = 256
LEGACY, LEGACY_BY_NAME, PER_THREAD = 0, 1, 2
"""Handles of CUDA that are no addresses: the default stream, cudaStreamLegacy (the same), cudaStreamPerThread."""


class Room:
    """``memory`` of ``size`` bytes; ``mutex``: address of the one that whoever launches with it must hold, 0 for none.

    Hold it until the launch has been made: whoever needs more memory replaces it meanwhile.
    """

    __slots__ = ("memory", "mutex", "size")

    def __init__(self, memory: torch.Tensor, mutex: int) -> None:
        self.memory = memory
        self.mutex = mutex
        self.size = memory.numel()


class Workspaces:
    """The workspaces of one device. Safe to share between threads; the current device must be this one."""

    def __init__(self, device: int) -> None:
        self._device = torch.device("cuda", device)
        self._lock = threading.Lock()
        self._rooms: dict[tuple[int, int], Room] = {}
        self._mutexes: dict[int, Mutex] = {}  # for ever: somebody may hold one, and streams are few
        self._own = threading.local()
        self._captures = Captures()
        self._side: torch.cuda.Stream | None = None  # of ``_beside``, made outside of any capture

    def take(self, size: int, zeroed: int, stream: int) -> Room:
        """``size`` bytes or more for a launch on ``stream``, the current stream.

        While ``stream`` is captured into a CUDA graph the memory is the graph's own (``captures.py``): a replay may run
        on another stream, at the same time as launches on this one.
        """
        if _capturing():
            memory = self._captures.take(size, zeroed, stream)
            return Room(self._allocate(size, zeroed) if memory is None else memory, self._mutex(stream))
        room = self._rooms.get((stream, zeroed))
        return self._grow(size, zeroed, stream) if room is None or room.size < size else room

    def clear(self) -> None:
        """Give the memory back to torch's allocator."""
        with self._lock:
            self._rooms.clear()
            self._own = threading.local()

    def _mutex(self, stream: int) -> int:
        if stream == PER_THREAD:  # a stream that nobody else launches on
            return 0
        one = LEGACY if stream == LEGACY_BY_NAME else stream
        found = self._mutexes.get(one) or self._mutexes.setdefault(one, Mutex())
        return found.address

    def _grow(self, size: int, zeroed: int, stream: int) -> Room:
        self._captures.prepare(self._zeros, self._beside)
        if stream == PER_THREAD:
            return self._of_thread(size, zeroed)
        with self._lock:
            one = LEGACY if stream == LEGACY_BY_NAME else stream
            room = self._rooms.get((one, zeroed))
            if room is None or room.size < size:
                # The old one may still be in use by this stream, for which torch's allocator hands it out again only
                # in stream order; a thread that is about to launch with it holds it, and the mutex stays the same.
                memory = lasting(lambda: self._allocate_on(one, size, zeroed))
                room = self._rooms[one, zeroed] = Room(memory, self._mutex(one))
            self._rooms[stream, zeroed] = room
            return room

    def _of_thread(self, size: int, zeroed: int) -> Room:
        """On cudaStreamPerThread: one handle, and a stream for each thread.

        The memory belongs to the default stream, whose operations CUDA orders with those of all these streams, and at
        least some of it is zeroed there: so it is free of what another thread did with it before, and its next owner
        comes after this thread.
        """
        rooms: dict[int, Room] = getattr(self._own, "rooms", {})
        room = rooms.get(zeroed)
        if room is None or room.size < size:
            memory = lasting(lambda: self._allocate_on(LEGACY, size, max(zeroed, ALIGN)))
            room = Room(memory, self._mutex(PER_THREAD))
            self._own.rooms = {**rooms, zeroed: room}
        return room

    def _zeros(self, size: int) -> torch.Tensor:
        """That are there for every stream when this returns."""
        memory = lasting(lambda: self._allocate_on(LEGACY, size, size))
        torch.cuda.default_stream(self._device).synchronize()
        self._side = torch.cuda.Stream(self._device)
        return memory

    def _beside(self, size: int, zeroed: int) -> torch.Tensor:
        """That are there for every stream when this returns, during a capture as well."""
        assert self._side is not None, "what is captured was prepared"
        side = self._side

        def make() -> torch.Tensor:
            with relaxed():
                memory = self._allocate_on(side.cuda_stream, size, zeroed)
                side.synchronize()
            return memory

        return lasting(make)

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

"""Threads on one stream: the two kernels of a call follow each other, whoever else launches.

The object here is a host function without a card: its "first kernel" copies a byte of act into the workspace, its
"second kernel" copies the workspace into y. In between it waits for another thread to be inside too, so that whatever
can come between comes between. The oracle is the byte that went in.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernel_space.operators.svdquant_gemm.operands import make_operands
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tuner.layers.gemm import CALLER, quick_call
from tuner.runtime import quick
from tuner.runtime.choice.remembered import forget_tables
from tuner.runtime.load import captures, workspace
from tuner.runtime.load.plan import Output
from tuner.runtime.load.trampoline import Mutex, compile_ir, trampoline_of
from tuner.runtime.load.workspace import LEGACY, LEGACY_BY_NAME, PER_THREAD, Workspaces
from tuner.runtime.state import active

TRAMPOLINE = trampoline_of("svdquant_gemm")
ARGUMENTS = TRAMPOLINE.arguments
POLL_US = 500
MET = 1  # index in ``meeting`` of whether two threads were inside at once
_ALIVE: list[Any] = []


def _value(name: str, kind: str) -> list[str]:
    """%name: argument ``name`` of the vector."""
    index = [item.name for item in ARGUMENTS].index(name)
    return [
        f"%{name}.slot = getelementptr ptr, ptr %vector, i64 {index}",
        f"%{name}.at = load ptr, ptr %{name}.slot",
        f"%{name} = load {kind}, ptr %{name}.at",
    ]


def two_kernels(meeting: ctypes.Array[ctypes.c_int32]) -> int:
    """Address of a host function that polls ``m`` times for a second thread; ``k`` is the code that it returns."""
    usleep = ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p).value
    lines = [
        "define void @entry(ptr %vector, i32 %count) {",
        "start:",
        f"%usleep = inttoptr i64 {usleep} to ptr",
        f"%inside = inttoptr i64 {ctypes.addressof(meeting)} to ptr",
        f"%met = inttoptr i64 {ctypes.addressof(meeting) + 4 * MET} to ptr",
        *(line for name in ("act", "y", "workspace") for line in _value(name, "ptr")),
        *_value("m", "i32"),
        *_value("k", "i32"),
        f"%code.slot = getelementptr ptr, ptr %vector, i64 {len(ARGUMENTS)}",
        "%code = load ptr, ptr %code.slot",
        "store i32 %k, ptr %code",
        "%before = atomicrmw add ptr %inside, i32 1 seq_cst",
        "%in = load volatile i8, ptr %act",
        "store volatile i8 %in, ptr %workspace",
        "br label %poll",
        "poll:",
        "%left = phi i32 [%m, %start], [%less, %wait]",
        "%now = load atomic i32, ptr %inside seq_cst, align 4",
        "%both = icmp sgt i32 %now, 1",
        "br i1 %both, label %meet, label %again",
        "meet:",
        "store atomic i32 1, ptr %met seq_cst, align 4",
        f"%slept = call i32 %usleep(i32 {POLL_US})",  # so that the other one is done with its first kernel
        "br label %second",
        "again:",
        "%done = icmp eq i32 %left, 0",
        "br i1 %done, label %second, label %wait",
        "wait:",
        f"%rested = call i32 %usleep(i32 {POLL_US})",
        "%less = sub i32 %left, 1",
        "br label %poll",
        "second:",
        "%out = load volatile i8, ptr %workspace",
        "store volatile i8 %out, ptr %y",
        "%after = atomicrmw sub ptr %inside, i32 1 seq_cst",
        "ret void",
        "}",
    ]
    engine = compile_ir("\n".join(lines))
    _ALIVE.append(engine)
    return engine.get_function_address("entry")


@pytest.fixture
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[int, int]]:
    """Workspaces in the CPU's memory; the current stream of each thread by its identity."""
    streams: dict[int, int] = {}
    monkeypatch.setattr(workspace, "_capturing", lambda: False)
    monkeypatch.setattr(Workspaces, "_zeros", lambda self, size: torch.zeros(size, dtype=torch.uint8))
    monkeypatch.setattr(
        Workspaces,
        "_allocate_on",
        lambda self, stream, size, zeroed: torch.zeros(size + 256, dtype=torch.uint8),
    )
    monkeypatch.setattr(quick, "new_tensor", torch._C._dynamo.guards._empty_strided_cpu)
    monkeypatch.setattr(quick, "_raw_stream", lambda device: streams[threading.get_ident()])
    monkeypatch.setattr(quick, "_current_device", lambda: 0)
    forget_tables()
    yield streams
    forget_tables()


class Object:
    """``two_kernels`` with its sizes, and whether two threads met in it."""

    def __init__(self, polls: int, code: int = 0) -> None:
        self.meeting = (ctypes.c_int32 * 2)()
        self.static = TRAMPOLINE.static(
            two_kernels(self.meeting), m=polls, n=1, k=code, max_active_clusters=1
        )
        self.launch = TRAMPOLINE.launch(self.static)

    @property
    def met(self) -> bool:
        return bool(self.meeting[MET])


class Layer:
    """A layer of ``rows`` whose calls are quick and launch ``object`` with a workspace of ``size`` bytes."""

    def __init__(
        self, memory: Workspaces, object: Object, *, rows: int = 5, size: int = 512, zeroed: int = 0
    ) -> None:
        self.object = object  # its code is called
        self.one = make_operands(GemmProblem.parse(f"{rows},64,16,16"), seed=1)
        self.weights = (self.one.wgt, self.one.wscales, self.one.lora_up, self.one.wcscale, self.one.bias)
        self.plan: Any = SimpleNamespace(
            device=0,
            outputs_for=lambda unread: (Output(tuple(self.one.y.shape), self.one.y.stride(), torch.float16),),
            launch=object.launch,
            captured=object.launch,
            workspaces=memory,
            workspace_bytes=size,
            zeroed_bytes=zeroed,
            choice=SimpleNamespace(problem=self.one.problem),
        )
        self.learn()

    def learn(self) -> None:
        CALLER.quick.learn(self.plan, active()[1], self.operands(self.one.act), None, None)

    def operands(self, act: torch.Tensor) -> tuple[torch.Tensor, ...]:
        wgt, wscales, lora_up, wcscale, bias = self.weights
        return (act, self.one.ascales, wgt, wscales, self.one.lora_act_in, lora_up, wcscale, bias)

    def call(self, act: torch.Tensor) -> torch.Tensor | None:
        return quick_call(*self.operands(act), None, None)

    def right(self, byte: int) -> bool:
        act = torch.full_like(self.one.act, byte)
        y = self.call(act)
        assert y is not None, "the call must be quick"
        return int(y.view(torch.uint8)[0, 0]) == byte


def in_threads(work: Callable[[int], None], count: int = 4) -> None:
    errors: list[BaseException] = []

    def guarded(index: int) -> None:
        try:
            work(index)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(index,), daemon=True) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads), "a launch hangs"
    assert not errors, errors


def test_two_kernels_of_one_stream_follow_each_other(on_the_cpu: dict[int, int]) -> None:
    object, wrong = Object(polls=4), []
    layer = Layer(Workspaces(0), object)

    def work(index: int) -> None:
        on_the_cpu[threading.get_ident()] = 77
        wrong.extend(turn for turn in range(20) if not layer.right(16 * index + turn % 16))

    in_threads(work)
    assert not object.met and not wrong


def test_layers_of_other_sizes_share_the_stream(on_the_cpu: dict[int, int]) -> None:
    """Their workspaces grow while others are about to launch with the old ones, and some have counters to zero."""
    memory, object, wrong = Workspaces(0), Object(polls=1), []

    def work(index: int) -> None:
        on_the_cpu[threading.get_ident()] = 77
        for turn in range(1, 16):
            size, zeroed = 256 * turn * (1 + index % 2), 128 * (index // 2)
            own = Layer(memory, object, rows=16 * index + turn, size=size, zeroed=zeroed)
            wrong.extend(byte for byte in range(3) if not own.right(16 * index + byte))

    in_threads(work)
    assert not object.met and not wrong


def test_launches_on_two_streams_overlap(on_the_cpu: dict[int, int]) -> None:
    object, wrong = Object(polls=4000), []
    layer = Layer(Workspaces(0), object)

    def work(index: int) -> None:
        on_the_cpu[threading.get_ident()] = 0x1000 * (index + 1)
        wrong.extend([] if layer.right(index + 1) else [index])

    in_threads(work, 2)
    assert object.met and not wrong


def test_a_launch_that_fails_lets_go(on_the_cpu: dict[int, int]) -> None:
    memory, wrong = Workspaces(0), []
    bad, good = Layer(memory, Object(polls=0, code=700), rows=3), Layer(memory, Object(polls=0), rows=4)

    def work(index: int) -> None:
        on_the_cpu[threading.get_ident()] = 77
        for byte in range(5):
            with pytest.raises(RuntimeError, match="CUDA error 700"):
                bad.call(bad.one.act)
            wrong.extend([] if good.right(byte) else [index])

    in_threads(work)
    assert not wrong


def test_python_goes_on_while_a_launch_waits(on_the_cpu: dict[int, int]) -> None:
    """The interpreter's lock is free both inside a launch and before one that must wait for another."""
    object = Object(polls=400)  # 0.2 s each
    layer, turns, done = Layer(Workspaces(0), object), [0], []

    def work(index: int) -> None:
        if index < 2:
            on_the_cpu[threading.get_ident()] = 77
            assert layer.right(index)
            done.append(index)
        while index == 2 and len(done) < 2:
            turns[0] += 1

    in_threads(work, 3)
    assert turns[0] > 1000 and not object.met


def test_the_default_stream_has_two_names(on_the_cpu: dict[int, int]) -> None:
    memory = Workspaces(0)
    first, second = memory.take(256, 0, LEGACY), memory.take(256, 0, LEGACY_BY_NAME)
    assert first.mutex == second.mutex != 0
    assert first.memory is second.memory
    larger = memory.take(4096, 0, LEGACY_BY_NAME)
    assert larger.mutex == first.mutex and memory.take(4096, 0, LEGACY) is larger


def test_a_stream_of_each_thread_has_memory_of_each_thread(on_the_cpu: dict[int, int]) -> None:
    """cudaStreamPerThread is one handle for many streams."""
    memory, rooms = Workspaces(0), {}

    def work(index: int) -> None:
        rooms[index] = [memory.take(256, 0, PER_THREAD) for _ in range(2)]
        together.wait(10)

    together = threading.Barrier(3)
    in_threads(work, 3)
    assert all(first is second for first, second in rooms.values())
    assert len({room.memory.data_ptr() for room, _ in rooms.values()}) == 3


def test_streams_have_mutexes_and_counters_memory_of_their_own(on_the_cpu: dict[int, int]) -> None:
    memory = Workspaces(0)
    plain, counted, other = memory.take(256, 0, 64), memory.take(256, 128, 64), memory.take(256, 0, 128)
    assert len({room.memory.data_ptr() for room in (plain, counted, other)}) == 3
    assert plain.mutex == counted.mutex != other.mutex
    assert memory.take(512, 0, 64).mutex == plain.mutex


def test_a_graph_s_memory_is_its_own_and_held_like_any(
    on_the_cpu: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Workspaces(0)
    eager = memory.take(256, 0, 64)
    monkeypatch.setattr(workspace, "_capturing", lambda: True)
    monkeypatch.setattr(Workspaces, "_allocate", lambda self, size, zeroed: torch.zeros(size))
    monkeypatch.setattr(captures, "capture_of", lambda stream: 0)  # a driver that cannot tell
    captured = [memory.take(256, 0, 64) for _ in range(2)]
    assert len({room.memory.data_ptr() for room in (eager, *captured)}) == 3
    assert {room.mutex for room in captured} == {eager.mutex}


def test_launches_of_a_capture_share_counters_that_nobody_else_has(
    on_the_cpu: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Capture 7 on streams 64 and 128, then capture 8; larger ones, some without zeros, and a block that is used up."""
    memory, number = Workspaces(0), 7
    made: list[tuple[int, int]] = []

    def beside(self: Workspaces, size: int, zeroed: int) -> torch.Tensor:
        made.append((size, zeroed))
        return torch.zeros(size, dtype=torch.uint8)

    monkeypatch.setattr(Workspaces, "_beside", beside)
    eager = memory.take(256, 256, 64)
    monkeypatch.setattr(workspace, "_capturing", lambda: True)
    monkeypatch.setattr(captures, "capture_of", lambda stream: number)
    own = torch.full((8192,), 9)
    monkeypatch.setattr(Workspaces, "_allocate", lambda self, size, zeroed: own)

    def taken(*asked: int) -> int:
        room = memory.take(*asked)
        assert room.memory is own or not room.memory.any(), "zeros, or what the graph zeroes"
        return room.memory.data_ptr()

    first = taken(256, 256, 64)
    assert taken(256, 256, 64) == first != eager.memory.data_ptr()
    others = [taken(256, 256, 128), taken(256, 128, 64), taken(300, 256, 64)]
    assert taken(8192, 0, 64) == own.data_ptr(), "what needs no zeros is of the graph's pool"
    large = taken(8192, 256, 64)
    assert large == taken(8192, 256, 64) != taken(8192, 256, 128)
    assert made == [(8192, 256)] * 2
    number = 8
    assert taken(8192, 256, 64) != large and len(made) == 3
    assert taken(captures.MOST_LARGE, 256, 64) == own.data_ptr(), "too many are out"
    others.append(taken(256, 256, 64))
    places = sorted([first, *others])
    assert all(after - before >= 256 for before, after in itertools.pairwise(places))
    for number in range(9, 9 + captures.BLOCK_BYTES // 4096):  # noqa: B007
        taken(4096, 256, 64)
    number += 1
    assert taken(4096, 256, 64) == own.data_ptr(), "the block is used up"


def test_a_mutex_is_one(on_the_cpu: dict[int, int]) -> None:
    """Without memory there is nothing to hold: the launches of ``None`` and 0 meet."""
    meeting = (ctypes.c_int32 * 2)()
    static = TRAMPOLINE.static(two_kernels(meeting), m=4000, n=1, k=0, max_active_clusters=1)
    launch, mutex = TRAMPOLINE.launch(static), Mutex()
    tensors = [torch.zeros(64, dtype=torch.uint8) for item in ARGUMENTS if item.kind == "pointer"]
    for address, met in ((0, True), (mutex.address, False)):
        meeting[MET] = 0
        static.m = 4000 if met else 20
        in_threads(lambda _: launch(*tensors, address, 77), 2)  # noqa: B023
        assert bool(meeting[MET]) is met

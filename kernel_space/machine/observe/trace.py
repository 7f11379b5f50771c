"""What an onlooker sees of a run, and the timeline it can draw of it.

An ``Observer`` is told when warps run, wait and wake, and when asynchronous operations are issued and completed. The
``Timeline`` writes that down for chrome://tracing and ui.perfetto.dev. Its axis counts warp-instructions of the whole
machine, one after the other, as the schedule happened to interleave them. It is not time: no length here says how
long anything takes on hardware.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernel_space.machine.run.machine import Cta, Machine, Warp

AXIS = "warp-instructions executed by the whole machine (1 shown as 1 us); not time"
ENGINES = {"tma": "TMA loads", "tensor": "tensor pipe", "store": "bulk stores"}
SHORTEST = 0.1  # length of what completes at issue, so that it can be seen
LAUNCH_PROCESSES = 1_000_000  # of each launch in a row
FIRST_ENGINE = 100  # thread numbers of engines in the trace, behind those of warps


class Observer:
    """Does nothing; what a run calls on its observer."""

    def attach(self, machine: Machine) -> None:
        """Called once, before anything runs."""

    def ran(self, warp: Warp, before: int) -> None:
        """The warp has run from ``before`` to ``warp.executed`` of its own instructions."""

    def waits(self, warp: Warp) -> None:
        """The warp begins to wait for ``warp.wait``."""

    def wakes(self, warp: Warp) -> None:
        """``warp.wait`` has ended."""

    def issued(self, operation: Any, cta: Cta) -> Any:
        """An asynchronous operation was issued; returns what is to be run in its place."""
        return operation


class Chain(Observer):
    """Several observers; what one returns for an operation is what the next one sees."""

    def __init__(self, *observers: Observer) -> None:
        self.observers = observers

    def attach(self, machine: Machine) -> None:
        for observer in self.observers:
            observer.attach(machine)

    def ran(self, warp: Warp, before: int) -> None:
        for observer in self.observers:
            observer.ran(warp, before)

    def waits(self, warp: Warp) -> None:
        for observer in self.observers:
            observer.waits(warp)

    def wakes(self, warp: Warp) -> None:
        for observer in self.observers:
            observer.wakes(warp)

    def issued(self, operation: Any, cta: Cta) -> Any:
        for observer in self.observers:
            operation = observer.issued(operation, cta)
        return operation


class Timeline(Observer):
    """Events of one launch, or of several in a row. One track per warp and per engine of every CTA; waits are slices
    named by what is waited for. ``max_events`` bounds the memory; what came later is counted in ``dropped``.
    """

    def __init__(self, *, max_events: int = 1_000_000) -> None:
        self.max_events = max_events
        self.events: list[dict[str, Any]] = []
        self.dropped = 0
        self.machines: list[Machine] = []
        self._processes: dict[int, str] = {}
        self._waiting: dict[Warp, int] = {}
        self._tracks: dict[tuple[int, int], str] = {}
        self._free: dict[tuple[int, int], float] = {}

    def attach(self, machine: Machine) -> None:
        self.machines.append(machine)

    @property
    def executed(self) -> int:
        return sum(machine.executed for machine in self.machines)

    @property
    def now(self) -> int:
        """Instructions executed so far, those of the current turn included."""
        turns = (machine.current_warp for machine in self.machines)
        return self.executed + sum(warp.executed - self._begun(warp) for warp in turns if warp is not None)

    def _begun(self, warp: Warp) -> int:
        return warp.__dict__.get("traced", 0)

    def ran(self, warp: Warp, before: int) -> None:
        length = warp.executed - before
        warp.__dict__["traced"] = warp.executed
        if length:
            self._slice(warp.cta, warp.number, "run", self.executed - length, length)

    def waits(self, warp: Warp) -> None:
        self._waiting[warp] = self.now

    def wakes(self, warp: Warp) -> None:
        begun = self._waiting.pop(warp, None)
        if begun is not None:
            self._wait_slice(warp, begun)

    def issued(self, operation: Any, cta: Cta) -> Any:
        return _Timed(operation, self, cta)

    def completed(self, timed: _Timed) -> None:
        """An operation has run; its slice reaches from its issue to now."""
        kind = getattr(timed.operation, "kind", "tensor")
        name, details = describe(timed.operation)
        track, begun = self._engine_track(timed.cta, kind, timed.issued_at)
        end = max(self.now, begun + SHORTEST)
        self._free[self._process(timed.cta), track] = end
        self._slice(timed.cta, track, name, begun, end - begun, details)

    def _engine_track(self, cta: Cta, kind: str, issued_at: float) -> tuple[int, float]:
        """(track, begin). The pipe works in order; copies in flight together get a lane each, for slices of one track
        must not overlap."""
        track, process = FIRST_ENGINE * (1 + list(ENGINES).index(kind)), self._process(cta)
        if kind == "tensor":
            return track, max(issued_at, self._free.get((process, track), 0))
        while self._free.get((process, track), 0) > issued_at:
            track += 1
        return track, issued_at

    @staticmethod
    def _process(cta: Cta) -> int:
        inside = cta.cluster.number * len(cta.cluster.ctas) + cta.rank
        return (cta.machine.number - 1) * LAUNCH_PROCESSES + inside + 1

    def _wait_slice(self, warp: Warp, begun: int) -> None:
        assert warp.wait is not None
        kind, thing, value, _ = warp.wait
        names = {
            "bulk": f"at most {value} bulk groups",
            "alloc": f"{value} TMEM columns",
            "cluster": "cluster barrier",
            "launch": str(thing),
        }
        name = names.get(kind) or (thing.name if kind == "mbarrier" else f"bar {thing.number}")
        details = {"parity": value & 1} if kind == "mbarrier" else {}
        self._slice(warp.cta, warp.number, f"wait {name}", begun, self.now - begun, details)

    def _slice(
        self,
        cta: Cta,
        track: int,
        name: str,
        begun: float,
        length: float,
        details: dict[str, Any] | None = None,
    ) -> None:
        if len(self.events) >= self.max_events:
            self.dropped += 1
            return
        process = self._process(cta)
        if (process, track) not in self._tracks:
            self._name_track(cta, process, track)
        event = {"ph": "X", "pid": process, "tid": track, "name": name, "ts": begun, "dur": length}
        self.events.append(event | ({"args": details} if details else {}))

    def _name_track(self, cta: Cta, process: int, track: int) -> None:
        if track < FIRST_ENGINE:
            name = cta.warps[track].role
        else:
            lane = track % FIRST_ENGINE
            name = list(ENGINES.values())[track // FIRST_ENGINE - 1] + (f" {lane + 1}" if lane else "")
        self._tracks[process, track] = name
        launch = f"{cta.machine.label}, " if cta.machine.in_a_row else ""
        self._processes[process] = f"{launch}cluster {cta.cluster.number}, CTA {cta.rank}"

    def document(self) -> dict[str, Any]:
        """The trace in the Chrome JSON format. Waits without an end, as in a deadlock, reach to the last event."""
        for warp, begun in list(self._waiting.items()):
            if warp.wait is not None:
                self._wait_slice(warp, begun)
        self._waiting.clear()
        head: list[dict[str, Any]] = []
        for process, name in sorted(self._processes.items()):
            head.append(_meta("process_name", process, 0, {"name": name}))
        for (process, track), name in sorted(self._tracks.items()):
            head.append(_meta("thread_name", process, track, {"name": name}))
            head.append(_meta("thread_sort_index", process, track, {"sort_index": track}))
        return {
            "traceEvents": head + self.events,
            "otherData": {"axis": AXIS, "dropped events": self.dropped},
        }

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(self.document()))


class _Timed:
    """An operation that tells the timeline when it has run."""

    def __init__(self, operation: Any, timeline: Timeline, cta: Cta) -> None:
        self.operation, self.timeline, self.cta = operation, timeline, cta
        self.kind = getattr(operation, "kind", "tensor")
        self.issued_at = timeline.now

    def run(self) -> None:
        self.operation.run()
        self.timeline.completed(self)


def describe(operation: Any) -> tuple[str, dict[str, Any]]:
    """(name of the slice, its details) of an asynchronous operation."""
    kind = type(operation).__name__
    if kind == "TmaLoad":
        _, offset, barrier = operation.targets[0]
        details = {"offset": f"{offset:#x}", "bytes": operation.tensor.bytes, "CTAs": len(operation.targets)}
        return f"load -> {barrier.name}", details
    if kind == "TensorStore":
        return "store", {"offset": f"{operation.offset:#x}", "start": list(operation.start)}
    if kind == "MmaGroup":
        first = operation.parts[0]
        shape = first.shape
        return f"mma {shape.kind} {shape.m}x{shape.n} x{len(operation.parts)}", {"column": first.d & 0xFFFF}
    if kind == "Commit":
        return f"commit -> {operation.barriers[0].name}", {"CTAs": len(operation.barriers)}
    if kind == "Copy":
        return "cp", {"column": operation.column}
    return kind, {}


def _meta(name: str, process: int, track: int, values: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": process, "tid": track, "args": values}

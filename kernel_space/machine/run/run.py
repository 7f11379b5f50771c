"""Public entry: run a compiled CuTe DSL function on the CPU, in the executable model of sm_100a."""

from __future__ import annotations

import dataclasses
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from threadpoolctl import threadpool_limits

from kernel_space.core.errors import InputError
from kernel_space.launch.capture import CaptureError, HostCallError, Launch
from kernel_space.launch.loading import UnsupportedCall
from kernel_space.machine.memory.global_memory import GlobalMemory
from kernel_space.machine.observe.report import (
    Finding,
    budget_finding,
    deadlock_finding,
    fault_finding,
    race_findings,
    undefined_findings,
)
from kernel_space.machine.ptx.parse import parse_ptx
from kernel_space.machine.races.checker import Races
from kernel_space.machine.races.former import Former
from kernel_space.machine.run.launch import add_tensor, prepare, tensor_extent
from kernel_space.machine.run.machine import Grid, Machine
from kernel_space.machine.run.row import Row
from kernel_space.machine.run.schedules import make_schedule
from kernel_space.machine.translate.translate import translate
from kernel_space.machine.values.faults import Fault, SimStatus, Unsupported

if TYPE_CHECKING:
    from kernel_space.machine.observe.trace import Observer

EARLY = "programmatic_stream_serialization"  # the launch attribute
DEFAULT_BUDGET = 50_000_000  # some two minutes; the largest problem tuned here needs 4 million


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimResult:
    """Outcome of one run.

    ``status``        verdict; ``OK`` says nothing about the numbers, which are in the caller's tensors
    ``findings``      what was wrong, the most important first; empty when OK
    ``instructions``  warp-instructions executed
    ``seconds``       {"capture", "translate", "run"}: host time
    """

    status: SimStatus
    findings: tuple[Finding, ...]
    instructions: int
    seconds: dict[str, float]

    @property
    def ok(self) -> bool:
        return self.status is SimStatus.OK

    def __str__(self) -> str:
        head = (
            f"{self.status}: {self.instructions} warp-instructions simulated in {self.seconds['run']:.2f} s"
        )
        return "\n".join([head, *(str(finding) for finding in self.findings)])


def run_compiled(
    compiled: Any,
    *args: Any,
    sms: int = 148,
    schedule: str = "eager",
    seed: int = 0,
    check_races: bool = True,
    ptx: str | None = None,
    max_instructions: int = DEFAULT_BUDGET,
    barrier_names: dict[int, str] | None = None,
    roles: dict[int, str] | None = None,
    memory: Sequence[Any] = (),
    observer: Observer | None = None,
    times: int = 1,
    former: Sequence[Any] = (),
) -> SimResult:
    """Call a compiled function as its owner would, with torch CPU tensors or numpy arrays for the pointers.

    ``compiled``       ``CompiledKernel``, ``sim.launch.Exported`` or what ``cute.compile`` returned with ``--keep-ptx``
    ``args``           one value per argument of the function; a tensor stands for its address and makes its bytes
                       accessible; tuples are flattened; a last stream argument may be left out
    ``sms``            SMs of the chip: bounds the clusters that run at the same time; the others wait their turn
    ``schedule``       one of ``sim.schedules.SCHEDULES``; ``seed`` drives ``random``
    ``check_races``    happens-before checking of shared, tensor and global memory, and their undefined bytes
    ``ptx``            run this text instead of the compiled one, with the same launch
    ``barrier_names``  offset from the start of dynamic shared memory -> name, for reports
    ``roles``          warp number -> name, for reports
    ``memory``         further tensors that the kernel may touch through pointers it finds in memory
    ``observer``       sees events as they happen (``sim.trace``)
    ``times``          calls, one after the other on one stream, on the same memory
    ``former``         tensors that the launch before may still be writing, if the first launch may begin before its end

    Launches with the attribute of programmatic dependent launch overlap the one before. What the program does wrong is
    in the result. Raises ``InputError`` for arguments that do not fit.
    """
    started = time.perf_counter()
    try:
        compiled_ptx, launches, regions = prepare(compiled, args, memory)
    except (CaptureError, HostCallError, UnsupportedCall) as error:
        return _unsupported(str(error), started)
    seconds = {"capture": time.perf_counter() - started, "translate": 0.0, "run": 0.0}
    instructions = 0
    early = launches[0].attributes.get(EARLY)
    extents = [extent for item in former if early and (extent := tensor_extent(item)) is not None]
    for number, row in enumerate(overlapping(launches * times)):
        result = run_row(
            [(launch, ptx or compiled_ptx) for launch in row], regions, sms=sms, schedule=schedule, seed=seed,
            check_races=check_races, max_instructions=max_instructions, barrier_names=barrier_names, roles=roles,
            observer=observer, former=() if number else extents,
        )  # fmt: skip
        instructions += result.instructions
        for part in ("translate", "run"):
            seconds[part] += result.seconds[part]
        if not result.ok:
            break
    return dataclasses.replace(result, instructions=instructions, seconds=seconds)


def overlapping(launches: Sequence[Launch]) -> list[list[Launch]]:
    """Cut where a launch has no attribute that lets it begin before the one before it has ended."""
    rows: list[list[Launch]] = []
    for launch in launches:
        if rows and launch.attributes.get(EARLY):
            rows[-1].append(launch)
        else:
            rows.append([launch])
    return rows


def run_ptx(
    ptx: str,
    *params: Any,
    grid: tuple[int, int, int] = (1, 1, 1),
    block: tuple[int, int, int] = (32, 1, 1),
    cluster: tuple[int, int, int] = (1, 1, 1),
    smem_bytes: int = 0,
    memory: Sequence[Any] = (),
    **options: Any,
) -> SimResult:
    """Run the one kernel of a PTX text, without any host code.

    ``params``: one per ``.param``: a tensor or array (its address, its bytes become accessible), an integer, or the
    bytes of the parameter. ``options`` as for ``run_launch``. Raises ``InputError`` for a wrong number of parameters.
    """
    regions = GlobalMemory()
    launch = ptx_launch(ptx, params, regions, grid=grid, block=block, cluster=cluster, smem_bytes=smem_bytes)
    for number, item in enumerate(memory):
        add_tensor(regions, item, f"memory[{number}]")
    return run_launch(launch, ptx, regions, **options)


def ptx_launch(
    ptx: str,
    params: Sequence[Any],
    regions: GlobalMemory,
    *,
    grid: tuple[int, int, int] = (1, 1, 1),
    block: tuple[int, int, int] = (32, 1, 1),
    cluster: tuple[int, int, int] = (1, 1, 1),
    smem_bytes: int = 0,
) -> Launch:
    """A launch of the one kernel of a PTX text, as ``run_ptx`` makes it."""
    kernel = parse_ptx(ptx)
    if len(params) != len(kernel.params):
        raise InputError(f"kernel {kernel.name} has {len(kernel.params)} parameters, got {len(params)}")
    packed = []
    for declared, value in zip(kernel.params, params, strict=True):
        extent = tensor_extent(value)
        if extent is not None:
            regions.add(*extent, declared.name)
            value = extent[0]
        packed.append(
            value if isinstance(value, bytes) else value.to_bytes(declared.size, "little", signed=value < 0)
        )
    return Launch(
        kernel_name=kernel.name, grid=grid, cluster=cluster, block=block, smem_bytes=smem_bytes, params=tuple(packed),
        tensor_maps={}, attributes={}, stream=0,
    )  # fmt: skip


def run_launch(launch: Launch, ptx: str, regions: GlobalMemory, **options: Any) -> SimResult:
    """Run one captured launch on the given memory. See ``run_row``."""
    return run_row([(launch, ptx)], regions, **options)


def run_row(
    calls: Sequence[tuple[Launch, str]],
    regions: GlobalMemory,
    *,
    sms: int = 148,
    schedule: str = "eager",
    seed: int = 0,
    check_races: bool = True,
    max_instructions: int = DEFAULT_BUDGET,
    barrier_names: dict[int, str] | None = None,
    roles: dict[int, str] | None = None,
    observer: Observer | None = None,
    former: Sequence[tuple[int, int]] = (),
) -> SimResult:
    """Run captured launches, each with its PTX, of which every one but the first may begin before the one before it has
    ended. ``sms`` are those of each; ``max_instructions`` bounds all together; ``former``: address and bytes of what a
    launch before them may still be writing. The rest as for ``run_compiled``.
    """
    started = time.perf_counter()
    try:
        programs = [translate(ptx, launch.kernel_name) for launch, ptx in calls]
    except Unsupported as error:
        return _unsupported(str(error), started)
    except InputError:
        raise
    except Exception as error:
        return _unsupported(_own_defect(error), started)
    translated = time.perf_counter()
    machines: list[Machine] = []
    before: Machine | Former | None = Former(regions, former) if former else None
    in_a_row = len(calls) > 1 or before is not None
    for number, (program, (launch, _)) in enumerate(zip(programs, calls, strict=True)):
        grid = Grid(
            grid=launch.grid, block=launch.block, cluster=launch.cluster, smem_bytes=launch.smem_bytes,
            params=launch.params,
        )  # fmt: skip
        earlier = before.races if before is not None else None
        before = Machine(
            program, grid, regions, make_schedule(schedule, seed + number), sms=sms,
            races=Races(program, earlier, in_a_row=in_a_row) if check_races else None, barrier_names=barrier_names,
            roles=roles, max_instructions=max_instructions, observer=observer, before=before, in_a_row=in_a_row,
        )  # fmt: skip
        machines.append(before)
    row = Row(machines, max_instructions)
    status, findings = _execute(row)
    seconds = {"capture": 0.0, "translate": translated - started, "run": time.perf_counter() - translated}
    return SimResult(status=status, findings=tuple(findings), instructions=row.executed, seconds=seconds)


def _own_defect(error: Exception) -> str:
    """What no rule of the machine foresaw: a verdict that says so, for the caller has no other use of a traceback."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"the machine itself fails here, please report it: {type(error).__name__}: {error} "
        f"({Path(frame.filename).name}:{frame.lineno})"
    )


def _unsupported(text: str, started: float) -> SimResult:
    seconds = {"capture": 0.0, "translate": time.perf_counter() - started, "run": 0.0}
    finding = Finding(status=SimStatus.UNSUPPORTED, text=text)
    return SimResult(status=SimStatus.UNSUPPORTED, findings=(finding,), instructions=0, seconds=seconds)


def _execute(row: Row) -> tuple[SimStatus, list[Finding]]:
    try:
        # Small products: threads of the BLAS cost more than they bring, and other processes want the cores.
        with threadpool_limits(1, user_api="blas"), np.errstate(all="ignore"):
            status = row.run() if len(row.machines) > 1 else row.current.run()
    except Unsupported as error:
        return SimStatus.UNSUPPORTED, [fault_finding(row.current, SimStatus.UNSUPPORTED, str(error))]
    except Fault as error:
        return error.status, [*_races_of(row), fault_finding(row.current, error.status, error.reason)]
    except Exception as error:
        return SimStatus.UNSUPPORTED, [
            fault_finding(row.current, SimStatus.UNSUPPORTED, _own_defect(error)),
            *_races_of(row),
        ]
    found = _races_of(row)
    if status is SimStatus.DEADLOCK:
        return status, [deadlock_finding(row.current), *found]
    if status is SimStatus.BUDGET_EXCEEDED:
        return status, [budget_finding(row.current), *found]
    undefined = undefined_findings(row.current.memory)
    if found or undefined:
        return (SimStatus.RACE if found else SimStatus.ILLEGAL_ACCESS), [*found, *undefined]
    return status, []


def _races_of(row: Row) -> list[Finding]:
    return [finding for machine in row.machines for finding in race_findings(machine.races)]

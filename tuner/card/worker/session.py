"""What the requests of a worker do on its card."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch

from kernel_space.core.errors import InputError
from kernel_space.core.registry import operator_of
from kernel_space.launch.loading import HostCallError, LoadedObject
from kernel_space.launch.runtime_symbols import CudaRuntime
from tuner.card.worker import bench
from tuner.card.worker.arena import Arena
from tuner.card.worker.candidate import Case, Loadable
from tuner.card.worker.chains import check_chains
from tuner.card.worker.check import CaseReport, CheckFailed, check_case
from tuner.card.worker.cuda_calls import CudaCalls, CudaFault
from tuner.card.worker.launch import (
    CardLane,
    Launcher,
    OperandSets,
    bind,
    current_stream,
    load_candidate,
    max_active_clusters,
)
from tuner.card.worker.protocol import Refused
from tuner.card.worker.self_test import SelfTestFailed, health, self_test
from tuner.card.worker.telemetry import Telemetry
from tuner.trials.outcome import Status

KEPT_OBJECTS = 32


class CardSession:
    """What the requests do, on card ``index`` (as ``cuda:<index>``); makes its context.

    ``launch_limit_s``: a launch that takes longer is a deadlock.
    """

    def __init__(self, index: int, phase: Callable[[str], None], launch_limit_s: float) -> None:
        self._phase, self._launch_limit_s = phase, launch_limit_s
        self._device = torch.device("cuda", index)
        torch.cuda.set_device(self._device)
        properties = torch.cuda.get_device_properties(self._device)
        self._sm_count, self._l2_bytes = properties.multi_processor_count, properties.L2_cache_size
        self._telemetry = Telemetry(str(properties.uuid))
        self._runtime = CudaRuntime((index,))
        self._calls = CudaCalls(self._runtime.library)
        self._loaded: dict[str, LoadedObject] = {}  # SHA-256 -> LoadedObject, the latest last
        self._clusters: dict[tuple[str, int, int], int] = {}
        self._stream = (
            torch.cuda.Stream()
        )  # of launches that may overlap: the default stream has rules of its own
        self._operands: OperandSets | None = None  # of the problem that was timed last

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        """Raises ``Refused``."""
        operations = {
            "health": self._health,
            "check": self._check,
            "time": self._time,
            "finals": self._finals,
            "unload": self._unload,
        }
        with self._refusals():
            return operations[request["op"]](request)

    # -- requests

    def _health(self, _: dict[str, Any]) -> dict[str, Any]:
        self._phase("launch")
        self_test(self._device, self._calls)
        return {"health": dataclasses.asdict(health(self._device, self._calls, self._telemetry))}

    def _check(self, request: dict[str, Any]) -> dict[str, Any]:
        candidate = Loadable.from_record(request["candidate"])
        reports = []
        for number, record in enumerate(request["cases"]):
            case = Case.from_record(record)
            report = self._check_one(candidate, case, request["repeats"], request["seed"] + number)
            reports.append(dataclasses.asdict(report))
        return {"report": reports}

    def _check_one(self, candidate: Loadable, case: Case, repeats: int, seed: int) -> CaseReport:
        loaded, clusters = self._load(candidate, case)
        report = check_case(
            lambda arena: self._bound(loaded, arena, case, clusters),
            case,
            config=candidate.config_for(case.problem),
            repeats=repeats,
            seed=seed,
            device=self._device,
            wait=self._wait,
            phase=self._phase,
        )
        self._wait(f"the check on {case.problem}")  # the other stream begins on memory at rest
        with torch.cuda.stream(self._stream):
            lane = CardLane(loaded, case.problem, clusters, self._wait)
            chained = check_chains(
                lane, case, repeats=repeats, seed=seed, device=self._device, phase=self._phase
            )
        return dataclasses.replace(report, chained=chained)

    def _time(self, request: dict[str, Any]) -> dict[str, Any]:
        launcher = self._launcher(request)
        self._phase("time")
        fidelity = bench.Fidelity(**request["fidelity"])
        samples = bench.time_launches(
            launcher, launcher.sets, fidelity, self._telemetry, outputs=launcher.outputs
        )
        return {"samples": dataclasses.asdict(samples)}

    def _finals(self, request: dict[str, Any]) -> dict[str, Any]:
        launchers = [self._launcher(entry) for entry in request["entries"]]
        self._phase("time")
        options = bench.FinalsOptions(**request["options"])
        samples = bench.interleave(
            launchers, launchers[0].sets, options, self._telemetry, outputs=[one.outputs for one in launchers]
        )
        return {"samples": [dataclasses.asdict(one) for one in samples]}

    def _unload(self, _: dict[str, Any]) -> dict[str, Any]:
        for loaded in self._loaded.values():
            loaded.close()
        self._loaded.clear()
        self._operands = None
        torch.cuda.empty_cache()
        return {"free_bytes": torch.cuda.mem_get_info(self._device)[0]}

    # -- parts

    def _load(self, candidate: Loadable, case: Case) -> tuple[LoadedObject, int]:
        """(the loaded object, clusters of its grid)"""
        self._phase("load")
        key = candidate.object_sha256
        if key not in self._loaded:
            self._loaded[key] = load_candidate(candidate, self._runtime)
        self._loaded[key] = self._loaded.pop(key)
        clusters = (key, candidate.cluster_size, candidate.ctas_per_sm)
        if clusters not in self._clusters:
            index = self._device.index
            self._clusters[clusters] = max_active_clusters(candidate, case.problem, index, self._sm_count)
        return self._loaded[key], self._clusters[clusters]

    def _launcher(self, request: dict[str, Any]) -> Launcher:
        """A candidate on rotating operands; its first launch has ended."""
        candidate, case = Loadable.from_record(request["candidate"]), Case.from_record(request["case"])
        loaded, clusters = self._load(candidate, case)
        if self._operands is None or self._operands.problem != case.problem:
            self._phase("operands")
            self._operands = None
            self._operands = OperandSets(case.problem, self._device, self._l2_bytes, seed=0)
        launcher = Launcher(loaded, candidate, case, self._operands, clusters, self._wait)
        self._phase("launch")
        launcher(0)
        self._wait(f"the first launch on {case.problem}")
        return launcher

    def _bound(self, loaded: LoadedObject, arena: Arena, case: Case, clusters: int) -> Callable[[], None]:
        pointers = operator_of(case.problem).signature.pointers
        addresses = {name: arena.address(name) for name in pointers}
        launch = bind(loaded, case.problem, [addresses], clusters, stream=current_stream)
        return lambda: launch(0)

    def _wait(self, what: str) -> None:
        self._calls.wait(torch.cuda.current_stream().cuda_stream, self._launch_limit_s, what)

    def forget_old(self) -> None:
        """Between requests: no more than ``KEPT_OBJECTS`` stay loaded."""
        while len(self._loaded) > KEPT_OBJECTS:
            self._loaded.pop(next(iter(self._loaded))).close()

    @contextlib.contextmanager
    def _refusals(self) -> Iterator[None]:
        """What can go wrong with a candidate, as ``Refused``; anything else is a bug and goes up."""
        try:
            yield
        except CheckFailed as error:
            raise Refused(error.status, str(error), fatal=False) from None
        except InputError as error:
            raise Refused(Status.FAILED, str(error), fatal=False) from None
        except CudaFault as error:
            raise Refused(error.status, str(error), fatal=True) from None
        except SelfTestFailed as error:
            raise Refused(Status.FAILED, str(error), fatal=True) from None
        except HostCallError as error:
            fault = self._calls.fault(error.code, str(error))
            raise Refused(fault.status, str(fault), fatal=True) from None
        except torch.OutOfMemoryError as error:
            # What is left of the memory depends on what failed in the middle: a fresh process has all of it.
            reason = f"out of device memory: {str(error).splitlines()[0]}"
            raise Refused(Status.FAILED, reason, fatal=True) from None
        except RuntimeError as error:  # torch met the error of an earlier launch
            if not (code := self._calls.synchronize()):
                raise
            fault = self._calls.fault(code, "a launch")
            raise Refused(fault.status, str(fault), fatal=True) from error

"""The process that is profiled: launches one candidate some times between cudaProfilerStart and cudaProfilerStop.

``python -m tuner.card.counters.runner --card N --request FILE --answer FILE``. The request is JSON: ``candidate`` and
``case`` as the card's worker takes them, and ``calls``. Operands are those with which a tune times. The first call is
compared with the oracle, then all operand sets are gone through once, so that the clock has risen. The answer says
``calls`` and the worst error in tolerances (``max_ratio``), or ``error`` in one line.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from kernel_space.core.errors import InputError

WARM_CALLS = 64
LAUNCH_LIMIT_S = 10.0  # without the profiler: a launch that takes longer hangs


def program(card: int, request: Path, answer: Path) -> list[str]:
    """What starts this module wherever the parent found the project."""
    start = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import main; main()"
    files = ["--request", str(request), "--answer", str(answer)]
    return [sys.executable, "-c", start, "--card", str(card), *files]


def launch_all(request: dict[str, Any], card: int) -> dict[str, Any]:
    """The answer. Raises ``InputError`` for a candidate that cannot be launched, or whose output is wrong."""
    import torch

    from kernel_space.launch.runtime_symbols import CudaRuntime
    from tuner.card.worker.candidate import Case, Loadable
    from tuner.card.worker.cuda_calls import CudaCalls
    from tuner.card.worker.launch import Launcher, OperandSets, load_candidate, max_active_clusters

    device = torch.device("cuda", card)
    torch.cuda.set_device(device)
    properties = torch.cuda.get_device_properties(device)
    candidate, case = Loadable.from_record(request["candidate"]), Case.from_record(request["case"])
    clusters = max_active_clusters(candidate, case.problem, card, properties.multi_processor_count)
    runtime = CudaRuntime((card,))
    calls = CudaCalls(runtime.library)

    def wait(what: str) -> None:
        calls.wait(torch.cuda.current_stream().cuda_stream, LAUNCH_LIMIT_S, what)

    with load_candidate(candidate, runtime) as loaded:
        sets = OperandSets(case.problem, device, properties.L2_cache_size, seed=0)
        launch = Launcher(loaded, candidate, case, sets, clusters, wait)
        launch(0)
        wait("the first launch")
        worst = _judge(candidate, case, sets.outputs[0], device)
        for index in range(max(WARM_CALLS, sets.count)):
            launch(index % sets.count)
        wait("warming up")
        torch.cuda.profiler.start()
        for index in range(request["calls"]):
            launch(index % sets.count)
        torch.cuda.synchronize(device)
        torch.cuda.profiler.stop()
    return {"calls": request["calls"], "max_ratio": worst, "sm_count": properties.multi_processor_count}


def _judge(candidate: Any, case: Any, outputs: dict[str, Any], device: Any) -> float:
    """The worst error of the first call in units of its tolerance. Raises ``InputError`` for a wrong output."""
    from kernel_space.core.registry import operator_of
    from tuner.card.worker.check import make_inputs

    operator, problem = operator_of(case.problem), case.problem
    inputs = make_inputs(problem, 0, operator.sources[0], device)
    found = operator.compare(problem, {**inputs, **outputs}, candidate.config_for(problem))
    for name, one in found.items():
        if not one.ok:
            raise InputError(
                f"the config computes something else, so its profile says nothing: {name}: {one}"
            )
    return max(one.max_ratio for one in found.values())


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--card", type=int, required=True)
    parser.add_argument("--request", type=Path, required=True)
    parser.add_argument("--answer", type=Path, required=True)
    args = parser.parse_args(arguments)
    try:
        answer = launch_all(json.loads(args.request.read_text()), args.card)
    except InputError as error:
        answer = {"error": str(error)}
    except Exception as error:  # of torch, the driver, the card: the parent shows one line
        answer = {"error": " ".join(f"{type(error).__name__}: {error}".split())[:300]}
    half = args.answer.with_suffix(".part")
    half.write_text(json.dumps(answer, allow_nan=False))
    half.replace(args.answer)
    if "error" in answer:
        os._exit(0)  # not through the destructors of a context that may be lost


if __name__ == "__main__":
    main()

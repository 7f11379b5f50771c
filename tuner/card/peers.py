"""What else computes the operator on a card, timed by the same protocol: ``python -m tuner.card.peers --card N``.

Per line on stdin one request (``op`` and ``problem``, its record; ``kernel``: candidate and case of this project's
kernel, or null), per line on stdout its JSON document: ``rows`` of peers that ran, ``missing`` for those that did not
and why. Every peer's result is compared with what it must give first. Operands are the operator's own; what a peer
takes is made of them beforehand. Which peers there are says the module that the operator names (``Operator.peers``);
the row of this project's kernel has the operator's name.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from kernel_space.core.on_card import Peer
from kernel_space.core.problem import Problem
from kernel_space.core.registry import operator, operator_of
from tuner.card.samples.samples import Samples
from tuner.card.worker.bench import FULL, PROTOCOL, sets_needed, time_launches

if TYPE_CHECKING:
    from tuner.card.worker.telemetry import Telemetry

DISTINCT_SETS = 4  # with data of their own; further ones are copies at other addresses
WARM_CALLS = 3

Function = Callable[..., torch.Tensor]
Tensors = Mapping[str, torch.Tensor]


def peers_of(problem: Problem, compiler: Callable[[Function], Function]) -> Sequence[Peer]:
    """All but this project's kernel; none for an operator that names none. ``compiler``: ``torch.compile``."""
    module = operator_of(problem).peers
    return importlib.import_module(module).peers(problem, compiler) if module else ()


def error_of(peer: Peer, problem: Problem, inputs: Tensors) -> float:
    """Relative error of one call against what it must give, by Frobenius norms."""
    expected = peer.expected(problem, inputs)
    got = peer.build(problem, inputs)().to(expected.dtype)
    return float((got - expected).norm() / expected.norm())


def time_peer(
    peer: Peer, problem: Problem, sets: Sequence[Tensors], l2_bytes: int, telemetry: Telemetry
) -> Samples:
    """On rotating inputs that exceed three times the L2, each peer's own."""
    first = peer.build(problem, sets[0])
    count = sets_needed(sum(tensor.nbytes for tensor in (*first.inputs, first())), l2_bytes)
    calls = [peer.build(problem, one) for one in sets[:count]]
    calls += [calls[index % len(calls)].copy() for index in range(len(calls), count)]
    for _ in range(WARM_CALLS):
        calls[0]()
    return time_launches(lambda index: calls[index](), count, FULL, telemetry)


# -- the process


def measure(request: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Rows and what is missing, for one request."""
    from tuner.card.worker.check import make_inputs
    from tuner.card.worker.telemetry import Telemetry

    own = operator(request["op"])
    problem = own.problem.from_record(request["problem"])
    properties = torch.cuda.get_device_properties(device)
    telemetry = Telemetry(str(properties.uuid))
    rows: list[dict[str, Any]] = []
    missing: dict[str, str] = {}
    begun = time.monotonic()
    if request["kernel"] is not None:
        samples = _time_kernel(request["kernel"], problem, device, properties, telemetry)
        rows.append(_row(problem, own.name, samples, config=request["kernel"]["candidate"]["config"]))
    sets = [make_inputs(problem, seed, own.sources[0], device) for seed in range(DISTINCT_SETS)]
    with torch.no_grad():
        for peer in peers_of(problem, _compiler()):
            try:
                error = error_of(peer, problem, sets[0])
                if not error <= peer.worst:
                    raise ValueError(f"its result is off by {error:.2g} of the norm")
                samples = time_peer(peer, problem, sets, properties.L2_cache_size, telemetry)
            except (RuntimeError, ValueError) as failure:  # a shape that it does not take, for instance
                missing[peer.name] = str(failure).strip().splitlines()[0]
            else:
                rows.append(_row(problem, peer.name, samples, relative_error=float(f"{error:.2g}")))
    return {
        "rows": rows,
        "missing": missing,
        "driver": telemetry.driver,
        "protocol": f"{PROTOCOL}; {FULL}",
        "seconds": round(time.monotonic() - begun, 3),
    }


def _compiler() -> Callable[[Function], Function]:
    import torch._inductor.config

    torch._dynamo.reset()
    torch._inductor.config.compile_threads = 1  # two small graphs: a pool of processes takes longer to start
    return lambda function: torch.compile(function, dynamic=False)


def _time_kernel(
    kernel: dict[str, Any], problem: Problem, device: torch.device, properties: Any, telemetry: Telemetry
) -> Samples:
    """This project's kernel, as the worker times it."""
    from kernel_space.launch.runtime_symbols import CudaRuntime
    from tuner.card.worker.candidate import Case, Loadable
    from tuner.card.worker.launch import Launcher, OperandSets, load_candidate, max_active_clusters

    candidate, case = Loadable.from_record(kernel["candidate"]), Case.from_record(kernel["case"])
    index = device.index or 0
    clusters = max_active_clusters(candidate, problem, index, properties.multi_processor_count)
    with load_candidate(candidate, CudaRuntime((index,))) as loaded:
        sets = OperandSets(problem, device, properties.L2_cache_size, seed=0)
        launcher = Launcher(
            loaded, candidate, case, sets, clusters, lambda what: torch.cuda.synchronize(device)
        )
        return time_launches(launcher, launcher.sets, FULL, telemetry)


def _row(problem: Problem, peer: str, samples: Samples, **more: Any) -> dict[str, Any]:
    timing = samples.timing()
    return {
        **problem.options,
        "op": problem.operator,
        "problem": str(problem),
        "peer": peer,
        "us": round(timing.us, 4),
        "low_us": round(timing.low_us, 4),
        "high_us": round(timing.high_us, 4),
        **more,
        "evidence": timing.evidence,
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--card", type=int, required=True, metavar="N", help="as in cuda:N")
    parser.add_argument("--parent", type=int, default=0, metavar="PID", help="end when this process does")
    args = parser.parse_args(arguments)
    from tuner.card.worker.main import private_stdout
    from tuner.processes import die_with

    if args.parent:
        die_with(args.parent)

    out = private_stdout()
    device = torch.device("cuda", args.card)
    torch.cuda.set_device(device)
    for line in _requests():
        out.write(json.dumps(measure(json.loads(line), device), allow_nan=False) + "\n")
        out.flush()
        torch.cuda.empty_cache()  # others use the card until the next request


def _requests() -> Iterator[str]:
    return (line for line in sys.stdin if line.strip())


if __name__ == "__main__":
    main()

"""What else computes the layer on a card, timed by the same protocol: ``python -m tuner.card.peers --card N``.

Per line on stdin one request (``problem``, and ``kernel``: candidate and case of this project's kernel, or null), per
line on stdout its JSON document: ``rows`` of peers that ran, ``missing`` for those that did not and why. Every peer's
result is compared with an oracle first. Operands are those of ``make_operands``; what a peer takes is made beforehand:

| peer | what is timed |
|---|---|
| ``svdquant_gemm`` | this project's kernel on the packed operands |
| ``cuBLAS bf16 GEMM alone`` | ``x @ w.T``, both expanded to bf16; neither LoRA, scale nor bias |
| ``eager, expanded to bf16`` | the whole operator in torch |
| ``torch.compile, expanded to bf16`` | the same, compiled by Inductor |
| ``dequantize then cuBLAS, compiled`` | packed operands (scale factors in plain rows), expanded in the compiled graph |
| ``FP8 scaled_mm alone`` | ``torch._scaled_mm`` on E4M3 roundings of both: other numerics; no LoRA, scale, bias |
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from kernel_space.numerics.nvfp4 import NVFP4Tensor, dequantize_nvfp4, unblock_scales
from kernel_space.operators.svdquant_gemm.operands import Operands, make_operands
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tuner.card.samples.samples import Samples
from tuner.card.worker.bench import FULL, PROTOCOL, sets_needed, time_launches

if TYPE_CHECKING:
    from tuner.card.worker.telemetry import Telemetry

CUBLAS, EAGER, COMPILED = (
    "cuBLAS bf16 GEMM alone",
    "eager, expanded to bf16",
    "torch.compile, expanded to bf16",
)
DEQUANT, FP8 = "dequantize then cuBLAS, compiled", "FP8 scaled_mm alone"
DISTINCT_SETS = 4  # with data of their own; further ones are copies at other addresses
WORST = {FP8: 0.1}  # relative error of the whole output: E4M3 keeps 4 bits
BF16_WORST = 0.02
WARM_CALLS = 3
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)

Function = Callable[..., torch.Tensor]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Peer:
    """``function(*inputs(operands))`` is one call; ``whole``: of the operator, else of its GEMM alone."""

    name: str
    function: Function
    inputs: Callable[[Operands], tuple[torch.Tensor, ...]]
    whole: bool = True


def peers_of(problem: GemmProblem, compiler: Callable[[Function], Function]) -> list[Peer]:
    """All but this project's kernel. ``compiler``: ``torch.compile``; tests leave functions as they are."""
    layer = _layer if problem.r else _layer_without_lora
    return [
        Peer(name=CUBLAS, function=_gemm, inputs=_expanded_pair, whole=False),
        Peer(name=EAGER, function=layer, inputs=_expanded),
        Peer(name=COMPILED, function=compiler(layer), inputs=_expanded),
        Peer(name=DEQUANT, function=compiler(_dequantizing(layer)), inputs=_packed),
        Peer(name=FP8, function=_scaled_mm, inputs=_fp8_pair, whole=False),
    ]


def error_of(peer: Peer, operands: Operands) -> float:
    """Relative error of one call against float32 products of the exact operands, by Frobenius norms."""
    x, w = _expand(operands, torch.float32)
    expected = x @ w.T
    if peer.whole:
        expected = expected + operands.lora_act_in.float() @ operands.lora_up.float().T
        expected = expected * operands.wcscale + operands.bias
    got = peer.function(*peer.inputs(operands)).float()
    return float((got - expected).norm() / expected.norm())


def time_peer(peer: Peer, operands: Sequence[Operands], l2_bytes: int, telemetry: Telemetry) -> Samples:
    """On rotating inputs that exceed three times the L2, each peer's own."""
    first = peer.inputs(operands[0])
    output = peer.function(*first)
    count = sets_needed(sum(tensor.nbytes for tensor in (*first, output)), l2_bytes)
    distinct = [peer.inputs(one) for one in operands[:count]]
    sets = [
        distinct[index]
        if index < len(distinct)
        else tuple(t.clone() for t in distinct[index % len(distinct)])
        for index in range(count)
    ]
    for _ in range(WARM_CALLS):
        peer.function(*sets[0])
    return time_launches(lambda index: peer.function(*sets[index]), count, FULL, telemetry)


# -- what is timed


def _gemm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x @ w.T


def _layer(
    x: torch.Tensor, w: torch.Tensor, la: torch.Tensor, lu: torch.Tensor, wc: torch.Tensor, b: torch.Tensor
) -> torch.Tensor:
    return (x @ w.T + la @ lu.T) * wc + b


def _layer_without_lora(x: torch.Tensor, w: torch.Tensor, wc: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (x @ w.T) * wc + b


def _dequantizing(layer: Function) -> Function:
    """``layer`` on NVFP4 operands: codes, scales, table of values, then what is left."""

    def expand(codes: torch.Tensor, scales: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        values = torch.stack([table[(codes & 15).int()], table[(codes >> 4).int()]], dim=-1)
        blocks = values.view(codes.shape[0], -1, 16) * scales.to(torch.bfloat16).unsqueeze(-1)
        return blocks.view(codes.shape[0], -1)

    def whole(
        act: torch.Tensor,
        ascales: torch.Tensor,
        wgt: torch.Tensor,
        wscales: torch.Tensor,
        table: torch.Tensor,
        *rest: torch.Tensor,
    ) -> torch.Tensor:
        return layer(expand(act, ascales, table), expand(wgt, wscales, table), *rest)

    return whole


def _scaled_mm(
    x: torch.Tensor, w: torch.Tensor, scale_x: torch.Tensor, scale_w: torch.Tensor
) -> torch.Tensor:
    return torch._scaled_mm(x, w.T, scale_a=scale_x, scale_b=scale_w, out_dtype=torch.bfloat16)


# -- inputs


def _scales(operands: Operands) -> tuple[torch.Tensor, torch.Tensor]:
    """E4M3 ``[M, K/16]`` and ``[N, K/16]``."""
    return (
        unblock_scales(operands.ascales, operands.m, operands.k).contiguous(),
        unblock_scales(operands.wscales, operands.n, operands.k).contiguous(),
    )


def _expand(operands: Operands, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """act ``[M, K]`` and wgt ``[N, K]``: exact in bf16 too (6 significant bits)."""
    ascales, wscales = _scales(operands)
    act = dequantize_nvfp4(NVFP4Tensor(codes=operands.act, scales=ascales))
    wgt = dequantize_nvfp4(NVFP4Tensor(codes=operands.wgt, scales=wscales))
    return act.to(dtype), wgt.to(dtype)


def _expanded_pair(operands: Operands) -> tuple[torch.Tensor, ...]:
    return _expand(operands, torch.bfloat16)


def _rest(operands: Operands) -> tuple[torch.Tensor, ...]:
    lora = (operands.lora_act_in, operands.lora_up) if operands.r else ()
    return tuple(tensor.bfloat16() for tensor in (*lora, operands.wcscale, operands.bias))


def _expanded(operands: Operands) -> tuple[torch.Tensor, ...]:
    return (*_expanded_pair(operands), *_rest(operands))


def _packed(operands: Operands) -> tuple[torch.Tensor, ...]:
    table = torch.tensor(
        [*_E2M1, *(-value for value in _E2M1)], dtype=torch.bfloat16, device=operands.act.device
    )
    ascales, wscales = _scales(operands)
    return (operands.act, ascales, operands.wgt, wscales, table, *_rest(operands))


def _fp8_pair(operands: Operands) -> tuple[torch.Tensor, ...]:
    """Both rounded to E4M3 with one scale each, so that the largest magnitude is E4M3's."""
    parts = []
    scales = []
    for tensor in _expand(operands, torch.float32):
        scale = tensor.abs().max() / torch.finfo(torch.float8_e4m3fn).max
        parts.append((tensor / scale).to(torch.float8_e4m3fn))
        scales.append(scale)
    return (*parts, *scales)


# -- the process


def measure(request: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Rows and what is missing, for one request."""
    from tuner.card.worker.telemetry import Telemetry

    problem = GemmProblem(**request["problem"])
    properties = torch.cuda.get_device_properties(device)
    telemetry = Telemetry(str(properties.uuid))
    rows: list[dict[str, Any]] = []
    missing: dict[str, str] = {}
    begun = time.monotonic()
    if request["kernel"] is not None:
        samples = _time_kernel(request["kernel"], problem, device, properties, telemetry)
        rows.append(
            _row(problem, GemmProblem.operator, samples, config=request["kernel"]["candidate"]["config"])
        )
    operands = [make_operands(problem, seed, device=device) for seed in range(DISTINCT_SETS)]
    compiler = _compiler()
    with torch.no_grad():
        for peer in peers_of(problem, compiler):
            try:
                error = error_of(peer, operands[0])
                if not error <= WORST.get(peer.name, BF16_WORST):
                    raise ValueError(f"its result is off by {error:.2g} of the norm")
                samples = time_peer(peer, operands, properties.L2_cache_size, telemetry)
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
    kernel: dict[str, Any], problem: GemmProblem, device: torch.device, properties: Any, telemetry: Telemetry
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


def _row(problem: GemmProblem, peer: str, samples: Samples, **more: Any) -> dict[str, Any]:
    timing = samples.timing()
    return {
        "problem": str(problem),
        "lora_dtype": problem.lora_dtype,
        "out_dtype": problem.out_dtype,
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
    from tuner.compile.worker import die_with

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

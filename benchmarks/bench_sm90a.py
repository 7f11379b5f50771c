"""Candidates of the sm_90a kernel on a Hopper card: compile without a GPU, validate and time where one is.

    python benchmarks/bench_sm90a.py compile DIR < candidates      # lines "M,K,N,R | knob=value ..."
    python benchmarks/bench_sm90a.py measure DIR --out FILE [--peers]

``compile`` needs the CuTe DSL and no GPU; ``measure`` needs a Hopper card, torch and llvmlite, and no DSL.

Protocol of ``measure``: per problem one set of random operands after another until they exceed 180 MB (the L2 of an
H200 holds 60 MB), a CUDA graph of at least 20 launches that walks through the sets, 3 warm-up replays, then the median
of 15 replays divided by the number of launches. Before that every candidate runs 50 times on a poisoned output and is
compared with a float64 product of the dequantized operands; a candidate that is wrong is not timed. A worker that
dies or exceeds its time limit costs the candidate it was at. After timing, the same graph is replayed for 0.3 s
while SM clock and power are read.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import threading
import time
from pathlib import Path
from queue import Empty, Queue
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kernel_space.problem import GemmProblem

ROTATE_BYTES = 180_000_000
LAUNCHES = 20
REPLAYS = 15
WARM_UP = 3
CANDIDATE_SECONDS = 60
LOAD_SECONDS = 0.3
PEER_WEIGHTS = 4_000_000  # smaller layers are test shapes: not compared with peers
GUARD = 4096  # elements before and after y that must stay as they are
POISON = 0x7E
REPEATS = 50


# ------------------------------------------------------------------ compile


def compile_candidates(directory: Path) -> None:
    """Objects and a manifest of every candidate on stdin."""
    from kernel_space.arch import SM90A
    from kernel_space.config_sm90a import KernelConfigSm90a
    from kernel_space.dsl_compile import CompileError
    from kernel_space.rules import Rejection, legalize
    from kernel_space.workspace import workspace_bytes, zeroed_bytes

    directory.mkdir(parents=True, exist_ok=True)
    entries, objects = [], {}
    for line in sys.stdin:
        if not line.strip():
            continue
        shape, _, knobs = line.partition("|")
        problem = parse_problem(shape)
        legal = legalize(KernelConfigSm90a.parse(knobs), problem, SM90A)
        if isinstance(legal, Rejection):
            print(f"{line.strip()}: {legal}")
            continue
        key = (str(legal.config), str(problem.problem_class))
        try:
            if key not in objects:
                objects[key] = compile_one(legal.config, problem, directory, f"c{len(objects)}")
        except CompileError as error:
            print(f"{line.strip()}: {error}")
            continue
        # One object serves every problem of its class; how much workspace it needs depends on the problem.
        entries.append(
            {
                "problem": shape.strip(),
                "config": str(legal.config),
                "asked": knobs.strip(),
                "workspace": workspace_bytes(legal.config, problem),
                "zeroed": zeroed_bytes(legal.config, problem),
                **objects[key],
            }
        )
        print(f"{problem} {knobs.strip()}: {objects[key]['name']}")
    (directory / "manifest.json").write_text(json.dumps(entries, indent=1))


def parse_problem(text: str) -> GemmProblem:
    """``M,K,N,R`` in fp16, or ``M,K,N,R bf16`` for LoRA operands and y in bf16."""
    shape, _, dtype = text.strip().partition(" ")
    return GemmProblem.parse(shape, lora_dtype=dtype or "fp16", out_dtype=dtype or "fp16")


def compile_one(config: Any, problem: GemmProblem, directory: Path, name: str) -> dict[str, Any]:
    import dataclasses

    from kernel_space.arch import SM90A
    from kernel_space.arguments import arguments_from_header
    from kernel_space.dsl_compile import compile_function
    from kernel_space.dsl_env import import_dsl

    import_dsl("sm_90a")
    from kernel_space.kernels import svdquant_gemm_sm90a

    function, arguments = svdquant_gemm_sm90a.host_function(config, problem.problem_class, SM90A)
    _, artifacts = compile_function(function, arguments, {}, arch="sm_90a", prefix=name)
    (directory / f"{name}.o").write_bytes(artifacts.object_code)
    assert artifacts.header is not None
    declared = arguments_from_header(artifacts.header)
    return {
        "name": name,
        "arguments": [dataclasses.asdict(argument) for argument in declared],
        "cluster_size": config.cluster_size,
        "ctas_per_sm": config.ctas_per_sm,
        "split_k": config.split_k,
    }


# ------------------------------------------------------------------ measure


def measure(directory: Path, out: Path, peers: bool) -> None:
    """Run workers over all candidates, each result as it comes, and write them with the peers' times."""
    entries = json.loads((directory / "manifest.json").read_text())
    results: list[dict[str, Any]] = []
    start = 0
    while start < len(entries):
        start = run_worker(directory, entries, start, results)
        out.write_text(json.dumps({"results": results}, indent=1))
    peer_times = run_peers([entry["problem"] for entry in entries]) if peers else {}
    out.write_text(json.dumps({"card": card(), "peers": peer_times, "results": results}, indent=1))
    report(results, peer_times)


def run_worker(directory: Path, entries: list[Any], start: int, results: list[Any]) -> int:
    """Candidates from ``start`` on in one child; returns the first one that it did not answer for."""
    command = [sys.executable, __file__, "worker", str(directory), "--start", str(start)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    lines: Queue[str] = Queue()

    def read() -> None:
        assert child.stdout is not None
        for line in child.stdout:
            lines.put(line)
        lines.put("")

    threading.Thread(target=read, daemon=True).start()
    index = start
    while index < len(entries):
        try:
            line = lines.get(timeout=CANDIDATE_SECONDS)
        except Empty:
            line = ""
        if not line:
            child.kill()
            status = "timed out or died"
            results.append({**slim(entries[index]), "status": f"{status} (exit {child.wait()})"})
            print(f"{entries[index]['problem']:>22} {status}: {entries[index]['asked']}", flush=True)
            return index + 1
        if line.startswith("{"):
            results.append({**slim(entries[index]), **json.loads(line)})
            print(one_line(results[-1]), flush=True)
            index += 1
        else:
            print("worker:", line.rstrip(), flush=True)
    child.wait()
    return index


def slim(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: entry[name] for name in ("problem", "config", "asked", "name")}


def one_line(result: dict[str, Any]) -> str:
    times = (
        f"{result['us']:8.2f} us {result['tflops']:6.1f} TFLOP/s {result['mhz']} MHz {result['watts']:.0f} W"
        if "us" in result
        else ""
    )
    return f"{result['problem']:>22} {result['status']} {times} err {result.get('ratio', 0):.3g} | {result['asked']}"


def worker(directory: Path, start: int) -> None:
    """Answers one JSON line per candidate from ``start`` on."""
    entries = json.loads((directory / "manifest.json").read_text())
    sets: dict[str, Any] = {}
    for entry in entries[start:]:
        if entry["problem"] not in sets:
            sets.clear()
            sets[entry["problem"]] = OperandSets(parse_problem(entry["problem"]))
        print(json.dumps(try_candidate(directory, entry, sets[entry["problem"]])), flush=True)


class OperandSets:
    """Random operands on the card, made there: uniform codes, E4M3 scales from 2^-2 to 1.875."""

    def __init__(self, problem: GemmProblem) -> None:
        import torch

        torch.manual_seed(1234)
        self.problem = problem
        first = self._make(torch)
        each = sum(tensor.numel() * tensor.element_size() for tensor in first.values())
        count = max(1, min(64, math.ceil(ROTATE_BYTES / each)))
        self.sets = [first] + [self._make(torch) for _ in range(count - 1)]

    def _make(self, torch: Any) -> dict[str, Any]:
        p, cuda = self.problem, "cuda"
        blocks = lambda rows: math.ceil(rows / 128) * math.ceil(p.k / 64) * 512  # noqa: E731
        code = lambda rows: torch.randint(0, 256, (rows, p.k // 2), dtype=torch.uint8, device=cuda)  # noqa: E731
        scale = lambda rows: torch.randint(0x28, 0x40, (blocks(rows),), dtype=torch.uint8, device=cuda)  # noqa: E731
        half = {"fp16": torch.float16, "bf16": torch.bfloat16}[p.out_dtype]
        size = math.sqrt(p.k) * (2.9 * 0.9) ** 2
        y = torch.empty(p.m * p.n + 2 * GUARD, dtype=half, device=cuda)
        return {
            "act": code(p.m),
            "ascales": scale(p.m),
            "wgt": code(p.n),
            "wscales": scale(p.n),
            "lora_act_in": torch.randn(p.m, p.r, device=cuda).to(half),
            "lora_up": (torch.randn(p.n, p.r, device=cuda) * size / math.sqrt(max(p.r, 1))).to(half),
            "wcscale": torch.rand(p.n, device=cuda) + 0.5,
            "bias": torch.randn(p.n, device=cuda) * size,
            "y": y,
        }

    def reference(self, index: int) -> tuple[Any, Any]:
        """float64 result and the sum of magnitudes that bounds its accumulation error."""
        import torch

        s, p = self.sets[index], self.problem
        act = dequantize(s["act"], s["ascales"], p.m, p.k)
        wgt = dequantize(s["wgt"], s["wscales"], p.n, p.k)
        lora_act, lora_up = s["lora_act_in"].double(), s["lora_up"].double()
        scale = s["wcscale"].double()
        ref = (act @ wgt.T + lora_act @ lora_up.T) * scale + s["bias"].double()
        bound = (act.abs() @ wgt.abs().T + lora_act.abs() @ lora_up.abs().T) * scale.abs() + s["bias"].abs()
        return ref, bound + torch.zeros_like(ref)


def dequantize(codes: Any, blocked: Any, rows: int, k: int) -> Any:
    import torch

    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64, device=codes.device)
    table = torch.cat([table, -table])
    values = torch.stack([table[(codes & 15).long()], table[(codes >> 4).long()]], dim=-1).flatten(-2)
    tiles = blocked.view(math.ceil(rows / 128), -1, 32, 4, 4).permute(0, 3, 2, 1, 4)
    scales = tiles.reshape(math.ceil(rows / 128) * 128, -1)[:rows, : k // 16]
    scales = scales.contiguous().view(torch.float8_e4m3fn).double()
    return values * scales.repeat_interleave(16, dim=1)


def try_candidate(directory: Path, entry: dict[str, Any], operands: OperandSets) -> dict[str, Any]:
    import torch

    from kernel_space.arguments import Argument
    from kernel_space.loading import load_bytes
    from kernel_space.runtime_symbols import CudaRuntime

    torch.cuda.init()
    data = (directory / f"{entry['name']}.o").read_bytes()
    arguments = tuple(Argument(**argument) for argument in entry["arguments"])
    workspace = torch.zeros(max(entry["workspace"], 256), dtype=torch.uint8, device="cuda")
    p = operands.problem
    clusters = torch.cuda.get_device_properties(0).multi_processor_count
    clusters = clusters * entry["ctas_per_sm"] // entry["cluster_size"]
    with load_bytes(data, entry["name"], CudaRuntime(), arguments=arguments) as loaded:

        def launch(index: int) -> None:
            s = operands.sets[index]
            pointers = [tensor.data_ptr() for name, tensor in s.items() if name != "y"]
            y = s["y"].data_ptr() + GUARD * 2
            stream = torch.cuda.current_stream().cuda_stream
            loaded.call(*pointers, y, workspace.data_ptr(), p.m, p.n, p.k, clusters, stream)

        checked = check(operands, launch, torch)
        if checked["status"] != "ok":
            return checked
        return {**checked, **timed(launch, len(operands.sets), p, torch)}


def check(operands: OperandSets, launch: Any, torch: Any) -> dict[str, Any]:
    """Every element against float64, ``REPEATS`` times bitwise the same, nothing written outside y."""
    p = operands.problem
    flat = operands.sets[0]["y"]
    first = None
    for _ in range(REPEATS):
        flat.view(torch.int16).fill_(POISON * 257)
        launch(0)
        torch.cuda.synchronize()
        if first is None:
            first = flat.clone()
        elif not torch.equal(first.view(torch.int16), flat.view(torch.int16)):
            return {"status": f"NOT REPEATABLE {difference(first, flat, p, torch)}", "ratio": 0.0}
    guard = torch.cat([flat[:GUARD], flat[-GUARD:]]).view(torch.int16)
    ref, bound = operands.reference(0)
    bits = {"fp16": 10, "bf16": 7}[p.out_dtype]
    ulp = torch.exp2(torch.floor(torch.log2(ref.abs().clamp(min=2.0**-14))) - bits)
    y = flat[GUARD:-GUARD].view(p.m, p.n)
    ratio = ((y.double() - ref).abs() / (ulp + bound * (2.0**-23 * math.sqrt(p.k)))).nan_to_num(nan=math.inf)
    status, bad = "ok", int((ratio > 1).sum())
    if bad:
        where = divmod(int(ratio.argmax()), p.n)
        status = f"WRONG {bad} of {ratio.numel()} worst at {where} got {y[where].item()} want {ref[where].item():.6g}"
    elif not bool((guard == POISON * 257).all()):
        status = "WROTE OUTSIDE y"
    return {"status": status, "ratio": float(ratio.max())}


def difference(first: Any, second: Any, p: GemmProblem, torch: Any) -> str:
    """Where and by how much two outputs differ."""
    places = (first.view(torch.int16) != second.view(torch.int16)).nonzero().flatten() - GUARD
    rows, columns = places // p.n, places % p.n
    values = [(first[i + GUARD].item(), second[i + GUARD].item()) for i in places[:4].tolist()]
    return (
        f"{len(places)} elements, rows {rows.min().item()}..{rows.max().item()} ({len(rows.unique())} distinct), "
        f"columns {columns.min().item()}..{columns.max().item()} ({len(columns.unique())} distinct), {values}"
    )


def timed(launch: Any, num_sets: int, p: GemmProblem, torch: Any) -> dict[str, Any]:
    """Microseconds per launch: median, least and largest of ``REPLAYS`` replays of one graph."""
    launches = max(LAUNCHES, num_sets)
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        launch(0)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            for index in range(launches):
                launch(index % num_sets)
        for _ in range(WARM_UP):
            graph.replay()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(REPLAYS + 1)]
        events[0].record()
        for event in events[1:]:
            graph.replay()
            event.record()
    torch.cuda.synchronize()
    load = under_load(graph, stream, torch)
    each = sorted(a.elapsed_time(b) * 1000 / launches for a, b in zip(events, events[1:], strict=False))
    us = each[len(each) // 2]
    return {
        "us": us,
        "low": each[0],
        "high": each[-1],
        "tflops": p.flops / us / 1e6,
        "launches": launches,
        **load,
    }


def under_load(graph: Any, stream: Any, torch: Any) -> dict[str, float]:
    """SM clock (MHz) and power (W) while the graph is replayed for about ``LOAD_SECONDS``, and its mean time there."""
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    clocks, watts = [], []
    begin = time.monotonic()
    while time.monotonic() - begin < LOAD_SECONDS:
        with torch.cuda.stream(stream):
            for _ in range(4):
                graph.replay()
        clocks.append(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))
        watts.append(pynvml.nvmlDeviceGetPowerUsage(handle) / 1000)
        stream.synchronize()
    return {"mhz": sorted(clocks)[len(clocks) // 2], "watts": max(watts)}


# ------------------------------------------------------------------ peers


def run_peers(problems: list[str]) -> dict[str, Any]:
    """cuBLAS alone, torch.compile on expanded weights, dequantize + cuBLAS under torch.compile."""
    import torch

    times: dict[str, Any] = {}
    for text in dict.fromkeys(problems):
        problem = parse_problem(text)
        if problem.r == 0 or problem.k * problem.n < PEER_WEIGHTS:
            continue
        torch._dynamo.reset()
        times[text] = peer_times(problem, torch)
        print(text, times[text], flush=True)
    return times


def peer_times(p: GemmProblem, torch: Any) -> dict[str, float]:
    operands = OperandSets(p)
    scale_rows = {"act": p.m, "wgt": p.n}
    wide = []
    each = 2 * (p.m * p.k + p.n * p.k + p.m * p.n)
    for s in operands.sets[: max(1, min(len(operands.sets), math.ceil(ROTATE_BYTES / each)))]:
        x, w = (
            dequantize(s[name], s[scales], scale_rows[name], p.k).bfloat16()
            for name, scales in (("act", "ascales"), ("wgt", "wscales"))
        )
        lora = [s["lora_act_in"].bfloat16(), s["lora_up"].bfloat16()]
        wide.append((x, w, *lora, s["wcscale"].bfloat16(), s["bias"].bfloat16()))

    def layer(x: Any, w: Any, la: Any, lu: Any, wc: Any, b: Any) -> Any:
        return (x @ w.T + la @ lu.T) * wc + b

    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], device="cuda")
    table = torch.cat([table, -table]).bfloat16()

    def expand(codes: Any, scales: Any) -> Any:
        values = torch.stack([table[(codes & 15).int()], table[(codes >> 4).int()]], dim=-1).flatten(-2)
        return (values.view(codes.shape[0], -1, 16) * scales.to(torch.bfloat16).unsqueeze(-1)).view(
            codes.shape[0], -1
        )

    def packed_layer(a: Any, sa: Any, w: Any, sw: Any, la: Any, lu: Any, wc: Any, b: Any) -> Any:
        return layer(expand(a, sa), expand(w, sw), la, lu, wc, b)

    packed = []
    for s, t in zip(operands.sets, wide, strict=False):
        plain = [
            s[name].view(torch.float8_e4m3fn)[: rows * p.k // 16].view(rows, p.k // 16)
            for name, rows in (("ascales", p.m), ("wscales", p.n))
        ]
        packed.append((s["act"], plain[0], s["wgt"], plain[1], *t[2:]))
    cases = {
        "cublas": (lambda x, w, *_: x @ w.T, wide),
        "compile": (torch.compile(layer), wide),
        "dequant_compile": (torch.compile(packed_layer), packed),
    }
    result = {}
    with torch.no_grad():
        for name, (function, inputs) in cases.items():
            for _ in range(3):
                function(*inputs[0])
            torch.cuda.synchronize()
            sample = timed(lambda i, f=function, v=inputs: f(*v[i]), len(inputs), p, torch)
            result[name] = round(sample["us"], 2)
            result[f"{name} MHz"] = sample["mhz"]
    return result


def card() -> dict[str, str]:
    query = "name,driver_version,clocks.sm,clocks.max.sm,temperature.gpu,power.draw"
    text = subprocess.run(
        ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], capture_output=True, text=True
    ).stdout
    return dict(zip(query.split(","), (part.strip() for part in text.split(",")), strict=False))


def report(results: list[dict[str, Any]], peers: dict[str, Any]) -> None:
    print(card())
    for problem in dict.fromkeys(result["problem"] for result in results):
        good = [result for result in results if result["problem"] == problem and "us" in result]
        print(f"== {problem} {peers.get(problem, '')}")
        for result in sorted(good, key=lambda result: result["us"])[:6]:
            print(one_line(result))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("compile", "measure", "worker"))
    parser.add_argument("directory", type=Path)
    parser.add_argument("--out", type=Path, default=Path("sm90a.json"))
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--start", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.command == "compile":
        compile_candidates(arguments.directory)
    elif arguments.command == "worker":
        worker(arguments.directory, arguments.start)
    else:
        measure(arguments.directory, arguments.out, arguments.peers)


if __name__ == "__main__":
    main()

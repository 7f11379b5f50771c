"""The sm_90a kernel on a Hopper card against the float64 oracle, with objects compiled beforehand.

The card's machine needs no DSL: ``benchmarks/bench_sm90a.py compile .pack/sm90a < candidates`` leaves objects and
a manifest, and the tests run those whose problem the CPU oracle can check in seconds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.bench_sm90a import parse_problem
from kernel_space.arguments import Argument
from kernel_space.loading import load_bytes
from kernel_space.operands import Operands, make_operands
from kernel_space.runtime_symbols import CudaRuntime

pytestmark = pytest.mark.gpu

OBJECTS = Path(__file__).resolve().parents[2] / ".pack" / "sm90a"
MOST_PRODUCTS = 1 << 28
REPEATS = 20


def entries() -> list[dict[str, Any]]:
    manifest = OBJECTS / "manifest.json"
    found = json.loads(manifest.read_text()) if manifest.is_file() else []
    return [entry for entry in found if _products(entry["problem"]) <= MOST_PRODUCTS]


def _products(text: str) -> int:
    problem = parse_problem(text)
    return problem.m * problem.n * problem.k


def run(entry: dict[str, Any], operands: Operands, times: int) -> list[torch.Tensor]:
    """``y`` of ``times`` launches, each on an output filled with NaN."""
    problem = operands.problem
    tensors = {name: tensor.cuda() for name, tensor in operands.tensors().items()}
    workspace = torch.zeros(max(entry["workspace"], 256), dtype=torch.uint8, device="cuda")
    clusters = torch.cuda.get_device_properties(0).multi_processor_count
    clusters = clusters * entry["ctas_per_sm"] // entry["cluster_size"]
    arguments = tuple(Argument(**argument) for argument in entry["arguments"])
    data = (OBJECTS / f"{entry['name']}.o").read_bytes()
    outputs = []
    with load_bytes(data, entry["name"], CudaRuntime(), arguments=arguments) as loaded:
        for _ in range(times):
            tensors["y"].fill_(torch.nan)
            pointers = [tensor.data_ptr() for tensor in tensors.values()]
            loaded.call(*pointers, workspace.data_ptr(), problem.m, problem.n, problem.k, clusters, 0)
            torch.cuda.synchronize()
            outputs.append(tensors["y"].cpu())
    return outputs


def test_objects_were_compiled() -> None:
    assert entries(), f"no manifest with small problems in {OBJECTS.name}: compile candidates first"


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("entry", entries(), ids=lambda entry: f"{entry['problem']}-{entry['name']}")
def test_every_element_is_within_tolerance_and_repeats(entry: dict[str, Any], seed: int) -> None:
    operands = make_operands(parse_problem(entry["problem"]), seed)
    outputs = run(entry, operands, REPEATS)
    operands.y.copy_(outputs[0])
    check = operands.check(split_k=entry["split_k"])
    assert check.ok, check
    assert all(torch.equal(outputs[0].view(torch.int16), y.view(torch.int16)) for y in outputs[1:])

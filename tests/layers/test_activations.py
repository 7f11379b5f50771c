"""What ``auto`` takes: by the times of rows, read here from the committed table itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from kernel_space.core.errors import InputError
from kernel_space.operators.svdquant_linear.problem import LinearProblem
from tuner.devices.classes import DEVICE_CLASSES
from tuner.layers.activations import decide, decide_for
from tuner.runtime import SVDQuantLinear

TABLE = Path(__file__).resolve().parents[2] / "results" / "h200" / "dispatch.json"


def rows_of(m: int) -> dict[str, dict[str, Any]]:
    """Of both operators at m,3840,3072,128 in bf16."""
    sizes = {"m": m, "k": 3840, "n": 3072, "r": 128, "dtype": "bf16"}
    rows = json.loads(TABLE.read_text())["rows"]
    return {row["op"]: row for row in rows if row["problem"] == sizes}


@pytest.mark.parametrize("m", [1, 16, 64, 128, 256, 1024, 4352])
def test_the_faster_one_and_16_bits_where_nobody_can_tell(m: int) -> None:
    found = rows_of(m)
    nvfp4, half = (found[op]["time_us"] for op in ("svdquant_linear", "svdquant_linear_16bit"))
    cards = {row["evidence"]["card"] for row in found.values()}
    margin = 1.05 if len(cards) == 1 else 1.1
    decision = decide_for(LinearProblem(m=m, k=3840, n=3072, r=128, dtype="bf16"), DEVICE_CLASSES["h200"])
    assert decision.activations == ("16bit" if half <= margin * nvfp4 else "nvfp4")
    assert f"{nvfp4:.4g} us" in decision.reason and f"{half:.4g} us" in decision.reason


def test_both_are_taken_somewhere() -> None:
    problems = [LinearProblem(m=m, k=3840, n=3072, r=128, dtype="bf16") for m in (64, 1024)]
    assert [decide_for(one, DEVICE_CLASSES["h200"]).activations for one in problems] == ["nvfp4", "16bit"]


def test_nvfp4_where_no_16_bit_kernel_is_and_without_a_card() -> None:
    problem = LinearProblem(m=1024, k=3840, n=3072, r=128, dtype="bf16")
    assert decide_for(problem, DEVICE_CLASSES["b200"]).activations == "nvfp4"
    assert decide(problem, torch.device("cpu")).activations == "nvfp4"


@pytest.mark.filterwarnings("ignore:svdquant_linear")
def test_16_bits_are_closer_to_the_layer_in_plain_torch_too() -> None:
    torch.manual_seed(0)
    linear = torch.nn.Linear(96, 40)
    x = torch.randn(9, 96)
    layer = SVDQuantLinear.from_linear(linear, rank=16)
    exact = linear(x).detach()
    errors = {}
    for layer.activations in ("nvfp4", "16bit"):
        errors[layer.activations] = float((layer(x) - exact).norm() / exact.norm())
    assert errors["16bit"] < 0.9 * errors["nvfp4"], errors


def test_another_word_is_refused() -> None:
    with pytest.raises(InputError, match="activations must be one of auto, nvfp4, 16bit, got 'fp8'"):
        SVDQuantLinear(64, 16, rank=16, activations="fp8")
    layer = SVDQuantLinear(64, 16, rank=16)
    layer.activations = "fp8"
    with pytest.raises(InputError, match="activations must be one of"):
        layer(torch.zeros(1, 64))

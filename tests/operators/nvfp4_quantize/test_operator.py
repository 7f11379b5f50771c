"""The operator's object: inputs, and that its comparison sees a single wrong byte."""

from __future__ import annotations

import pytest
import torch

from kernel_space.core.arch import arch
from kernel_space.core.errors import InputError
from kernel_space.core.registry import kernels_of, operator, parse_config
from kernel_space.operators.nvfp4_quantize import operands
from kernel_space.operators.nvfp4_quantize.operator import OPERATOR
from kernel_space.operators.nvfp4_quantize.packing import unpack_lora_down
from kernel_space.operators.nvfp4_quantize.problem import QuantizeProblem
from kernel_space.operators.nvfp4_quantize.reference import expected_outputs
from kernel_space.operators.nvfp4_quantize.rows.config import RowsConfig

PROBLEM = QuantizeProblem.parse("131,96,0")


def outputs(problem: QuantizeProblem, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    smooth = inputs["smooth"] if problem.smooth == "fp32" else None
    expected = expected_outputs(inputs["x"], smooth)
    lora = torch.empty(problem.m, 0, dtype=torch.uint8)
    if problem.r:
        plain = unpack_lora_down(inputs["lora_down"], problem.k)
        lora = (inputs["x"].double() @ plain.double()).to(inputs["x"].dtype)
    return {**inputs, "act": expected.act, "ascales": expected.ascales, "lora_act_in": lora}


def test_it_is_found_with_its_kernel() -> None:
    assert operator("nvfp4_quantize") is OPERATOR
    for name in ("sm_90a", "sm_100a", "sm_103a"):
        own = ["lora_tma" if name == "sm_90a" else "lora_tcgen05"]
        assert [one.name for one in kernels_of("nvfp4_quantize", arch(name))] == ["rows", "lora_mma", *own]
    config = parse_config("nvfp4_quantize", arch("sm_90a"), "kernel=rows tile_mk=64x256")
    assert isinstance(config, RowsConfig) and str(config).startswith("kernel=rows tile_mk=64x256 ")


@pytest.mark.parametrize("source", OPERATOR.sources)
@pytest.mark.parametrize("x_dtype", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("smooth", ["fp32", "none"])
@pytest.mark.parametrize("r", [0, 48])
def test_inputs_are_what_the_signature_says(source: str, x_dtype: str, smooth: str, r: int) -> None:
    if r and x_dtype == "fp32":
        return
    problem = QuantizeProblem.parse(f"131,96,{r}", x_dtype=x_dtype, smooth=smooth)
    inputs, again = (OPERATOR.inputs(problem, 3, source, "cpu") for _ in range(2))
    specs = OPERATOR.signature.tensors(problem)
    assert tuple(inputs) == OPERATOR.signature.inputs
    for name, tensor in inputs.items():
        assert tuple(tensor.shape) == specs[name].shape and tensor.is_contiguous()
        assert torch.equal(tensor.view(torch.uint8), again[name].view(torch.uint8))
        assert tensor.nbytes == OPERATOR.tensor_bytes(problem)[name]
    filled = outputs(problem, inputs)
    assert all(
        one.ok and one.elements == filled[name].numel()
        for name, one in OPERATOR.check(problem, filled, RowsConfig()).items()
    )


def test_an_unknown_source() -> None:
    with pytest.raises(InputError, match="source must be one of gaussian, patterns, got 'scales'"):
        OPERATOR.inputs(PROBLEM, 0, "scales", "cpu")


@pytest.mark.parametrize("chunk", [1, 1 << 24])
@pytest.mark.parametrize(("name", "place"), [("act", (130, 47)), ("act", (0, 0)), ("ascales", (1030,))])
def test_one_wrong_bit_is_seen_and_named(
    name: str, place: tuple[int, ...], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the oracle works by chunks of 128 rows."""
    monkeypatch.setattr(operands, "CHUNK_ELEMENTS", chunk)
    filled = outputs(PROBLEM, OPERATOR.inputs(PROBLEM, 0, "gaussian", "cpu"))
    filled[name][place] ^= 8
    found = OPERATOR.check(PROBLEM, filled, RowsConfig())
    others = {"act", "ascales", "lora_act_in"} - {name}
    assert all(found[other].ok for other in others) and not found[name].ok and found[name].bad == 1
    row, column = found[name].worst_index
    assert (row, column) == (place if len(place) == 2 else divmod(place[0], 512))
    assert found[name].got != found[name].expected


def test_ragged_variants_cut_rows_and_blocks_elsewhere() -> None:
    config = RowsConfig.parse("tile_mk=32x256")
    found = OPERATOR.ragged(config, QuantizeProblem.parse("4352,3840,0", x_dtype="bf16"))
    assert [str(one) for one in found] == ["4349,3808,0", "133,352,0", "1,32,0"]
    assert {one.x_dtype for one in found} == {"bf16"}
    assert [str(one) for one in OPERATOR.ragged(config, QuantizeProblem.parse("1,32,0"))] == [
        "133,352,0",
        "1,32,0",
    ]


def test_work() -> None:
    assert OPERATOR.work(QuantizeProblem.parse("10,32,0")).operations == {"fp32": 960}
    assert OPERATOR.work(QuantizeProblem.parse("10,32,0", smooth="none")).operations == {"fp32": 640}
    lora = OPERATOR.work(QuantizeProblem.parse("10,32,16", x_dtype="bf16")).operations
    assert lora == {"fp32": 960, "bf16": 2 * 10 * 32 * 16}


def test_lora_act_in_is_judged_by_chunks_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operands, "CHUNK_ELEMENTS", 1)
    problem = QuantizeProblem.parse("131,96,16")
    filled = outputs(problem, OPERATOR.inputs(problem, 0, "gaussian", "cpu"))
    filled["lora_act_in"][129, 5] += 1
    found = OPERATOR.check(problem, filled, RowsConfig())
    assert found["act"].ok and found["ascales"].ok and found["lora_act_in"].bad == 1
    assert found["lora_act_in"].worst_index == (129, 5) and found["lora_act_in"].elements == 131 * 16

"""What tests of the kernels of ``svdquant_linear`` in one launch do with a config and a problem."""

from __future__ import annotations

from typing import Any

import torch

from kernel_space.check.result import CheckResult
from kernel_space.core.registry import kernel_of, operator
from kernel_space.machine.run.run import run_compiled
from kernel_space.numerics.nvfp4 import NVFP4Tensor, block_scales, dequantize_nvfp4, unblock_scales
from kernel_space.operators.nvfp4_quantize.packing import unpack_lora_down
from kernel_space.operators.nvfp4_quantize.reference import expected_outputs
from kernel_space.operators.svdquant_linear.problem import LinearProblem
from tests.operators.svdquant_linear_16bit import runs
from tests.operators.svdquant_linear_16bit.runs import compiled, workspace

OPERATOR = operator("svdquant_linear")
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def problem(shape: str, dtype: str = "bf16", **options: Any) -> LinearProblem:
    return LinearProblem.parse(shape, dtype=dtype, **options)


def checked(
    text: str, shape: LinearProblem, *, schedule: str = "random", ptx: str = "", sms: int = 0
) -> CheckResult:
    """``runs.checked`` on ``sms``, or on a few clusters' worth."""

    def count(config: Any) -> int:
        return sms or 4 * config.cluster_size

    return runs.checked(text, shape, sms=count, schedule=schedule, ptx=ptx)


def launched(
    text: str, shape: LinearProblem, *, sms: int = 8, clusters: int = 4, schedule: str = "eager", **given: Any
) -> dict[str, torch.Tensor]:
    """All tensors of one launch on usual numbers but those ``given``, the counters behind it among them. Outputs are
    filled so that what is not written is seen.
    """
    kernel, config = compiled(text, shape)
    named = {**OPERATOR.inputs(shape, 3, "gaussian", "cpu"), **given}
    codes = expected_outputs(named["x"], named["smooth"])
    named |= {
        "act": torch.zeros_like(codes.act),
        "ascales": torch.zeros_like(codes.ascales),
        "lora_act_in": torch.full((shape.m, shape.r), torch.nan, dtype=DTYPES[shape.dtype]),
        "y": torch.full((shape.m, shape.n), torch.nan, dtype=DTYPES[shape.dtype]),
    }
    named["workspace"] = workspace(config, shape)
    values = OPERATOR.signature.values(shape, named, clusters=clusters)
    result = run_compiled(kernel, *values, sms=sms, schedule=schedule, check_races=True)
    assert result.ok, str(result)
    zeroed = kernel_of(config, shape).room(config, shape).zeroed
    assert not named["workspace"][:zeroed].any(), "counters of the next launch"
    return named


def x_by_hand(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    """Values of the codes that the contract of ``nvfp4_quantize`` has for x."""
    x = tensors["x"]
    codes = expected_outputs(x, tensors["smooth"])
    return dequantize_nvfp4(NVFP4Tensor(codes=codes.act, scales=unblock_scales(codes.ascales, *x.shape)))


def weights_by_hand(tensors: dict[str, torch.Tensor], shape: LinearProblem) -> torch.Tensor:
    codes = NVFP4Tensor(codes=tensors["wgt"], scales=unblock_scales(tensors["wscales"], shape.n, shape.k))
    return dequantize_nvfp4(codes).double()


def y_by_hand(tensors: dict[str, torch.Tensor], shape: LinearProblem) -> torch.Tensor:
    sums = x_by_hand(tensors).double() @ weights_by_hand(tensors, shape).T
    if shape.r:
        sums += tensors["lora_act_in"].double() @ tensors["lora_up"].double().T
    return sums * tensors["wcscale"].double() + tensors["bias"].double()


def is_the_layer(tensors: dict[str, torch.Tensor], shape: LinearProblem) -> None:
    if shape.r:
        branch = tensors["x"].double() @ unpack_lora_down(tensors["lora_down"], shape.k).double()
        assert (tensors["lora_act_in"].double() - branch).norm() / branch.norm() < 2**-8
    wanted = y_by_hand(tensors, shape)
    assert (tensors["y"].double() - wanted).norm() / wanted.norm() < 2**-8


def read_x(text: str, x: torch.Tensor, smooth: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(y with a weight of 1 on the diagonal, so each value of x's codes, what they are by hand), R = 0."""
    k = x.shape[1]
    dtype = next(name for name, one in DTYPES.items() if one == x.dtype)
    shape = problem(f"{x.shape[0]},{k},{k},0", dtype)
    ones = torch.zeros(k, k // 2, dtype=torch.uint8)
    ones[torch.arange(k), torch.arange(k) // 2] = torch.tensor([0x02, 0x20], dtype=torch.uint8).repeat(k // 2)
    tensors = launched(
        text,
        shape,
        x=x,
        smooth=smooth,
        wgt=ones,
        wscales=block_scales(torch.ones(k, k // 16).to(torch.float8_e4m3fn)),
        wcscale=torch.ones(k),
        bias=torch.zeros(k),
    )
    return tensors["y"].float(), x_by_hand(tensors)


def edges() -> tuple[torch.Tensor, torch.Tensor]:
    """(x fp32 ``[13, 160]``, smooth): usual numbers, ties between codes, blocks of zeros, of one large number, of the
    least ones.
    """
    torch.manual_seed(1)
    x = torch.randn(13, 160)
    x[1] = torch.arange(160) % 16 * 0.25  # ties at 0.25, 0.75, 1.25 ... of the scale of 3.75 / 6 and its like
    x[2, :64] = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0] * 8) * 2.0 ** torch.arange(
        4
    ).repeat_interleave(16)
    x[3, 16:48] = 0
    x[4, ::16] = 3e4
    x[5] *= 2.0**-20
    x[6] *= 2.0**-100
    smooth = torch.rand(160) + 0.5
    smooth[32:64] = 1.0
    return x, smooth


def odd_smooth() -> tuple[torch.Tensor, torch.Tensor]:
    """(x bf16 ``[5, 160]``, smooth) out of the ordinary: subnormal reciprocals, and a mantissa of all ones."""
    smooth = torch.ones(160)
    smooth[3], smooth[40], smooth[90] = 2.0**110, 2.0**-110, 2.0 - 2.0**-23
    torch.manual_seed(2)
    x = torch.randn(5, 160)
    x[:, 40] *= 2.0**-110
    return x.bfloat16(), smooth

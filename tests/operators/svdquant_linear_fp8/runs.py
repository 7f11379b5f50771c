"""What tests of ``merged_fp8`` do with a config and a problem, and what its results should be, by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from kernel_space.build.build import CompiledKernel, build
from kernel_space.check.one_problem import ProblemCheck
from kernel_space.check.result import CheckResult
from kernel_space.core.arch import SM90A
from kernel_space.core.registry import kernel_of, operator, parse_config
from kernel_space.core.rules import Legal, Rejection, legalize
from kernel_space.launch.capture import capture
from kernel_space.machine.memory.global_memory import GlobalMemory
from kernel_space.machine.run.launch import add_tensor
from kernel_space.machine.run.run import SimResult, run_compiled, run_launch
from kernel_space.numerics.nvfp4 import NVFP4Tensor, dequantize_nvfp4, unblock_scales
from kernel_space.operators.nvfp4_quantize.packing import unpack_lora_down
from kernel_space.operators.svdquant_linear_fp8.problem import Fp8LinearProblem

OPERATOR = operator("svdquant_linear_fp8")
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
ALIGN = 256
GROUP = 16
LEAST, LARGEST = 2.0**-100, 448.0
# Of 16 neighbours along K the places of a row in the order in which they lie: four bytes for each lane of a quad.
ORDER = [0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15]
NAN_BYTE = 0x7F

PLAIN = (
    "kernel=merged_fp8 tile_mnk=64x16x128 consumer_warpgroups=1 num_ab_stage=3 merge_chunks=4 quantize_rows=2"
)
PAIR = (
    "kernel=merged_fp8 tile_mnk=128x24x128 cluster_shape_mn=2x1 num_ab_stage=2 merge_chunks=6 use_pdl=true "
    "quantize_rows=4"
)
COLUMNS = "kernel=merged_fp8 tile_mnk=128x16x128 cluster_shape_mn=1x2 num_ab_stage=2 merge_chunks=2"
STREAM = (
    "kernel=merged_fp8 tile_mnk=64x16x128 consumer_warpgroups=1 num_ab_stage=2 merge_chunks=4 stream_k=true"
)
BLOCKS = "kernel=merged_fp8 tile_mnk=256x16x128 num_ab_stage=2 merge_chunks=2 use_pdl=true"

Tensors = dict[str, torch.Tensor]


def problem(shape: str, dtype: str = "bf16", **options: Any) -> Fp8LinearProblem:
    return Fp8LinearProblem.parse(shape, dtype=dtype, **options)


def legal(text: str, shape: Fp8LinearProblem) -> Legal | Rejection:
    return legalize(parse_config(OPERATOR.name, SM90A, text), shape, SM90A)


def compiled(text: str, shape: Fp8LinearProblem) -> tuple[CompiledKernel, Any]:
    found = legal(text, shape)
    assert isinstance(found, Legal), found
    return build(found.config, shape.problem_class, SM90A), found.config


def checked(
    text: str, shape: Fp8LinearProblem, *, schedule: str = "random", ptx: str = "", in_a_row: bool = True
) -> CheckResult:
    """One run on this very problem and two clusters; ``in_a_row``: of several calls where launches begin early."""
    kernel, config = compiled(text, shape)
    sms = 2 * config.cluster_size
    check = ProblemCheck(
        kernel, config, shape, sms, check_races=True, seed=3, ptx=ptx or None, in_a_row=in_a_row
    )
    check.run(schedule, None)
    return check.result()


def inputs(shape: Fp8LinearProblem, **instead: torch.Tensor) -> Tensors:
    return {**OPERATOR.inputs(shape, 3, "gaussian", "cpu"), **instead}


class Found(NamedTuple):
    """What the first kernel leaves: bytes ``[M, K]`` and ``[N, K]`` in the plain order of K, fp32 ``[M]``."""

    x8: torch.Tensor
    scales: torch.Tensor
    merged: torch.Tensor


class Space:
    """Of a config that does not deal tiles out: nothing lies before merged weights."""

    def __init__(self, config: Any, shape: Fp8LinearProblem) -> None:
        self.shape = shape
        size = kernel_of(config, shape).room(config, shape).size
        whole = torch.full((size + ALIGN,), NAN_BYTE, dtype=torch.uint8)
        begin = -whole.data_ptr() % ALIGN
        self.bytes = whole[begin : begin + size]

    def found(self) -> Found:
        m, n, k = self.shape.m, self.shape.n, self.shape.k
        x8 = -(-n * k // ALIGN) * ALIGN
        scales = x8 + -(-m * k // ALIGN) * ALIGN
        return Found(
            in_plain_order(self.bytes[x8 : x8 + m * k].view(m, k)),
            self.bytes[scales : scales + 4 * m].view(torch.float32),
            in_plain_order(self.bytes[: n * k].view(n, k)),
        )


def in_plain_order(lying: torch.Tensor) -> torch.Tensor:
    groups = lying.view(lying.shape[0], -1, GROUP)
    plain = torch.empty_like(groups)
    plain[:, :, ORDER] = groups
    return plain.view(lying.shape)


def first_kernel(
    text: str, shape: Fp8LinearProblem, tensors: Tensors, *, ptx: str = "", merges: bool = True
) -> tuple[Found, SimResult]:
    """Of one launch the first kernel alone; not ``merges``: of that the CTAs that quantize, which come first."""
    kernel, config = compiled(text, shape)
    space, memory = Space(config, shape), GlobalMemory()
    y = torch.zeros(shape.m, shape.out_columns, dtype=DTYPES[shape.dtype])
    named = {**tensors, "y": y, "workspace": space.bytes}
    for name, tensor in named.items():
        if tensor.numel():
            add_tensor(memory, tensor, name)
    pointers = {name: tensor.data_ptr() for name, tensor in named.items()}
    launch = capture(kernel, *OPERATOR.signature.values(shape, pointers, clusters=2))[0]
    if not merges:
        launch = dataclasses.replace(launch, grid=(-(-shape.m // config.quantize_rows), 1, 1))
    result = run_launch(launch, ptx or kernel.ptx, memory, sms=16, schedule="random", check_races=True)
    return space.found(), result


def whole(text: str, shape: Fp8LinearProblem, tensors: Tensors, **options: Any) -> torch.Tensor:
    """y of one launch."""
    kernel, config = compiled(text, shape)
    space = Space(config, shape)
    space.bytes[: kernel_of(config, shape).room(config, shape).zeroed] = 0
    y = torch.full((shape.m, shape.out_columns), torch.nan, dtype=DTYPES[shape.dtype])
    named = {**tensors, "y": y, "workspace": space.bytes}
    values = OPERATOR.signature.values(shape, named, clusters=2)
    result = run_compiled(kernel, *values, sms=2 * config.cluster_size, **options)
    assert result.ok, result
    return y


# -- by hand --


def codes() -> torch.Tensor:
    """float64 magnitudes of the E4M3 bytes 0 to 0x7E: three bits of mantissa, bias 7."""
    byte = torch.arange(NAN_BYTE)
    exponent, mantissa = byte // 8, (byte % 8).double()
    normal = (1 + mantissa / 8) * 2.0 ** (exponent.double() - 7)
    return torch.where(exponent > 0, normal, mantissa * 2.0**-9)


def e4m3_bytes(values: torch.Tensor) -> torch.Tensor:
    """The nearest E4M3 numbers of float64, ties to the even byte, beyond 448 448."""
    known, size = codes(), values.abs()
    middle = (known[1:] + known[:-1]) / 2
    below = torch.bucketize(size, middle)  # ties to the lower one
    tie = size == middle[below.clamp(max=len(middle) - 1)]
    byte = below + (tie & (below % 2 == 1)).long()
    byte = torch.where(size.isnan(), NAN_BYTE, byte)
    return (byte + 128 * (torch.signbit(values) & ~size.isnan()).long()).to(torch.uint8)


def value_of(lying: torch.Tensor) -> torch.Tensor:
    """float64 of E4M3 bytes."""
    known = torch.cat([codes(), torch.tensor([torch.nan], dtype=torch.float64)])
    return torch.cat([known, -known])[lying.long()]


def rows_by_hand(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(bytes ``[M, K]``, fp32 scales ``[M]``), each fp32 operation rounded once: float64 holds every exact product."""
    exact = x.double()
    largest = exact.abs().amax(1)
    zeros = largest < LEAST
    factor = (LARGEST / largest).float().double().masked_fill(zeros, 0.0)
    reciprocal = torch.tensor(1 / LARGEST).double()  # as fp32 has it
    scales = (largest * reciprocal).float().masked_fill(zeros, 0.0)
    return e4m3_bytes((exact * factor[:, None]).float().double()), scales


class Merged(NamedTuple):
    """float64 ``[N, K]``: what is rounded to E4M3, and the sum of the magnitudes that it is made of."""

    value: torch.Tensor
    made_of: torch.Tensor


def merged_by_hand(tensors: Mapping[str, torch.Tensor], shape: Fp8LinearProblem) -> Merged:
    scales = unblock_scales(tensors["wscales"], shape.n, shape.k)
    value = dequantize_nvfp4(NVFP4Tensor(codes=tensors["wgt"], scales=scales)).double()
    value = value / tensors["smooth"].double()
    made_of = value.abs()
    if shape.r:
        up, down = tensors["lora_up"].double(), unpack_lora_down(tensors["lora_down"], shape.k).double()
        value, made_of = value + up @ down.T, made_of + up.abs() @ down.abs().T
    factor = LARGEST / tensors["wpeak"].double()[:, None]
    return Merged(value * factor, made_of * factor)


def sums_by_hand(tensors: Mapping[str, torch.Tensor], shape: Fp8LinearProblem) -> torch.Tensor:
    """float64 ``[M, N]``: what the activation is given."""
    x8, scales = rows_by_hand(tensors["x"])
    merged = value_of(e4m3_bytes(merged_by_hand(tensors, shape).value))
    columns = tensors["wpeak"].double() / LARGEST * tensors["wcscale"].double()
    return value_of(x8) @ merged.T * scales.double()[:, None] * columns + tensors["bias"].double()


def activated_by_hand(sums: torch.Tensor, activation: str) -> torch.Tensor:
    if activation == "gelu_tanh":
        return torch.nn.functional.gelu(sums, approximate="tanh")
    if activation == "silu":
        return torch.nn.functional.silu(sums)
    if activation == "swiglu":
        gates, through = sums.view(sums.shape[0], -1, 2, 8).unbind(2)
        return (torch.nn.functional.silu(gates) * through).reshape(sums.shape[0], -1)
    return sums

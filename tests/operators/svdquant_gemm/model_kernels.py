"""Kernels in torch that decode by the oracle's tables and sum as told: right ones, and ones wrong in one thing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

from kernel_space.numerics.blocked import blocked_scale_bytes
from kernel_space.operators.svdquant_gemm.inputs import TORCH_DTYPES, PackedInputs
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tests.numerics import nvfp4_oracle as oracle

Tensors = dict[str, torch.Tensor]
Rounding = Callable[[torch.Tensor], torch.Tensor]  # float64 -> float64

E2M1 = torch.tensor([float(oracle.e2m1_value(code)) for code in range(16)], dtype=torch.float64)
E4M3 = torch.tensor([float(value) for value in oracle.E4M3_VALUES], dtype=torch.float64)


def fp32(x: torch.Tensor) -> torch.Tensor:
    return x.float().double()


def truncated_fp32(x: torch.Tensor) -> torch.Tensor:
    nearest = x.float()
    towards_zero = torch.nextafter(nearest, torch.zeros_like(nearest))
    return torch.where(nearest.double().abs() > x.abs(), towards_zero, nearest).double()


def ten_bits(x: torch.Tensor) -> torch.Tensor:
    """fp32 cut to the mantissa of tf32."""
    return (x.float().view(torch.int32) & ~0x1FFF).view(torch.float32).double()


def fp16(x: torch.Tensor) -> torch.Tensor:
    return (
        x * 2.0**-6
    ).half().double() * 2.0**6  # no range is lost, as in a kernel that means to get away with it


def bf16(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16().double()


def to_output(z: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return z.to(dtype)


def saturating(z: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    largest = torch.finfo(dtype).max
    return z.clamp(-largest, largest).to(dtype)


def without_subnormals(z: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.where(z.abs() < torch.finfo(dtype).smallest_normal, 0.0, z).to(dtype)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """``scales``, ``codes``: the tables it decodes by. ``step``: products between two roundings of the sum; ``sums``:
    that rounding; ``splits`` parts of the sum, each rounded by ``partials``; ``lora_first``: its products come before
    the others; ``backwards``: those of K from the end.
    """

    scales: torch.Tensor = dataclasses.field(default_factory=E4M3.clone)
    codes: torch.Tensor = dataclasses.field(default_factory=E2M1.clone)
    step: int = 16
    sums: Rounding = fp32
    splits: int = 1
    partials: Rounding = fp32
    lora_first: bool = False
    backwards: bool = False
    output: Callable[[torch.Tensor, torch.dtype], torch.Tensor] = to_output

    def __call__(self, inputs: PackedInputs, out_dtype: torch.dtype) -> torch.Tensor:
        """``[M, N]`` in ``out_dtype``."""
        a, b = self._decoded(inputs.act, inputs.ascales), self._decoded(inputs.wgt, inputs.wscales)
        steps = [(a[:, k : k + self.step], b[:, k : k + self.step]) for k in range(0, inputs.k, self.step)]
        if self.backwards:
            steps.reverse()
        d, u = inputs.lora_act_in.double(), inputs.lora_up.double()
        lora = [(d[:, r : r + 16], u[:, r : r + 16]) for r in range(0, inputs.r, 16)]
        steps = lora + steps if self.lora_first else steps + lora
        total = torch.zeros(inputs.m, inputs.n, dtype=torch.float64)
        for part in range(self.splits):
            own = torch.zeros_like(total)
            for left, right in steps[
                part * len(steps) // self.splits : (part + 1) * len(steps) // self.splits
            ]:
                own = self.sums(own + left @ right.T)
            total = fp32(total + self.partials(own))
        return self.output(total.float() * inputs.wcscale + inputs.bias, out_dtype)

    def _decoded(self, codes: torch.Tensor, blocked: torch.Tensor) -> torch.Tensor:
        rows, k = codes.shape[0], 2 * codes.shape[1]
        row, group = torch.arange(rows).view(-1, 1), torch.arange(k // 16)
        block = row // 128 * -(-k // 64) + group // 4
        places = block * 512 + row % 32 * 16 + row % 128 // 32 * 4 + group % 4
        nibbles = torch.stack([codes & 15, codes >> 4], dim=2).view(rows, k)
        return self.codes[nibbles.long()] * self.scales[blocked[places].long()].repeat_interleave(16, dim=1)


def shaped(tensors: Tensors, problem: GemmProblem) -> PackedInputs:
    """``PackedInputs`` of the bytes that a launch is given."""
    m, k, n, r = problem.m, problem.k, problem.n, problem.r
    lora = TORCH_DTYPES[problem.lora_dtype]
    shapes = {
        "act": (torch.uint8, (m, k // 2)),
        "ascales": (torch.uint8, (blocked_scale_bytes(m, k),)),
        "wgt": (torch.uint8, (n, k // 2)),
        "wscales": (torch.uint8, (blocked_scale_bytes(n, k),)),
        "lora_act_in": (lora, (m, r)),
        "lora_up": (lora, (n, r)),
        "wcscale": (torch.float32, (n,)),
        "bias": (torch.float32, (n,)),
    }
    return PackedInputs(
        **{
            name: tensors[name].contiguous().view(-1).view(torch.uint8).view(dtype).view(shape)
            for name, (dtype, shape) in shapes.items()
        }
    )


def with_entry(table: torch.Tensor, index: int | slice, value: float) -> torch.Tensor:
    table = table.clone()
    table[index] = value
    return table


RIGHT = {
    "rounding": Model(),
    "truncating": Model(sums=truncated_fp32),
    "truncating, LoRA first": Model(sums=truncated_fp32, lora_first=True),
    "backwards": Model(backwards=True),
    "one rounding in 64": Model(step=64),
    "three parts": Model(splits=3, sums=truncated_fp32),
}
WRONG_SCALES = {
    "flushes subnormal scales": Model(scales=with_entry(E4M3, slice(1, 8), 0.0)),
    "flushes the least scale": Model(scales=with_entry(E4M3, 1, 0.0)),
    "clips at 3.5": Model(scales=E4M3.clamp(max=3.5)),
    "clips at 240": Model(scales=E4M3.clamp(max=240)),
    "takes 0x7E for infinity's neighbour": Model(scales=with_entry(E4M3, 0x7E, 480.0)),
    "takes a zero scale for the least": Model(scales=with_entry(E4M3, 0, 2.0**-9)),
    "takes a zero scale for one": Model(scales=with_entry(E4M3, 0, 1.0)),
    "takes code 8 for a number": Model(codes=with_entry(E2M1, 8, -0.25)),
    "drops the sign of 0.5": Model(codes=with_entry(E2M1, 9, 0.5)),
    "saturates": Model(output=saturating),
}
NARROW_SUMS = {
    "fp16 between k-tiles": Model(step=128, sums=fp16),
    "bf16 between k-tiles": Model(step=128, sums=bf16),
    "ten bits": Model(sums=ten_bits),
    "bf16 parts of split-K": Model(splits=2, partials=bf16),
}

"""What else computes the layer on a card. What a peer takes is made from the operands beforehand:

| peer | what is timed |
|---|---|
| ``cuBLAS bf16 GEMM alone`` | ``x @ w.T``, both expanded to bf16; neither LoRA, scale nor bias |
| ``eager, expanded to bf16`` | the whole operator in torch |
| ``torch.compile, expanded to bf16`` | the same, compiled by Inductor |
| ``dequantize then cuBLAS, compiled`` | packed operands (scale factors in plain rows), expanded in the compiled graph |
| ``FP8 scaled_mm alone`` | ``torch._scaled_mm`` on E4M3 roundings of both: other numerics; no LoRA, scale, bias |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from kernel_space.core.on_card import Call, Peer
from kernel_space.numerics.activation import activated
from kernel_space.numerics.nvfp4 import NVFP4Tensor, dequantize_nvfp4, unblock_scales
from kernel_space.operators.svdquant_gemm.problem import GemmProblem

CUBLAS, EAGER, COMPILED = (
    "cuBLAS bf16 GEMM alone",
    "eager, expanded to bf16",
    "torch.compile, expanded to bf16",
)
DEQUANT, FP8 = "dequantize then cuBLAS, compiled", "FP8 scaled_mm alone"
BF16_WORST, FP8_WORST = 0.02, 0.1  # relative error of the whole output; E4M3 keeps 4 bits
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)

Function = Callable[..., torch.Tensor]
Tensors = Mapping[str, torch.Tensor]
Taken = Callable[[GemmProblem, Tensors], tuple[torch.Tensor, ...]]


def peers(problem: GemmProblem, compiler: Callable[[Function], Function]) -> list[Peer]:
    """All but this project's kernel. ``compiler``: ``torch.compile``; tests leave functions as they are."""
    layer = _activating(_layer if problem.r else _layer_without_lora, problem.activation)
    alone = "neither LoRA, scale nor bias"
    return [
        _peer(CUBLAS, f"x @ w.T, both expanded to bf16; {alone}", _gemm, _expanded_pair, _product),
        _peer(EAGER, "the whole operator in torch", layer, _expanded, _whole),
        _peer(COMPILED, "the whole operator, compiled by Inductor", compiler(layer), _expanded, _whole),
        _peer(
            DEQUANT,
            "packed operands, expanded in the compiled graph",
            compiler(_dequantizing(layer)),
            _packed,
            _whole,
        ),
        _peer(
            FP8,
            f"torch._scaled_mm on E4M3 roundings of both; {alone}",
            _scaled_mm,
            _fp8_pair,
            _product,
            worst=FP8_WORST,
        ),
    ]


def _peer(
    name: str,
    what: str,
    function: Function,
    taken: Taken,
    expected: Callable[..., torch.Tensor],
    **more: float,
) -> Peer:
    def build(problem: GemmProblem, tensors: Tensors) -> Call:
        return Call(function=function, inputs=taken(problem, tensors))

    return Peer(name=name, what=what, build=build, expected=expected, **{"worst": BF16_WORST, **more})


# -- what is timed


def _gemm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x @ w.T


def _layer(
    x: torch.Tensor, w: torch.Tensor, la: torch.Tensor, lu: torch.Tensor, wc: torch.Tensor, b: torch.Tensor
) -> torch.Tensor:
    return (x @ w.T + la @ lu.T) * wc + b


def _layer_without_lora(x: torch.Tensor, w: torch.Tensor, wc: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (x @ w.T) * wc + b


def _activating(layer: Function, activation: str) -> Function:
    return layer if activation == "none" else lambda *operands: activated(layer(*operands), activation)


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


# -- what it must give: float32 products of the exact operands


def _product(problem: GemmProblem, tensors: Tensors) -> torch.Tensor:
    x, w = _expand(problem, tensors, torch.float32)
    return x @ w.T


def _whole(problem: GemmProblem, tensors: Tensors) -> torch.Tensor:
    lora = tensors["lora_act_in"].float() @ tensors["lora_up"].float().T
    whole = (_product(problem, tensors) + lora) * tensors["wcscale"] + tensors["bias"]
    return activated(whole, problem.activation)


# -- what it takes


def _scales(problem: GemmProblem, tensors: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    """E4M3 ``[M, K/16]`` and ``[N, K/16]``."""
    return (
        unblock_scales(tensors["ascales"], problem.m, problem.k).contiguous(),
        unblock_scales(tensors["wscales"], problem.n, problem.k).contiguous(),
    )


def _expand(problem: GemmProblem, tensors: Tensors, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """act ``[M, K]`` and wgt ``[N, K]``: exact in bf16 too (6 significant bits)."""
    ascales, wscales = _scales(problem, tensors)
    act = dequantize_nvfp4(NVFP4Tensor(codes=tensors["act"], scales=ascales))
    wgt = dequantize_nvfp4(NVFP4Tensor(codes=tensors["wgt"], scales=wscales))
    return act.to(dtype), wgt.to(dtype)


def _expanded_pair(problem: GemmProblem, tensors: Tensors) -> tuple[torch.Tensor, ...]:
    return _expand(problem, tensors, torch.bfloat16)


def _rest(problem: GemmProblem, tensors: Tensors) -> tuple[torch.Tensor, ...]:
    lora = ("lora_act_in", "lora_up") if problem.r else ()
    return tuple(tensors[name].bfloat16() for name in (*lora, "wcscale", "bias"))


def _expanded(problem: GemmProblem, tensors: Tensors) -> tuple[torch.Tensor, ...]:
    return (*_expanded_pair(problem, tensors), *_rest(problem, tensors))


def _packed(problem: GemmProblem, tensors: Tensors) -> tuple[torch.Tensor, ...]:
    table = torch.tensor(
        [*_E2M1, *(-value for value in _E2M1)], dtype=torch.bfloat16, device=tensors["act"].device
    )
    ascales, wscales = _scales(problem, tensors)
    return (tensors["act"], ascales, tensors["wgt"], wscales, table, *_rest(problem, tensors))


def _fp8_pair(problem: GemmProblem, tensors: Tensors) -> tuple[torch.Tensor, ...]:
    """Both rounded to E4M3 with one scale each, so that the largest magnitude is E4M3's."""
    parts = []
    scales = []
    for tensor in _expand(problem, tensors, torch.float32):
        scale = tensor.abs().max() / torch.finfo(torch.float8_e4m3fn).max
        parts.append((tensor / scale).to(torch.float8_e4m3fn))
        scales.append(scale)
    return (*parts, *scales)

"""flash-attention's CuTe kernels through their public functions, against attention in float64."""

from __future__ import annotations

import math
import sys
import types
from pathlib import Path
from typing import Any

import torch

from benchmarks.foreign.case import Case
from benchmarks.foreign.quack_kernels import without_triton


def forward(
    dtype: str, batch: str, queries: str, keys: str, heads: str, kv_heads: str, size: str, *flags: str
) -> None:
    q, k, v = _operands(dtype, *map(int, (batch, queries, keys, heads, kv_heads, size)))
    out, lse, *_ = _interface()._flash_attn_fwd(q, k, v, causal="causal" in flags, return_lse=True)
    expected, expected_lse = attention(q, k, v, causal="causal" in flags)
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=4e-3 if dtype == "float16" else 3e-2)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=0, atol=1e-3)


def backward(
    dtype: str, batch: str, queries: str, keys: str, heads: str, kv_heads: str, size: str, *flags: str
) -> None:
    """Preprocessing, the kernel itself and the conversion of its float32 sums, against float64's own gradients."""
    q, k, v = _operands(dtype, *map(int, (batch, queries, keys, heads, kv_heads, size)))
    dout = _normal(dtype, int(batch), int(queries), int(heads), int(size), seed=3)
    wide = [x.cpu().double().requires_grad_() for x in (q, k, v)]
    out, lse = attention(*wide, causal="causal" in flags)
    gradients = torch.autograd.grad(out, wide, dout.double().cuda())
    got = _interface()._flash_attn_bwd(
        q, k, v, out.detach().to(q.dtype), dout, lse.detach().float(),
        causal="causal" in flags, deterministic="deterministic" in flags,
    )  # fmt: skip
    for one, expected in zip(got, gradients, strict=True):
        bound = (4e-3 if dtype == "float16" else 3e-2) * max(1.0, float(expected.abs().max()))
        torch.testing.assert_close(one.double(), expected.cuda(), rtol=0, atol=bound)


def backward_preprocess(dtype: str, batch: str, queries: str, heads: str, size: str) -> None:
    """``dpsum = rowsum(out * dout)``, ``lse_log2 = lse * log2 e``, and the accumulator of dQ is zero."""
    import cutlass

    b, s, h, d = map(int, (batch, queries, heads, size))
    padded = -(-s // 128) * 128
    out, dout = _normal(dtype, b, s, h, d), _normal(dtype, b, s, h, d)
    lse = _normal("float32", b, h, s)
    dpsum, lse_log2 = (torch.empty(b, h, padded, dtype=torch.float32, device="cuda") for _ in range(2))
    dq_accum = torch.empty(b, h, padded * d, dtype=torch.float32, device="cuda")
    _interface()._bwd_preprocess(
        out, dout, dpsum, lse, lse_log2, dq_accum, None, None, None,
        cutlass.Float16 if dtype == "float16" else cutlass.BFloat16, d, d, 128, fake_mode=False,
    )  # fmt: skip
    expected = (out.double() * dout.double()).sum(-1).transpose(1, 2)
    torch.testing.assert_close(dpsum[..., :s].double(), expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(
        lse_log2[..., :s].double(), lse.double() * math.log2(math.e), rtol=0, atol=1e-5
    )
    torch.testing.assert_close(dq_accum, torch.zeros_like(dq_accum), rtol=0, atol=0)


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out [B,S,H,D], log-sum-exp [B,H,S]) in float64; the causal mask is aligned at the bottom right."""
    group = q.shape[2] // k.shape[2]
    wide = [
        x.double().transpose(1, 2) for x in (q, k.repeat_interleave(group, 2), v.repeat_interleave(group, 2))
    ]
    scores = wide[0] @ wide[1].mT / math.sqrt(q.shape[-1])
    if causal:
        rows, columns = scores.shape[-2:]
        hidden = torch.ones(rows, columns, dtype=torch.bool).triu(1 + columns - rows)
        scores = scores.cpu().masked_fill(hidden, -math.inf)
        wide[2] = wide[2].cpu()
    return (torch.softmax(scores, -1) @ wide[2]).transpose(1, 2).cpu().cuda(), torch.logsumexp(
        scores, -1
    ).cpu().cuda()


def _interface() -> Any:
    """``flash_attn.cute.interface``, without the package above it, which wants an extension in C++."""
    without_triton()
    package = types.ModuleType("flash_attn")
    package.__path__ = [
        f"{folder}/flash_attn" for folder in sys.path if Path(folder, "flash_attn/cute").is_dir()
    ]
    sys.modules["flash_attn"] = package
    from flash_attn.cute import interface

    return interface


def _operands(
    dtype: str, batch: int, queries: int, keys: int, heads: int, kv_heads: int, size: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return (
        _normal(dtype, batch, queries, heads, size, seed=2),
        _normal(dtype, batch, keys, kv_heads, size),
        _normal(dtype, batch, keys, kv_heads, size, seed=1),
    )


def _normal(dtype: str, *shape: int, seed: int = 0) -> torch.Tensor:
    torch.manual_seed(sum(shape) + seed)
    return torch.randn(*shape, device="cuda").to(getattr(torch, dtype))


PREPROCESS = "D: threads of one CTA also write the next one's lse_log2, with equal values"
EPILOGUE = "E: the last bulk store of dK and dV is never committed"
REGISTERS = "F: the empty warps execute setmaxnreg twice, the others of their warpgroup once"
SETTLED = {
    "forward head 256": REGISTERS,
    "backward head 256": f"{PREPROCESS}; {REGISTERS}",
    "backward deterministic": PREPROCESS,
    "backward sm_90a deterministic": PREPROCESS,
    "backward preprocess": PREPROCESS,
    "backward preprocess sm_90a": PREPROCESS,
    "backward": f"{PREPROCESS}; {EPILOGUE}",
    "backward ragged causal": f"{PREPROCESS}; {EPILOGUE}",
    "backward sm_90a": PREPROCESS,
}


def _case(name: str, function: str, arguments: str, arch: str = "sm_100a") -> Case:
    return Case(
        name=f"flash-attention {name}",
        arch=arch,
        script=f"flash_kernels:{function}",
        arguments=tuple(arguments.split()),
        corpora=("flash-attention", "quack"),
        settled=SETTLED.get(name, ""),
    )


CASES = [
    _case("backward preprocess", "backward_preprocess", "float16 1 200 2 64"),
    _case("forward", "forward", "float16 1 256 256 1 1 64"),
    _case("forward ragged causal", "forward", "bfloat16 1 200 264 2 1 128 causal"),
    _case("forward 2-CTA", "forward", "float16 1 384 256 1 1 128"),
    _case("forward sm_90a", "forward", "float16 1 136 200 1 1 64", "sm_90a"),
    _case("forward sm_80", "forward", "float16 1 136 200 1 1 64 causal", "sm_80"),
    _case("forward grouped", "forward", "float16 2 40 136 4 1 64"),
    _case("forward head 256", "forward", "float16 1 136 256 1 1 256"),
    _case("forward sm_90a causal", "forward", "bfloat16 1 200 264 2 1 128 causal", "sm_90a"),
    _case("backward deterministic", "backward", "bfloat16 1 200 264 2 1 128 causal deterministic"),
    _case(
        "backward sm_90a deterministic",
        "backward",
        "bfloat16 1 200 264 2 1 128 causal deterministic",
        "sm_90a",
    ),
    _case("backward head 256", "backward", "float16 1 136 256 1 1 256"),
    _case("backward preprocess, one tile", "backward_preprocess", "float16 1 100 2 64"),
    _case("backward", "backward", "float16 1 200 136 1 1 64"),
    _case("backward ragged causal", "backward", "bfloat16 1 200 264 2 1 128 causal"),
    _case("backward sm_90a", "backward", "float16 1 136 200 1 1 64", "sm_90a"),
    _case("backward preprocess sm_90a", "backward_preprocess", "bfloat16 1 136 1 128", "sm_90a"),
]

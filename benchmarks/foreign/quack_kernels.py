"""quack's kernels, called as its users call them, against float64. quack keeps no tests beside its kernels."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types

import torch

from benchmarks.foreign.case import Case

TOLERANCES = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def without_triton() -> None:
    """quack's autotuner derives a class of Triton's when it is imported; nothing here is tuned.

    torch asks for Triton when its own compiler is imported, so that comes first, and the stub does not stay.
    """
    if importlib.util.find_spec("triton") is not None or "quack.autotuner" in sys.modules:
        return
    importlib.import_module("torch._dynamo")
    stub = types.ModuleType("triton")
    vars(stub).update(runtime=types.SimpleNamespace(cache=types.SimpleNamespace(FileCacheManager=object)))
    sys.modules["triton"] = stub
    try:
        importlib.import_module("quack.autotuner")
    finally:
        del sys.modules["triton"]


def softmax(dtype: str, rows: str, columns: str) -> None:
    without_triton()
    from quack.softmax import softmax_bwd, softmax_fwd

    x = _normal(dtype, int(rows), int(columns))
    y = softmax_fwd(x)
    expected = torch.softmax(x.double(), -1)
    _compare(y, expected)
    dy = _normal(dtype, int(rows), int(columns), seed=1)
    product = dy.double() * y.double()
    _compare(softmax_bwd(dy, y), product - y.double() * product.sum(-1, keepdim=True))


def rmsnorm(dtype: str, rows: str, columns: str) -> None:
    without_triton()
    from quack.rmsnorm import rmsnorm_fwd

    x, weight = _normal(dtype, int(rows), int(columns)), _normal("float32", int(columns))
    out, _, rstd = rmsnorm_fwd(x, weight, eps=1e-6, store_rstd=True)
    scale = (x.double().square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    _compare(out, x.double() * scale * weight.double())
    _compare(rstd, scale[:, 0])


def rmsnorm_backward(dtype: str, rows: str, columns: str) -> None:
    without_triton()
    from quack.rmsnorm import rmsnorm_bwd

    x, dout = _normal(dtype, int(rows), int(columns)), _normal(dtype, int(rows), int(columns), seed=1)
    weight = _normal("float32", int(columns))
    scale = (x.double().square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    # With a bias, as without one it calls an operator that torch knows of CUDA alone.
    dx, dw, db, _ = rmsnorm_bwd(x, weight, dout, scale[:, 0].float(), has_bias=True)
    unit, upstream = x.double() * scale, dout.double() * weight.double()
    _compare(dx, scale * (upstream - unit * (unit * upstream).mean(-1, keepdim=True)))
    _compare(dw, (dout.double() * unit).sum(0))
    _compare(db, dout.double().sum(0))


def layernorm(dtype: str, rows: str, columns: str) -> None:
    without_triton()
    from quack.rmsnorm import layernorm_fwd

    x = _normal(dtype, int(rows), int(columns))
    weight, bias = _normal("float32", int(columns)), _normal("float32", int(columns), seed=1)
    out, rstd, mean = layernorm_fwd(x, weight, bias, return_rstd=True, return_mean=True)
    wide = x.double()
    _compare(out, torch.nn.functional.layer_norm(wide, (int(columns),), weight.double(), bias.double(), 1e-6))
    _compare(mean, wide.mean(-1))
    _compare(rstd, (wide.var(-1, correction=0) + 1e-6).rsqrt())


def layernorm_backward(dtype: str, rows: str, columns: str) -> None:
    without_triton()
    from quack.rmsnorm import layernorm_bwd

    x, dout = _normal(dtype, int(rows), int(columns)), _normal(dtype, int(rows), int(columns), seed=1)
    weight = _normal("float32", int(columns))
    mean = x.double().mean(-1, keepdim=True)
    scale = (x.double().var(-1, correction=0, keepdim=True) + 1e-6).rsqrt()
    dx, dw, db = layernorm_bwd(x, weight, dout, scale[:, 0].float(), mean[:, 0].float())
    unit, upstream = (x.double() - mean) * scale, dout.double() * weight.double()
    across = unit * (unit * upstream).mean(-1, keepdim=True)
    _compare(dx, scale * (upstream - upstream.mean(-1, keepdim=True) - across))
    _compare(dw, (dout.double() * unit).sum(0))
    _compare(db, dout.double().sum(0))


def cross_entropy(dtype: str, rows: str, columns: str) -> None:
    without_triton()
    from quack.cross_entropy import cross_entropy_bwd, cross_entropy_fwd

    x = _normal(dtype, int(rows), int(columns))
    target = torch.randint(0, int(columns), (int(rows),), device="cuda")
    loss, lse = cross_entropy_fwd(x, target, return_lse=True)
    _compare(lse, torch.logsumexp(x.double(), -1))
    _compare(loss, torch.nn.functional.cross_entropy(x.double(), target, reduction="none"))
    dloss = _normal("float32", int(rows))
    one_hot = torch.nn.functional.one_hot(target, int(columns)).double()
    _compare(
        cross_entropy_bwd(x, target, dloss, lse),
        (torch.softmax(x.double(), -1) - one_hot) * dloss.double()[:, None],
    )


def gemm(dtype: str, m: str, n: str, k: str) -> None:
    without_triton()
    from quack.gemm_interface import gemm as quack_gemm

    a, b = _small_integers(dtype, int(m), int(k)), _small_integers(dtype, int(n), int(k), seed=1)
    _compare(quack_gemm(a, b.mT, tuned=False), a.double() @ b.double().mT)


def _normal(dtype: str, *shape: int, seed: int = 0) -> torch.Tensor:
    torch.manual_seed(sum(shape) + seed)
    return torch.randn(*shape, device="cuda").to(getattr(torch, dtype))


def _small_integers(dtype: str, *shape: int, seed: int = 0) -> torch.Tensor:
    """Products of these sum exactly in float32, so an element in the wrong place shows."""
    torch.manual_seed(sum(shape) + seed)
    return torch.randint(-3, 4, shape, device="cuda").to(getattr(torch, dtype))


def _compare(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Within the rounding of the output's type, relative to the largest element."""
    expected = expected.to(torch.float64)
    bound = TOLERANCES[got.dtype] * max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(got.double(), expected, rtol=0, atol=bound)


def _case(name: str, arguments: str, arch: str = "sm_100a") -> Case:
    return Case(
        name=f"quack {name}",
        arch=arch,
        script=f"quack_kernels:{name.split()[0]}",
        arguments=tuple(arguments.split()),
        corpora=("quack",),
    )


CASES = [
    _case("softmax", "float32 5 256"),
    _case("softmax ragged", "float16 3 1000"),
    _case("softmax sm_90a", "float32 3 252", "sm_90a"),
    _case("softmax wide", "float32 1 40000"),
    _case("rmsnorm", "float16 5 256"),
    _case("rmsnorm ragged", "float32 3 250"),
    _case("rmsnorm wide", "float32 1 33000"),
    _case("rmsnorm_backward", "float16 5 256"),
    _case("rmsnorm_backward wide", "float32 2 16392"),
    _case("layernorm", "float16 5 256"),
    _case("layernorm ragged", "float32 3 1000"),
    _case("layernorm wide", "float32 1 33000"),
    _case("layernorm_backward ragged", "float16 5 1000"),
    _case("cross_entropy", "float32 5 256"),
    _case("cross_entropy ragged", "float16 3 1000"),
    _case("cross_entropy wide", "float16 1 40000"),
    _case("gemm", "float16 256 256 128"),
    _case("gemm ragged", "bfloat16 200 136 72"),
    _case("gemm sm_90a", "float16 136 264 72", "sm_90a"),
]

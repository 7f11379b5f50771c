"""The W4A4 linear layer of SVDQuant as an operator. See docs/operator.md."""

from __future__ import annotations

from kernel_space.core.operator import Deferred, Operator, Work
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.ragged import ragged
from kernel_space.operators.svdquant_gemm.signature import SIGNATURE

_PACKAGE = "kernel_space.operators.svdquant_gemm"
_CHUNK_ROWS = 2048  # of the oracle on a card: float64 [2048, 15360] is 250 MB


def work(problem: GemmProblem) -> Work:
    """Multiply-adds of both GEMMs, two operations each."""
    area = 2 * problem.m * problem.n
    return Work(operations={"nvfp4": area * problem.k, problem.lora_dtype: area * problem.r})


def check_bytes(problem: GemmProblem) -> int:
    """Weights twice in fp32 and an index of theirs, and some float64 matrices of a chunk of rows."""
    rows = min(problem.m, _CHUNK_ROWS)
    return 16 * problem.n * problem.k + 12 * rows * problem.k + 20 * 8 * rows * problem.n


OPERATOR = Operator(
    name=GemmProblem.operator,
    formula="y = activation((scaled_mma(act, wgt) + lora_act_in @ lora_up.T) * wcscale + bias)",
    problem=GemmProblem,
    signature=SIGNATURE,
    kernels=("sm100a", "sm90a_ring", "sm90a_expand", "sm90a_small_m"),
    inputs=Deferred(f"{_PACKAGE}.operands:make_inputs"),
    check=Deferred(f"{_PACKAGE}.operands:check_outputs"),
    work=work,
    sources=("gaussian", "scales"),
    ragged=ragged,
    check_bytes=check_bytes,
    weights=("wgt", "wscales", "lora_up", "wcscale", "bias"),
    chain=Deferred(f"{_PACKAGE}.on_card.chain:chain"),
    peers=f"{_PACKAGE}.on_card.peers",
    runtime=f"{_PACKAGE}.runtime",
)

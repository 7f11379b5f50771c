"""An operator outside of the project with two outputs, one of them whole numbers, both right to the bit.

    y[i, j] = 2 x[i, j]        count[i] = how many x[i, j] are positive

x is fp16 [M, K], y fp16 [M, K], count int32 [M]; K is even.
"""

from __future__ import annotations

import dataclasses

from kernel_space.core.config import KernelConfig
from kernel_space.core.operator import Deferred, Operator, Work
from kernel_space.core.problem import Problem, size
from kernel_space.core.signature import In, Out, Signature, Size, Stream


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowstatsProblem(Problem, operator="rowstats", example="256,1024"):
    """``m`` rows of ``k`` elements."""

    m: int = size(batch=True)
    k: int = size(multiple=2)


SIGNATURE = Signature(
    In("x", "fp16", lambda problem: (problem.m, problem.k)),
    Out("y", "fp16", lambda problem: (problem.m, problem.k)),
    Out("count", "int32", lambda problem: (problem.m,)),
    Size("m"),
    Size("k"),
    Stream(),
)


def ragged(config: KernelConfig, problem: RowstatsProblem) -> list[RowstatsProblem]:
    """Rows that do not fill the last CTA, and rows shorter than one turn of a warp."""
    return [
        dataclasses.replace(problem, m=2 * config.rows + 1, k=3 * 32 * config.vec + 2 * config.vec),
        dataclasses.replace(problem, m=1, k=2 * config.vec),
    ]


OPERATOR = Operator(
    name="rowstats",
    formula="y = 2 x, count = positive elements of each row",
    problem=RowstatsProblem,
    signature=SIGNATURE,
    kernels=("rows",),
    inputs=Deferred(f"{__package__}.oracle:inputs"),
    check=Deferred(f"{__package__}.oracle:check"),
    work=lambda problem: Work(operations={"fp32": 2 * problem.m * problem.k}),
    ragged=ragged,
)

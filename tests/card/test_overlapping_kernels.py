"""The kernels whose launches overlap on a card (``tests/gpu/test_chains_gpu.py``) are right one at a time: they run in
the machine here, against float64, on operands with every scale factor.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernel_space.build.dsl_compile import compile_function
from kernel_space.build.dsl_env import import_dsl
from kernel_space.core.arch import SM90A
from kernel_space.machine.run.launch import Exported
from kernel_space.machine.run.run import run_compiled
from kernel_space.operators.svdquant_gemm.operands import make_operands
from kernel_space.operators.svdquant_gemm.problem import GemmProblem

PROBLEM = GemmProblem.parse("24,96,16,0")


@pytest.mark.parametrize("way", ["waits", "reads_early", "never_waits", "shares_workspace"])
def test_alone_each_is_right(way: str, tmp_path: Path) -> None:
    import_dsl(SM90A.name)
    from kernel_space.operators.svdquant_gemm.signature import SIGNATURE
    from tests.kernels import overlapping

    assert way in overlapping.WAYS
    function, arguments = overlapping.host_function(way, PROBLEM.problem_class, SM90A)
    _, made = compile_function(function, arguments, {}, arch=SM90A.name, prefix="overlap")
    waits, releases = (made.ptx.count(f"griddepcontrol.{word};") for word in ("wait", "launch_dependents"))
    assert (waits, releases) == (0 if way == "never_waits" else 1, 1)
    path = tmp_path / "overlap.o"
    path.write_bytes(made.object_code)
    operands = make_operands(PROBLEM, seed=1, source="scales")
    workspace = torch.zeros(PROBLEM.m * PROBLEM.n)
    result = run_compiled(
        Exported(made.ptx, path, made.prefix, SIGNATURE.abi),
        *operands.tensors().values(), workspace, PROBLEM.m, PROBLEM.n, PROBLEM.k, 1,
    )  # fmt: skip
    assert result.ok, str(result)
    check = operands.check()
    assert check.ok, str(check)

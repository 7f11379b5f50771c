"""The kernels by which the card's check of two outputs is tested (``tests/gpu/test_rows_gpu.py``) are right or wrong as
their names say: they run in the machine here, one launch at a time, and the operator's own oracle judges.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernel_space.build.dsl_compile import compile_function
from kernel_space.build.dsl_env import import_dsl
from kernel_space.core.arch import SM90A
from kernel_space.core.registry import operator
from kernel_space.machine.run.launch import Exported
from kernel_space.machine.run.run import run_compiled

ROWSTATS = operator("rowstats")
PROBLEM = ROWSTATS.problem.parse("40,6")
WRONG = {"counts_zeros": "count", "leaves_column": "y", "counts_on": "count"}  # the output that is wrong


@pytest.mark.parametrize("way", ["right", "reads_early", *WRONG])
def test_alone_each_is_as_its_name_says(way: str, tmp_path: Path) -> None:
    import_dsl(SM90A.name)
    from tests.kernels import wrong_rows

    assert way in wrong_rows.WAYS
    function, arguments = wrong_rows.host_function(way)
    _, made = compile_function(function, arguments, {}, arch=SM90A.name, prefix="rows")
    assert made.ptx.count("griddepcontrol") == (2 if way == "reads_early" else 0)
    path = tmp_path / "rows.o"
    path.write_bytes(made.object_code)
    x = ROWSTATS.inputs(PROBLEM, 1, "plain", "cpu")["x"]
    y, count = torch.full_like(x, 7.0), torch.full((PROBLEM.m,), 7, dtype=torch.int32)
    result = run_compiled(
        Exported(made.ptx, path, made.prefix, ROWSTATS.signature.abi), x, y, count, PROBLEM.m, PROBLEM.k
    )
    assert result.ok, str(result)
    checks = ROWSTATS.check(PROBLEM, {"x": x, "y": y, "count": count}, None)
    wrong = [name for name, check in checks.items() if not check.ok]
    assert wrong == ([WRONG[way]] if way in WRONG else [])

"""A compiled kernel whose last vectors are ragged: it reads what it never wrote, and discards what it makes of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernel_space.build.dsl_compile import CompiledFunction, compile_for_capture
from kernel_space.machine.run.run import SimResult, run_compiled
from kernel_space.machine.values.faults import SimStatus

COUNT = (
    203  # the last of two blocks has 75 elements: 18 whole vectors, 3 of the next, and 13 lanes without any
)


def tensor(values: torch.Tensor) -> Any:
    from cutlass.cute.runtime import from_dlpack

    return from_dlpack(values).mark_layout_dynamic()


@pytest.fixture(scope="module", params=[False, True], ids=["registers", "shared"])
def compiled(request: pytest.FixtureRequest) -> CompiledFunction:
    from tests.kernels.ragged import doubled

    x = tensor(torch.zeros(COUNT))
    return compile_for_capture(doubled, x, x, COUNT, request.param)


def run(compiled: CompiledFunction, ptx: str | None = None) -> tuple[SimResult, torch.Tensor, torch.Tensor]:
    x, y = torch.arange(COUNT, dtype=torch.float32), torch.zeros(COUNT)
    return run_compiled(compiled.dsl_function, tensor(x), tensor(y), COUNT, ptx=ptx), x, y


def test_ragged_vectors_are_let_pass(compiled: CompiledFunction) -> None:
    result, x, y = run(compiled)
    assert result.ok, str(result)
    assert torch.equal(y, 2 * x)


def test_a_load_that_is_left_out_is_found(compiled: CompiledFunction) -> None:
    """No lane loads the last element of its vector: 50 of the 203 elements have an index of 4 i + 3."""
    before, guard, after = _at_last_load(compiled.ptx)
    assert guard.strip().startswith("@%p") and " bra" in guard.replace("\t", " ")
    result, x, y = run(compiled, before + guard[guard.index("bra") :] + after)
    assert result.status is SimStatus.ILLEGAL_ACCESS
    text = result.findings[0].text
    assert "holds 200 undefined bytes at the end of the launch, the first at byte 12\n" in text
    assert "born as " in text and ", never written; first read by warp0" in text and "stored by warp0" in text
    assert torch.equal(y[0::4], 2 * x[0::4])


def _at_last_load(ptx: str) -> tuple[str, str, str]:
    """(text before it, the branch around the fourth load of global memory, text behind it)."""
    at = -1
    for _ in range(4):
        at = ptx.index("ld.global", at + 1)
    begin = ptx.rindex("@%p", 0, at)
    end = ptx.index("\n", begin)
    return ptx[:begin], ptx[begin:end], ptx[end:]

"""What a ``wgmma`` holds until it is waited for, and what must be fenced before it. PTX ISA, "wgmma.fence" and
"wgmma.wait_group"."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernel_space.core.arch import SM90A
from kernel_space.machine.run.launch import Exported
from kernel_space.machine.run.run import SimResult, run_compiled
from kernel_space.machine.values.faults import SimStatus
from kernel_space.operators.svdquant_gemm.operands import make_operands
from kernel_space.operators.svdquant_gemm.signature import SIGNATURE
from kernel_space.operators.svdquant_gemm.workspace import workspace_bytes
from tests.compiled_cases import compile_case
from tests.machine.ptx import run_body
from tests.machine.test_setmaxnreg import KERNELS, case

# 8 columns x 64 K elements of f16, swizzle of 128 bytes, in the first KB of shared memory, 8 more in the second.
START = """
setp.eq.u32 %p1, 0, 0;
mov.u32 %r1, %tid.x;
mov.u64 %d1, 0x4000004000000040;
mov.u32 %r3, smem;
mad.lo.u32 %r2, %r1, 8, %r3;
st.shared.v2.u32 [%r2], {%r1, %r1}; st.shared.v2.u32 [%r2+1024], {%r1, %r1};
fence.proxy.async.shared::cta;
bar.sync 0;
add.u32 %r10, %r1, 0; add.u32 %r11, %r1, 1; add.u32 %r12, %r1, 2; add.u32 %r13, %r1, 3;
add.u32 %r14, %r1, 0; add.u32 %r15, %r1, 1; add.u32 %r16, %r1, 2; add.u32 %r17, %r1, 3;
add.u32 %r20, %r1, 4; add.u32 %r21, %r1, 5; add.u32 %r22, %r1, 6; add.u32 %r23, %r1, 7;
"""
FENCE, COMMIT = "wgmma.fence.sync.aligned;\n", "wgmma.commit_group.sync.aligned;\n"
WAIT, WAIT_1 = "wgmma.wait_group.sync.aligned 0;\n", "wgmma.wait_group.sync.aligned 1;\n"
A = "{%r20, %r21, %r22, %r23}, %d1, %p1, 1, 1, 0;\n"
WGMMA = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%r10, %r11, %r12, %r13}, " + A
OTHER = WGMMA.replace("r10, %r11, %r12, %r13", "r14, %r15, %r16, %r17")
WIDER = (
    "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%r10, %r11, %r12, %r13, %r14, %r15, %r16, %r17}, "
    + A
)
READ, WRITE = "add.u32 %r30, %r10, 1;\n", "add.u32 %r12, %r1, 1;\n"
READ_OTHER = "add.u32 %r30, %r14, 1;\n"
READ_A, WRITE_A = "add.u32 %r30, %r20, 1;\n", "add.u32 %r22, %r1, 1;\n"
OVERWRITE = "st.shared.v2.u32 [%r2], {%r1, %r1};\n"


def run(*lines: str, races: bool = True) -> SimResult:
    return run_body(START + "".join(lines), params="", block=(128, 1, 1), smem_bytes=2048, check_races=races)


@pytest.mark.parametrize(
    "lines",
    [
        (FENCE, WGMMA, COMMIT, WAIT, READ, WRITE, READ_A, WRITE_A),
        (FENCE, WGMMA, WGMMA, COMMIT, WAIT, READ),  # of the same shape, on the same sums
        (FENCE, WGMMA, COMMIT, WGMMA, COMMIT, WAIT, READ),
        (FENCE, WGMMA, COMMIT, OTHER, COMMIT, WAIT_1, READ, WAIT, READ_OTHER),
        (FENCE, WGMMA, COMMIT, READ_A, WAIT, READ),
        (FENCE, WGMMA, COMMIT, WAIT, READ, WRITE_A, FENCE, WGMMA, COMMIT, WAIT, READ),
        (FENCE, WGMMA, COMMIT, WAIT, FENCE, WIDER, COMMIT, WAIT, READ),
        (FENCE, WGMMA, COMMIT, WAIT, "bar.sync 0;\n", OVERWRITE),
    ],
)
def test_in_order(lines: tuple[str, ...]) -> None:
    result = run(*lines)
    assert result.ok, str(result)


@pytest.mark.parametrize("races", [True, False])
@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ((WGMMA, COMMIT, WAIT), "wgmma.mma_async without a wgmma.fence"),
        ((FENCE, WRITE_A, WGMMA, COMMIT, WAIT), "without a wgmma.fence behind the last access to %r22"),
        ((FENCE, WGMMA, COMMIT, WAIT, READ, WGMMA), "without a wgmma.fence behind the last access to %r10"),
        (
            (FENCE, WGMMA, COMMIT, READ),
            "%r10 is read, and no wgmma.wait_group covers the wgmma of PTX line 25",
        ),
        ((FENCE, WGMMA, COMMIT, WRITE), "%r12 is written"),
        ((FENCE, WGMMA, COMMIT, WRITE_A), "%r22 is written"),
        ((FENCE, WGMMA, COMMIT, WAIT_1, READ), "%r10 is read"),
        ((FENCE, WGMMA, COMMIT, FENCE, READ), "%r10 is read"),  # a fence is no wait
        ((FENCE, WGMMA, WAIT, READ), "%r10 is read"),  # never committed
        ((FENCE, WGMMA, COMMIT, OTHER, COMMIT, WAIT_1, READ_OTHER), "%r14 is read"),
        ((FENCE, WGMMA, COMMIT, WIDER), "%r10 is used by a wgmma of another shape, m64n16k16"),
        ((FENCE, WGMMA, COMMIT, "mov.b32 %r30, %r10;\n"), "%r10 is read"),
    ],
)
def test_out_of_order(lines: tuple[str, ...], words: str, races: bool) -> None:
    result = run(*lines, races=races)
    assert result.status is SimStatus.PROTOCOL_ERROR
    assert words in str(result)


@pytest.mark.parametrize("wait", ["", WAIT_1])
def test_an_operand_that_is_overwritten_before_the_wait(wait: str) -> None:
    """Every warp reads all of it, so that a barrier alone orders nothing."""
    result = run(FENCE, WGMMA, COMMIT, wait, "bar.sync 0;\n", OVERWRITE, WAIT)
    assert result.status is SimStatus.RACE
    assert "st.shared overwrites what wgmma of warp" in str(result)


# ------------------------------------------------------------------ kernels, broken on purpose


def run_kernel(which: int, change: dict[str, str], folder: Path) -> SimResult:
    config, problem = case(*KERNELS[which])
    artifacts = compile_case(config, problem.problem_class, SM90A)
    (folder / "kernel.o").write_bytes(artifacts.object_code)
    exported = Exported(artifacts.ptx, folder / "kernel.o", artifacts.prefix, SIGNATURE.abi)
    ptx = artifacts.ptx
    for old, new in change.items():
        assert old in ptx
        ptx = ptx.replace(old, new)
    workspace = torch.zeros(workspace_bytes(config, problem) + 256, dtype=torch.uint8)
    at = -(-workspace.data_ptr() // 256) * 256
    values = (*make_operands(problem, seed=3).tensors().values(), at, problem.m, problem.n, problem.k, 16)
    return run_compiled(exported, *values, ptx=ptx, memory=[workspace], sms=16)


WAIT_TEXT = "wgmma.wait_group.sync.aligned \t"
BROKEN = [
    ({WAIT_TEXT + "0;": ""}, SimStatus.PROTOCOL_ERROR, "and no wgmma.wait_group covers"),
    ({FENCE.strip(): ""}, SimStatus.PROTOCOL_ERROR, "without a wgmma.fence"),
    ({COMMIT.strip(): ""}, SimStatus.PROTOCOL_ERROR, "and no wgmma.wait_group covers"),
]


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize(("change", "status", "words"), BROKEN)
def test_a_kernel_without_them(
    which: int, change: dict[str, str], status: SimStatus, words: str, tmp_path: Path
) -> None:
    result = run_kernel(which, change, tmp_path)
    assert result.status is status and words in str(result), str(result)


@pytest.mark.parametrize(("which", "depth"), [(0, 1), (1, 2)])
def test_a_kernel_that_waits_for_too_little(which: int, depth: int, tmp_path: Path) -> None:
    """Slots of shared memory are released while groups that read them may be under way."""
    assert run_kernel(which, {}, tmp_path).ok
    result = run_kernel(which, {f"{WAIT_TEXT}{depth};": f"{WAIT_TEXT}60;"}, tmp_path)
    assert result.status in (SimStatus.RACE, SimStatus.PROTOCOL_ERROR)
    assert "overwrites what wgmma of warp" in str(result) or "no wgmma.wait_group covers" in str(result), str(
        result
    )

"""Whatever a program does, the answer is a verdict: bounds of allocations, odd but legal text, waits that sleep, host
code that calls what is not there, and a defect of the machine itself.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from kernel_space.core.errors import InputError
from kernel_space.launch.capture import CaptureRuntime
from kernel_space.launch.loading import HostCallError, UnsupportedCall, load
from kernel_space.machine.run.launch import Exported
from kernel_space.machine.run.run import run_compiled
from kernel_space.machine.values.faults import SimStatus
from tests.machine.ptx import program, run_body

ALLOCATE = """
mov.u32 %r10, smem;
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r10+{at}], 32;
ld.shared.u32 %r3, [%r10];
{odd}
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r3, 32;
"""
ODD = [
    "mov.b64 {_, %r5}, %d7;",
    "mov.b64 {%r5, _}, %d7;",
    "setp.eq.u32 %p5, %r3, 77;\n@%p5 trap;",
    "nanosleep.u32 20;",
    "{ .reg .b32 inner; mov.u32 inner, %r3; }",
    "bra.uni ON;\nON:",
    "prefetch.global.L2 [%d1];",
    "pmevent 1;",
    "mov.u32 %r5, %clock;",
]


def test_an_allocation_past_the_end_of_shared_memory() -> None:
    """64 bytes of dynamic shared memory behind 0x400: the last word is at 60."""
    for at, good in ((0, True), (64, False), (1 << 20, False), (2, False)):
        result = run_body(ALLOCATE.format(at=at, odd=""), np.zeros(1, np.uint32), smem_bytes=64)
        assert result.status is (SimStatus.OK if good else SimStatus.ILLEGAL_ACCESS), str(result)
        assert good or "tcgen05.alloc" in str(result)


@pytest.mark.parametrize("odd", ODD)
def test_odd_text_before_a_deallocation_gets_a_verdict(odd: str) -> None:
    body = "ld.param.u64 %d1, [out];\n" + ALLOCATE.format(at=0, odd=odd)
    result = run_body(body, np.zeros(1, np.uint32), smem_bytes=64)
    assert result.status in (SimStatus.OK, SimStatus.UNSUPPORTED), str(result)
    assert "the machine itself fails" not in str(result)


def test_a_barrier_past_the_end_of_shared_memory() -> None:
    body = "mov.u32 %r10, smem;\nmbarrier.init.shared.b64 [%r10+{}], 1;"
    assert run_body(body.format(56), np.zeros(1, np.uint32), smem_bytes=64).ok
    result = run_body(body.format(64), np.zeros(1, np.uint32), smem_bytes=64)
    assert result.status is SimStatus.ILLEGAL_ACCESS
    assert "mbarrier.init touches shared offsets 0x440..0x448" in str(result)


@pytest.mark.parametrize("smem_bytes", [227 * 1024, 227 * 1024 + 16])
def test_a_launch_with_more_shared_memory_than_a_cta_has(smem_bytes: int) -> None:
    """227 KiB is what compute capability 10.0 allows a block (CUDA programming guide, technical specifications)."""
    result = run_body("", np.zeros(1, np.uint32), smem_bytes=smem_bytes)
    assert result.status is (SimStatus.OK if smem_bytes == 232448 else SimStatus.PROTOCOL_ERROR), str(result)


LOOPS = {
    "test": "L: mbarrier.test_wait.parity.shared.b64 %p3, [%r10], 0;\n@!%p3 bra L;",
    "nap_behind": "L: mbarrier.test_wait.parity.shared.b64 %p3, [%r10], 0;\n@%p3 bra D;\nnanosleep.u32 20;\nbra L;\nD:",
    "nap_before": "L: nanosleep.u32 64;\nmbarrier.test_wait.parity.shared.b64 %p3, [%r10], 0;\n@!%p3 bra L;",
    "try_and_nap": "L: mbarrier.try_wait.parity.shared.b64 %p3, [%r10], 0;\n@%p3 bra D;\nnanosleep.u32 9;\nbra L;\nD:",
}
WAITER = """
mov.u32 %r1, %tid.x;
mov.u32 %r10, smem;
setp.eq.u32 %p1, %r1, 0;
@%p1 mbarrier.init.shared.b64 [%r10], 1;
bar.sync 0;
setp.eq.u32 %p2, %r1, 32;
@%p2 {arrive}
setp.ge.u32 %p4, %r1, 32;
@%p4 bra END;
{loop}
END:
"""


@pytest.mark.parametrize("loop", LOOPS)
def test_loops_that_poll_a_barrier_are_waits(loop: str) -> None:
    """Without the arrival nothing can move: a deadlock that names the barrier, not an exhausted budget."""
    arrive = "mbarrier.arrive.shared.b64 _, [%r10];"
    for text, good in ((arrive, True), ("st.shared.u32 [%r10+32], %r1;", False)):
        body = WAITER.format(arrive=text, loop=LOOPS[loop])
        result = run_body(
            body, np.zeros(1, np.uint32), block=(64, 1, 1), smem_bytes=64, max_instructions=20_000
        )
        assert result.status is (SimStatus.OK if good else SimStatus.DEADLOCK), str(result)
        assert good or "nobody ever arrives on mbar@0x0" in str(result)


def test_a_defect_of_the_machine_is_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise IndexError("list index out of range")

    monkeypatch.setattr("kernel_space.machine.run.machine.Machine.run_warp", broken)
    result = run_body("", np.zeros(1, np.uint32))
    assert result.status is SimStatus.UNSUPPORTED
    assert "the machine itself fails here, please report it: IndexError: list index out of range" in str(
        result
    )


HOST = """
int {function}(int);
void _mlir_kernel_cuda_init(void **args) {{ (void)args; }}
void _mlir_kernel_cuda_load_to_device(void **args) {{ (void)args; }}
void _mlir_kernel__mlir_ciface_run(void **args, int n) {{ *(int *)args[n - 1] = {function}(0); }}
"""


def host_object(folder: Path, function: str, text: str = HOST) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    source, built = folder / "kernel.c", folder / "kernel.o"
    source.write_text(text.format(function=function) if text is HOST else text)
    subprocess.run([compiler, "-c", "-fPIC", "-o", str(built), str(source)], check=True)
    return built


@pytest.mark.parametrize(
    "function", ["cuTensorMapEncodeTiled", "_cuTensorMapEncodeIm2col", "noSuchFunctionAnywhere"]
)
def test_host_code_that_calls_what_is_not_there(function: str, tmp_path: Path) -> None:
    """LLVM would end the process."""
    built = host_object(tmp_path, function)
    with pytest.raises(UnsupportedCall, match=function):
        load(built, "kernel", CaptureRuntime(""))
    result = run_compiled(Exported(program("", ""), built, "kernel", ()))
    assert result.status is SimStatus.UNSUPPORTED
    assert f"the object calls CUDA functions that are not supported: {function}" in str(result)


def test_host_code_may_call_the_c_library(tmp_path: Path) -> None:
    """``abs`` is in every process: the object loads, runs, and launches nothing."""
    built = host_object(tmp_path, "abs")
    with pytest.raises(InputError, match="launched no kernel"):
        run_compiled(Exported(program("", ""), built, "kernel", ()))


def test_host_code_without_a_kernel_is_just_run(tmp_path: Path) -> None:
    """The DSL makes no ``cuda_init`` for it, which would be a call of address 0."""
    lines = HOST.format(function="abs").splitlines()
    text = "\n".join(line for line in lines if "_cuda_" not in line).replace("abs(0)", "abs(-7)")
    built = host_object(tmp_path, "abs", text)
    with load(built, "kernel", CaptureRuntime("")) as loaded:
        with pytest.raises(HostCallError) as raised:
            loaded.call_pointers([])
        assert raised.value.code == 7


GUARDED = """
mov.u32 %r1, %tid.x;
mov.u32 %r10, smem;
ld.param.u64 %d1, [out];
setp.lt.u32 %p1, %r1, 32;
setp.lt.u32 %p2, %r1, {limit};
{text}
ON:
st.global.u32 [%d1], 5;
"""


@pytest.mark.parametrize(
    "text",
    [
        "@%p2 bar.sync 1, 32;",
        "@%p2 barrier.sync.aligned 1, 32;\nbra ON;",
        "@!%p2 bra ON;\n@%p2 barrier.cluster.arrive.aligned;\n@%p2 barrier.cluster.wait.aligned;",
        "@%p2 cp.async.bulk.wait_group 0;",
        "@%p2 nanosleep.u32 20;",
    ],
)
def test_a_guarded_wait_is_a_branch_around_it(text: str) -> None:
    """Of whole warps it is the same program; ``bar.sync`` by eight lanes of one is a misuse."""
    result = run_body(GUARDED.format(limit=32, text=text), np.zeros(1, np.uint32), smem_bytes=64)
    assert result.ok, str(result)
    result = run_body(GUARDED.format(limit=8, text=text), np.zeros(1, np.uint32), smem_bytes=64)
    aligned = "bar" in text
    assert result.status is (SimStatus.PROTOCOL_ERROR if aligned else SimStatus.OK), str(result)
    assert not aligned or "needs the whole warp together" in str(result)

"""What the clock charges for a loop against what ptxas made of it, read from the shipped cubin."""

from __future__ import annotations

import re

import pytest

from kernel_space.build.build import CompiledKernel, build
from kernel_space.build.resources import disassemble
from kernel_space.core.arch import SM100A
from kernel_space.machine.clock.clock import SPECIAL_CLK
from kernel_space.machine.clock.reduce import Reduced, reduce_kernel
from kernel_space.machine.clock.weights import Tally
from kernel_space.machine.ptx.cfg import Graph, build_graph
from kernel_space.machine.ptx.operands import Imm
from kernel_space.machine.ptx.parse import parse_ptx
from tests.compiled_cases import resolved
from tests.machine.clock.timed_cases import clock

CONFIGS = ("mma_tiler_mn=256x128", "mma_tiler_mn=256x256", "mma_tiler_mn=128x128 cluster_shape_mn=1x1")
SPIN_SASS = 2  # SYNCS and a branch; the clock charges ``Clock.spin`` for it
LOOPS = {"UTCOMMA": "tcgen05.mma", "UTMALDG": "cp.async.bulk.tensor", "LDTM": "timed.tmem"}


@pytest.fixture(scope="module", params=CONFIGS)
def compiled(request: pytest.FixtureRequest) -> CompiledKernel:
    config, problem = resolved(request.param, "4352,3840,3072,128")
    return build(config, problem.problem_class, SM100A)


@pytest.mark.parametrize("sass", LOOPS)
def test_loops_cost_what_survives(compiled: CompiledKernel, sass: str) -> None:
    """The innermost loop around the MMAs, the TMA loads, the TMEM loads: within 15 % of its SASS instructions."""
    kept = smallest_sass_loop(disassemble(compiled.cubin_path), sass)
    reduced = reduce_kernel(parse_ptx(compiled.ptx))
    charged = smallest_charged_loop(reduced, build_graph(reduced.kernel), LOOPS[sass])
    assert charged == pytest.approx(kept, rel=0.15)


def test_special_functions_take_eight_clocks_a_warp() -> None:
    """16 results a clock of an SM, so 4 of each quarter: 32 lanes take 8, four times the 2 of a data instruction."""
    lines = ["ex2.approx.ftz.f32 %f1, %f1;", "rcp.approx.ftz.f32 %f1, %f1;", "mul.rn.f32 %f1, %f1, %f1;"]
    body = "".join(lines)
    text = f".version 8.7\n.target sm_100a\n.address_size 64\n.visible .entry k() {{ .reg .f32 %f<2>;\n{body} ret; }}"
    tally = Tally()
    for block in build_graph(parse_ptx(text)).blocks:
        for instr in block.instrs:
            tally.instruction(instr, elects=False)
    assert dict(tally.take()) == {"special": 2, "vector": 1, "issue": 1}
    assert clock(vector=2.0).special[0] == SPECIAL_CLK == 8


def smallest_sass_loop(listing: str, mnemonic: str) -> int:
    instructions: list[str] = []
    labels: dict[str, int] = {}
    for line in listing.splitlines():
        if label := re.match(r"^(\.L_x_\d+):", line):
            labels[label[1]] = len(instructions)
        elif found := re.match(r"^\s+/\*[0-9a-f]+\*/\s+(.*?);", line):
            instructions.append(found[1])
    sizes = []
    for at, text in enumerate(instructions):
        target = re.search(r"\bBRA\b.*`\((\.L_x_\d+)\)", text)
        if target and (start := labels.get(target[1], at + 1)) <= at:
            body = instructions[start : at + 1]
            if any(re.search(rf"\b{mnemonic}\b", one) for one in body):
                sizes.append(len(body))
    return min(sizes)


def smallest_charged_loop(reduced: Reduced, graph: Graph, event: str) -> float:
    sizes = []
    for block in graph.blocks:
        for target in block.successors:
            body = [one for one in graph.blocks if target <= one.index <= block.index]
            if 0 <= target <= block.index and any(
                i.opcode.startswith(event) for one in body for i in one.instrs
            ):
                sizes.append(sum(charge(reduced, instr) for one in body for instr in one.instrs))
    return min(sizes)


def charge(reduced: Reduced, instr: object) -> float:
    opcode, operands = instr.opcode, instr.operands  # type: ignore[attr-defined]
    if opcode.startswith("mbarrier.try_wait"):
        return SPIN_SASS
    if opcode != "timed.cost":
        return 0.0
    assert isinstance(operands[0], Imm)
    counted = dict(reduced.costs[operands[0].value])
    return sum(counted.get(field, 0.0) for field in ("issue", "vector", "fence_proxy"))

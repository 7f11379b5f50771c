"""``benchmarks.late_loads``: which loads of shared memory are under way at an arrival, by the scoreboards of SASS."""

from __future__ import annotations

import pytest

from benchmarks.late_loads import late_loads
from benchmarks.sass_issue import Instruction, decode
from kernel_space.build.resources import disassemble
from tests.operators.svdquant_linear_16bit.runs import compiled, problem
from tests.operators.svdquant_linear_16bit.test_sliced import SHARED

ARRIVAL = Instruction(text="@P0 SYNCS.ARRIVE.TRANS64.ART0 RZ, [UR4+0x40], R0", stall=1)
EXPECTED = Instruction(text="@P0 SYNCS.ARRIVE.TRANS64 RZ, [UR4+0x40], R0", stall=1)
LOAD = Instruction(text="LDS.128 R4, [R2]", stall=1, write=1)
OTHER = Instruction(text="LDS.64 R8, [R3]", stall=1, write=2)
USE = Instruction(text="HMMA.16816.F32.BF16 R12, R4, R8, R12", stall=5, wait=0b10)
FENCE = Instruction(text="MEMBAR.ALL.CTA", stall=6)


@pytest.mark.parametrize(
    ("code", "late"),
    [
        ([LOAD, ARRIVAL, USE], [[LOAD.text]]),
        ([LOAD, USE, ARRIVAL], []),
        ([LOAD, OTHER, USE, ARRIVAL], [[OTHER.text]]),
        ([LOAD, FENCE, ARRIVAL, USE], []),
        ([LOAD, EXPECTED, USE], []),
        ([LOAD, Instruction(text="EXIT", stall=5), ARRIVAL], []),
        ([LOAD, OTHER, ARRIVAL, ARRIVAL], [[LOAD.text, OTHER.text]] * 2),
    ],
    ids=["behind it", "before it", "one of two", "a fence", "bytes to expect", "another way", "both"],
)
def test_loads_that_nothing_has_waited_for(code: list[Instruction], late: list[list[str]]) -> None:
    assert [list(one.loads) for one in late_loads(code)] == late


def test_a_kernel_that_gives_slots_back_behind_a_fence() -> None:
    """Its products stand behind the arrivals; without the fence this is what was wrong on a card."""
    kernel, _ = compiled(SHARED, problem("17,672,72,48"))
    code, _ = decode(disassemble(kernel.cubin_path, encoded=True))
    arrivals = [
        number for number, one in enumerate(code) if "SYNCS.ARRIVE" in one.text and "ART0" in one.text
    ]
    assert any("HMMA" in one.text for one in code[arrivals[0] :])
    assert not list(late_loads(code))

"""What counts as a check: the words that devices and tunes write, and what a file may hold instead."""

from __future__ import annotations

from typing import Any

import pytest

from kernel_space.places import shipped
from tuner.devices.classes import DEVICE_CLASSES
from tuner.tables.dispatch import DispatchTable
from tuner.trials.checked import Check, check_of

CARD = "checked on NVIDIA H200 against float64: 1,3840,3072,128, 9 launches bitwise equal, worst error 0.23 x tolerance"


@pytest.mark.parametrize(
    ("said", "check"),
    [
        (f"{CARD}; then {CARD}", Check.WINNER),
        ("checked in the sm_100a machine: M,K,N,R=1,2,3,4; then full problem 1,2,3,4 once", Check.WINNER),
        (CARD, Check.CANDIDATE),
        ("passed", Check.CANDIDATE),
        ("not checked: the tune ended before", Check.NONE),
        ("not validated: nothing here executes the kernel", Check.NONE),
        ("wrong_result: y[3,5] is 2, must be 1", Check.NONE),
        (f"{CARD}; then race: launches differ", Check.NONE),
        ("", Check.NONE),
        ("  ", Check.NONE),
        (None, Check.NONE),
        (True, Check.NONE),
        (["passed"], Check.NONE),
    ],
)
def test_what_is_said_of_a_check(said: Any, check: Check) -> None:
    assert check_of(said) is check


@pytest.mark.parametrize("name", ["b200", "h200"])
def test_every_row_that_is_shipped_was_checked_as_the_winner(name: str) -> None:
    rows = DispatchTable.load(shipped("results") / name, arch=DEVICE_CLASSES[name].arch).rows.values()
    assert rows and {row.check for row in rows} == {Check.WINNER}

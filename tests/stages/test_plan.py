"""The list of a tune's stages: what each kind of device gets, and that the docs show what the code does."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from tests.fakes import CARD
from tuner.devices.abilities import Abilities
from tuner.devices.card import CudaDevice
from tuner.devices.simulated import SimulatedDevice
from tuner.stages import plan
from tuner.stages.plan import stages_of
from tuner.stages.stage import Stage, When

SEARCH_MD = Path(__file__).resolve().parents[2] / "docs" / "search.md"
ON_A_CARD = """\
candidates
    ask
    compile
    check
    time
    refine
    check again
check leaders
final
check the winner
record
report"""
SIMULATED = """\
candidates
    ask
    compile
    time
check leaders
check the winner
record
report"""


def drawn(stages: tuple[Stage, ...]) -> str:
    lines = []
    for stage in stages:
        lines += [stage.name, *(f"    {part.name}" for part in getattr(stage, "parts", ()))]
    return "\n".join(lines)


def abilities(device: type) -> Abilities:
    return device.__dataclass_fields__["abilities"].default


def test_a_tune_on_a_card_and_a_simulated_one() -> None:
    assert drawn(stages_of(abilities(CudaDevice))) == ON_A_CARD
    assert drawn(stages_of(abilities(SimulatedDevice))) == SIMULATED


@pytest.mark.parametrize(
    ("can", "without"),
    [
        (Abilities(), {"check", "refine", "check again", "final", "check the winner"}),
        (CARD, {"check the winner"}),
        (
            Abilities(at_once=True, checks_every_candidate=True, ranks_leaders=True),
            {"refine", "check again", "check the winner"},
        ),
        (Abilities(checks_every_candidate=True, checks_winner=True), {"refine", "final"}),
    ],
)
def test_what_a_device_cannot_do_is_no_stage(can: Abilities, without: set[str]) -> None:
    expected = [line for line in ON_A_CARD.splitlines() if line.strip() not in without]
    assert drawn(stages_of(can)).splitlines() == expected


def test_record_and_report_are_made_however_the_search_ends_and_a_final_when_it_is_late() -> None:
    stages = stages_of(abilities(CudaDevice))
    assert {stage.name: stage.when for stage in stages} == {
        "candidates": When.IN_TIME,
        "check leaders": When.IN_TIME,
        "final": When.LATE,
        "check the winner": When.IN_TIME,
        "record": When.ALWAYS,
        "report": When.ALWAYS,
    }


def test_two_tunes_share_no_stage() -> None:
    """Stages remember what they did for their tune."""
    first, second = (stages_of(abilities(CudaDevice)) for _ in range(2))
    assert not {id(stage) for stage in first} & {id(stage) for stage in second}


def test_the_list_is_drawn_where_people_look() -> None:
    """Names stand in front of what is said about them, two spaces or more apart."""
    block = re.search(r"## A tune's stages\n.*?```\n(.*?)```", SEARCH_MD.read_text(), re.S)
    assert block is not None and plan.__doc__ is not None
    for text in (block[1], textwrap.dedent(plan.__doc__.split("\n\n", 1)[1])):
        names = [re.match(r" *[a-z ]+?(?=  |$)", line) for line in text.rstrip().splitlines()]
        assert [name and name[0] for name in names] == ON_A_CARD.splitlines()

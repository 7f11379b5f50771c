"""A tune, as the list of its stages.

candidates         one after another, while compilers are busy with the next ones
    ask                the search, or the journal for what it knows
    compile            in a pool of workers
    check              on a card
    time
    refine             while a card waits for compilers: rounds between leaders
    check again        and leaders on fresh operands
check leaders      as far as nobody has
final              on a card: leaders against one another
check the winner   more than the others; if it fails, the next one
record             the row of the dispatch table
report             counts, pictures, the deciding rounds
"""

from __future__ import annotations

from typing import TypeVar

from tuner.devices.abilities import Abilities
from tuner.stages.ask import Ask
from tuner.stages.check import Check, CheckAgain
from tuner.stages.compile import Compile
from tuner.stages.final import Final
from tuner.stages.leaders import CheckLeaders
from tuner.stages.record import Record
from tuner.stages.refine import Refine
from tuner.stages.report import Report
from tuner.stages.stage import Stage
from tuner.stages.stream import Candidates
from tuner.stages.time import Time
from tuner.stages.winner import CheckWinner

Part = TypeVar("Part")


def stages_of(can: Abilities) -> tuple[Stage, ...]:
    """A tune on a device that ``can`` do this, for one run: stages remember what they did."""
    on_a_card = can.works_alone
    leaders = CheckLeaders()
    final = Final() if can.ranks_leaders else None
    return _those_there_are(
        Candidates(
            ask=Ask(),
            steps=_those_there_are(Compile(), Check() if can.checks_every_candidate else None, Time()),
            meanwhile=_those_there_are(
                Refine() if on_a_card and can.ranks_leaders else None,
                CheckAgain() if on_a_card else None,
            ),
            can=can,
        ),
        leaders,
        final,
        CheckWinner(leaders, final) if can.checks_winner else None,
        Record(),
        Report(),
    )


def _those_there_are(*given: Part | None) -> tuple[Part, ...]:
    return tuple(one for one in given if one is not None)

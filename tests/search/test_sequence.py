"""An operator with one kernel is searched as if there could be no others: the recorded candidates of a seed."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from kernel_space.core.arch import SM100A
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from tuner.search.offline_search import choose_candidates
from tuner.search.search import Search
from tuner.space.space import SearchSpace
from tuner.trials.candidate import Candidate

RECORD = Path(__file__).resolve().parents[1] / "data" / "search_sequence_sm100a.txt"
PROBLEM = GemmProblem.parse("4352,3840,3072,128")


@pytest.fixture(scope="module")
def space() -> SearchSpace:
    return SearchSpace.load(GemmProblem.operator, SM100A)


def recorded(part: str) -> list[KernelConfigSm100a]:
    text = RECORD.read_text().partition(f"[{part}]\n")[2].partition("[")[0]
    return [KernelConfigSm100a.parse("" if line == "-" else line) for line in text.splitlines()]


def us(candidate: Candidate) -> float | None:
    """By a hash of the resolved knobs, 10 to 20; one in eight or so fails."""
    knobs = candidate.resolved.partition(" ")[2]
    time = 10 + int(hashlib.sha256(knobs.encode()).hexdigest()[:8], 16) / 2**32 * 10
    return None if time < 11.2 else time


def test_the_search_tries_what_it_tried_before_there_were_several_kernels(space: SearchSpace) -> None:
    search, asked = Search(space, PROBLEM, SM100A, seed=0, trials=60), []
    while candidate := search.ask():
        asked.append(candidate.config)
        search.tell(candidate.number, us(candidate))
    assert len(asked) == 60 and asked == recorded("search")


def test_so_does_the_choice_without_any_time(space: SearchSpace) -> None:
    found = [one.config for one in choose_candidates(space, PROBLEM, SM100A, trials=40)]
    assert len(found) == 40 and found == recorded("offline")

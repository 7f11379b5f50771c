"""Candidates for another machine: legal, distinct, repeatable, and near what is known to be good."""

from __future__ import annotations

import pytest

from kernel_space.core.arch import SM90A, SM100A
from kernel_space.core.registry import parse_config
from kernel_space.core.rules import Legal, legalize
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tests.fakes import small_space
from tuner.search.offline_search import choose_candidates
from tuner.space.space import SearchSpace
from tuner.trials.candidate import Candidate
from tuner.trials.outcome import Origin

PROBLEM = GemmProblem.parse("256,3840,3072,128")
SPACE = SearchSpace.load(GemmProblem.operator, SM90A)


def choose(trials: int = 40, seed: int = 0, **options: object) -> list[Candidate]:
    return choose_candidates(SPACE, PROBLEM, SM90A, trials=trials, seed=seed, **options)


def distance(one: Candidate, other: Candidate) -> int:
    """Knobs in which two resolved configs differ, stage counts left out: they follow from the others. All knobs for
    points of different kernels.
    """
    stages = one.config.stage_names()
    first, second = one.legal.config.fields(), other.legal.config.fields()
    if one.config.kernel != other.config.kernel:
        return len(first)
    return sum(first[name] != second[name] for name in first if name not in stages)


def test_all_are_legal_and_distinct_and_the_default_is_first() -> None:
    found = choose()
    assert len(found) == 40 == len({one.resolved for one in found})
    assert [one.number for one in found] == list(range(40))
    for one in found:
        legal = legalize(one.config, PROBLEM, SM90A)
        assert isinstance(legal, Legal) and str(legal.config) == one.resolved
    default = legalize(SPACE.default(PROBLEM), PROBLEM, SM90A)
    assert found[0].origin is Origin.DEFAULT and found[0].resolved == str(default.config)


def test_same_seed_same_candidates() -> None:
    assert [one.resolved for one in choose(seed=3)] == [one.resolved for one in choose(seed=3)]
    assert {one.resolved for one in choose(seed=3)} != {one.resolved for one in choose(seed=4)}


def test_a_longer_list_begins_with_the_shorter() -> None:
    assert [one.resolved for one in choose(60)][:40] == [one.resolved for one in choose(40)]


def test_many_are_near_where_it_starts_and_some_are_far() -> None:
    found = choose(60)
    legal = [legalize(start, PROBLEM, SM90A) for start in SPACE.starts(PROBLEM)]
    starts = {str(one.config) for one in legal if isinstance(one, Legal)}
    begun = [one for one in found if one.resolved in starts]
    others = [one for one in found if one.resolved not in starts]
    assert found[0] in begun and len(others) >= 40
    far = [min(distance(one, start) for start in begun) for one in others]
    assert sum(count <= 1 for count in far) >= 15, "changes of one knob"
    assert max(far) >= 4, "and points from anywhere"


def test_winners_come_after_the_default_and_what_is_known_is_not_asked_again() -> None:
    earlier = choose(30)
    known = {one.resolved for one in earlier}
    best = [earlier[7].config, earlier[9].config]
    found = choose(30, best=best, first=[earlier[11].config], known=known)
    assert [one.resolved for one in found[:4]] == [earlier[index].resolved for index in (0, 7, 9, 11)]
    assert [one.origin for one in found[:4]] == [Origin.DEFAULT, *[Origin.NEIGHBOUR] * 3]
    assert not {one.resolved for one in found[4:]} & known
    near = [min(distance(one, seed) for seed in found[:4]) for one in found[4:]]
    assert sum(count <= 1 for count in near) >= len(near) // 3


def test_a_small_space_is_used_up() -> None:
    space = small_space(raster_order="m n", use_pdl="false true")
    problem = GemmProblem.parse("4352,3840,3072,128")
    found = choose_candidates(space, problem, SM100A, trials=50)
    assert 4 <= len(found) < 50, "it ends although more were asked for"


def test_every_design_of_the_default_rule_is_tried() -> None:
    """Each range of M has a default, of one kernel or another."""
    legal = [legalize(rule.config, PROBLEM, SM90A) for rule in SPACE.defaults]
    designs = {str(one.config) for one in legal if isinstance(one, Legal)}
    assert len(designs) > 1 and designs <= {one.resolved for one in choose(20)}


def test_designs_for_such_a_problem_come_before_the_default_rule_for_others() -> None:
    """By name, not by the order in the file: stream-K in narrow tiles was what a search of M = 256 had not drawn."""
    known = parse_config(
        GemmProblem.operator,
        SM90A,
        "kernel=sm90a_expand consumer_warpgroups=1 tile_mnk=64x128x128 stream_k=true use_pdl=true",
    )
    resolved = str(legalize(known, PROBLEM, SM90A).config)
    assert resolved in [one.resolved for one in choose(8)]
    large = choose_candidates(SPACE, GemmProblem.parse("4352,3840,3072,128"), SM90A, trials=8)
    assert not any(one.config == known for one in large), "beyond its bounds"


@pytest.mark.parametrize("shape", ["1,3840,3072,128", "4352,15360,3840,128", "17,3840,3072,0"])
def test_every_kind_of_problem_has_candidates(shape: str) -> None:
    problem = GemmProblem.parse(shape)
    assert len(choose_candidates(SPACE, problem, SM90A, trials=24)) == 24

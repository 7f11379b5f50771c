"""The candidates of the tests on a card are legal: they are compiled by hand, long after a rule has changed."""

from __future__ import annotations

import pytest

from kernel_space.core.registry import kernels_of, parse_config
from kernel_space.core.rules import Legal, legalize
from tests.gpu.objects import ARCH, RIGHT, RIGHT_QUANTIZE, RIGHT_ROWS

ALL = RIGHT | RIGHT_ROWS | RIGHT_QUANTIZE


@pytest.mark.parametrize("name", ALL)
def test_candidates_of_the_card_tests_are_legal(name: str) -> None:
    problem, text = ALL[name]
    legal = legalize(parse_config(problem.operator, ARCH, text), problem, ARCH)
    assert isinstance(legal, Legal), legal


def test_every_kernel_and_schedule_is_among_them() -> None:
    """Whoever adds a kernel or a way to share K adds a candidate: what runs on a card is what is listed here."""
    for candidates in (RIGHT, RIGHT_ROWS, RIGHT_QUANTIZE):
        configs = [parse_config(problem.operator, ARCH, text) for problem, text in candidates.values()]
        problem, _ = next(iter(candidates.values()))
        assert {config.kernel for config in configs} == {
            one.name for one in kernels_of(problem.operator, ARCH)
        }
        assert {config.use_pdl for config in configs} == {False, True}
    gemms = [parse_config(problem.operator, ARCH, text) for problem, text in RIGHT.values()]
    assert {config.stream_k for config in gemms if config.kernel == "sm90a_expand"} == {False, True}
    assert {config.kernel for config in gemms if config.split_k > 1} >= {"sm90a_ring", "sm90a_small_m"}
    rows = [parse_config(problem.operator, ARCH, text) for problem, text in RIGHT_ROWS.values()]
    assert {config.fused for config in rows} == {False, True}

"""The candidates of the tests on a card are legal: they are compiled by hand, long after a rule has changed."""

from __future__ import annotations

import pytest

from kernel_space.core.rules import Legal, legalize
from kernel_space.operators.svdquant_gemm.sm90a_parts.config import KernelConfigSm90a
from tests.gpu.objects import ARCH, RIGHT


@pytest.mark.parametrize("name", RIGHT)
def test_candidates_of_the_card_tests_are_legal(name: str) -> None:
    problem, text = RIGHT[name]
    legal = legalize(KernelConfigSm90a.parse(text), problem, ARCH)
    assert isinstance(legal, Legal), legal


def test_every_main_loop_and_schedule_is_among_them() -> None:
    """Whoever adds a main loop or a way to share K adds a candidate: what runs on a card is what is listed here."""
    configs = [KernelConfigSm90a.parse(text) for _, text in RIGHT.values()]
    assert {config.mainloop for config in configs} == {"wgmma", "expand", "mma"}
    assert {config.stream_k for config in configs} == {False, True}
    assert {config.use_pdl for config in configs} == {False, True}
    assert {config.mainloop for config in configs if config.split_k > 1} >= {"wgmma", "mma"}

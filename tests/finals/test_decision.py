"""Who wins: against hand-made rounds, and how often chance decides, by simulation."""

from __future__ import annotations

import math
import random

import pytest

from tuner.finals.decision import RESOLUTION, decide, undecided

SIZES = {"small": (100, "small"), "large": (200, "large"), "default": (150, "default"), "twin": (200, "twin")}


def rounds(us: float, noise: float, count: int = 24, seed: int = 0) -> list[float]:
    """Each round wanders by 5 % for all alike (seeded by the round), and each time by ``noise``."""
    own = random.Random(f"{us} {seed}")
    drift = random.Random("drift")
    return [us * (1 + 0.05 * drift.random()) * (1 + own.gauss(0, noise)) for _ in range(count)]


def test_the_clearly_fastest_wins() -> None:
    times = {"large": rounds(100, 0.001), "small": rounds(102, 0.001), "default": rounds(120, 0.001)}
    verdict = decide(times, "default", SIZES)
    assert verdict.order == ("large", "small", "default") and verdict.tied == ("large",)
    found = verdict.against["small"]
    assert found.low < 1.02 < found.high and found.p_value < 1e-4
    assert verdict.against["default"].ratio == pytest.approx(1.2, abs=0.002)
    assert not undecided(times)


def test_a_tie_goes_to_the_default() -> None:
    times = {"small": rounds(100, 0.02, seed=1), "default": rounds(100.4, 0.02, seed=2)}
    verdict = decide(times, "default", SIZES)
    assert verdict.winner == "default" and set(verdict.tied) == {"small", "default"}
    assert "cannot be told apart" in verdict.why and undecided(times)


def test_a_difference_below_the_resolution_is_a_tie_however_sure() -> None:
    faint = 1 + RESOLUTION / 2
    times = {"small": rounds(100, 1e-5), "default": rounds(100 * faint, 1e-5)}
    verdict = decide(times, "default", SIZES)
    assert verdict.winner == "default" and verdict.against["small"].p_value < 1e-5
    assert not undecided(times), "more rounds would not change it"


def test_a_tie_without_the_default_goes_to_the_smaller_kernel() -> None:
    times = {"large": rounds(100, 0.002), "small": rounds(100.1, 0.002), "default": rounds(110, 0.002)}
    verdict = decide(times, "default", SIZES)
    assert verdict.winner == "small" and verdict.why.startswith("the smallest of 2")
    assert decide({name: times[name] for name in ("large", "small")}, None, SIZES).winner == "small"


def test_of_equal_size_the_text_decides() -> None:
    same = rounds(100, 0.001)
    assert decide({"twin": same, "large": same}, None, SIZES).winner == "large"


def test_who_does_not_beat_the_default_cannot_win_a_tie() -> None:
    """small is noisy: level with the fastest, but level with the default too, which the fastest beats."""
    times = {
        "large": rounds(100, 0.0005),
        "small": rounds(101.2, 0.05, seed=5),
        "default": rounds(101.0, 0.0005),
    }
    verdict = decide(times, "default", SIZES)
    assert "small" in verdict.tied and "default" not in verdict.tied
    assert verdict.winner == "large"


def test_the_winner_is_never_slower_than_the_default() -> None:
    generator = random.Random(23)
    for trial in range(300):
        times = {
            name: rounds(100 * (1 + generator.gauss(0, 0.01)), 0.01, 12, seed=trial)
            for name in ("small", "large", "default", "twin")
        }
        verdict = decide(times, "default", SIZES)
        if verdict.winner != "default":
            assert verdict.against["default"].ratio > 1 + RESOLUTION
            assert verdict.against["default"].p_value < 0.05


def test_chance_rarely_dethrones_the_default() -> None:
    """All equal, noise far above the resolution: 1000 finals of 4. A fastest of four is picked after looking, so the
    share is above the level of one test, and far below the three in four that the bare medians would give."""
    beaten = bare = 0
    for trial in range(1000):
        times = {name: rounds(100, 0.02, 24, seed=sum(map(ord, name)) * 10007 + trial) for name in SIZES}
        beaten += decide(times, "default", SIZES).winner != "default"
        bare += min(times, key=lambda name: sorted(times[name])[12]) != "default"
    assert beaten / 1000 < 0.08 and bare / 1000 > 0.65


def test_two_finals_of_the_same_candidates_agree() -> None:
    """500 pairs of finals with 0.5 % noise and true times within 1 %: the same winner, or one within 1 % of it."""
    generator = random.Random(29)
    for trial in range(500):
        true = {name: 100 * (1 + 0.01 * generator.random()) for name in SIZES}
        winners = [
            decide(
                {name: rounds(us, 0.005, 24, seed=2 * trial + visit) for name, us in true.items()},
                "default",
                SIZES,
            ).winner
            for visit in (0, 1)
        ]
        assert abs(true[winners[0]] / true[winners[1]] - 1) < 0.01


def test_several_rivals_need_stronger_evidence_each() -> None:
    """Eight rounds; only the third smallest difference favours the rival: W = 3, p = 2 * 5 / 256 = 0.039. That
    separates one rival from the fastest, but not one of three (Holm: 0.117)."""
    fastest = [100.0] * 8
    rival = [100.0 * math.exp(0.01 * rank * (-1 if rank == 3 else 1)) for rank in range(1, 9)]
    assert decide({"large": fastest, "small": rival}, None, SIZES).winner == "large"
    several = decide({"large": fastest, "small": rival, "default": rival, "twin": rival}, None, SIZES)
    assert set(several.tied) == set(SIZES) and several.winner == "small"

"""How much longer a launch may take because the card holds its power: the slow end of an interval, never the time.

A card at its power limit lowers its clock. What it can hold falls with the share of cycles in which the tensor pipe
works. The limit acts on an average over milliseconds, that is on launches one after the other: a short one pauses in
between for longer than it works. What power did to the times that chose the constants is in the constants.

Kinds as in ``constants``. Where nothing was measured the slower bound is used, because this is the end of an interval.
"""

from __future__ import annotations

from typing import Final

from kernel_space.machine.clock.constants import Constant, cost, rate

THROTTLED: Final = (
    "flashinfer-ai/flashinfer pull request 2899 (2026-03-26), B200, BF16 attention back to back"
)
POWER: Final[dict[str, Constant]] = {
    "sustained_ghz": rate(
        1.58, 1.575, 1.585, "GHz", "measured", f"{THROTTLED}: 1.965 GHz falls to about 1.58 at about 1000 W", "core"
    ),
    "sustained_duty": rate(
        0.63, 0.61, 0.65, "1", "derived",
        f"{THROTTLED}: 1450 TFLOP/s at 1.965 GHz, 1237 at 1.58; 148 SMs do 8192 FLOP per clock", "core",
    ),
    "power_exponent": rate(
        2.5, 2.0, 3.0, "1", "assumed",
        "power of a busy pipe ~ duty x f x V^2: 3 with V ~ f; below 1.6 a GB200 (152 SMs, 1200 W) could not do the "
        "6787 FP4 TFLOP/s of NVIDIA's post on cuBLAS 12.9 (2025)", "core",
    ),
    "idle_us": cost(
        40.0, 31.0, 51.0, "us", "derived",
        "pause between two launches of a loop: what loops of events add to a call, docs/evidence/timing.md",
    ),
    "paid_us": cost(
        125.3, 125.3, 125.3, "us", "derived",
        "longest of the published times that chose the sets: up to there the constants hold what power does",
    ),
}  # fmt: skip


def sustained_ghz(duty: float) -> float:
    """What the card holds for long while the tensor pipe works ``duty`` of all cycles (0 to 1)."""
    held, at = POWER["sustained_ghz"].value, POWER["sustained_duty"].value
    return held * (at / duty) ** (1 / POWER["power_exponent"].low) if duty > 0 else float("inf")


def slowdown(us: float, duty: float, slowest_ghz: float) -> float:
    """At least 1: how many times as long a launch of ``us`` microseconds may take.

    ``duty``: share of its cycles in MMAs; ``slowest_ghz``: the lowest clock that the interval holds already.
    """
    longer = max(0.0, us - POWER["paid_us"].value) / (us + POWER["idle_us"].low)
    return 1 + longer * max(0.0, slowest_ghz / sustained_ghz(duty) - 1)

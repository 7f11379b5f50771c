"""How evidence says what the simulator would have said of a kernel that was measured."""

from __future__ import annotations

from typing import Any, Final

SIMULATED_US: Final = "simulated_us"
INTERVAL: Final = ("simulated_low_us", "simulated_high_us")
RATIO: Final = "measured_over_simulated"
NO_SIMULATION: Final = "simulated"  # why there is none, in words


def against(evidence: dict[str, Any], us: float) -> dict[str, Any]:
    """The simulator's entries of ``evidence``, with their ratio to a measured ``us``: for a later, better time too."""
    found: dict[str, Any] = {
        name: evidence[name] for name in (SIMULATED_US, *INTERVAL, NO_SIMULATION) if name in evidence
    }
    if SIMULATED_US in found:
        found[RATIO] = round(us / found[SIMULATED_US], 4)
    return found

"""What is read of a profiled launch, and by which counters of Nsight Compute.

Chips name a counter differently, so that a quantity may have several names; the first that an export has counts. NVFP4
of sm_100 is counted with the hmma subpipe: no counter is named after it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

_ACTIVE, _ELAPSED = "pct_of_peak_sustained_active", "pct_of_peak_sustained_elapsed"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Quantity:
    """``key`` in documents, ``label`` for people, ``counters`` by which it is read. ``unit`` of what ``value`` gives:
    us, GHz, % or nothing."""

    key: str
    label: str
    unit: str
    counters: tuple[str, ...]

    def value(self, counted: Mapping[str, float]) -> float | None:
        """Of one launch; None where the chip has none of these counters."""
        found = next((counted[name] for name in self.counters if name in counted), None)
        return found if found is None or self.unit != "GHz" else found * 1e-9


DURATION = Quantity(key="duration_us", label="duration", unit="us", counters=("gpu__time_duration.sum",))
CLOCK = Quantity(
    key="sm_clock_ghz",
    label="SM clock",
    unit="GHz",
    counters=("sm__cycles_elapsed.avg.per_second", "smsp__cycles_elapsed.avg.per_second"),
)
QUANTITIES = (
    DURATION,
    CLOCK,
    Quantity(
        key="tensor_active_pct",
        label="tensor pipe, active",
        unit="%",
        counters=(f"sm__pipe_tensor_cycles_active.avg.{_ACTIVE}",),
    ),
    Quantity(
        key="tensor_elapsed_pct",
        label="tensor pipe, elapsed",
        unit="%",
        counters=(f"sm__pipe_tensor_cycles_active.avg.{_ELAPSED}",),
    ),
    Quantity(
        key="hmma_active_pct",
        label="hmma subpipe, active",
        unit="%",
        counters=(
            f"sm__pipe_tensor_subpipe_hmma_cycles_active.avg.{_ACTIVE}",
            f"sm__pipe_tensor_op_hmma_cycles_active.avg.{_ACTIVE}",
        ),
    ),
    Quantity(key="sm_pct", label="SM", unit="%", counters=(f"sm__throughput.avg.{_ELAPSED}",)),
    Quantity(key="l2_pct", label="L2", unit="%", counters=(f"lts__throughput.avg.{_ELAPSED}",)),
    Quantity(
        key="dram_pct",
        label="DRAM",
        unit="%",
        counters=(f"gpu__dram_throughput.avg.{_ELAPSED}", f"dram__throughput.avg.{_ELAPSED}"),
    ),
    Quantity(
        key="occupancy_pct",
        label="achieved occupancy",
        unit="%",
        counters=(f"sm__warps_active.avg.{_ACTIVE}",),
    ),
    Quantity(
        key="instructions",
        label="instructions issued",
        unit="",
        counters=("smsp__inst_issued.sum", "sm__inst_issued.sum"),
    ),
)
COUNTERS = tuple(name for quantity in QUANTITIES for name in quantity.counters)

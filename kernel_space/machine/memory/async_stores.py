"""``st.async``: each active lane stores to the shared memory of a CTA of the cluster and completes bytes there.

Stores are issued and completed like copies; whoever waits for the barrier's phase sees the data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernel_space.machine.units.mbarrier import MBarrier, find
from kernel_space.machine.values.faults import IllegalAccess
from kernel_space.machine.values.lanes import Value, first_lane, lane_list
from kernel_space.machine.values.undefined import Birth

if TYPE_CHECKING:
    from kernel_space.machine.run.machine import Cta, Warp
    from kernel_space.machine.values.clocks import Known


class AsyncStore:
    """Bytes on their way to one CTA. ``over``: ``Races.launches_over``."""

    kind = "tma"

    def __init__(
        self,
        cta: Cta,
        offset: int,
        data: bytes,
        bits: tuple[bytes, Birth] | None,
        barrier: MBarrier,
        who: str,
        over: Known | None,
    ) -> None:
        self.cta, self.offset, self.data, self.barrier, self.who = cta, offset, data, barrier, who
        self.bits, self.over = bits, over

    def run(self) -> None:
        end = self.offset + len(self.data)
        self.cta.smem.u8[self.offset : end] = memoryview(self.data)
        undefined = self.cta.smem.undefined
        if undefined is not None and self.bits is None:
            undefined.u8[self.offset : end] = 0
        elif undefined is not None and self.bits is not None:
            undefined.u8[self.offset : end] = memoryview(self.bits[0])
            undefined.note(self.offset, end, self.bits[1], f"by the {self.who}")
        self.barrier.complete(len(self.data), self.who, self.over)


def st_async(
    w: Warp, to: Value, size: int, values: tuple[Value, ...], barrier: Value, mask: int, site: int
) -> None:
    w.site = site
    span, over = size * len(values), w.races.launches_over(w) if w.races is not None else None
    for lane in lane_list(mask):
        bit = 1 << lane
        where, on = first_lane(to, bit), find(w, first_lane(barrier, bit))
        cta, offset = w.cta.peer(where >> 24), where & 0xFFFFFF
        if on.cta is not cta:
            raise IllegalAccess(f"st.async into CTA {cta.rank} completes on a barrier of CTA {on.cta.rank}")
        cta.smem.check(offset, offset + span, span, "st.async")
        data = b"".join(first_lane(value, bit).to_bytes(size, "little") for value in values)
        if w.races is not None:
            w.races.async_store(w, cta, offset, span, on, site)
        store = AsyncStore(cta, offset, data, _bits(w, lane, size), on, f"st.async of {w.who}", over)
        w.machine.issue(store, w.cta)


def _bits(w: Warp, lane: int, size: int) -> tuple[bytes, Birth] | None:
    """Undefined bits of what a lane stores."""
    if w.storing is None:
        return None
    found = b"".join(int(bits[lane]).to_bytes(size, "little") for bits in w.storing.items)
    return (found, w.storing.birth) if any(found) else None

"""What a device can do, as data: a tune's stages are chosen by it."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Abilities:
    """``at_once``: it takes several requests and answers each when it is done, by any thread; what a candidate does
    there cannot hurt this process. Otherwise it is asked one thing after another, by one thread at a time.

    ``checks_every_candidate``: before it is timed, which is cheap where kernels are executed; otherwise only those
    whose time could win are checked. ``checks_winner``: ``check_full`` does more than ``check``. ``ranks_leaders``:
    ``interleave`` times candidates against one another. ``line``: requests that wait at a device that is asked
    one thing after another: several where it is on another host, as the way there takes time.
    """

    at_once: bool = False
    checks_every_candidate: bool = False
    checks_winner: bool = False
    ranks_leaders: bool = False
    line: int = 1

    @property
    def works_alone(self) -> bool:
        """Candidates are executed here, one after another: one may take this process or the machine with it, and the
        device is what a tune waits for."""
        return self.checks_every_candidate and not self.at_once

    @property
    def elsewhere(self) -> bool:
        """What a candidate does there cannot hurt this process."""
        return self.line > 1

"""What runs in the scheduler's process, sent there as code: that process need not have this project."""

from __future__ import annotations

from typing import Any


def try_again(dask_scheduler: Any) -> int:
    """Look again for a member for every task that found none: a resource that is added to one is no event to it.
    How many there were."""
    waiting = {task.key: "waiting" for task in dask_scheduler.unrunnable}
    if waiting:
        dask_scheduler.transitions(waiting, stimulus_id="fleet-try-again")
    return len(waiting)

"""The grid that the run time launches for every row of the card's table is the one with which the tuner times it."""

from __future__ import annotations

import pytest
import torch

from kernel_space.core.problem import Problem
from kernel_space.core.registry import operator_of
from kernel_space.core.signature import Grid
from tuner.card.worker.candidate import Loadable
from tuner.card.worker.launch import max_active_clusters
from tuner.runtime.state import active, class_of_card

pytestmark = pytest.mark.gpu

GRID = Grid().name


def problems() -> list[Problem]:
    """Of rows whose kernels are given a grid: those of ``smooth_lora_down`` are not."""
    tables, _ = active()
    found = [key.problem for key in tables.library(class_of_card(0)).table.rows]
    return [one for one in found if GRID in operator_of(one).signature.integers]


def test_every_row_is_launched_as_it_was_timed() -> None:
    tables, sms = active()[0], torch.cuda.get_device_properties(0).multi_processor_count
    wrong, clusters = [], 0
    for problem in problems():
        plan = tables.plan(problem, 0)
        choice = plan.choice
        candidate = Loadable.of_bundled(choice.object, choice.config)
        launched, timed = plan.static.max_active_clusters, max_active_clusters(candidate, problem, 0, sms)
        clusters += choice.config.cluster_size > 1
        print(f"{problem}: {launched} of {choice.config.max_active_clusters(sms)} clusters")
        if launched != timed:
            wrong.append((str(problem), launched, timed))
    assert not wrong
    assert clusters, "no row has a kernel in clusters, so nothing was asked"

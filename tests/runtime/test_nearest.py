"""The order of kernels for an M, against sorting all of them by hand; and what a new M costs."""

from __future__ import annotations

import math
import random
import statistics
import threading
import time
from pathlib import Path

import pytest

from kernel_space.core.errors import InputError
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.places import shipped
from tests.runtime.test_choice import BOTH, PLAIN, SPLIT, row, write
from tuner.devices.classes import DEVICE_CLASSES
from tuner.runtime.choice.choose import Library
from tuner.runtime.choice.nearest import Nearest
from tuner.runtime.state import RuntimeState

H200 = DEVICE_CLASSES["h200"]


def test_order_is_that_of_all_distances() -> None:
    draw = random.Random(1)
    names = [f"{number:03d}" for number in range(60)]
    facts = {
        name: (draw.random() < 0.5, draw.choice([0.0, 1.0, 2.5]), draw.choice([1, 16, 64, 100, 4352]))
        for name in names
    }

    def distance(name: str) -> tuple[bool, float, int, str]:
        other, doublings, m = facts[name]
        return other, doublings, (-m,), name

    nearest = Nearest(names, distance)
    for m in (1, 3, 8, 16, 40, 64, 80, 4352, 100_000):
        by_hand = sorted(
            names,
            key=lambda name: (
                facts[name][0],
                facts[name][1] + abs(math.log2(facts[name][2] / m)),
                -facts[name][2],
                name,
            ),
        )
        assert list(nearest.order((m,))) == by_hand


def test_a_new_m_is_resolved_in_microseconds() -> None:
    """Tens of them on any machine; it was most of a millisecond. Of this process alone, as others use the machine."""
    tables = RuntimeState(shipped("results"))
    tables.choice(GemmProblem.parse("1,3840,3072,128"), H200)
    rounds = []
    for start in range(1000, 6000, 1000):
        problems = [GemmProblem.parse(f"{m},3840,3072,128") for m in range(start, start + 100)]
        began = time.process_time()
        for problem in problems:
            tables.choice(problem, H200)
        rounds.append((time.process_time() - began) / len(problems) * 1e6)
    print(f"{statistics.median(rounds):.1f} us")
    assert min(rounds) < 250


def test_an_object_that_came_or_went_is_noticed(tmp_path: Path) -> None:
    root = write(tmp_path, [row("256,3840,3072,128"), row("16,3840,3072,128", SPLIT)], BOTH)
    library = Library.load(root / "h200", H200.arch, cache_dir=root / "cache")
    problem = GemmProblem.parse("256,3840,3072,128")
    first = library.choose(problem)
    assert str(first.config) == PLAIN and library.choose(problem).object == first.object
    gone = first.object.path.with_suffix(".gone")
    first.object.path.rename(gone)
    with pytest.raises(InputError, match="cannot read"):
        library.choose(problem).object.read()
    gone.rename(first.object.path)
    assert library.choose(problem).object.read()


def test_many_layers_and_ms_stay_bounded() -> None:
    tables = RuntimeState(shipped("results"))
    for n in range(8, 8 * 700, 8):
        tables.choice(GemmProblem(m=n, k=3840, n=n, r=128), H200)
    library = tables.library(H200)
    assert len(library._layers) <= 512
    assert len(library._objects) <= 2 * len(library.table.rows)


def test_threads_resolve_together() -> None:
    tables, wrong = RuntimeState(shipped("results")), []
    problems = [GemmProblem.parse(f"{m},{k},3072,128") for m in (1, 77, 900) for k in (3840, 1024)]
    wanted = [str(tables.choice(problem, H200)) for problem in problems]
    shared = RuntimeState(shipped("results"))

    def work() -> None:
        for problem, answer in zip(problems, wanted, strict=True):
            if str(shared.choice(problem, H200)) != answer:
                wrong.append(problem)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong

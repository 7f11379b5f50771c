"""The bounded memory of the run time, against a list of what was used when."""

from __future__ import annotations

import gc
import random
import threading
import tracemalloc
import weakref

from tuner.runtime.choice import remembered
from tuner.runtime.choice.remembered import Recent, forget_tables


def test_what_was_used_lately_is_there_and_the_rest_is_bounded() -> None:
    """Half of the limit counted from the last use is always there: that much fits into the younger half."""
    limit, draw = 32, random.Random(1)
    recent: Recent[int, int] = Recent(limit)
    used: list[int] = []
    for _ in range(5000):
        key = min(int(draw.expovariate(0.05)), 200)
        found = recent.get(key)
        if (
            key in dict.fromkeys(reversed(used[-limit // 2 :]))
            and len(set(used[-limit // 2 :])) <= limit // 2
        ):
            assert found == key * key
        if found is None:
            recent.put(key, key * key)
        assert recent.get(key) == key * key
        used.append(key)
        assert len(recent) <= limit


def test_hits_in_hot_alone_do_not_save_from_ageing_but_get_does() -> None:
    recent: Recent[int, str] = Recent(4)
    recent.put(0, "kept")
    for number in range(1, 50):
        recent.put(number, "new")
        assert recent.get(0) == "kept"
    assert recent.get(1) is None and recent.get(1, 7) == 7


def test_none_is_a_value() -> None:
    recent: Recent[int, None] = Recent(4)
    recent.put(1, None)
    assert recent.get(1, "absent") is None
    recent.put(2, None), recent.put(3, None)
    assert recent.get(1, "absent") is None


def test_tables_are_forgotten_alone() -> None:
    before = list(remembered._of_tables)
    tables, other = Recent(8, of_tables=True), Recent(8)
    tables.put(1, 1), other.put(1, 1)
    forget_tables()
    assert (tables.get(1), other.get(1)) == (None, 1)
    remembered._of_tables[:] = before


def test_values_that_are_forgotten_are_freed() -> None:
    class Value:
        pass

    recent: Recent[int, Value] = Recent(100)
    alive: weakref.WeakSet[Value] = weakref.WeakSet()
    tracemalloc.start()
    peaks = []
    for number in range(20_000):
        value = Value()
        alive.add(value)
        recent.put(number, value)
        if number % 5000 == 4999:
            del value
            gc.collect()
            peaks.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert len(alive) <= 100
    assert peaks[-1] < peaks[0] + 20_000


def test_threads_share_it() -> None:
    recent: Recent[int, int] = Recent(64)
    wrong: list[int] = []

    def work(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(5000):
            key = draw.randrange(100)
            found = recent.get(key)
            if found is None:
                recent.put(key, -key)
            elif found != -key:
                wrong.append(key)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(recent) <= 64

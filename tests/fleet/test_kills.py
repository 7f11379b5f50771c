"""Whatever takes part in a tune is killed at random moments, twenty times: what is found is what an undisturbed tune of
the same seed finds."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fleet.cluster import Cluster, Process, cluster
from tests.fleet.test_tune import row, verdicts

pytestmark = pytest.mark.slow
KILLS, TRIALS = 20, 16
# Of ten kills: those of compile hosts, hosts of cards, the tuner, the scheduler.
WEIGHTS = {"compiler": 4, "card": 3, "tuner": 2, "scheduler": 1}
# ``tune --cluster`` without counting the space, which takes longer than all of the rest.
TUNER = """
import sys
from pathlib import Path
from kernel_space.core.errors import InputError
from tests.fleet.test_tune import tune
try:
    tune(sys.argv[1], Path(sys.argv[2]), trials=int(sys.argv[3]))
except InputError as error:
    sys.exit(print(error, file=sys.stderr) or 2)
"""


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path / "cluster") as started:
        yield started


class Killed:
    """A cluster of two compile hosts and two hosts of a card, and the tuner on it, each killed and started again."""

    def __init__(self, hosts: Cluster) -> None:
        self.hosts, self.random = hosts, random.Random(19)
        self.compilers = {name: self.start(name) for name in ("c0", "c1")}
        self.cards = {name: self.start(name) for name in ("g0", "g1")}
        self.kills: list[str] = []

    def start(self, name: str) -> Process:
        if name.startswith("c"):
            return self.hosts.host(name, "--seconds", "0.2", wait=False)
        return self.hosts.host(
            name, "--jobs", "0", "--cards", f"GPU-{name}", "--card-seconds", "0.05", wait=False
        )

    def tune(self, out: Path, folder: str) -> Process:
        return self.hosts.start(["-c", TUNER, self.hosts.address, str(out), str(TRIALS)], folder)

    def disturbed(self, out: Path, folder: str) -> None:
        """A tune that goes on until it ends well; somebody is killed every now and then."""
        tuner = self.tune(out, folder)
        deadline = time.monotonic() + 900
        while (code := tuner.process.poll()) != 0:
            assert time.monotonic() < deadline, self.kills
            if code is not None:
                assert code == 2, (
                    tuner.errors.read_text()
                )  # it has lost the scheduler, or waited long for hosts
                tuner = self.tune(out, folder)
            time.sleep(self.random.uniform(0.1, 2.0))
            if len(self.kills) < KILLS:
                (kind,) = self.random.choices(list(WEIGHTS), list(WEIGHTS.values()))
                tuner = self.kill(kind, tuner, lambda: self.tune(out, folder))

    def kill(self, kind: str, tuner: Process, again: Callable[[], Process]) -> Process:
        self.kills.append(kind)
        if kind == "tuner":
            tuner.kill()
            return again()
        if kind == "scheduler":
            self.hosts.scheduler.kill()
            self.hosts.restart_scheduler()
            return tuner
        group = self.compilers if kind == "compiler" else self.cards
        name = self.random.choice(list(group))
        group[name].kill()
        group[name] = self.start(name)
        return tuner


def test_killed_twenty_times(hosts: Cluster, tmp_path: Path) -> None:
    """Tunes in fresh folders until there were so many kills. One more tune, which nobody disturbs, asks again about
    candidates that lost two cards, as the next tune of a user would."""
    killed = Killed(hosts)
    undisturbed = killed.tune(tmp_path / "undisturbed", "quiet")
    assert undisturbed.process.wait(300) == 0, undisturbed.errors.read_text()
    expected = verdicts(tmp_path / "undisturbed")
    assert len(expected) == TRIALS and {status for status, _ in expected.values()} == {"ok"}
    number = 0
    while len(killed.kills) < KILLS:
        out, number = tmp_path / f"out{number}", number + 1
        shutil.rmtree(hosts.folder / "tuner" / "cache", ignore_errors=True)
        killed.disturbed(out, "tuner")
        last = killed.tune(out, "tuner")
        assert last.process.wait(300) == 0, last.errors.read_text()
        assert verdicts(out) == expected, killed.kills
        found, quiet = row(out, "h200"), row(tmp_path / "undisturbed", "h200")
        assert [found[name] for name in ("config", "kind", "time_us")] == [
            quiet[name] for name in ("config", "kind", "time_us")
        ]
    assert len(killed.kills) == KILLS

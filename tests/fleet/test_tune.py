"""Tunes on a cluster whose hosts are real processes with a made-up compiler and machine."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tests.fakes import fake_us
from tests.fleet.cluster import Cluster, cluster
from tuner.cli.main import main
from tuner.fleet.devices import jobs_of_each, resolved
from tuner.fleet.engine import Access
from tuner.fleet.fleet import Fleet
from tuner.fleet.sweep import sweep
from tuner.fleet.work import Work
from tuner.search.progress import Silent
from tuner.stages.run import TuneOptions
from tuner.tune.tune_result import TuneResult

pytestmark = pytest.mark.slow
SHAPE = "16,512,256,32"


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """With a build cache of the tuner's own, where no test before has left what this one counts."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with cluster(tmp_path / "cluster") as started:
        yield started


def tune(
    address: str,
    out: Path,
    device: str = "h200",
    *,
    trials: int = 12,
    shapes: tuple[str, ...] = (SHAPE,),
    say: Callable[[str], None] = print,
) -> list[TuneResult]:
    """What ``--cluster ADDRESS`` does, without counting the space."""
    problems = [GemmProblem.parse(shape) for shape in shapes]
    options = TuneOptions(trials=trials, out=out, count_space=False)
    with Fleet(Access(address=address), say=say) as fleet:
        name = resolved(fleet, device)
        work = Work(access=Access(address=address), device=name)

        def chosen(to_come: int, side: int) -> TuneOptions:
            return dataclasses.replace(options, jobs=jobs_of_each(fleet, side))

        return list(sweep(fleet, work, problems, chosen, lambda problem: Silent()))


def journal(out: Path) -> list[dict[str, Any]]:
    """Trials, the last word on each."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted((out / ".studies").rglob("*.jsonl")):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            if "resolved" in record:
                found[f"{record['problem']} {record['resolved']}"] = record
    return list(found.values())


def verdicts(out: Path) -> dict[str, tuple[str, float | None]]:
    return {trial["resolved"]: (trial["status"], trial["us"]) for trial in journal(out)}


def row(out: Path, device: str) -> dict[str, Any]:
    document = json.loads((out / device / "dispatch.json").read_text())
    (only,) = document["rows"]
    return only


def done(hosts: Cluster, name: str, what: str) -> list[str]:
    return [line.partition(" ")[2] for line in hosts.log(name) if line.startswith(f"{what} ")]


def test_a_tune_on_two_hosts(hosts: Cluster, tmp_path: Path) -> None:
    """Each candidate is compiled once, by one of them, and the fastest by the hash that is a time here wins. A host of
    other sources gets nothing, and is named."""
    hosts.host("stranger", "--sources", "0" * 64, wait=False)
    hosts.host("a", wait=False)
    for process in (hosts.host("b", "--cards", "GPU-1"), *hosts.processes[1:3]):
        process.line or process.wait_until_ready()
    said: list[str] = []
    (result,) = tune(hosts.address, tmp_path / "out", say=said.append)
    trials = journal(tmp_path / "out")
    compiled = done(hosts, "a", "compile") + done(hosts, "b", "compile")
    assert sorted(compiled) == sorted({trial["resolved"] for trial in trials})
    assert len(compiled) == 12
    assert result.winner is not None
    assert result.winner.resolved == min(compiled, key=fake_us)
    for trial in trials:
        at = trial["build"]["compiled_on"]
        assert trial["resolved"] in done(hosts, at, "compile")
        assert trial["evidence"]["host"] == "b"
        assert trial["us"] == fake_us(trial["resolved"])
    assert hosts.log("stranger") == []
    assert [
        line
        for line in said
        if re.match("stranger .*is refused: its sources are 000000000000, this tuner's", line)
    ]


def test_problems_side_by_side(hosts: Cluster, tmp_path: Path) -> None:
    """Three at a time, one a card; a card's host is killed, and its problem goes on with another card."""
    starting = [
        hosts.host(name, "--cards", f"GPU-{name}", "--card-seconds", "0.1", wait=False) for name in "abc"
    ]
    for process in starting:
        process.wait_until_ready()
    shapes = ("16,512,256,32", "16,512,512,32", "16,512,768,32", "16,512,1024,32")
    folder = hosts.folder / "b" / "GPU-b" / "configs"

    def kill() -> None:
        while not folder.exists() or len(folder.read_text().splitlines()) < 6:
            time.sleep(0.01)
        starting[1].kill()

    killer = threading.Thread(target=kill)
    killer.start()
    results = tune(hosts.address, tmp_path / "out", trials=6, shapes=shapes)
    killer.join()
    assert sorted(str(result.problem) for result in results) == sorted(shapes)
    for result in results:
        trials = [trial for trial in journal(tmp_path / "out") if trial["problem"] == str(result.problem)]
        assert len(trials) == 6
        assert {trial["status"] for trial in trials} == {"ok"}
        assert result.winner is not None
        assert result.winner.resolved == min((trial["resolved"] for trial in trials), key=fake_us)
        assert result.device.name == "h200"
    first = {result.winner.evidence["host"] for result in results if result.winner}
    assert len(first) >= 2
    rows = json.loads((tmp_path / "out" / "h200" / "dispatch.json").read_text())["rows"]
    assert len(rows) == 4


def test_compile_only_and_measure(hosts: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder is filled by the hosts, and judged by the card of one of them."""
    hosts.host("a", "--cards", "GPU-a")
    folder, out = tmp_path / "objects", tmp_path / "out"
    cluster_words = ["--cluster", hosts.address, "--quiet"]
    filled = ["compile-only", "--shape", SHAPE, "--device", "h200", "--trials", "3", "--out", str(folder)]
    assert main([*filled, *cluster_words]) == 0
    compiled = done(hosts, "a", "compile")
    assert len(compiled) == 3
    capsys.readouterr()
    assert main(["measure", str(folder), "--out", str(out), *cluster_words]) == 0
    printed = capsys.readouterr().out
    best = min(compiled, key=fake_us)
    assert re.search(f"^winner +{re.escape(best)}$", printed, re.M)
    assert verdicts(out) == {config: ("ok", fake_us(config)) for config in compiled}
    assert done(hosts, "a", "compile") == compiled


def test_a_tuner_is_killed_and_goes_on(hosts: Cluster, tmp_path: Path) -> None:
    """What it had found is not asked again; the journal ends as that of one that nobody killed."""
    hosts.host("a", "--jobs", "4", "--cards", "GPU-a", "--card-seconds", "0.2")
    out = tmp_path / "out"
    words = ("tune", "--shape", SHAPE, "--device", "h200", "--trials", "16", "--quiet", "--out")
    killed = hosts.tuner(*words, str(out))
    configs = hosts.folder / "a" / "GPU-a" / "configs"
    while not configs.exists() or configs.read_text().count("time ") < 5:
        time.sleep(0.02)
        assert killed.process.poll() is None, killed.errors.read_text()
    killed.kill()
    before = {line.partition(" ")[2] for line in configs.read_text().splitlines() if line.startswith("time ")}
    again = hosts.tuner(*words, str(out))
    assert again.process.wait(200) == 0, again.errors.read_text()
    found = verdicts(out)
    undisturbed = tmp_path / "undisturbed"
    tune(hosts.address, undisturbed, trials=16)
    assert found == verdicts(undisturbed)
    assert row(out, "h200")["config"] == row(undisturbed, "h200")["config"]
    log = [line for line in configs.read_text().splitlines() if line.startswith("time ")]
    twice = [
        config for config in before if log.count(f"time {config}") > 2
    ]  # once for each of the two folders
    assert len(twice) <= 1


def test_hosts_are_killed_twenty_times(hosts: Cluster, tmp_path: Path) -> None:
    """At random, and started again; journal and winner are those of an undisturbed tune of the same seed."""
    random.seed(19)
    hosts.host("card", "--jobs", "1", "--cards", "GPU-1", "--seconds", "0.05", "--card-seconds", "0.05")
    tune(hosts.address, tmp_path / "undisturbed", trials=40)
    doomed = [hosts.host(f"h{number}", "--seconds", "0.2") for number in range(2)]
    stop = threading.Event()
    kills = 0

    def kill() -> None:
        nonlocal kills
        while not stop.wait(random.uniform(0.1, 0.8)) and kills < 20:
            at = random.randrange(2)
            doomed[at].kill()
            kills += 1
            doomed[at] = hosts.host(f"h{at}", "--seconds", "0.2", wait=False)

    killer = threading.Thread(target=kill)
    killer.start()
    shutil.rmtree(Path(os.environ["XDG_CACHE_HOME"]) / "svdquant-tune" / "build")
    tune(hosts.address, tmp_path / "out", trials=40)
    stop.set()
    killer.join()
    assert kills >= 3
    assert verdicts(tmp_path / "out") == verdicts(tmp_path / "undisturbed")
    assert row(tmp_path / "out", "h200")["config"] == row(tmp_path / "undisturbed", "h200")["config"]


def test_a_host_is_killed(hosts: Cluster, tmp_path: Path) -> None:
    """In the middle: another one does what it had, and every verdict is there once."""
    doomed = hosts.host("doomed", "--seconds", "0.3", wait=False)
    hosts.host("other", "--seconds", "0.05", "--cards", "GPU-1")
    doomed.wait_until_ready()

    def kill() -> None:
        while len(done(hosts, "doomed", "compile")) < 3:
            time.sleep(0.01)
        doomed.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    tune(hosts.address, tmp_path / "out", trials=20)
    killer.join()
    found = verdicts(tmp_path / "out")
    assert len(found) == 20
    assert found == {config: ("ok", fake_us(config)) for config in found}
    tasks = done(hosts, "doomed", "compile") + done(hosts, "other", "compile")
    again = len(tasks) - len(set(tasks))
    assert again <= 4  # two processes, and the two that waited there

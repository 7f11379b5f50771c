"""The seam to the engine: tasks of a tuner on hosts that are real processes, with a made-up compiler."""

from __future__ import annotations

import concurrent.futures
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel_space.build.key import build_key
from kernel_space.core.arch import SM90A
from kernel_space.core.config import KernelConfig
from kernel_space.core.registry import parse_config
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tests.fleet.cluster import ROOT, Cluster, cluster
from tuner.fleet.engine import Access
from tuner.fleet.fleet import Fleet
from tuner.fleet.identity import COMPILE
from tuner.fleet.pools import FleetPool

STAGES = "num_ab_stage=3 num_dq_stage=2 num_lora_stage=2 num_c_stage=2"
PROBLEM = GemmProblem.parse("16,512,256,0")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """``stranger`` has other sources, ``other`` another compiler."""
    with cluster(tmp_path_factory.mktemp("cluster")) as started:
        options = {
            "a": ["--seconds", "0.02"],
            "b": ["--seconds", "0.02"],
            "stranger": ["--sources", "0" * 64],
            "other": ["--compiler", "nvidia-cutlass-dsl==1.0"],
        }
        processes = [started.host(name, *words, wait=False) for name, words in options.items()]
        for process in processes:
            process.wait_until_ready()
        yield started


def configs(count: int) -> list[KernelConfig]:
    """That need not be legal: nothing here compiles them."""
    return [
        parse_config("svdquant_gemm", SM90A, f"kernel=sm90a_ring {STAGES} swizzle_size={number + 1}")
        for number in range(count)
    ]


def compiled(hosts: Cluster, *names: str) -> list[str]:
    return [line.removeprefix("compile ") for name in names for line in hosts.log(name)]


def test_who_joined_before_the_tuner_is_known_when_it_has_settled(hosts: Cluster) -> None:
    """``--device auto`` looks then whether there are cards: what it does not know of it takes for missing."""
    with Fleet(Access(address=hosts.address), say=lambda line: None) as fleet:
        assert fleet.members.wait_for(fleet.members.settled, 20)
        assert fleet.members.slots(COMPILE) == 4


def test_objects_travel_and_strangers_are_refused(hosts: Cluster, tmp_path: Path) -> None:
    """Each is compiled once, by a host of these sources and this compiler, and lies in this machine's cache whole."""
    said: list[str] = []
    with Fleet(Access(address=hosts.address), say=said.append) as fleet:
        assert fleet.members.wait_for(lambda: fleet.members.slots(COMPILE) == 4, 20)
        assert fleet.members.wait_for(fleet.members.settled, 20)
        pool = FleetPool(fleet, 10.0, tmp_path / "cache")
        wanted = configs(12)
        futures = [pool.submit(one, PROBLEM.problem_class, SM90A) for one in wanted]
        results = [future.result(timeout=30) for future in futures]
        again = pool.submit(wanted[0], PROBLEM.problem_class, SM90A).result(timeout=0)
    assert sorted(compiled(hosts, "a", "b")) == sorted(map(str, wanted))
    assert compiled(hosts, "stranger", "other") == []
    for config, result in zip(wanted, results, strict=True):
        key = build_key(config, PROBLEM.problem_class, SM90A)
        assert result.compiled is not None
        assert result.compiled.directory == tmp_path / "cache" / key
        assert (
            result.compiled.object_path.read_bytes()
            == f"object of {config} for {PROBLEM.problem_class}".encode()
        )
        assert result.host in ("a", "b")
        assert str(config) in compiled(hosts, result.host)
    assert again.host == ""
    refused = [line for line in said if "is refused" in line]
    assert any(line.startswith("stranger (") and "its sources are 000000000000" in line for line in refused)
    assert any(line.startswith("other (") and "nvidia-cutlass-dsl==1.0" in line for line in refused)
    assert not any(line.startswith(("a ", "b ")) for line in refused)


@pytest.mark.slow
def test_a_host_that_is_killed_costs_its_tasks_once(hosts: Cluster, tmp_path: Path) -> None:
    doomed = hosts.host("doomed", "--jobs", "2", "--seconds", "0.2")
    before = set(compiled(hosts, "a", "b"))

    def kill() -> None:
        while len(compiled(hosts, "doomed")) < 3:
            time.sleep(0.005)
        doomed.kill()

    with Fleet(Access(address=hosts.address), say=lambda line: None) as fleet:
        assert fleet.members.wait_for(lambda: fleet.members.slots(COMPILE) == 6, 20)
        pool = FleetPool(fleet, 10.0, tmp_path / "cache")
        killer = threading.Thread(target=kill)
        killer.start()
        wanted = configs(60)[12:]
        futures = [pool.submit(one, PROBLEM.problem_class, SM90A) for one in wanted]
        done, late = concurrent.futures.wait(futures, timeout=60)
        killer.join()
    assert not late
    assert all(future.result().compiled is not None for future in done)
    elsewhere = [one for one in compiled(hosts, "a", "b") if one not in before]
    assert len(elsewhere) == len(set(elsewhere))  # nobody else did anything twice
    lost = set(compiled(hosts, "doomed")) & set(elsewhere)
    assert 0 < len(lost) <= 4  # the two that it was at; two may have been finished and not fetched


def test_without_cluster_the_engine_is_not_imported() -> None:
    program = (
        "import sys; from tuner.cli.main import main; main(['lookup', '--shape', '16,512,256,0', '--device', 'h200']); "
        "import tuner.cli.tune.tune, tuner.cli.tune.measure, tuner.cli.tune.compile_only; "
        "print('engine', [name for name in sys.modules if name.partition('.')[0] in ('dask', 'distributed')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "engine []"

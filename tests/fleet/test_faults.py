"""Real processes that are killed, stopped and started: what each costs, and that nothing is lost or counted twice."""

from __future__ import annotations

import concurrent.futures
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernel_space.core.arch import SM90A
from kernel_space.core.errors import InputError
from tests.fakes import fake_us
from tests.fleet.cluster import ROOT, Cluster, cluster
from tests.fleet.test_fleet import PROBLEM, compiled, configs
from tuner.card.card_worker import CandidateFault, CardLost
from tuner.card.samples.samples import Samples
from tuner.card.worker.bench import QUICK
from tuner.card.worker.candidate import Case, Loadable
from tuner.fleet.cards import FleetCard
from tuner.fleet.engine import Access, FleetLost, Tls
from tuner.fleet.fleet import Fleet
from tuner.fleet.identity import COMPILE
from tuner.fleet.pools import FleetPool
from tuner.trials.outcome import Status

pytestmark = pytest.mark.slow
SILENT_S = 3.0


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path / "cluster") as started:
        yield started


@pytest.fixture
def said() -> list[str]:
    return []


def fleet_of(hosts: Cluster, said: list[str]) -> Fleet:
    return Fleet(Access(address=hosts.address), say=said.append, silent_s=SILENT_S)


def wait_for(ready: Callable[[], object], limit_s: float = 30.0) -> None:
    deadline = time.monotonic() + limit_s
    while not ready():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def loadable(folder: Path, config: str = "launch:fine") -> Loadable:
    """``config``: what ``fake_card_worker`` is to do with it."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{config.replace(':', '-')}.o"
    path.write_bytes(f"object of {config} ".encode())
    return Loadable(object_path=str(path), object_sha256="", prefix="k", arguments=(), config=config)


def quick(card: FleetCard, candidate: Loadable) -> Samples:
    return card.time(candidate, Case(problem=PROBLEM), QUICK)


def test_a_host_that_hangs(hosts: Cluster, tmp_path: Path, said: list[str]) -> None:
    """Stopped, it answers nothing and its connections stay open, as when its network is cut."""
    stopped = hosts.host("stopped", "--seconds", "0.3")
    with fleet_of(hosts, said) as fleet:
        wait_for(lambda: fleet.members.slots(COMPILE))
        pool = FleetPool(fleet, 10.0, tmp_path / "cache")
        futures = [pool.submit(one, PROBLEM.problem_class, SM90A) for one in configs(6)]
        wait_for(lambda: len(compiled(hosts, "stopped")) >= 2)
        stopped.signal(signal.SIGSTOP)
        hosts.host("other")
        done, late = concurrent.futures.wait(futures, timeout=60)
        assert not late
        assert all(future.result().status is Status.OK for future in done)
        assert {future.result().host for future in done} >= {"other"}
        assert any("was silent for 3 s" in line for line in said)
        stopped.signal(signal.SIGCONT)  # what it says now is not heard, and it may join again
        wait_for(lambda: fleet.members.slots(COMPILE) >= 2)


@pytest.fixture
def namespace() -> Iterator[tuple[str, str, str, str]]:
    """(name, address outside, address inside, link outside) of a network namespace that a pair of links joins."""
    name, link = f"fleet{os.getpid() % 10000}", f"fl{os.getpid() % 10000}"
    here, there = "10.213.77.1", "10.213.77.2"
    steps = [
        f"netns add {name}",
        f"link add {link} type veth peer name {link}p netns {name}",
        f"addr add {here}/24 dev {link}",
        f"link set {link} up",
        f"-n {name} addr add {there}/24 dev {link}p",
        f"-n {name} link set {link}p up",
        f"-n {name} link set lo up",
    ]
    try:
        for step in steps:
            done = subprocess.run(["ip", *step.split()], capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"no network namespace can be had here: {done.stderr.strip()}")
        yield name, here, there, link
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)
        subprocess.run(["ip", "link", "del", link], capture_output=True)


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="needs root and iproute2")
def test_the_network_of_a_host_is_cut(
    namespace: tuple[str, str, str, str], tmp_path: Path, said: list[str]
) -> None:
    name, here, there, link = namespace
    with cluster(tmp_path / "cluster", listen=here) as hosts:
        hosts.host("far", "--seconds", "0.3", "--listen", there, prefix=("ip", "netns", "exec", name))
        with fleet_of(hosts, said) as fleet:
            wait_for(lambda: fleet.members.slots(COMPILE))
            pool = FleetPool(fleet, 10.0, tmp_path / "cache")
            futures = [pool.submit(one, PROBLEM.problem_class, SM90A) for one in configs(6)]
            wait_for(lambda: len(compiled(hosts, "far")) >= 2)
            subprocess.run(["ip", "link", "set", link, "down"], check=True)
            hosts.host("near", "--listen", here)
            done, late = concurrent.futures.wait(futures, timeout=90)
            assert not late
            assert all(future.result().status is Status.OK for future in done)
            assert {future.result().host for future in done} >= {"near"}
            assert any("was silent for 3 s" in line for line in said)


def test_the_scheduler_dies(hosts: Cluster, tmp_path: Path, said: list[str]) -> None:
    """One line for whoever waits; its hosts join the next one."""
    hosts.host("a", "--seconds", "5")
    with fleet_of(hosts, said) as fleet:
        wait_for(lambda: fleet.members.slots(COMPILE))
        pool = FleetPool(fleet, 10.0, tmp_path / "cache")
        future = pool.submit(configs(1)[0], PROBLEM.problem_class, SM90A)
        wait_for(lambda: compiled(hosts, "a"))
        hosts.scheduler.kill()
        with pytest.raises(
            FleetLost, match="does not answer any more; everything found so far is in the journal"
        ):
            future.result(timeout=60)
        with pytest.raises(FleetLost):
            pool.submit(configs(2)[1], PROBLEM.problem_class, SM90A).result(timeout=5)
    hosts.restart_scheduler()
    with fleet_of(hosts, said) as fleet:
        wait_for(lambda: fleet.members.slots(COMPILE), 60)
        pool = FleetPool(fleet, 10.0, tmp_path / "cache")
        assert pool.submit(configs(3)[2], PROBLEM.problem_class, SM90A).result(timeout=30).host == "a"


def test_nobody_listens(said: list[str]) -> None:
    with pytest.raises(
        InputError, match=r"^no scheduler answers at tcp://127.0.0.1:9 .*dask scheduler --host 127.0.0.1$"
    ):
        Fleet(Access(address="tcp://127.0.0.1:9"), say=said.append)


def test_a_late_host_gets_what_waits(hosts: Cluster, tmp_path: Path, said: list[str]) -> None:
    with fleet_of(hosts, said) as fleet:
        pool = FleetPool(fleet, 10.0, tmp_path / "cache")
        futures = [pool.submit(one, PROBLEM.problem_class, SM90A) for one in configs(5)]
        assert not concurrent.futures.wait(futures, timeout=1).done
        hosts.host("late")
        assert not concurrent.futures.wait(futures, timeout=30).not_done
    assert len(compiled(hosts, "late")) == 5


def test_a_plain_dask_worker_gets_what_waits(hosts: Cluster, said: list[str]) -> None:
    """It says nothing of its sources before it is asked."""
    with fleet_of(hosts, said) as fleet:
        future = fleet.submit(os.getpid, offer=COMPILE)
        assert not concurrent.futures.wait([future], timeout=1).done
        command = ["-m", "distributed.cli.dask_worker", hosts.address, "--no-nanny", "--no-dashboard"]
        plain = hosts.start([*command, "--resources", "compile=1 simulate=1"], "plain")
        assert future.result(timeout=60) == plain.process.pid
        assert fleet.members.slots(COMPILE) == 1


def test_a_card_that_is_not_there_is_refused(hosts: Cluster, said: list[str]) -> None:
    """A plain worker offers a class that its machine has no card of."""
    with fleet_of(hosts, said) as fleet:
        command = ["-m", "distributed.cli.dask_worker", hosts.address, "--no-nanny", "--no-dashboard"]
        hosts.start([*command, "--name", "boaster", "--resources", "card-h200=1"], "plain")
        wait_for(
            lambda: any(line.startswith("boaster is refused: it cannot say what it is") for line in said)
        )
        assert not fleet.members.card_classes()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_the_host_of_a_card_dies(
    how: signal.Signals, hosts: Cluster, tmp_path: Path, said: list[str]
) -> None:
    """Or hangs, in the middle of a request: another card of the class answers it, and says which it was."""
    named = {name: hosts.host(name, "--cards", f"GPU-{name}", "--card-seconds", "1") for name in ("a", "b")}
    with fleet_of(hosts, said) as fleet:
        wait_for(lambda: fleet.members.slots("card-h200") == 2)
        card = FleetCard(fleet, "h200", say=said.append)
        candidate = loadable(tmp_path / "objects")
        first = quick(card, candidate)
        assert first.us[0] == fake_us("launch:fine")
        other = "b" if first.host == "a" else "a"
        killer = threading.Timer(0.3, named[first.host].signal, [how])
        killer.start()
        assert quick(card, candidate).host == other
        assert any(f"the card GPU-{first.host} of {first.host} was lost" in line for line in said)
        card.close()


def test_a_candidate_that_loses_two_cards(hosts: Cluster, tmp_path: Path, said: list[str]) -> None:
    """Has a verdict; it is not given the third card. A card's host that comes back is a card again."""
    named = {name: hosts.host(name, "--cards", f"GPU-{name}", "--card-seconds", "1.5") for name in "abc"}
    with fleet_of(hosts, said) as fleet:
        wait_for(lambda: fleet.members.slots("card-h200") == 3)
        card = FleetCard(fleet, "h200", say=said.append, wait_s=1.0)
        candidate = loadable(tmp_path / "objects")

        def kill_twice() -> None:
            for _ in range(2):
                held = card.uuid
                wait_for(lambda: card.uuid not in ("", held))  # noqa: B023
                time.sleep(0.3)
                named[card.uuid.removeprefix("GPU-")].kill()
                wait_for(lambda: not card.uuid)

        killer = threading.Thread(target=kill_twice)
        killer.start()
        with pytest.raises(CandidateFault) as caught:
            quick(card, candidate)
        killer.join()
        assert caught.value.status is Status.WORKER_LOST
        (left,) = {"a", "b", "c"} - {name for name in named if named[name].process.poll() is not None}
        assert quick(card, candidate).host == left
        named[left].kill()
        with pytest.raises(CardLost, match="another card of class h200 must be free"):
            card.check(candidate, [Case(problem=PROBLEM)], repeats=1, seed=1)
        hosts.host(left, "--cards", f"GPU-{left}")
        wait_for(lambda: fleet.members.slots("card-h200") == 1)
        assert quick(card, candidate).host == left
        card.close()


def test_a_card_is_one_tuners_at_a_time(hosts: Cluster, tmp_path: Path, said: list[str]) -> None:
    hosts.host("a", "--cards", "GPU-a")
    with fleet_of(hosts, said) as one, fleet_of(hosts, said) as two:
        wait_for(lambda: one.members.slots("card-h200") and two.members.slots("card-h200"))
        first, second = FleetCard(one, "h200", say=said.append), FleetCard(two, "h200", say=said.append)
        candidate = loadable(tmp_path / "objects")
        quick(first, candidate)
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(quick, second, candidate)
            assert not concurrent.futures.wait([waiting], timeout=4).done
            assert "waiting for a card of class h200: others have all of them" in said
            first.close()
            assert waiting.result(timeout=20).host == "a"
        second.close()


def test_what_a_candidate_does_to_a_card_there(hosts: Cluster, tmp_path: Path, said: list[str]) -> None:
    """Verdicts are those of a card here: the worker below is killed and replaced, not the host."""
    host = hosts.host("a", "--cards", "GPU-a")
    with fleet_of(hosts, said) as fleet:
        wait_for(lambda: fleet.members.slots("card-h200"))
        card = FleetCard(fleet, "h200", say=said.append)
        deeds = {
            "launch:segfault": Status.FAILED,
            "launch:wrong": Status.WRONG_RESULT,
            "launch:illegal": Status.ILLEGAL_ACCESS,
        }
        for deed, status in deeds.items():
            with pytest.raises(CandidateFault) as caught:
                quick(card, loadable(tmp_path / "objects", deed))
            assert caught.value.status is status
        assert quick(card, loadable(tmp_path / "objects")).host == "a"
        assert host.process.poll() is None
        card.close()


def test_tls(tmp_path: Path, said: list[str]) -> None:
    """Who has no certificate of the authority is not let in."""
    files = certificates(tmp_path)
    tls = Tls(ca_file=files[0], cert=files[1], key=files[2])
    with cluster(tmp_path / "cluster", tls=files) as hosts:
        assert hosts.address.startswith("tls://")
        hosts.host("a", "--tls", *map(str, files))
        with Fleet(Access(address=hosts.address, tls=tls), say=said.append) as fleet:
            wait_for(lambda: fleet.members.slots(COMPILE))
            pool = FleetPool(fleet, 10.0, tmp_path / "cache")
            assert pool.submit(configs(1)[0], PROBLEM.problem_class, SM90A).result(timeout=30).host == "a"
        with pytest.raises(InputError, match="no scheduler answers"):
            Fleet(Access(address=hosts.address.replace("tls:", "tcp:")), say=said.append)


def certificates(folder: Path) -> tuple[Path, Path, Path]:
    """One that is its own authority."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
        + ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)],
        check=True,
        capture_output=True,
    )
    return cert, cert, key


def test_bad_words_are_one_line(tmp_path: Path) -> None:
    """And exit code 2."""
    for words, line in {
        ("tune", "--shape", "16,512,256,0", "--cluster", "local:0"): "must be local:N with N from 1 to",
        ("tune", "--shape", "16,512,256,0", "--cluster", "nowhere"): "must be tcp://HOST:PORT",
        ("tune", "--shape", "16,512,256,0", "--tls-cert", "x"): "are for --cluster ADDRESS",
        ("tune", "--shape", "16,512,256,0", "--cluster", "tls://h:1"): "needs --tls-ca-file",
        ("worker", "tcp://10.0.0.1:8786"): "give --host with this machine's address",
        ("worker", "tcp://127.0.0.1:8786", "--compile", "0"): "a host must offer something",
        ("worker", "tcp://127.0.0.1:8786", "--card", "x"): "must be cards such as 0,1",
    }.items():
        done = subprocess.run([sys.executable, "tune.py", *words], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 2, words
        assert len(done.stderr.splitlines()) == 1
        assert line in done.stderr

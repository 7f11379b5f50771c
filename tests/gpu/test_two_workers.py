"""The tuner on several cards of one host: each worker has the card that is meant, and what happens on one is nothing to
the other. What a card is called is taken from torch, its state from a load that runs on one card only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kernel_space.core.errors import InputError
from tests.gpu.conftest import LAUNCH_LIMIT_S
from tests.gpu.objects import RIGHT, Entry
from tuner.card.card_worker import CandidateFault, CardWorker, Limits
from tuner.card.locks import card_lock
from tuner.card.samples.samples import State
from tuner.card.worker.bench import FULL, QUICK, FinalsOptions
from tuner.card.worker.telemetry import Telemetry
from tuner.card.worker_process import worker_command
from tuner.devices.card import CudaDevice
from tuner.devices.select import select_device
from tuner.trials.outcome import Status

CARDS = (0, 1)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < len(CARDS), reason="needs two cards in one host"),
]
ROOT = Path(__file__).resolve().parents[2]


def uuid_of(card: int) -> str:
    return str(torch.cuda.get_device_properties(card).uuid)


def worker_on(card: int, folder: Path, *before: str) -> CardWorker:
    """``before``: what starts the worker's command, such as ``env NAME=value``."""
    command = [*before, *worker_command(card, "--launch-limit", str(LAUNCH_LIMIT_S))]
    return CardWorker(card, uuid_of(card), limits=Limits(pause_s=1.0), command=command, lock_folder=folder)


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[CardWorker]]:
    with contextlib.ExitStack() as stack:
        folder = tmp_path_factory.mktemp("lock")
        yield [stack.enter_context(worker_on(card, folder)) for card in CARDS]


def test_each_worker_has_the_card_that_is_meant(workers: list[CardWorker]) -> None:
    assert uuid_of(0) != uuid_of(1)
    assert [worker.health.uuid for worker in workers] == [uuid_of(card) for card in CARDS]


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_candidate_passes_on_the_second_card(
    workers: list[CardWorker], objects: dict[str, Entry], name: str
) -> None:
    case, ragged = objects[name].case, objects[name].ragged
    reports = workers[1].check(objects[name].candidate, [case, *ragged], repeats=4, seed=3)
    assert [report.problem for report in reports] == [str(one.problem) for one in (case, *ragged)]
    assert all(0 < report.max_ratio <= 1 for report in reports)


FAULTS = {
    "fault-stores_far_away": Status.ILLEGAL_ACCESS,
    "fault-traps": Status.FAILED,
    "fault-waits": Status.DEADLOCK,
    "fault-stores_behind_y": Status.ILLEGAL_ACCESS,
}


def test_faults_of_one_card_are_nothing_to_the_other(
    workers: list[CardWorker], objects: dict[str, Entry]
) -> None:
    """While the second card loses worker after worker, the first judges without a break."""
    first, second = workers
    assert first.health and second.health
    started, plain, judged, stop = first.started, objects["plain"], [], threading.Event()

    def judge() -> None:
        while not stop.is_set():
            judged.append(
                first.check(plain.candidate, [plain.case], repeats=2, seed=len(judged))[0].max_ratio
            )

    thread = threading.Thread(target=judge)
    thread.start()
    try:
        for name, status in FAULTS.items():
            with pytest.raises(CandidateFault) as fault:
                second.check(objects[name].candidate, [objects[name].case], repeats=2, seed=1)
            assert fault.value.status is status, str(fault.value)
            assert second.check(plain.candidate, [plain.case], repeats=2, seed=1)[0].max_ratio <= 1
    finally:
        stop.set()
        thread.join()
    assert len(judged) > 20 and max(judged) <= 1
    assert first.started == started


def test_both_cards_time_at_once(workers: list[CardWorker], objects: dict[str, Entry]) -> None:
    """Neither waits for the other nor slows it: two cards of a kind, the same kernel, alone and together."""
    entry = objects["large"]
    floor_us = entry.case.problem.flops / 989e12 * 1e6
    alone = [worker.time(entry.candidate, entry.case, FULL).timing().us for worker in workers]
    together: dict[int, float] = {}

    def time_on(card: int) -> None:
        for _ in range(3):
            together[card] = workers[card].time(entry.candidate, entry.case, FULL).timing().us

    threads = [threading.Thread(target=time_on, args=(card,)) for card in CARDS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"alone {alone}, together {together}")
    for card in CARDS:
        assert floor_us < together[card] == pytest.approx(alone[card], rel=0.05)
    both = workers[1].finals([(entry.candidate, entry.case)] * 2, FinalsOptions(rounds=8))
    assert both[0].timing().us == pytest.approx(both[1].timing().us, rel=0.05)
    assert both[0].telemetry == "" and both[0].states[-1].sm_mhz


@pytest.mark.parametrize("form", ["1", "GPU-{uuid}"])
def test_a_worker_sees_the_cards_that_are_visible(form: str, tmp_path: Path) -> None:
    """``cuda:0`` counts the visible cards only; clocks and power must be those of that card too."""
    visible = form.format(uuid=uuid_of(1))
    with worker_on(0, tmp_path, "env", f"CUDA_VISIBLE_DEVICES={visible}") as worker:
        assert worker.health.uuid == uuid_of(1)
        assert worker.health.policy != "unknown"


def states_under_load(card: int) -> list[State]:
    """The state of every card while matrix products run on ``card`` alone."""
    telemetry = [Telemetry(uuid_of(one)) for one in CARDS]
    assert [one.missing for one in telemetry] == ["", ""]
    a = torch.randn(8192, 8192, device=f"cuda:{card}", dtype=torch.bfloat16)
    out = torch.empty_like(a)
    for _ in range(1200):  # over a second and a half
        torch.mm(a, a, out=out)
    time.sleep(0.6)
    states = [one.read() for one in telemetry]
    torch.cuda.synchronize(card)
    return states


@pytest.mark.parametrize("card", CARDS)
def test_the_state_that_is_read_is_that_of_the_card(card: int) -> None:
    time.sleep(1.0)  # what ran before has ended, and power has fallen
    states = states_under_load(card)
    busy, idle = states[card], states[1 - card]
    assert busy.watts > idle.watts + 150 and "gpu_idle" not in busy.reasons, states


def test_a_card_that_somebody_holds_does_not_stop_the_other() -> None:
    """The lock that all tuners of this machine share is a card's own."""
    devices = [select_device(f"cuda:{card}") for card in CARDS]
    said: list[str] = []
    assert all(isinstance(device, CudaDevice) for device in devices)
    try:
        with card_lock(devices[0].card.uuid, say=said.append):
            assert devices[1].worker.health.uuid == uuid_of(1)
        assert devices[0].worker.health.uuid == uuid_of(0) and not said
        assert devices[0].judge == devices[1].judge, "cards of a kind judge for one another"
    finally:
        for device in devices:
            device.close()


def test_a_card_that_is_not_there() -> None:
    count = torch.cuda.device_count()
    with pytest.raises(InputError, match=rf"cuda:{count} is not there \(visible cards: cuda:0 .*, cuda:1 "):
        select_device(f"cuda:{count}")


def test_a_worker_leaves_the_other_card_alone(objects: dict[str, Entry]) -> None:
    """No context there: another tuner's candidate may have broken it, or its user need the memory."""
    code = (
        "import torch\n"
        "from tests.gpu.objects import FOLDER, load_all\n"
        "from tuner.card.worker.session import CardSession\n"
        "entry = load_all(FOLDER)['clusters']\n"
        "session = CardSession(1, lambda phase: None, 10.0)\n"
        "session.handle({'op': 'health'})\n"
        "asked = {'candidate': entry.candidate.record()}\n"
        "case = entry.case.record()\n"
        "print(session.handle({'op': 'check', **asked, 'cases': [case], 'repeats': 2, 'seed': 1})['report'])\n"
        f"session.handle({{'op': 'time', **asked, 'case': case, 'fidelity': {dataclasses.asdict(QUICK)}}})\n"
        "print([torch._C._cuda_hasPrimaryContext(card) for card in (0, 1)])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[False, True]", done.stdout

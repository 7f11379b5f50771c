"""The journal: nothing is lost, whatever ends the process, and several tuners may write it."""

from __future__ import annotations

import binascii
import contextlib
import dataclasses
import errno
import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from kernel_space.core.errors import InputError
from tuner.files.store import StoreError
from tuner.trials import attempt as attempt_module
from tuner.trials.journal_lines import write_line
from tuner.trials.journal_read import read_journal
from tuner.trials.outcome import Kind, Origin, Status, Timing, Trial
from tuner.trials.study import Identity, Study

IDENTITY = Identity(
    op="svdquant_gemm",
    device="b200",
    arch="sm_100a",
    problem="4352,3840,3072,128",
    options={"lora_dtype": "fp16", "out_dtype": "fp16"},
    source_hash="aaaa",
    dsl_version="4.8.1",
    judge="model 1",
)


def trial(number: int, **changes: object) -> Trial:
    plain = Trial(
        number=number,
        op="svdquant_gemm",
        problem="4352,3840,3072,128",
        options={"lora_dtype": "fp16", "out_dtype": "fp16"},
        device="b200",
        arch="sm_100a",
        config=f"num_ab_stage=auto prefetch_dist={number}",
        resolved=f"num_ab_stage=4 prefetch_dist={number}",
        status=Status.OK,
        kind=Kind.MODELLED,
        us=10.0 + number,
        low_us=9.0,
        high_us=400.0,
        evidence={"main_loop": 7.25, "bound": "mma"},
        build={"registers": 168},
        finished="2026-11-21T08:00:00+00:00",
    )
    return dataclasses.replace(plain, **changes)


def write_fifty(folder: Path, first: int) -> None:
    study = Study(folder, IDENTITY)
    for number in range(first, first + 50):
        study.append(trial(number))


# -- records --


def test_record_survives_json() -> None:
    for one in (
        trial(3, origin=Origin.NEIGHBOUR),
        trial(4, status=Status.WRONG_RESULT, reason='y[0,1] is "nan"', validation="wrong\nresult"),
        Trial(**{**dataclasses.asdict(trial(5)), "kind": None, "us": None, "low_us": None, "high_us": None}),
    ):
        assert Trial.from_record(json.loads(json.dumps(one.to_record()))) == one


def test_record_of_something_else_is_refused() -> None:
    record = trial(0).to_record()
    for broken in ({**record, "status": "good"}, {**record, "extra": 1}, {"number": 0}):
        with pytest.raises(InputError, match="not the record of a trial"):
            Trial.from_record(broken)


def test_a_time_lies_in_its_interval() -> None:
    for low, us, high in ((2.0, 1.0, 3.0), (1.0, 4.0, 3.0), (0.0, 1.0, 2.0), (1.0, 1.0, float("inf"))):
        with pytest.raises(ValueError, match="0 < low_us <= us <= high_us"):
            Timing(kind=Kind.MODELLED, us=us, low_us=low, high_us=high)


# -- the file --


def test_trials_come_back(tmp_path: Path) -> None:
    study = Study(tmp_path, IDENTITY)
    for number in range(3):
        study.append(trial(number))
    again = Study(tmp_path, IDENTITY)
    assert list(again.trials.values()) == [trial(0), trial(1), trial(2)]
    assert again.find(trial(1).resolved) == trial(1) and again.find("never") is None


def test_later_line_about_a_candidate_supplements_the_earlier_one(tmp_path: Path) -> None:
    study = Study(tmp_path, IDENTITY)
    study.append(trial(0))
    study.append(trial(1))
    study.append(trial(0, validation="passed"))
    assert list(Study(tmp_path, IDENTITY).trials.values()) == [trial(0, validation="passed"), trial(1)]
    assert len(study.path.read_text().splitlines()) == 4  # header and all three


def test_torn_anywhere_keeps_every_complete_line(tmp_path: Path) -> None:
    """A kill or a power cut may end the file anywhere."""
    whole = Study(tmp_path, IDENTITY)
    for number in range(3):
        whole.append(trial(number))
    data = whole.path.read_bytes()
    ends = [position + 1 for position, byte in enumerate(data) if byte == ord("\n")]
    assert len(ends) == 4
    near_ends = {end + near for end in [0, *ends] for near in range(-3, 4)}
    for cut in sorted({*near_ends, *range(0, len(data), 31)} & {*range(len(data) + 1)}):
        whole.path.write_bytes(data[:cut])
        study = Study(tmp_path, IDENTITY)
        complete = max(sum(end <= cut for end in ends) - 1, 0)
        assert list(study.trials.values()) == [trial(number) for number in range(complete)], cut
        study.append(trial(9))
        lines = [json.loads(line) for line in study.path.read_bytes().splitlines()]
        assert [line.get("number") for line in lines] == [None, *range(complete), 9], cut


def test_two_writers_see_each_other(tmp_path: Path) -> None:
    one, other = Study(tmp_path, IDENTITY), Study(tmp_path, IDENTITY)
    one.append(trial(1))
    other.append(trial(2))
    assert trial(1).resolved in other.trials
    one.append(trial(3))
    assert list(one.trials) == [trial(number).resolved for number in (1, 2, 3)]
    assert list(Study(tmp_path, IDENTITY).trials) == list(one.trials)


def test_torn_line_of_another_process_is_cut_before_the_next_one(tmp_path: Path) -> None:
    study = Study(tmp_path, IDENTITY)
    study.append(trial(0))
    with study.path.open("ab") as file:
        file.write(b'{"number": 1, "prob')
    study.append(trial(2))
    assert list(Study(tmp_path, IDENTITY).trials) == [trial(0).resolved, trial(2).resolved]


def test_processes_at_once_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write_fifty, args=(tmp_path, first)) for first in (0, 50)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    study = Study(tmp_path, IDENTITY)
    assert {one.number for one in study.trials.values()} == set(range(100))
    lines = study.path.read_text().splitlines()
    assert len(lines) == 101 and json.loads(lines[0])["version"] == 2


def test_full_disk_keeps_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = Study(tmp_path, IDENTITY)
    study.append(trial(0))
    write, calls = os.write, []

    def fills_up(fd: int, data: bytes) -> int:
        calls.append(len(data))
        if len(calls) == 1:
            return write(fd, bytes(data[:20]))
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("tuner.trials.study.os.write", fills_up)
        with pytest.raises(StoreError, match="No space left on device; all earlier trials are kept"):
            study.append(trial(1))
    assert trial(1).resolved not in study.trials
    study.append(trial(2))
    assert list(Study(tmp_path, IDENTITY).trials.values()) == [trial(0), trial(2)]


def test_removed_file_begins_anew(tmp_path: Path) -> None:
    study = Study(tmp_path, IDENTITY)
    study.append(trial(0))
    study.path.unlink()
    study.append(trial(1))
    assert list(Study(tmp_path, IDENTITY).trials) == [trial(1).resolved]


def test_note_stays_what_it_was_first(tmp_path: Path) -> None:
    study = Study(tmp_path, IDENTITY)
    assert study.recall("first", lambda: ["split_k=2"]) == ["split_k=2"]
    study.append(trial(0))
    again = Study(tmp_path, IDENTITY)
    assert again.recall("first", lambda: pytest.fail("it is known")) == ["split_k=2"]
    assert again.recall("second", list) == []
    assert again.recall("first", lambda: {"raw": 5}, anew=True) == {"raw": 5}
    assert Study(tmp_path, IDENTITY).recall("first", list) == {"raw": 5}
    assert list(again.trials.values()) == [trial(0)]


# -- identity --


def test_any_change_of_what_trials_depend_on_starts_another_file(tmp_path: Path) -> None:
    study = Study(tmp_path, IDENTITY)
    study.append(trial(0))
    stamp = {"op": "stamp", "problem": "32,0", "options": {"out_dtype": "fp16"}}
    others = {field.name: {field.name: "8,32,8,0"} for field in dataclasses.fields(Identity)}
    others |= {"op": stamp, "options": {"options": {"lora_dtype": "fp16", "out_dtype": "bf16"}}}
    for changes in others.values():
        other = Study(tmp_path, dataclasses.replace(IDENTITY, **changes))
        assert other.path != study.path and not other.trials
    assert list(Study(tmp_path, IDENTITY).trials) == [trial(0).resolved]
    assert study.path.parent == tmp_path / "b200" / "svdquant_gemm"
    assert study.path.name.startswith("4352x3840x3072x128-")


def test_file_of_something_else_is_refused(tmp_path: Path) -> None:
    mine = Study(tmp_path, IDENTITY)
    other = Study(tmp_path, dataclasses.replace(IDENTITY, problem="8,32,8,0"))
    mine.path.write_bytes(other.path.read_bytes())
    with pytest.raises(InputError, match="first line must name 4352,3840,3072,128 on b200"):
        Study(tmp_path, IDENTITY)


# -- damage --


def flipped(line: bytes) -> bytes:
    """Another number in a line that is JSON all the same."""
    assert b'"us":1' in line
    return line.replace(b'"us":1', b'"us":2')


DAMAGE = {
    "a number changed": flipped,
    "bytes that are no text": lambda line: b"\xff" + line[1:],
    "zeros of a file system": lambda line: b"\x00" * len(line),
    "cut off": lambda line: line[:40],
    "the checksum changed": lambda line: line[:-3] + (b"0" if line[-3:-2] != b"0" else b"1") + line[-2:],
    "nested": lambda line: b"[" * 100_000,
    "a number of many digits": lambda line: b'{"number":' + b"9" * 10_000 + b"}",
    "words where numbers belong": lambda line: json.dumps({**trial(1).to_record(), "us": "fast"}).encode(),
    "a trial of something else": lambda line: write_line(trial(1, device="h200").to_record())[:-1],
    "a time outside its interval": lambda line: write_line(trial(1, low_us=99.0).to_record())[:-1],
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damage_costs_its_line_only_and_is_named(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    study = Study(tmp_path, IDENTITY)
    for number in range(4):
        study.append(trial(number))
    lines = study.path.read_bytes().splitlines()
    lines[2] = damage(lines[2])
    study.path.write_bytes(b"\n".join(lines) + b"\n")
    said: list[str] = []
    again = Study(tmp_path, IDENTITY, say=said.append)
    assert list(again.trials.values()) == [trial(0), trial(2), trial(3)]
    assert [number for number, _ in again.damaged] == [3]
    assert len(said) == 1 and f"{study.path}: passed over damaged line 3 (" in said[0] and "\n" not in said[0]
    again.append(trial(1, validation="again"))
    assert study.path.read_bytes().splitlines()[:5] == lines, "nothing is rewritten"
    assert Study(tmp_path, IDENTITY, say=said.append).find(trial(1).resolved) == trial(1, validation="again")
    elsewhere = read_journal(study.path, say=said.append)
    assert elsewhere.latest == again.trials and [number for number, _ in elsewhere.damaged] == [3]


def test_a_damaged_first_line_is_said_again_by_the_file_s_name(tmp_path: Path) -> None:
    study = Study(tmp_path, IDENTITY)
    study.append(trial(0))
    lines = study.path.read_bytes().splitlines(keepends=True)
    study.path.write_bytes(b"\x00" * 20 + b"\n" + lines[1])
    with pytest.raises(InputError, match="line 1 is no JSON: .*; it is no journal of trials"):
        read_journal(study.path)
    said: list[str] = []
    again = Study(tmp_path, IDENTITY, say=said.append)
    assert list(again.trials.values()) == [trial(0)] and "damaged line 1" in said[0]
    found = read_journal(study.path, say=said.append)
    assert (found.identity, found.trials, len(found.damaged)) == (IDENTITY, (trial(0),), 1)


def test_lines_of_earlier_versions_are_read_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "b200" / "svdquant_gemm" / IDENTITY.file_name
    path.parent.mkdir(parents=True)
    records = [IDENTITY.header(), trial(0).to_record(), trial(1).to_record()]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    study = Study(tmp_path, IDENTITY)
    assert (list(study.trials.values()), study.unverified, study.damaged) == ([trial(0), trial(1)], 3, [])
    study.append(trial(2))
    assert Study(tmp_path, IDENTITY).unverified == 3 and read_journal(path).unverified == 3


def test_the_checksum_is_the_crc_32_of_what_stands_before_it(tmp_path: Path) -> None:
    study = Study(tmp_path, IDENTITY)
    study.append(trial(0))
    for line in study.path.read_bytes().splitlines():
        text, _, rest = line.rpartition(b',"crc":"')
        assert int(rest[:8], 16) == binascii.crc32(text) and rest[8:] == b'"}'
        assert json.loads(line)["crc"] == rest[:8].decode()


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_a_journal_is_a_plain_file(kind: str, tmp_path: Path) -> None:
    path = Study(tmp_path, IDENTITY).path
    outside = tmp_path / "outside"
    outside.write_text("mine")
    path.unlink()
    {"link": lambda: path.symlink_to(outside), "fifo": lambda: os.mkfifo(path), "folder": path.mkdir}[kind]()
    for read in (lambda: Study(tmp_path, IDENTITY), lambda: read_journal(path)):
        with pytest.raises(InputError, match="link|FIFO|folder"):
            read()
    assert outside.read_text() == "mine"


def test_reading_another_s_journal_writes_nothing(tmp_path: Path) -> None:
    study = Study(tmp_path, IDENTITY)
    study.append(trial(0))
    with study.path.open("ab") as file:
        file.write(b'{"torn')
    (study.path.parent / f"{study.path.name}.lock").unlink()
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in study.path.parent.iterdir()}
    assert read_journal(study.path).trials == (trial(0),)
    after = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in study.path.parent.iterdir()}
    assert after == before


def test_folder_below_a_file_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file; choose another path"):
        Study(tmp_path / "file" / "studies", IDENTITY)


def test_illegal_points_are_no_evaluations(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="legal candidates only"):
        Study(tmp_path, IDENTITY).append(trial(0, resolved="", status=Status.ILLEGAL))


# -- attempts --

RESOLVED = trial(0).resolved


def die_at_work(folder: Path) -> None:
    with Study(folder, IDENTITY).attempt(RESOLVED):
        os.kill(os.getpid(), signal.SIGKILL)


def killed_at_work(folder: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=die_at_work, args=(folder,))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL


def test_two_tuners_that_ended_on_one_candidate_blame_it(tmp_path: Path) -> None:
    killed_at_work(tmp_path)
    assert Study(tmp_path, IDENTITY).blame(RESOLVED) == "", "one may have been killed for reasons of its own"
    killed_at_work(tmp_path)
    study = Study(tmp_path, IDENTITY)
    assert study.blame(RESOLVED) == "2 tuners ended while this candidate ran on the card"
    assert study.blame(trial(1).resolved) == ""
    study.append(trial(0, status=Status.FAILED))
    assert study.blame(RESOLVED) == "" and Study(tmp_path, IDENTITY).blame(RESOLVED) == ""


def test_a_machine_that_went_down_blames_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed_at_work(tmp_path)
    monkeypatch.setattr(attempt_module, "_boot_id", lambda: "another boot")
    assert Study(tmp_path, IDENTITY).blame(RESOLVED).startswith("the machine went down while this candidate")


def test_a_tuner_at_work_is_no_suspect(tmp_path: Path) -> None:
    other = Study(tmp_path, IDENTITY)
    with contextlib.ExitStack() as at_work:
        for _ in range(3):
            at_work.enter_context(other.attempt(RESOLVED))
        assert Study(tmp_path, IDENTITY).blame(RESOLVED) == ""


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_orderly_end_is_no_attempt(tmp_path: Path, error: type[BaseException]) -> None:
    killed_at_work(tmp_path)
    with pytest.raises(error), Study(tmp_path, IDENTITY).attempt(RESOLVED):
        raise error
    killed = Study(tmp_path, IDENTITY)
    assert killed.blame(RESOLVED) == ""
    assert [len(attempts) for attempts in killed._attempts.values()] == [1]


def test_nothing_runs_unannounced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk stops the tune before the candidate, not after it; what was there stays whole."""
    study = Study(tmp_path, IDENTITY)
    study.append(trial(1))
    before = study.path.read_bytes()

    def full(fd: int, data: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    ran = False
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(StoreError, match="No space left"), study.attempt(RESOLVED):
            ran = True
    assert not ran and study.path.read_bytes() == before
    assert list(Study(tmp_path, IDENTITY).trials) == [trial(1).resolved]

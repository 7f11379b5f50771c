"""tune.py bundle --check: with a card's worker that has no card, and does to a candidate what it is told."""

from __future__ import annotations

import dataclasses
import datetime
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernel_space.core.arch import SM90A
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tests.card.fake_card_worker import UUID
from tests.devices.test_card import CARD, LIMITS, asked, deeds
from tests.runtime.test_choice import CLASS, PLAIN, SPLIT, entry, of_rank, row, write
from tests.tables.test_bundle import cached, key_of, tuned
from tuner.card.card_worker import CardWorker
from tuner.card.worker.check import CHECK_VERSION
from tuner.cli.main import main
from tuner.cli.tune import bundle as cli_bundle
from tuner.devices.card import CudaDevice
from tuner.tables import bundle_write
from tuner.tables.bundle import FOLDER, INDEX, Bundle, Entry
from tuner.tables.bundle_write import write_bundle
from tuner.tune.bundle_check import check_bundle

ROOT = Path(__file__).resolve().parents[2]
BF16 = CLASS.replace("fp16", "bf16")
TODAY = datetime.datetime.now(datetime.UTC).date().isoformat()
ENTRIES = [entry(PLAIN), entry(SPLIT), entry(PLAIN, BF16)]


@pytest.fixture
def device(tmp_path: Path) -> Iterator[CudaDevice]:
    command = [sys.executable, "-m", "tests.card.fake_card_worker", str(tmp_path)]
    worker = CardWorker(0, UUID, limits=LIMITS, command=command, lock_folder=tmp_path)
    made = CudaDevice(name="h200", arch=SM90A, sm_count=132, card=CARD, worker=worker)
    yield made
    made.close()


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """The folder of objects."""
    write(tmp_path, [row("256,3840,3072,128"), row("16,3840,3072,128", SPLIT)], ENTRIES)
    return tmp_path / "h200" / FOLDER


@pytest.fixture
def command(
    tmp_path: Path, bundle: Path, device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., int]:
    monkeypatch.setattr(cli_bundle, "cuda_device", lambda name: device)
    base = ["bundle", "--check", "--device", "cuda:0", "--out", str(tmp_path)]
    return lambda *more: main([*base, *more])


def by_name(folder: Path) -> dict[tuple[str, str], Entry]:
    return {(one.config, one.problem_class): one for one in Bundle.load(folder, SM90A).entries}


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.o"))


def test_every_object_is_checked_once_and_the_index_says_so(
    tmp_path: Path, bundle: Path, command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (len(document["passed"]), document["known"], document["failed"]) == (3, 0, [])
    for (config, _), one in by_name(bundle).items():
        assert one.checked is not None
        assert (one.checked.card, one.checked.driver, one.checked.date) == ("Fake card", "580.1", TODAY)
        assert (one.checked.launches, one.checked.worst) == (9, 0.4)
        # As of a winner: every edge cut, a tile and a bit, less than a tile. PLAIN has tiles of 128 x 128 x 128.
        if config == PLAIN:
            wanted = ("256,3840,3072,128", "253,3808,3064,128", "133,416,136,128", "1,96,8,128")
            assert one.checked.problems == wanted
    plain = {(one.config, one.problem_class): one for one in ENTRIES}
    assert {key: dataclasses.replace(one, checked=None) for key, one in by_name(bundle).items()} == plain
    assert asked(tmp_path).count("check") == 3
    before = (bundle / INDEX).read_bytes()
    assert command() == 0
    assert "0 checked now and right, 3 before, 0 failed" in capsys.readouterr().out
    assert asked(tmp_path).count("check") == 3 and (bundle / INDEX).read_bytes() == before


def test_evidence_of_an_older_check_is_none(
    tmp_path: Path, bundle: Path, command: Callable[..., int]
) -> None:
    assert command() == 0
    text = (bundle / INDEX).read_text()
    (bundle / INDEX).write_text(text.replace(CHECK_VERSION, "check version 0", 1))
    assert command() == 0
    assert asked(tmp_path).count("check") == 4
    assert all(one.checked.version == CHECK_VERSION for one in by_name(bundle).values())


@pytest.mark.parametrize("deed", ["compare:wrong", "launch:hang", "launch:illegal", "load:segfault"])
def test_what_is_wrong_is_removed_and_said(
    tmp_path: Path, bundle: Path, command: Callable[..., int], deed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    deeds(tmp_path, {"split_k=4": deed})
    assert command() == 1
    printed = capsys.readouterr().out
    assert (
        "failed     256,3840,3072,128 (r=128 lora_dtype=fp16" in printed
        and "1 objects that are wrong" in printed
    )
    assert by_name(bundle).keys() == {(PLAIN, CLASS), (PLAIN, BF16)}
    assert files(bundle) == sorted(one.file for one in ENTRIES if one.config == PLAIN)
    assert all(one.checked for one in by_name(bundle).values())


@pytest.mark.parametrize("deed", ["load:hang", "load:killed"])
def test_without_a_verdict_it_stays_unchecked(
    tmp_path: Path, bundle: Path, command: Callable[..., int], deed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    deeds(tmp_path, {"split_k=4": deed})
    assert command("--json") == 1
    document = json.loads(capsys.readouterr().out)
    assert (len(document["failed"]), document["removed"]) == (1, [])
    assert by_name(bundle)[SPLIT, CLASS].checked is None
    assert files(bundle) == sorted(one.file for one in ENTRIES)


def test_a_damaged_file_is_said_and_never_reaches_the_card(
    tmp_path: Path, bundle: Path, command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    (bundle / ENTRIES[1].file).write_bytes(b"damaged")
    assert command() == 1
    assert "is damaged" in capsys.readouterr().out
    assert by_name(bundle)[SPLIT, CLASS].checked is None
    assert asked(tmp_path).count("check") == 2


def test_a_card_that_is_lost_ends_it_and_is_no_verdict_on_the_others(
    tmp_path: Path, bundle: Path, command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Of three the first in the index spoils the card, for good."""
    deeds(tmp_path, {"split_k=1": "launch:sicken"})
    assert command() == 2
    assert "must pass its self test" in capsys.readouterr().err
    assert {key: one.checked for key, one in by_name(bundle).items()} == {
        (PLAIN, CLASS): None,
        (SPLIT, CLASS): None,
    }


def test_needs_a_card_objects_and_no_other_option(
    tmp_path: Path, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["bundle", "--check", "--out", str(tmp_path)]
    assert main([*base, "--device", "h200"]) == 2
    assert "a card is needed: --device cuda:N, got h200" in capsys.readouterr().err
    assert main([*base, "--device", "h200", "--also-dtype", "bf16"]) == 2
    assert "leave --also-dtype, --objects and --only-spares out" in capsys.readouterr().err


def test_no_objects(tmp_path: Path, command: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--out", str(tmp_path / "nothing")) == 2
    assert "there is no object in" in capsys.readouterr().err


def test_bundling_again_keeps_evidence_of_the_same_bytes_only(
    tmp_path: Path, device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle_write, "_add_widest", lambda *_: None)
    rows = [
        tuned(tmp_path / "cache", "256,3840,3072,128"),
        tuned(tmp_path / "cache", "16,3840,3072,128", SPLIT),
    ]
    folder = write_bundle(tmp_path / "h200", SM90A, rows, caches=[tmp_path / "cache"]).folder
    check_bundle(folder, SM90A, device, say=lambda line: None)
    again = write_bundle(tmp_path / "h200", SM90A, rows, caches=[tmp_path / "cache"])
    assert all(one.checked for one in again.entries)
    other, _ = cached(tmp_path / "other", f"{SPLIT} of others")
    (tmp_path / "other" / key_of(f"{SPLIT} of others")).rename(tmp_path / "other" / key_of(SPLIT))
    reference = dataclasses.replace(rows[1].object, sha256=other["object_sha256"])
    changed = [rows[0], dataclasses.replace(rows[1], object=reference)]
    caches = [tmp_path / "other", tmp_path / "cache"]
    third = write_bundle(tmp_path / "h200", SM90A, changed, caches=caches)
    assert {one.config: bool(one.checked) for one in third.entries} == {PLAIN: True, SPLIT: False}


def test_the_check_needs_no_compiler(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['cutlass'] = None\n"
        "from tuner.tables import bundle\n"
        "from tuner.tune import bundle_check\n"
        "from kernel_space.core.arch import SM90A\n"
        "from kernel_space.core.registry import parse_config\n"
        "from tuner.card.ragged import ragged_of_object\n"
        f"one = bundle.Bundle.load(bundle.Path({str(ROOT / 'results/h200/objects')!r}), SM90A)\n"
        "for entry in one.entries:\n"
        "    problem = entry.problem\n"
        "    config = parse_config(problem.operator, SM90A, entry.config)\n"
        "    assert one.find(config, problem) and ragged_of_object(config, problem, SM90A), entry\n"
        "print(sorted({'optuna', 'cutlass.cute'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr


def test_the_object_for_any_shape_is_checked_too(tmp_path: Path, device: CudaDevice) -> None:
    wide = entry(PLAIN, of_rank(256), problem=GemmProblem.parse("4352,3840,3072,256"))
    folder = write(tmp_path, [row("256,3840,3072,128")], [entry(PLAIN), wide]) / "h200" / FOLDER
    done = check_bundle(folder, SM90A, device, say=lambda line: None)
    (judged,) = [one for one in done.passed if one.problem_class == of_rank(256)]
    assert judged.checked is not None and judged.checked.problems[-1] == "1,96,8,256"


def test_a_class_that_is_none_costs_its_entry(
    tmp_path: Path, device: CudaDevice, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path, [row("256,3840,3072,128")], [entry(PLAIN)]) / "h200" / FOLDER
    index = folder / INDEX
    index.write_text(index.read_text().replace('"lora_dtype": "fp16"', '"lora_dtype": "fp8"'))
    done = check_bundle(folder, SM90A, device, say=lambda line: None)
    assert not (*done.passed, *done.known, *done.failed)
    said = capsys.readouterr().err
    assert (
        "entry 1 is passed over" in said
        and "lora_dtype must be one of fp16, bf16" in said
        and said.count("\n") == 1
    )

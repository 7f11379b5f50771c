"""Selfcheck: the machine against bytes captured on an H200, and the probes against hand-made arithmetic.

The oracle of the replay tests is the card. Tensor-core probes have not run on a B200 yet: for those with exact sums
the expected numbers are computed here with numpy.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

from kernel_space.core.errors import InputError
from kernel_space.launch.tensor_map import decode_tensor_map
from kernel_space.selfcheck import known
from kernel_space.selfcheck.card import run_on_card
from kernel_space.selfcheck.catalogue import catalogue
from kernel_space.selfcheck.compare import Verdict, compare, difference
from kernel_space.selfcheck.driver import CardInfo
from kernel_space.selfcheck.fixture import load, save
from kernel_space.selfcheck.machine import run_in_machine
from kernel_space.selfcheck.report import judge
from kernel_space.selfcheck.text import mma_images
from kernel_space.selfcheck.text.probe import Ending, MapSpec, Probe, Result, Target
from kernel_space.selfcheck.text.tensor_maps import box_bytes, encode
from tuner.cli.judge.selfcheck import add_selfcheck_options, selfcheck_command

H200 = Path(__file__).parents[1] / "data" / "selfcheck" / "h200.json"
CAPTURED = load(H200)
PROBES = {probe.name: probe for probe in catalogue()}
HOPPER = [probe for probe in catalogue() if probe.target is Target.SM90]
BLACKWELL = [probe for probe in catalogue() if probe.target is Target.SM100A]
LISTED = {name for names in known.DIFFERENCES.values() for name in names}


# -- the machine against the card --------------------------------------------------------------------------


def test_the_capture_is_of_an_h200_and_holds_every_probe_that_hopper_runs() -> None:
    assert (CAPTURED.card.name, CAPTURED.card.major, CAPTURED.card.minor) == ("NVIDIA H200", 9, 0)
    assert set(CAPTURED.results) == {probe.name for probe in HOPPER}
    endings = {result.ending for result in CAPTURED.results.values()}
    assert endings == {Ending.BYTES, Ending.FAULT}


@pytest.mark.parametrize("name", [probe.name for probe in HOPPER if probe.name not in LISTED])
def test_the_machine_leaves_the_bytes_that_the_card_left(name: str) -> None:
    probe = PROBES[name]
    result = CAPTURED.result(probe)
    assert result is not None
    judged = judge(probe, result)
    if judged.verdict is Verdict.UNSUPPORTED and name in known.UNSUPPORTED:
        pytest.skip(f"the machine says so: {judged.detail}")
    assert judged.verdict is Verdict.AGREE, f"{probe.asks}: {judged.detail}"


def test_known_differences_still_differ() -> None:
    listed = sorted(LISTED & set(CAPTURED.results))
    agree = [name for name in listed if judge(PROBES[name], CAPTURED.results[name]).verdict is Verdict.AGREE]
    assert not agree, "the machine was mended: strike these from known.DIFFERENCES"


def test_what_is_listed_as_unsupported_still_is() -> None:
    modelled = [
        name for name in known.UNSUPPORTED if run_in_machine(PROBES[name]).ending is not Ending.UNSUPPORTED
    ]
    assert not modelled, "the machine models these now: strike them from known.UNSUPPORTED"


@pytest.mark.parametrize(
    "topic",
    [
        "mbarrier",
        "multicast",
        "named_barrier",
        "bulk",
        "cluster",
        "cp_async",
        pytest.param("mma", marks=pytest.mark.slow),
    ],
)
def test_probes_leave_the_same_bytes_under_every_schedule(topic: str) -> None:
    for probe in catalogue():
        if probe.topic == topic and not probe.in_vain:
            eager = run_in_machine(probe)
            for schedule in ("random", "slow_tma", "slow_tensor", "slow_epilogue"):
                other = run_in_machine(probe, schedule=schedule, seed=1)
                assert (other.ending, other.data) == (eager.ending, eager.data), (
                    f"{probe.name} under {schedule}"
                )


# -- the probes themselves ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("ptxas") is None, reason="needs ptxas of a CUDA toolkit")
def test_ptxas_takes_every_probe(tmp_path: Path) -> None:
    refused = []
    for probe in catalogue():
        source = tmp_path / "probe.ptx"
        source.write_text(probe.ptx)
        command = [
            "ptxas",
            "-O1",
            "-arch",
            str(probe.target),
            str(source),
            "-o",
            str(tmp_path / "probe.cubin"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        refused += [f"{probe.name}: {done.stderr}"] if done.returncode else []
    assert not refused


def _words(name: str) -> np.ndarray:
    result = run_in_machine(PROBES[name])
    assert result.ending is Ending.BYTES, result.detail
    return np.frombuffer(result.data, np.uint32)


def test_blackwell_probes_run_in_the_machine() -> None:
    ends = {probe.name: run_in_machine(probe).ending for probe in BLACKWELL}
    ran = (Ending.BYTES, Ending.UNSUPPORTED)
    odd = [name for name, ending in ends.items() if ending not in ran and name not in LISTED]
    assert not odd
    assert {name for name, ending in ends.items() if ending is Ending.UNSUPPORTED} <= set(known.UNSUPPORTED)


def test_a_32x32b_load_gives_each_lane_its_own_row() -> None:
    """Thread t holds lane t; register i holds column i of the pattern ``0x5A000000 | lane << 12 | column``."""
    words = _words("tmem.ld.32x32b.x8.lane_0").reshape(128, 8)
    assert words[77, 3] == 0x5A000000 | 77 << 12 | 3
    assert words[0, 0] == 0x5A000000


@pytest.mark.parametrize(
    "name", ["mma.f16.m128_n16_group_1", "mma.f16.m128_n256_group_1", "mma.f16.m256_n32_group_2"]
)
def test_exact_sums_of_the_dense_probes(name: str) -> None:
    """D[m, n] is word (lane m, column n), over two CTAs of 128 rows for M = 256; operands are read from the image."""
    probe = PROBES[name]
    m, n = (int(part[1:]) for part in name.split(".")[2].split("_")[:2])
    ctas = m // 128
    image = np.frombuffer(probe.inputs, np.uint8).reshape(ctas, -1)
    a = np.concatenate([_k_major(part[: 2 * 128 * 32], 128) for part in image])
    b = np.concatenate([_k_major(part[2 * 128 * 32 :], n // ctas) for part in image])
    d = _words(name).view(np.float32).reshape(m, n)
    assert np.array_equal(d, a @ b.T)


def _k_major(image: np.ndarray, rows: int) -> np.ndarray:
    """Two steps of an f16 operand, (rows, 32 columns), undone by indexing byte for byte."""
    steps = []
    for step in image.reshape(2, rows * 32):
        at = [
            [(r // 8) * 256 + (k // 8) * 128 + (r % 8) * 16 + (k % 8) * 2 for k in range(16)]
            for r in range(rows)
        ]
        steps.append(step[np.array(at)[..., None] + np.arange(2)].view(np.float16)[..., 0])
    return np.concatenate(steps, axis=1).astype(np.float64)


def test_core_matrices_places_rows_and_halves() -> None:
    rows = np.arange(16 * 32, dtype=np.uint32).astype(np.uint8).reshape(16, 32)
    image = mma_images.core_matrices(rows)
    assert image[0:16] == rows[0, :16].tobytes() and image[128:144] == rows[0, 16:].tobytes()
    assert image[256 + 3 * 16 : 256 + 4 * 16] == rows[11, :16].tobytes()


def test_instruction_descriptors_of_published_examples() -> None:
    """0x10200480: M 256, N 128, fp4, UE4M3; 0x08200480: M 128 (read from compiled block-scaled GEMMs)."""
    assert mma_images.scaled_idesc(256, 128) == 0x10200480
    assert mma_images.scaled_idesc(128, 128) == 0x08200480


def test_a_tensor_map_reads_back_as_it_was_described() -> None:
    spec = MapSpec(
        buffer="in",
        dtype="bfloat16",
        dims=(64, 9, 5),
        strides=(1 << 38, 160),
        box=(32, 4, 2),
        swizzle=64,
        offset=16,
    )
    got = decode_tensor_map(encode(spec, 0x7F12_4000_0000))
    assert (got.address, got.element_type.name, got.swizzle_bytes) == (0x7F12_4000_0010, "BF16", 64)
    assert (got.dims, got.strides, got.box) == (spec.dims, spec.strides, spec.box)
    assert box_bytes(spec) == got.box_bytes == 32 * 4 * 2 * 2


# -- judging -----------------------------------------------------------------------------------------------


def _probe(**changes: object) -> Probe:
    fields = {"name": "toy.one", "asks": "?", "ptx": "", "inputs": bytes(range(16)), "output": bytes(8)}
    return Probe(**{**fields, **changes})  # type: ignore[arg-type]


def test_a_difference_names_the_item_and_its_operands() -> None:
    probe = _probe(item_bytes=(8, 4))
    text = difference(probe, bytes([1, 0, 0, 0, 2, 0, 0, 0]), bytes([1, 0, 0, 0, 3, 0, 0, 0]))
    assert text == "1 of 2 items differ: item 1: operands 0b0a0908 0f0e0d0c: card 00000002, machine 00000003"


def test_units_in_the_last_place_never_excuse_special_values() -> None:
    one, next_one = np.float32(1).tobytes(), np.nextafter(np.float32(1), np.float32(2)).tobytes()
    infinity, largest = np.float32(np.inf).tobytes(), np.finfo(np.float32).max.tobytes()
    assert difference(_probe(ulp=1), one, next_one) == ""
    assert difference(_probe(ulp=0), one, next_one) != ""
    assert difference(_probe(ulp=1), infinity, largest) != ""


@pytest.mark.parametrize(
    ("card", "machine", "verdict"),
    [
        (Ending.FAULT, Ending.FAULT, Verdict.AGREE),
        (Ending.FAULT, Ending.BYTES, Verdict.DIFFER),
        (Ending.HANG, Ending.HANG, Verdict.AGREE),
        (Ending.BYTES, Ending.CRASH, Verdict.DIFFER),
        (Ending.BYTES, Ending.UNSUPPORTED, Verdict.UNSUPPORTED),
        (Ending.REFUSED, Ending.BYTES, Verdict.REFUSED),
    ],
)
def test_endings_are_judged(card: Ending, machine: Ending, verdict: Verdict) -> None:
    assert compare(_probe(), Result(ending=card), Result(ending=machine)).verdict is verdict


# -- processes and files -----------------------------------------------------------------------------------

CARD = CardInfo(name="toy", major=9, minor=0, driver="13.0")


def serve_toys(pipe: Connection) -> None:
    """Stands for the child of a card: what a probe does is in its ``asks``."""
    probes: Sequence[Probe] = pipe.recv()
    pipe.send(CARD)
    for probe in probes:
        if probe.asks == "dies":
            raise SystemExit(7)
        if probe.asks == "hangs":
            time.sleep(600)
        fault = probe.asks == "faults"
        pipe.send(Result(ending=Ending.FAULT if fault else Ending.BYTES, data=probe.output))
        if fault:
            return


def test_a_fault_a_hang_and_a_death_cost_one_probe_each() -> None:
    asks = ["", "faults", "", "hangs", "dies", ""]
    probes = [_probe(name=f"toy.{n}", asks=word) for n, word in enumerate(asks)]
    card, results = run_on_card(probes, serve=serve_toys, probe_seconds=4.0)
    assert card == CARD
    expected = [Ending.BYTES, Ending.FAULT, Ending.BYTES, Ending.HANG, Ending.FAULT, Ending.BYTES]
    assert [results[probe.name].ending for probe in probes] == expected
    assert results["toy.4"].detail == "ended with code 7"


def die_at_once(pipe: Connection) -> None:
    raise SystemExit(3)


def test_a_child_that_dies_before_it_reads_ends_the_run() -> None:
    """Far more probes than a pipe holds: handing them over must not block on a dead child."""
    probes = [_probe(name=f"toy.{n}", inputs=bytes(100_000)) for n in range(20)]
    with pytest.raises(InputError, match="ended with code 3"):
        run_on_card(probes, serve=die_at_once)


def test_a_capture_reads_back_and_notices_a_changed_probe(tmp_path: Path) -> None:
    result = Result(ending=Ending.BYTES, data=bytes(range(8)), detail="x", descriptors=(bytes(64),))
    save(tmp_path / "c.json", CARD, "2026-01-02", (_probe(),), {"toy.one": result})
    captured = load(tmp_path / "c.json")
    assert (captured.card, captured.date, captured.result(_probe())) == (CARD, "2026-01-02", result)
    with pytest.raises(InputError, match="has changed"):
        captured.result(_probe(block=64))


def test_a_file_that_is_no_capture_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text("[]")
    for path in (tmp_path / "c.json", tmp_path / "missing.json"):
        with pytest.raises(InputError, match="capture"):
            load(path)


# -- the command -------------------------------------------------------------------------------------------


def _arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_selfcheck_options(parser)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(words)


def test_the_command_replays_a_capture_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    code = selfcheck_command(
        _arguments("--json", "--replay", str(H200), "--only", "warp.elect", "--only", "mma.")
    )
    document = json.loads(capsys.readouterr().out)
    assert code == 0 and document["card"]["name"] == "NVIDIA H200"
    assert document["counts"] == {"agree": 7, "differ": 0, "unsupported": 0, "refused": 0}
    assert document["not_run"] == [probe.name for probe in catalogue() if probe.name.startswith("mma.")]


def test_a_new_difference_makes_the_command_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    probe = PROBES["warp.elect.ffffff80"]
    wrong = Result(ending=Ending.BYTES, data=bytes(len(probe.output)))
    save(tmp_path / "c.json", CARD, "2026-01-02", (probe,), {probe.name: wrong})
    assert selfcheck_command(_arguments("--replay", str(tmp_path / "c.json"), "--only", probe.name)) == 1
    printed = capsys.readouterr().out
    assert f"differ      {probe.name}" in printed and "machine eeeeeeee" in printed


def test_an_unknown_prefix_is_bad_input() -> None:
    with pytest.raises(InputError, match="the topics are .*warp"):
        selfcheck_command(_arguments("--only", "nothing"))


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="there is a GPU here")
def test_without_a_card_there_is_one_clear_line() -> None:
    with pytest.raises(InputError, match="^selfcheck needs an NVIDIA GPU"):
        selfcheck_command(_arguments("--only", "warp.elect"))

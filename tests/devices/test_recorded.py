"""Results of a card that is no shipped class: kept under its own name with its numbers, read where no such card is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kernel_space.core.arch import SM90A
from kernel_space.core.errors import InputError
from tests.runtime.test_choice import PLAIN, entry, row, write
from tuner.cli.main import main
from tuner.devices.classes import DEVICE_CLASSES, Card, DeviceClass, class_of
from tuner.devices.recorded import FILE_NAME, keep_class, recorded_class, recorded_names
from tuner.devices.select import AbsentDevice, select_device
from tuner.runtime import explain, use_table
from tuner.tables.dispatch import DispatchTable

SHAPE = "256,3840,3072,128"
NAME = "nvidia-gh200-480gb"
CARD = Card(
    index=0,
    name="NVIDIA GH200 480GB",
    compute_capability=(9, 0),
    sm_count=132,
    dram_bytes_s=4.0e12,
    l2_bytes=60 << 20,
)


def of(card: Card) -> DeviceClass:
    found = class_of(card)
    assert found is not None
    return found


def test_what_was_kept_is_read_again(tmp_path: Path) -> None:
    keep_class(tmp_path, of(CARD))
    assert recorded_class(tmp_path, NAME) == of(CARD)
    assert recorded_names(tmp_path) == [NAME]
    device = select_device(NAME, probe=list, results=tmp_path)
    assert isinstance(device, AbsentDevice) and (device.name, device.arch, device.sm_count) == (
        NAME,
        SM90A,
        132,
    )
    before = (tmp_path / NAME / FILE_NAME).stat().st_mtime_ns
    keep_class(tmp_path, of(CARD))
    assert (tmp_path / NAME / FILE_NAME).stat().st_mtime_ns == before


def test_shipped_classes_are_not_written(tmp_path: Path) -> None:
    for one in DEVICE_CLASSES.values():
        keep_class(tmp_path, one)
    assert list(tmp_path.iterdir()) == []


def test_a_file_does_not_speak_for_a_shipped_class(tmp_path: Path) -> None:
    (tmp_path / "h200").mkdir()
    (tmp_path / "h200" / FILE_NAME).write_text(json.dumps({**GOOD, "name": "h200", "sm_count": 1}))
    assert recorded_class(tmp_path, "h200") is None and recorded_names(tmp_path) == []
    assert select_device("h200", probe=list, results=tmp_path).sm_count == 132


def test_another_card_of_that_name_is_refused(tmp_path: Path) -> None:
    """A driver that counts the bus otherwise is the same card; one with other SMs is not."""
    keep_class(tmp_path, of(CARD))
    text = (tmp_path / NAME / FILE_NAME).read_bytes()
    own = of(CARD)
    keep_class(tmp_path, DeviceClass(**{**vars(own), "dram_bytes_s": 4.2e12}))
    for change in ({"sm_count": 66}, {"dram_bytes_s": 8e12}):
        with pytest.raises(InputError, match=f"{NAME}/{FILE_NAME} must tell of the card"):
            keep_class(tmp_path, DeviceClass(**{**vars(own), **change}))
    assert (tmp_path / NAME / FILE_NAME).read_bytes() == text


GOOD = {
    "schema": 1,
    "name": NAME,
    "arch": "sm_90a",
    "sm_count": 132,
    "dram_bytes_s": 4e12,
    "l2_bytes": None,
    "product": "NVIDIA GH200 480GB",
}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": 2}, "schema must be 1"),
        ({"name": "nvidia-other"}, f"must be of {NAME}"),
        ({"arch": "sm_80"}, "arch must be one of"),
        ({"arch": ["sm_90a"]}, "arch must be text"),
        ({"sm_count": 0}, "sm_count must be a number above 0"),
        ({"sm_count": True}, "sm_count must be a number above 0"),
        ({"sm_count": 1.5}, "sm_count must be a whole number"),
        ({"sm_count": 10**30}, "64 bits"),
        ({"dram_bytes_s": "fast"}, "dram_bytes_s must be a number"),
        ({"product": "a\x1b[2J"}, "must not have the character"),
        ({"more": 1}, "must have the fields"),
    ],
)
def test_a_record_of_somebody_else_is_one_line(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    (tmp_path / NAME).mkdir()
    path = tmp_path / NAME / FILE_NAME
    path.write_text(json.dumps(GOOD))
    assert recorded_class(tmp_path, NAME) is not None
    path.write_text(json.dumps({**GOOD, **change}))
    with pytest.raises(InputError, match=said) as caught:
        select_device(NAME, probe=list, results=tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": NaN}', "[" * 10000])
def test_a_damaged_record_is_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / NAME).mkdir()
    (tmp_path / NAME / FILE_NAME).write_text(content)
    with pytest.raises(InputError, match=FILE_NAME) as caught:
        recorded_class(tmp_path, NAME)
    assert "\n" not in str(caught.value)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    keep_class(tmp_path / "theirs", of(CARD))
    (tmp_path / NAME).symlink_to(tmp_path / "theirs" / NAME)
    with pytest.raises(InputError, match="is a link"):
        recorded_class(tmp_path, NAME)


def test_results_of_a_rented_card_are_merged_looked_up_and_launched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole way home, on a machine without the card."""
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    write(theirs, [row(SHAPE, us=7.0)], [entry(PLAIN)], NAME)
    keep_class(theirs, of(CARD))
    assert main(["merge", str(theirs), "--out", str(ours)]) == 0
    assert recorded_class(ours, NAME) == of(CARD)
    assert [one.time_us for one in DispatchTable.load(ours / NAME).rows.values()] == [7.0]
    with use_table(ours):
        answer = explain(SHAPE, NAME)
    assert (answer.source, answer.borrowed) == ("exact", "")
    capsys.readouterr()
    assert main(["lookup", "--shape", SHAPE, "--device", NAME, "--out", str(ours), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["device"]["name"] == NAME and found["borrowed"] is None
    assert main(["lookup", "--shape", SHAPE, "--device", NAME, "--out", str(tmp_path / "none")]) == 2

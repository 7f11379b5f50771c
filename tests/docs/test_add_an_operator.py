"""docs/add_an_operator.md, followed to the letter: its files, its commands, its code, in a folder of their own.

What must come out stands in the page; the wrong kernel is the one that the page tells of.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Block, add_lines, blocks, missing, shown, write_files

PAGE = ROOT / "docs" / "add_an_operator.md"
BLOCKS = blocks(PAGE)
KERNEL = "my_operators/rowmax/rows/kernel.py"
CHECK = ["check", "--op", "rowmax", "--operators", "my_operators", "--shape", "64,256", "--device", "b200"]


def run(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """With Python, in ``folder``. The plug-ins of the tests are not there: what is found, ``--operators`` found."""
    environment = {name: value for name, value in os.environ.items() if name != "SVDQUANT_OPERATORS"}
    there = environment.get("PYTHONPATH")  # packages of a machine that has them nowhere else
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *([there] if there else [])])
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )


def output_of(block: Block, folder: Path) -> str:
    """What the commands or the code of a block print; all must succeed."""
    if block.language == "python":
        calls = [["-c", block.text]]
    else:
        calls = [command_of(line) for line in block.text.splitlines()]
    printed = []
    for call in calls:
        done = run(call, folder)
        assert done.returncode == 0, f"{call}: {done.stderr}"
        printed.append(done.stdout)
    return "".join(printed)


def command_of(line: str) -> list[str]:
    import shlex

    python, script, *arguments = shlex.split(line)
    assert (python, script) == ("python", "tune.py"), line
    return [str(ROOT / script), *arguments]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_files(BLOCKS, tmp_path)
    return tmp_path


def test_it_is_found(folder: Path) -> None:
    """And what stands before that in the page."""
    for block, expected in shown(BLOCKS):
        assert expected and not missing(expected, output_of(block, folder))
        if "ops" in block.text:
            break


def test_the_kernel_is_short() -> None:
    (kernel,) = (block for block in BLOCKS if block.word == KERNEL)
    assert len(kernel.text.splitlines()) <= 60


def test_every_field_that_the_page_names_exists() -> None:
    import dataclasses
    import re

    from kernel_space.core.kernel import Kernel
    from kernel_space.core.operator import Operator

    for kind in (Kernel, Operator):
        fields = {field.name for field in dataclasses.fields(kind)}
        named = set(re.findall(rf"`{kind.__name__}\.(\w+)`", PAGE.read_text()))
        assert named and named <= fields, named - fields


@pytest.mark.slow
def test_commands_and_code_do_what_the_page_says(folder: Path) -> None:
    """In order: the tune writes what lookup and report read."""
    for block, expected in shown(BLOCKS):
        assert not missing(expected, output_of(block, folder)), block.text
    table = json.loads((folder / "results" / "b200" / "dispatch.json").read_text())
    (row,) = table["rows"]
    assert (row["op"], row["arch"], row["kind"]) == ("rowmax", "sm_100a", "simulated")
    assert row["problem"] == {"m": 64, "k": 256, "x_dtype": "fp16"}
    assert row["config"].startswith("kernel=rows ")
    report = folder / "results" / "b200" / "rowmax" / "64x256"
    assert {"report.html", "report.md", "trials.csv", "trials.parquet"} <= {
        path.name for path in report.iterdir()
    }
    assert row["config"] in (report / "report.md").read_text()


@pytest.mark.slow
def test_wrong_kernel_is_found_wrong(folder: Path) -> None:
    """One character, as the page says: the last of equal columns instead of the first."""
    right, wrong = "start + i < column", "start + i > column"
    assert f"`{wrong}` instead of `{right}`" in PAGE.read_text()
    path = folder / KERNEL
    assert path.read_text().count(right) == 1
    path.write_text(path.read_text().replace(right, wrong))
    done = run([str(ROOT / "tune.py"), *CHECK], folder)
    assert done.returncode == 1
    assert not missing("verdict    WRONG_RESULT …", done.stdout)
    assert not missing("errors     y: 0 of …", done.stdout), "only the index is wrong"


@pytest.mark.slow
def test_optional_parts_are_taken(folder: Path) -> None:
    """The check runs the kernel's own exercise; torch's operator and peers compute what rowmax is."""
    write_files(BLOCKS, folder, added=True)
    done = run([str(ROOT / "tune.py"), *CHECK], folder)
    assert done.returncode == 0, done.stderr
    assert not missing("ran        rowmax 5,264 (x_dtype=fp16) on 2 SMs, …", done.stdout)
    assert run(["-c", OPTIONAL], folder).stdout.splitlines() == [
        "9,264 1,8",
        "[3.0, 7.0] [1, 0]",
        "[3.0, 7.0]",
    ]


OPTIONAL = """
import importlib
import torch
from kernel_space.core import registry
from tuner.runtime import torch_operator

registry.add_folder("my_operators")
rowmax = registry.operator("rowmax")
problem = rowmax.problem.parse("64,256")
config = registry.kernel("rowmax", "rows").config_class()
print(*rowmax.ragged(config, problem))
x = torch.tensor([[1, 3, 3, 2, 0, 0, 0, 0], [7, 3, 3, 7, 0, 0, 0, 0]]).half()
y, index = torch_operator("rowmax")(x)
print(y.tolist(), index.tolist())
(peer,) = importlib.import_module(rowmax.peers).peers(problem, lambda function: function)
print(peer.build(problem, {"x": x})().tolist())
"""


@pytest.mark.gpu
def test_tuned_and_launched_on_a_card(folder: Path) -> None:
    """What the page says of a card, with the device class of the card that is there."""
    pytest.importorskip("cutlass", reason="tuning needs the compiler")
    for block in (one for one in BLOCKS if one.word == "card"):
        written = Block(language=block.language, word="", text=block.text)
        if block.language == "python":
            (table,) = (folder / "results").glob("*/dispatch.json")
            written = Block(
                language="python", word="", text=block.text.replace("results/h200", str(table.parent))
            )
        output_of(written, folder)


# -- the tools --


def test_what_varies_does_not_count_and_the_rest_does() -> None:
    printed = "a\ntime  3.14 us\nkey 0123456789abcdef\nwritten /tmp/x/y.json at 7\n"
    assert not missing("time 2.71 us\n…\nkey fedcba9876543210\n\nwritten …", printed)
    assert not missing("written ~/other/place.json at 7", printed)
    assert missing("written ~/other/place.json at 8", printed)
    assert missing("key fedcba9876543210\ntime 2.71 us", printed) == ["time 2.71 us"], "another order"
    assert missing("tim", printed) == ["tim"]


def test_added_lines_stand_where_the_diff_says() -> None:
    assert add_lines("a\nb\nc\n", " b\n+x\n+y\n") == "a\nb\nx\ny\nc\n"
    with pytest.raises(ValueError, match="is not in list"):
        add_lines("a\nb\n", " d\n+x\n")

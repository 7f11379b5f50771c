"""YAML that expands, nests or grows is refused at once, in little memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kernel_space.core.errors import InputError
from tests.cli.test_cli import run
from tuner.files.plain_yaml import load_yaml

ROOT = Path(__file__).resolve().parents[2]

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)
MERGED = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 10)
)
BOMBS = {
    "a billion laughs": LAUGHS,
    "merge keys": MERGED,
    "a list that holds itself": "&a [*a]\n",
    "an anchor": "problems: &here [1]\n",
    "lists in lists": "[" * 30_000,
    "mappings in mappings": "{a: " * 10_000,
    "blocks in blocks": "\n".join(" " * depth + "- " for depth in range(300)),
    "lists on one line": "- " * 20_000,
    "many parts": "[" + "1," * 30_000 + "]",
    "a long word": "problems: " + "x" * 60_000,
    "a long number": "problems: [" + "9" * 4000 + "]",
    "sixty to the power": "problems: [" + "9" + ":59" * 1300 + "]",
    "a large file": "# \n" * 40_000,
    "a date that is none": "problems: [2001-13-45]",
    "a key that is a list": "? [a]\n: b\n",
    "an object": "!!python/object/apply:os.system ['touch ran']\n",
    "bytes": "\x00\x01",
}

LIMITED = """
import resource, sys, time
from pathlib import Path
from kernel_space.core.errors import InputError
from tuner.files.plain_yaml import load_yaml
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + (100 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for path in map(Path, sys.argv[1:]):
    start = time.process_time()
    try:
        load_yaml(path)
    except InputError as error:
        print(f"{time.process_time() - start:.3f}", len(str(error).splitlines()), len(str(error)))
    else:
        print("taken")
"""


def test_each_is_refused_within_a_second_and_100_mb(tmp_path: Path) -> None:
    paths = []
    for name, text in BOMBS.items():
        paths.append(tmp_path / name.replace(" ", "-"))
        paths[-1].write_text(text)
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, *map(str, paths), str(tmp_path / "sparse")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    found = done.stdout.splitlines()
    for name, line in zip([*BOMBS, "sparse"], found, strict=True):
        assert line != "taken", name
        seconds, lines, length = line.split()
        assert float(seconds) < 1 and lines == "1" and int(length) < 1000, (name, line)
    assert not (tmp_path / "ran").exists()


def test_the_command_says_so_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "bomb.yaml").write_text(LAUGHS)
    done = run("space", "--shapes", "bomb.yaml", cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert "an alias or an anchor" in done.stderr


def test_a_fifo_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.yaml")
    with pytest.raises(InputError, match="must be a plain file, it is a FIFO"):
        load_yaml(tmp_path / "fifo.yaml")


@pytest.mark.parametrize("path", sorted((ROOT / "search_spaces").glob("*.yaml")), ids=lambda path: path.name)
def test_the_project_s_own_files_are_read_as_they_were(path: Path) -> None:
    assert load_yaml(path) == yaml.safe_load(path.read_text())

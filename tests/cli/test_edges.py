"""Command lines that nobody would type on purpose: one line and exit code 2, or they work."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tuner
from kernel_space.build.build import CompileError
from kernel_space.build.cache import META, BuildCache
from kernel_space.core.errors import InputError
from kernel_space.core.registry import parse_config
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tests.runtime.test_choice import PLAIN, SPLIT, row, write
from tuner.cli.judge import check as cli_check
from tuner.cli.judge import time as cli_time
from tuner.cli.look import compile as cli_compile
from tuner.cli.look.chosen import chosen_configs
from tuner.cli.main import COMMANDS, main
from tuner.compile.pool import _Worker
from tuner.compile.worker import Refusal, Task, _answer
from tuner.devices.select import select_device
from tuner.space.published import published_config
from tuner.space.space import SearchSpace

ROOT = Path(__file__).resolve().parents[2]
SHAPE = "256,3840,3072,128"
LARGEST = 2**31 - 1
S = ("--shape", SHAPE, "--device", "b200")
REFUSED = {
    "a name that no disk takes": (["lookup", *S, "--out", "a" * 300], "File name too long"),
    "the same for what writes": ([*S, "--out", "a" * 300], "File name too long"),
    "no name": ([*S, "--out", ""], "argument --out: must name a folder, got ''"),
    "a mistyped folder": (["lookup", *S, "--out", "reslts"], "got reslts, which is not there"),
    "the same for a report": (["report", *S, "--out", "reslts"], "got reslts, which is not there"),
    "a config of nothing": (["explain", *S, "--config", ""], "winner, default or published, got ''"),
    "a config of blanks": (["explain", *S, "--config", "  "], "winner, default or published, got ' '"),
    "seed beyond 32 bits": ([*S, "--seed", "4294967296"], "at most 4294967295, got '4294967296'"),
    "digits without end": ([*S, "--trials", "9" * 5000], "at most 1000000000"),
    "a thousand workers and more": ([*S, "--jobs", "1025"], "at most 1024, got '1025'"),
    "a size without end": (
        ["explain", "--shape", f"{'1' * 5000},3840,3072,128"],
        f"M must be between 1 and {LARGEST}, got 5000 characters",
    ),
    "a size below zero": (
        ["explain", "--shape=-1,3840,3072,128"],
        f"M must be between 1 and {LARGEST}, got -1",
    ),
    "rows of nobody": (["bundle", "--device", "h200", "--out", "."], "nothing to bundle; tune first"),
    "no card for peers": (["peers", "--shape", SHAPE], "cuda:0 is not there"),
    "no card by name": (["peers", "--shape", SHAPE, "--device", "h200"], "a card is needed"),
    "no card to profile": (["profile", "--shape", SHAPE], "cuda:0 is not there"),
    "a profile of a simulated card": (["profile", *S], "a card is needed"),
    "no card for a day one": (["day-one"], "cuda:0 is not there"),
    "a budget of no step": (
        ["day-one", "--budget", "bench=9"],
        "STEP one of selfcheck, measure, calibrate, peers",
    ),
    "a budget of no seconds": (["day-one", "--budget", "peers=-1"], "must be a number of seconds above 0"),
    "a day one in no folder": (["day-one", "--folder", ""], "must name a folder, got ''"),
    "nothing to clean": (["clean"], "say what to remove: --cache"),
    "help for what is not": (["help", "tuen"], "unknown command 'tuen'"),
    "a shell that is not": (["completion", "tcsh"], "invalid choice: 'tcsh'"),
    "two forms at once": ([*S, "--json", "--json-lines"], "leave one out"),
    "objects for a simulator": ([*S, "--objects", "objects"], "b200 is simulated"),
    "no such row": (
        ["explain", "--shape", "8,32,8,0", "--device", "h200", "--config", "winner"],
        "no row of 8,32,8,0 on h200",
    ),
    "nothing published": (
        ["explain", "--shape", SHAPE, "--device", "h200", "--config", "published"],
        "nothing was published for 256,3840,3072,128",
    ),
}


@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_one_line_and_exit_code_2(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "objects" / "objects").mkdir(parents=True)
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("error: ") and said.err.count("\n") == 1
    assert message in said.err and len(said.err) < 1000
    assert [path.name for path in tmp_path.rglob("*")] == ["objects", "objects"]


@pytest.mark.parametrize("text", ["[" * 60000, "- " * 30000 + "x", "{a: " * 15000 + "x"])
def test_yaml_that_goes_down_without_end(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shapes.yaml").write_text(text)
    assert main(["explain", "--shapes", str(tmp_path / "shapes.yaml")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_without_a_card_nothing_is_proposed_that_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["peers", "--shape", SHAPE]) == 2
    assert "b200" not in capsys.readouterr().err
    assert main(["lookup", "--shape", SHAPE, "--device", "cuda:9"]) == 2
    assert "use --device b200 for simulated times" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["help"], ["ops", "--json"], ["completion", "bash"]]
)
def test_an_output_that_takes_nothing(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "tune.py", *arguments],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == "error: cannot write the output: No space left on device\n"


def test_ascii_locale() -> None:
    """Python then writes UTF-8 or escapes; a page of help and a budget hold nothing that would be lost."""
    environment = {
        **os.environ,
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONIOENCODING": "ascii",
    }
    for arguments in (["--help"], ["explain", *S]):
        done = subprocess.run(
            [sys.executable, "tune.py", *arguments],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.isascii() and len(done.stdout) > 1000


def test_a_bug_is_no_refusal_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(args: object) -> int:
        raise FileNotFoundError(errno.ENOENT, "No such file", "gone")

    monkeypatch.setattr("tuner.cli.look.ops.ops_command", missing)
    with pytest.raises(FileNotFoundError):
        main(["ops"])


# -- the build cache --

KEY = "0" * 64
NO_SPACE = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def refuses(error: OSError, at: int) -> Any:
    """``Path.write_bytes`` of a disk that has room for ``at`` files."""
    left, write_bytes = [at], Path.write_bytes

    def write(self: Path, data: bytes) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise error
        return write_bytes(self, data)

    return write


@pytest.mark.parametrize("room", [0, 1])
def test_a_full_cache_is_one_line_and_keeps_no_half_entry(
    room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = BuildCache(tmp_path / "build")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", refuses(NO_SPACE, room))
        with pytest.raises(
            InputError, match=f"cannot write to the build cache {tmp_path}/build: No space left"
        ):
            cache.store(KEY, {"a": b"1", "b": b"2"}, {})
    assert list((tmp_path / "build").iterdir()) == []
    cache.store(KEY, {"a": b"1"}, {})
    assert cache.load(KEY) is not None


@pytest.mark.parametrize("why", [errno.EROFS, errno.EACCES, errno.EPERM])
def test_a_cache_that_may_only_be_read_serves(
    why: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a read-only disk, or of another user: its entries are not marked as used."""
    BuildCache(tmp_path).store(KEY, {"a": b"1"}, {"x": 1})

    def utime(path: object) -> None:
        raise OSError(why, os.strerror(why))

    monkeypatch.setattr(os, "utime", utime)
    found = BuildCache(tmp_path).load(KEY)
    assert found is not None and found["x"] == 1
    assert json.loads((tmp_path / KEY / META).read_text())["x"] == 1


@pytest.mark.parametrize("why", [errno.EROFS, errno.EACCES])
def test_a_cache_that_cannot_be_made_is_one_line(
    why: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SVDQUANT_TUNE_CACHE", str(tmp_path / "theirs"))
    mkdir = Path.mkdir

    def refused(self: Path, *args: Any, **options: Any) -> None:
        if self.is_relative_to(tmp_path / "theirs"):
            raise OSError(why, os.strerror(why), str(self))
        mkdir(self, *args, **options)

    monkeypatch.setattr(Path, "mkdir", refused)
    monkeypatch.setattr(cli_compile, "build", lambda *_: BuildCache(tmp_path / "theirs").store(KEY, {}, {}))
    assert main(["compile", *S, "--config", "default"]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and os.strerror(why) in said.err


def test_a_worker_tells_the_pool_what_its_cache_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No verdict on the candidate, and no traceback: whoever waits gets the line."""

    def full(*_: object, **__: object) -> None:
        raise InputError("cannot write to the build cache: No space left on device")

    monkeypatch.setattr("kernel_space.build.build.build", full)
    problem, b200 = GemmProblem.parse(SHAPE), select_device("b200")
    config = SearchSpace.load(problem.operator, b200.arch).default(problem)
    task = Task(config=config, problem_class=problem.problem_class, arch=b200.arch, cache_dir=tmp_path)
    answer = _answer(task)
    assert answer == Refusal(line="cannot write to the build cache: No space left on device")


def test_the_pool_gives_the_refusal_as_an_input_error(tmp_path: Path) -> None:
    """A worker's side of the pipe that says so."""
    worker: Any = _Worker.__new__(_Worker)
    worker.served, worker._log = 0, (tmp_path / "log").open("w+")
    answer = Refusal(line="no room")
    worker._pipe = SimpleNamespace(send=lambda task: None, poll=lambda limit: True, recv=lambda: answer)
    with worker._log, pytest.raises(InputError, match="no room"):
        worker.compile(SimpleNamespace(config="c"), 1.0)


# -- configs by their name --


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return write(tmp_path / "results", [row(SHAPE, SPLIT), row("16,3840,3072,128", PLAIN)], [])


def chosen(out: Path, config: str | None, shape: str = SHAPE, rows: bool = True) -> tuple[str, str]:
    problem, h200 = GemmProblem.parse(shape), select_device("h200")
    args: Any = SimpleNamespace(config=config, out=out)
    found = chosen_configs(args, [problem], h200, rows=rows)[problem]
    return str(found.config), found.source


def test_without_a_config_the_row_is_meant_where_there_is_one(out: Path) -> None:
    problem, h200 = GemmProblem.parse("17,3840,3072,128"), select_device("h200")
    default = str(SearchSpace.load(problem.operator, h200.arch).default(problem))
    assert chosen(out, None) == (SPLIT, f"row of {out}/h200/dispatch.json")
    assert chosen(out, "winner") == (SPLIT, f"row of {out}/h200/dispatch.json")
    assert chosen(out, "default")[1] == "default rule" != chosen(out, None)[1]
    assert chosen(out, None, rows=False)[1] == "default rule"
    assert chosen(out, None, "17,3840,3072,128") == (default, "default rule"), "a near row is no row of it"
    text = "kernel=sm90a_ring tile_mnk=64x40x128 consumer_warpgroups=1"
    assert chosen(out, text) == (str(parse_config("svdquant_gemm", h200.arch, text)), "--config")


def test_the_published_config_is_that_of_the_file() -> None:
    problem, b200 = GemmProblem.parse("4352,3840,3072,128"), select_device("b200")
    published = published_config(problem, b200.arch)
    args: Any = SimpleNamespace(config="published", out=ROOT / "results")
    found = chosen_configs(args, [problem], b200)[problem]
    assert published is not None and found.config == published.config and published.name in found.source


@pytest.mark.parametrize("module", [cli_compile, cli_check, cli_time])
def test_check_time_and_compile_take_the_row(
    module: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the committed table; a config that is named is taken instead."""
    asked: list[str] = []

    def build(config: object, *_: object) -> None:
        asked.append(str(config))
        raise CompileError("stopped here")

    monkeypatch.setattr(module, "build", build)
    name = module.__name__.rpartition(".")[2]
    for config in ((), ("--config", "winner"), ("--config", "default")):
        main([name, *S, "--out", str(ROOT / "results"), *config])
    table = json.loads((ROOT / "results" / "b200" / "dispatch.json").read_text())
    key = {"op": "svdquant_gemm", "problem": GemmProblem.parse(SHAPE).record()}
    (recorded,) = (one["config"] for one in table["rows"] if key.items() <= one.items())
    assert asked[:2] == [recorded] * 2 and asked[2] != recorded


# -- the line itself --


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--version"], ["lookup", "--version"]):
        assert main(arguments) == 0
        assert capsys.readouterr().out == f"tune.py {tuner.__version__}\n"


def test_help_shows_usage_commands_and_three_examples_that_parse(capsys: pytest.CaptureFixture[str]) -> None:
    from tuner.cli.main import parser_of

    assert main(["--help"]) == 0
    by_option = capsys.readouterr().out
    assert main(["help"]) == 0
    assert capsys.readouterr().out == by_option
    assert by_option.startswith("usage: tune.py [COMMAND] [OPTION ...]\n")
    examples = [
        line.split("  ")[1].split() for line in by_option.partition("examples:\n")[2].splitlines() if line
    ]
    assert len(examples) == 3
    for _, *words in examples:
        name = words.pop(0) if words[0] in COMMANDS else "tune"
        parser_of(name).parse_args(words)
    assert main(["help", "lookup"]) == 0
    assert capsys.readouterr().out.startswith("usage: tune.py lookup")


def test_bash_completes_commands_and_their_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    asked = {
        "ex": ["explain"],
        "lookup --sh": ["--shape", "--shapes"],
        "--tri": ["--trials"],
        "peers --tri": [],
    }
    for line, expected in asked.items():
        words = ["tune.py", *line.split()]
        here = f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}"
        program = f'{script}\n{here}; _svdquant_tune; echo "${{COMPREPLY[@]}}"'
        done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
        assert done.stdout.split() == expected, line


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_told_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(name in script for name in COMMANDS) and "trials" in script and "%(default)s" not in script


def test_clean_takes_the_cache_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("SVDQUANT_TUNE_CACHE", str(cache))
    BuildCache(cache / "build").store(KEY, {"a": b"x" * 1000}, {})
    (cache / "verdicts").mkdir()
    (cache / "footprints-a-b-1-0.json").write_text("{}")
    (cache / "sources-0.json").write_text("{}")
    (cache / "notes.txt").write_text("mine")
    assert main(["clean", "--cache", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (
        told["removed"] == ["build", "verdicts", "footprints-a-b-1-0.json", "sources-0.json"]
        and told["bytes"] > 1000
    )
    assert [path.name for path in cache.iterdir()] == ["notes.txt"]
    assert main(["clean", "--cache"]) == 0, "there may be none"


def test_clean_follows_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SVDQUANT_TUNE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    (tmp_path / "precious").mkdir()
    (tmp_path / "cache" / "build").symlink_to(tmp_path / "precious")
    assert main(["clean", "--cache"]) == 2
    assert (tmp_path / "precious").is_dir()

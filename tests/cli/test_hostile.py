"""Classes of command lines, streams and caches that once ended in a traceback, a wait or a page of text."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kernel_space.build.cache import check_takes_entries
from kernel_space.core.errors import InputError
from tuner.cli.main import COMMANDS, LONGEST_LINE, main
from tuner.cli.options.shell import SHELLS
from tuner.cli.start import start
from tuner.files.record_checks import check_plain

ROOT = Path(__file__).resolve().parents[2]
S = ("--shape", "256,3840,3072,128", "--device", "b200")
ENDLESS = "9" * 5000  # more digits than int() reads
REFUSED = {
    "a config with a number without end": (["explain", *S, "--config", f"num_ab_stage={ENDLESS}"], "at most 4096"),
    "changes without end": (["time", *S, "--changes", ENDLESS], "a whole number of at most"),
    "seconds without end": ([*S, "--timeout", ENDLESS], "must be a number of seconds above 0"),
    "digits of another script": ([*S, "--trials", "\u0663"], "must be a whole number of at least 1"),
    "seconds in another script": ([*S, "--timeout", "\u0663"], "must be a number of seconds above 0"),
    "help for a command without a name": (["help", ""], "unknown command ''"),
    "rows of an operator that is not": (["retime", "--op", "nope"], "nope"),
    "a mutation that is not": (["check", *S, "--inject", "nope"], "--inject list names"),
    "a trace into a device": (["time", *S, "--trace", "/dev/full"], "must name a file in a folder that exists"),
    "a trace in no folder": (["time", *S, "--trace", "gone/t.json"], "must name a file in a folder that exists"),
    "a trace with a name that no disk takes": (["check", *S, "--trace", "a" * 300], "File name too long"),
    "a trace into a circle": (["check", *S, "--trace", "circle"], "must name a file in a folder that exists"),
    "a wrong shape where a card is asked for, too": (["day-one", "--shape", "1,2"], "must be four integers"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_one_short_line_and_exit_code_2(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "circle").symlink_to("circle")
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("error: ") and said.err.count("\n") == 1
    assert message in said.err and len(said.err) < 400
    assert [path.name for path in tmp_path.iterdir()] == ["circle"]


def test_a_line_repeats_what_was_typed_up_to_a_point(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "x" * 100_000]) == 2
    assert LONGEST_LINE < len(capsys.readouterr().err) < LONGEST_LINE + 100


def test_a_wrong_shape_is_told_before_anything_slow_is_imported() -> None:
    """Of each command that takes one; the imports of some take ten seconds on a busy machine."""
    program = """
import json, sys
from tuner.cli.main import COMMANDS, main, parser_of
needs = {"compile-only": ["--out", "o"], "measure": ["o"]}
asked = [name for name in COMMANDS if "--shape " in parser_of(name).format_help()]
codes = {name: main([name, *needs.get(name, []), "--shape", "x"]) for name in asked}
print(json.dumps([codes, [name for name in ("torch", "cutlass", "optuna", "llvmlite") if name in sys.modules]]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    codes, slow = json.loads(done.stdout)
    assert len(codes) >= 13 and set(codes) < set(COMMANDS) and set(codes.values()) == {2}
    assert slow == [] and done.stderr.count("error: a shape must be four integers") == len(codes)


def test_the_command_line_is_there_before_anything_of_a_tune() -> None:
    """``--help`` and a shell's completion wait for what it imports."""
    program = (
        "import sys, tuner.cli.main; print(*(one for one in sys.modules if one.startswith"
        "(('tuner.tune', 'tuner.report', 'tuner.stages', 'tuner.tables', 'numpy', 'yaml'))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


def test_an_interrupt_while_the_command_line_is_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "tuner.cli.main":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "tuner.cli.main")
    monkeypatch.delattr("tuner.cli.main", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    assert start() == 130
    assert capsys.readouterr().err == "error: interrupted\n"


def test_an_operator_that_ends_the_program_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ends(args: object) -> int:
        raise SystemExit(5)

    monkeypatch.setattr("tuner.cli.look.ops.ops_command", ends)
    assert main(["ops"]) == 2
    assert capsys.readouterr().err == "error: code that was loaded ends the program with 5; mend it\n"


# -- streams --


def tune_py(*arguments: str, redirect: str) -> subprocess.CompletedProcess[str]:
    line = ["bash", "-c", f'"$@" {redirect}', "bash", sys.executable, "tune.py", *arguments]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("redirect", "arguments", "code", "shown"),
    [
        (">&-", ["--version"], 0, ""),
        ("<&- 2>&-", ["--version"], 0, "tune.py "),
        ("<&- >&- 2>&-", ["tuen"], 2, ""),
        ("2>/dev/full", ["tuen"], 2, ""),
        ("| head -c 1; exit ${PIPESTATUS[0]}", ["completion", "bash"], 0, "_"),
    ],
)
def test_streams_that_nobody_reads(redirect: str, arguments: list[str], code: int, shown: str) -> None:
    done = tune_py(*arguments, redirect=redirect)
    assert (done.returncode, done.stderr) == (code, "") and done.stdout.startswith(shown)
    assert bool(done.stdout) is bool(shown)


def test_no_file_gets_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    """Else a journal would hold what a library writes to stderr."""
    program = (
        "import os, subprocess, sys; from tuner.cli.options.streams import open_streams; open_streams();"
        "file = open(sys.argv[1], 'w'); print('lost'); print('lost', file=sys.stderr); input_ = sys.stdin.read();"
        "os.write(2, b'lost'); subprocess.run(['echo', 'lost'], check=True); file.write(f'{file.fileno()}{input_}')"
    )
    line = ["bash", "-c", '"$@" <&- >&- 2>&-', "bash", sys.executable, "-c", program, str(tmp_path / "file")]
    assert subprocess.run(line, cwd=ROOT, check=False).returncode == 0
    assert int((tmp_path / "file").read_text()) > 2


# -- the cache and tables --


@pytest.mark.parametrize("where", ["file", "file/below", "circle", "a" * 300, "/proc/none"])
def test_a_tune_asks_the_cache_before_it_makes_anything(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "circle").symlink_to("circle")
    monkeypatch.setenv("SVDQUANT_TUNE_CACHE", where)
    for command in (["tune", "--out", "out"], ["compile-only", "--out", "objects"]):
        assert main([*command, *S]) == 2
        said = capsys.readouterr()
        assert said.err.count("\n") == 1 and "cannot write to the build cache" in said.err
    assert not list(tmp_path.rglob("*.jsonl")) and not list(tmp_path.rglob("*.json"))


def test_a_cache_without_room_is_refused_and_one_with_room_is_left_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_takes_entries(tmp_path / "deep" / "cache")
    assert list((tmp_path / "deep" / "cache").iterdir()) == []

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    with pytest.raises(InputError, match="No space left on device; make room, or name another with SVDQUANT"):
        check_takes_entries(tmp_path)


def test_a_record_has_no_number_that_nobody_reads() -> None:
    check_plain({"config": f"num_ab_stage={'9' * 4000}"})
    with pytest.raises(InputError, match="a number of more than 4000 digits"):
        check_plain({"config": f"num_ab_stage={ENDLESS}"})


# -- shells --


def test_fish_completes_commands_and_their_options(capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    assert main(["completion", SHELLS[-1]]) == 0
    script = capsys.readouterr().out
    asked = {
        "ex": {"explain"},
        "lookup --sh": {"--shape", "--shapes"},
        "--tri": {"--trials"},
        "peers --tri": set(),
    }
    for line, expected in asked.items():
        program = f"{script}\ncomplete -C 'tune.py {line}'"
        done = subprocess.run(["fish", "-N", "-c", program], capture_output=True, text=True, check=True)
        assert {one.split("\t")[0] for one in done.stdout.splitlines()} == expected, line


def test_zsh_takes_the_function_for_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    assert main(["completion", "zsh"]) == 0
    program = f"{capsys.readouterr().out}\nprint -r -- $_comps[tune.py]"
    done = subprocess.run(["zsh", "-f", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "_bash_complete -o filenames -F _svdquant_tune\n"

"""Operators on the command line: ``ops``, ``--op``, ``--operators``, ``--option``, ``--dtype``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rowstats.operator import RowstatsProblem

from kernel_space.core import registry
from kernel_space.core.problem import Problem
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tuner.cli.main import main, parser_of
from tuner.cli.options.common import problems_of
from tuner.cli.options.text import problem_arguments

PLUGINS = Path(__file__).resolve().parents[1] / "plugins"
GEMM = ["--shape", "256,3840,3072,128"]


@pytest.fixture(autouse=True)
def own_operators(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Folders that a command adds are forgotten after it."""
    monkeypatch.setenv(registry.VARIABLE, os.environ.get(registry.VARIABLE, ""))
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    monkeypatch.undo()
    registry.forget()


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that a command ends with, without ``error: ``."""
    assert main(list(arguments)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ") and err.count("\n") == 1
    return err.removeprefix("error: ").rstrip("\n")


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert main([*arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out)


# ---- ops ------------------------------------------------------------------------------------------------------------
def test_ops_names_forms_kernels_and_devices(capsys: pytest.CaptureFixture[str]) -> None:
    """Of the stranger's operator as its files say: one kernel for two architectures, space for sm_100a and sm_90a."""
    found = {one["op"]: one for one in document(capsys, "ops", "--operators", str(PLUGINS))["operators"]}
    assert {"svdquant_gemm", "nvfp4_quantize", "rowstats", "stamp", "tally"} <= found.keys()
    assert list(found) == sorted(found)
    rows = found["rowstats"]
    assert rows["formula"] == "y = 2 x, count = positive elements of each row"
    assert (rows["shape"], rows["options"]) == ("M,K", {})
    assert list(rows["kernels"]) == ["rows"]
    gemm = found["svdquant_gemm"]
    assert gemm["shape"] == "M,K,N,R"
    assert gemm["options"] == {
        "lora_dtype": ["fp16", "bf16"],
        "out_dtype": ["fp16", "bf16"],
        "activation": ["none", "gelu_tanh", "silu", "swiglu"],
    }
    assert gemm["kernels"]["sm90a_ring"] == ["sm_90a"]
    assert {"b200", "h200", "h100"} <= set(gemm["devices"])


def test_ops_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "--operators", str(PLUGINS)]) == 0
    blocks = capsys.readouterr().out.split("\n\n")
    told = next(block for block in blocks if block.startswith("operator   rowstats\n"))
    assert "\nshape      M,K\n" in told
    assert "\noptions" not in told  # it has none
    assert "\nkernel     rows (" in told


def test_records_name_the_operator(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--op", "rowstats", "--operators", str(PLUGINS), "--shape", "300,1024", "--device", "b200")
    [result] = document(capsys, "explain", *arguments)["results"]
    assert (result["op"], result["shape"]) == ("rowstats", "300,1024")
    assert result["config"].startswith("kernel=rows ")
    assert (result["schedule"], result["modelled"]) == (None, None)  # it states neither
    [result] = document(capsys, "explain", *GEMM, "--device", "b200")["results"]
    assert (result["op"], result["lora_dtype"]) == ("svdquant_gemm", "fp16")


def test_explain_leaves_out_what_a_kernel_does_not_state(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--op", "rowstats", "--operators", str(PLUGINS), "--shape", "300,1024", "--device", "b200"]
    assert main(["explain", *arguments]) == 0
    labels = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert labels == ["problem", "device", "config", "from", "legal"]


# ---- --op and the problem -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["no_such", "Rowstats", "../rowstats", ""])
def test_an_operator_that_is_not_there(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = refused(capsys, "explain", "--op", name, "--shape", "1,2")
    assert repr(name) in told and "the operators are" in told and "svdquant_gemm" in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--op", "rowstats"], "say which problem: --shape M,K, for example --shape 256,1024"),
        (["--op", "rowstats", "--shape", "1,2,3"], "got '1,2,3'"),
        (["--op", "rowstats", "--shape", "1,3"], "K must be a multiple of 2, got 3"),
        (["--op", "rowstats", "--shape", "1,2", "--dtype", "fp16"], "rowstats has no dtypes to choose"),
        (["--op", "rowstats", "--shape", "1,2", "--option", "a=b"], "NAME one of none, got 'a=b'"),
        (
            [*GEMM, "--option", "out_dtype"],
            "NAME=VALUE with NAME one of lora_dtype out_dtype activation, got 'out_dtype'",
        ),
        ([*GEMM, "--option", "dtype=fp16"], "got 'dtype=fp16'"),
        ([*GEMM, "--option", "out_dtype=fp8"], "out_dtype must be one of fp16, bf16, got 'fp8'"),
        (
            [*GEMM, "--option", "out_dtype=fp16", "--option", "out_dtype=bf16"],
            "--option out_dtype is given twice",
        ),
        ([*GEMM, "--dtype", "fp16/bf16/fp16"], "LORA_DTYPE/OUT_DTYPE, got 'fp16/bf16/fp16'"),
        ([*GEMM, "--dtype", "fp32"], "must be one of fp16, bf16"),
    ],
)
def test_bad_problems(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = refused(capsys, "explain", "--operators", str(PLUGINS), "--device", "b200", *arguments)
    assert message in told


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ([], {"lora_dtype": "fp16", "out_dtype": "fp16"}),
        (["--dtype", "bf16"], {"lora_dtype": "bf16", "out_dtype": "bf16"}),
        (["--dtype", "bf16/fp16"], {"lora_dtype": "bf16", "out_dtype": "fp16"}),
        (["--option", "out_dtype=bf16"], {"lora_dtype": "fp16", "out_dtype": "bf16"}),
        (["--dtype", "bf16", "--option", "out_dtype=fp16"], {"lora_dtype": "bf16", "out_dtype": "fp16"}),
    ],
)
def test_dtypes_of_two_options(
    arguments: list[str], options: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    [result] = document(capsys, "explain", *GEMM, "--device", "b200", *arguments)["results"]
    assert {name: result[name] for name in options} == options


def test_one_dtype_goes_to_the_options_that_can_have_it(capsys: pytest.CaptureFixture[str]) -> None:
    """nvfp4_quantize: x may be fp32, bf16 or fp16; its other option, smooth, is no bf16."""
    arguments = ("explain", "--op", "nvfp4_quantize", "--shape", "300,1024,128", "--device", "b200")
    [default] = document(capsys, *arguments)["results"]
    [result] = document(capsys, *arguments, "--dtype", "bf16")["results"]
    assert (default["x_dtype"], result["x_dtype"]) == ("fp16", "bf16")
    assert result["smooth"] == default["smooth"]


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (GemmProblem.parse("256,3840,3072,128"), "--shape 256,3840,3072,128"),
        (
            GemmProblem.parse("256,3840,3072,128", out_dtype="bf16"),
            "--shape 256,3840,3072,128 --option out_dtype=bf16",
        ),
        (
            GemmProblem.parse("256,3840,3072,128", activation="gelu_tanh"),
            "--shape 256,3840,3072,128 --option activation=gelu_tanh",
        ),
        (RowstatsProblem(m=300, k=1024), "--op rowstats --shape 300,1024"),
    ],
)
def test_commands_that_are_proposed_name_the_same_problem(problem: Problem, words: str) -> None:
    assert problem_arguments(problem) == words
    assert problems_of(parser_of("compile").parse_args(words.split())) == [problem]


# ---- --operators ----------------------------------------------------------------------------------------------------
def folder(tmp_path: Path, name: str, source: str) -> Path:
    (tmp_path / "ops" / name).mkdir(parents=True)
    (tmp_path / "ops" / name / "operator.py").write_text(source)
    return tmp_path / "ops"


@pytest.mark.parametrize("kind", ["missing", "file", "empty"])
def test_a_folder_without_operators(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / kind
    if kind == "file":
        path.write_text("")
    elif kind == "empty":
        path.mkdir()
    told = refused(capsys, "ops", "--operators", str(path))
    assert told == f"--operators must be a folder with NAME/operator.py in it, got {path}"


# Each under a name of its own: a module that was imported once stays known to the process.
BROKEN = {
    "cli_syntax": ("def broken(:\n", "SyntaxError"),
    "cli_imports": ("import no_such_module_anywhere\n", "No module named 'no_such_module_anywhere'"),
    "cli_raises": ("raise RuntimeError('two\\nlines')\n", "RuntimeError: two lines"),
    "cli_divides": ("1 / 0\n", "ZeroDivisionError"),
    "cli_missing": ("", "has no attribute 'OPERATOR'"),
    "cli_type": ("OPERATOR = 'me'\n", "OPERATOR of cli_type.operator must be of type Operator, it is of type str"),
    "cli_other": (
        "from rowstats.operator import OPERATOR\n",
        "cli_other.operator must hold the operator cli_other, it has 'rowstats'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("command", ["ops", "explain"])
def test_an_operator_that_cannot_be_loaded(
    name: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, message = BROKEN[name]
    name = f"{name}_{command}"
    where = folder(tmp_path, name, source)
    asked = [] if command == "ops" else ["--op", name, "--shape", "1,2"]
    told = refused(capsys, command, "--operators", str(where), *asked)
    assert message.replace("cli_type", name).replace("cli_other", name) in told
    assert name in told


def test_a_kernel_that_cannot_be_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An operator's object may be whole and a kernel of it not."""
    source = (PLUGINS / "rowstats" / "operator.py").read_text().replace("rowstats", "cli_kernel")
    where = folder(tmp_path, "cli_kernel", source)
    for name, text in (("rows", "KERNEL = 3\n"),):
        (where / "cli_kernel" / name).mkdir()
        (where / "cli_kernel" / name / "spec.py").write_text(text)
    told = refused(capsys, "ops", "--operators", str(where))
    assert told == "KERNEL of cli_kernel.rows.spec must be of type Kernel, it is of type int"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("json", "must have a name that no other module has"),
        ("yaml", "must have a name that no other module has"),
        ("svdquant_gemm", "two operators are called svdquant_gemm"),
        ("My-Op", "must be named by small letters, digits and _"),
    ],
)
def test_names_that_are_taken_or_impossible(
    name: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = folder(tmp_path, name, "raise AssertionError('imported')\n")
    assert message in refused(capsys, "ops", "--operators", str(where))
    assert main(["ops"]) == 0  # a refused folder is not kept

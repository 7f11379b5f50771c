"""What peers compute, on the CPU: each against the float64 oracle; how a document is written and printed."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernel_space.core.arch import SM90A
from kernel_space.core.errors import InputError
from kernel_space.core.on_card import Call, Peer
from kernel_space.core.registry import operator
from kernel_space.operators.svdquant_gemm.on_card import peers as gemm_peers
from kernel_space.operators.svdquant_gemm.operands import make_operands
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.places import shipped
from tests.card.fake_card import FakeTelemetry
from tests.finals.test_finals import Card
from tuner.card import peers
from tuner.card.samples.samples import State
from tuner.cli.main import parser_of
from tuner.cli.options.exits import CommandError
from tuner.cli.tune import peers as cli_peers
from tuner.report.data.peers import read_peers
from tuner.search.progress import Silent
from tuner.tables.dispatch import DispatchTable

PROBLEM = GemmProblem.parse("48,256,192,32")


def uncompiled(function: Any) -> Any:
    return function


@pytest.mark.parametrize("shape", ["48,256,192,32", "17,128,64,0"])
def test_whole_operators_agree_with_the_oracle(shape: str) -> None:
    problem = GemmProblem.parse(shape)
    operands = make_operands(problem, 3)
    expected = operands.reference()
    whole = (gemm_peers.EAGER, gemm_peers.COMPILED, gemm_peers.DEQUANT)
    found = {peer.name: peer for peer in peers.peers_of(problem, uncompiled)}
    for name in whole:
        got = found[name].build(problem, operands.tensors())().double()
        error = float((got - expected).norm() / expected.norm())
        assert error < 0.01, name
        assert peers.error_of(found[name], problem, operands.tensors()) == pytest.approx(error, abs=1e-3)


def test_gemms_alone_are_the_gemm() -> None:
    tensors = make_operands(PROBLEM, 5).tensors()
    by_name = {peer.name: peer for peer in peers.peers_of(PROBLEM, uncompiled)}
    assert peers.error_of(by_name[gemm_peers.CUBLAS], PROBLEM, tensors) < 0.005
    x, w, scale_x, scale_w = by_name[gemm_peers.FP8].build(PROBLEM, tensors).inputs
    act, wgt = by_name[gemm_peers.CUBLAS].build(PROBLEM, tensors).inputs
    assert x.dtype is w.dtype is torch.float8_e4m3fn
    for rounded, scale, exact in ((x, scale_x, act), (w, scale_w, wgt)):
        error = (rounded.float() * scale - exact.float()).norm() / exact.float().norm()
        assert 0 < float(error) < 2**-4, "E4M3 keeps 3 bits behind the point"


def test_every_peer_is_there_and_rotates_past_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    sets = [make_operands(PROBLEM, seed).tensors() for seed in range(2)]
    asked: list[tuple[int, int]] = []

    def time_launches(launch: Any, sets: int, *rest: Any) -> str:
        seen = {launch(index).data_ptr() for index in range(sets)}
        asked.append((sets, len(seen)))
        return "timed"

    monkeypatch.setattr(peers, "time_launches", time_launches)
    telemetry = FakeTelemetry(lambda: State())
    for peer in peers.peers_of(PROBLEM, uncompiled):
        if peer.name == gemm_peers.FP8:
            continue
        call = peer.build(PROBLEM, sets[0])
        each = sum(tensor.nbytes for tensor in (*call.inputs, call()))
        assert peers.time_peer(peer, PROBLEM, sets, 10 * each, telemetry) == "timed"
        assert asked[-1][0] == 31, "31 sets are more than 3 x 10"


def answer(problem: GemmProblem) -> dict[str, Any]:
    samples = Card({"a": 10.0})._samples("a", SimpleNamespace(seed=1, rounds=9))
    return {
        "rows": [
            peers._row(problem, GemmProblem.operator, samples),
            peers._row(problem, gemm_peers.EAGER, samples, relative_error=0.004),
        ],
        "missing": {gemm_peers.FP8: "M must be divisible by 16"},
        "driver": "580.0",
        "protocol": "p",
    }


def test_the_document_is_what_the_report_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    process = SimpleNamespace(ask=lambda request: json.loads(json.dumps(answer(PROBLEM))))
    device = SimpleNamespace(
        name="h200", worker=SimpleNamespace(uuid="test"), card=SimpleNamespace(index=0, name="NVIDIA H200")
    )
    document = cli_peers.measure_peers(process, PROBLEM, device, tmp_path, None, None, Silent())
    found = read_peers(tmp_path / "h200" / "svdquant_gemm" / "48x256x192x32", PROBLEM)
    assert found is not None and found.device == "NVIDIA H200" and found.driver == "580.0"
    assert [row.name for row in found.rows] == [gemm_peers.EAGER] and found.own is not None
    assert found.own.us == pytest.approx(10.0, rel=0.01)
    cli_peers.print_peers(PROBLEM, document)
    assert "1.00" in capsys.readouterr().out


def test_the_kernel_beside_the_peers_may_come_from_the_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is compiled or cached on a machine that only serves: what is timed there is what it launches."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    problem = GemmProblem.parse("64,3840,3072,128")
    row = DispatchTable.load(shipped("results") / "h200", arch=SM90A).lookup(problem)
    args = SimpleNamespace(objects=None, out=shipped("results"))
    own = cli_peers._own(row.config, problem, SimpleNamespace(name="h200", arch=SM90A), args)
    assert own is not None and own.config == str(row.config)
    assert hashlib.sha256(Path(own.object_path).read_bytes()).hexdigest() == own.object_sha256
    other = SimpleNamespace(objects=None, out=tmp_path)
    assert cli_peers._own(row.config, problem, SimpleNamespace(name="h200", arch=SM90A), other) is None


def test_without_a_compiler_all_problems_are_timed_and_no_page_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A machine that only serves: two problems with trials, where writing the first page asks for the compiler."""
    process = SimpleNamespace(ask=lambda request: json.loads(json.dumps(answer(PROBLEM))))
    device = SimpleNamespace(
        name="h200",
        arch=SM90A,
        worker=SimpleNamespace(uuid="test"),
        card=SimpleNamespace(index=0, name="NVIDIA H200"),
    )

    def no_compiler(*_: Any) -> None:
        raise InputError("the CuTe DSL is not installed")

    monkeypatch.setattr(cli_peers, "cuda_device", lambda name: device)
    monkeypatch.setattr(cli_peers, "PeersProcess", lambda card: contextlib.nullcontext(process))
    monkeypatch.setattr(cli_peers, "write_again", no_compiler)
    shapes = ["--shape", "48,256,192,32", "--shape", "64,256,192,32"]
    args = parser_of("peers").parse_args([*shapes, "--out", str(tmp_path)])
    assert cli_peers.peers_command(args) == 0
    written = sorted(path.parent.name for path in tmp_path.rglob("peers.json"))
    assert written == ["48x256x192x32", "64x256x192x32"]
    assert (
        capsys.readouterr().err.count("the page is not written again here (the CuTe DSL is not installed)")
        == 2
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card here")
def test_a_process_that_fails_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From whatever folder the command is called: it fails for want of a card, not of this project."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(Path(cli_peers.__file__).parents[3]))
    with cli_peers.PeersProcess(0) as process, pytest.raises(CommandError) as failed:
        process.ask({"problem": {}, "kernel": None})
    assert "gave no answer: code 1, " in str(failed.value) and "\n" not in str(failed.value)
    assert "No module named" not in str(failed.value)


def test_an_operator_without_peers_is_said_in_one_line(tmp_path: Path) -> None:
    """Before a card is looked for, and nothing is written."""
    command = ["--op", "rowstats", "--shape", "32,64", "--out", str(tmp_path)]
    with pytest.raises(
        InputError, match=r"^rowstats has no peers to time: name a module of them in its oper"
    ):
        cli_peers.peers_command(parser_of("peers").parse_args(command))
    assert not list(tmp_path.iterdir())


def test_peers_of_an_operator_outside_of_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by the name of their module, and compared with what they must give."""
    problem = operator("rowstats").problem.parse("8,16")

    def build(problem: Any, inputs: Any) -> Call:
        return Call(function=lambda x: x + x, inputs=(inputs["x"],))

    def listed(problem: Any, compiler: Any) -> list[Peer]:
        doubled = {"build": build, "expected": lambda _, inputs: 2.0 * inputs["x"].float(), "worst": 0.1}
        return [Peer(name="torch", what="y alone", **doubled)]

    monkeypatch.setitem(sys.modules, "rowstats_peers", SimpleNamespace(peers=listed))
    changed = dataclasses.replace(operator("rowstats"), peers="rowstats_peers")
    monkeypatch.setattr(peers, "operator_of", lambda problem: changed)
    found = peers.peers_of(problem, uncompiled)
    inputs = operator("rowstats").inputs(problem, 1, "plain", "cpu")
    assert [peer.name for peer in found] == ["torch"]
    assert peers.error_of(found[0], problem, inputs) == 0.0
    three = dataclasses.replace(found[0], expected=lambda _, inputs: 3.0 * inputs["x"].float())
    assert peers.error_of(three, problem, inputs) == pytest.approx(1 / 3)

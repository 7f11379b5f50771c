"""``profile`` with a stand-in for the profiler: what it is asked for, what is shown, and every refusal as one line."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernel_space.build.build import build
from kernel_space.core.arch import SM90A, SM100A
from kernel_space.core.errors import InputError
from kernel_space.core.rules import Legal, legalize
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from kernel_space.places import shipped
from tests.card.counters.exports import export, fake_ncu
from tuner.card.counters import runner
from tuner.card.counters.calls import CallCounts, KernelCounts
from tuner.card.counters.ncu import find_ncu, refusal, run_ncu
from tuner.card.counters.quantities import QUANTITIES
from tuner.card.counters.utilization import least_cycles
from tuner.cli.main import main
from tuner.cli.tune import profile as cli_profile
from tuner.cli.tune.peers import bundled
from tuner.cli.tune.profile_table import Predicted, Side, print_sides, tables
from tuner.devices.classes import DEVICE_CLASSES
from tuner.devices.select import select_device

SHAPE = "4352,3840,3072,128"
COMMAND = ["profile", "--shape", SHAPE, "--config", "winner", "--out", str(shipped("results"))]


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """An H200 that has the shipped objects and no compiler."""
    device = SimpleNamespace(
        name="h200",
        arch=SM90A,
        sm_count=132,
        kind="measured",
        device_class=DEVICE_CLASSES["h200"],
        card=SimpleNamespace(index=0),
        worker=SimpleNamespace(uuid="GPU-of-a-test"),
    )
    monkeypatch.setattr(cli_profile, "cuda_device", lambda name: device)

    def candidate(legal: Any, problem: Any, device: Any, out: Path) -> tuple[Any, None]:
        found = bundled(legal.config, problem, device, shipped("results"))
        assert found is not None
        return found, None

    monkeypatch.setattr(cli_profile, "_candidate", candidate)
    return device


def with_ncu(folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    path = fake_ncu(folder, **options)
    monkeypatch.setattr(cli_profile, "find_ncu", lambda: str(path))


def test_two_configs_side_by_side(
    card: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Durations of 30 to 34 us are 32 in the middle; the second config takes 1.25 times as long."""
    with_ncu(tmp_path, monkeypatch, exports=(export(5), export(5, times=1.25)))
    assert main([*COMMAND, "--against", "winner", "--keep", str(tmp_path / "kept"), "--quiet"]) == 0
    lines = {" ".join(line.split()) for line in capsys.readouterr().out.splitlines()}
    problem = cli_profile.problems_of(_parsed())[0]
    share = 100 * (least_cycles(problem, SM90A, 132) or 0) / (32.0 * 1500)
    assert "duration of a call 32.00 us 40.00 us +25.0%" in lines
    assert f"MFU at that clock {share:.1f} % {share / 1.25:.1f} % {share / 1.25 - share:+.1f} points" in lines
    assert "SM clock 1.500 GHz 1.500 GHz +0.0%" in lines
    assert "tensor pipe, active 50.0 % 50.0 % +0.0 points" in lines
    assert "instructions issued 1,234,567 1,234,567 +0.0%" in lines
    assert "simulated A: not: h200 has no simulator" in lines
    (folder,) = (tmp_path / "kept").glob("*/*")
    assert {path.name for path in folder.iterdir()} == {
        "A.ncu-rep",
        "A.csv",
        "B.ncu-rep",
        "B.csv",
        "profile.md",
    }
    assert (folder / "A.csv").read_text() == export(5)
    assert "| duration | 32.00 us | 40.00 us | +25.0% |" in (folder / "profile.md").read_text()


def _parsed() -> Any:
    from tuner.cli.main import parser_of

    return parser_of("profile").parse_args(["--shape", SHAPE])


def test_one_document_on_stdout(
    card: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with_ncu(tmp_path, monkeypatch, exports=(export(5),))
    assert main([*COMMAND, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (one,) = document["results"][0]["profiles"]
    assert (one["duration_us"], one["calls"], one["worst_error_in_tolerances"]) == (32.0, 5, 0.5)
    assert one["kernels"][0]["l2_pct"] == 40.25 and one["kernels"][0]["dram_pct"] == 12.5
    assert document["profiler"] == "Nsight Compute 2025.3.0.0"


def test_what_the_profiler_is_asked_for(card: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what the runner marks, clocks left alone, and the runner itself as the program."""
    with_ncu(tmp_path, monkeypatch, exports=(export(5),))
    assert main([*COMMAND, "--quiet"]) == 0
    asked = (tmp_path / "arguments").read_text().splitlines()
    for option, value in (
        ("--profile-from-start", "off"),
        ("--clock-control", "none"),
        ("--cache-control", "all"),
    ):
        assert asked[asked.index(option) + 1] == value
    counters = asked[asked.index("--metrics") + 1].split(",")
    assert "sm__pipe_tensor_subpipe_hmma_cycles_active.avg.pct_of_peak_sustained_active" in counters
    assert any("from tuner.card.counters.runner import main" in one for one in asked)


REFUSED = {
    "no right to counters": (
        "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission",
        1,
        "run as root or with CAP_SYS_ADMIN",
    ),
    "the same, and the program ran to its end": (
        "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission",
        0,
        "NVreg_RestrictProfilingToAdminUsers=0",
    ),
    "no kernel": ("==WARNING== No kernels were profiled.", 0, "ncu profiled no kernel"),
    "a failure": (
        "==ERROR== The driver is too old",
        3,
        "ncu failed with exit code 3: ==ERROR== The driver is too old",
    ),
}


@pytest.mark.parametrize(("says", "code", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_refusals_are_one_line_and_exit_code_2(
    says: str,
    code: int,
    message: str,
    card: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with_ncu(tmp_path, monkeypatch, says=says, code=code)
    assert main([*COMMAND, "--quiet"]) == 2
    said = capsys.readouterr()
    assert said.out == "" and message in said.err and said.err.count("\n") == 1


def test_without_ncu_or_card_one_line_says_so(
    card: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match="ncu is neither on PATH nor below"):
        find_ncu(lambda name: None, [f"{tmp_path}/nowhere*"])
    monkeypatch.undo()
    assert main(["profile", "--shape", SHAPE]) == 2
    assert "cuda:0 is not there" in capsys.readouterr().err


def test_the_latest_installed_one_is_found(tmp_path: Path) -> None:
    for name in ("2024.3.2", "2025.10.0", "2025.3.0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "ncu").touch()
    assert find_ncu(lambda name: None, [f"{tmp_path}/*"]) == str(tmp_path / "2025.10.0" / "ncu")
    assert find_ncu(lambda name: f"/usr/bin/{name}", [f"{tmp_path}/*"]) == "/usr/bin/ncu"


def test_a_profiler_that_hangs_is_ended() -> None:
    with pytest.raises(InputError, match=r"did not end within 0\.2 s"):
        run_ncu(["sleep", "60"], 0.2)


def test_a_good_end_is_no_refusal() -> None:
    assert refusal("==PROF== Disconnected from process 41", 0) == ""


@pytest.mark.slow
def test_the_runner_itself_says_in_one_line_what_went_wrong(tmp_path: Path) -> None:
    """Here it is the card that is missing, or torch without one; no traceback, and no half-written answer."""
    (tmp_path / "request.json").write_text(json.dumps({"candidate": {}, "case": {}, "calls": 5}))
    done = run_ncu(runner.program(0, tmp_path / "request.json", tmp_path / "answer.json"), 60)
    assert done == "" and {path.name for path in tmp_path.iterdir()} == {"request.json", "answer.json"}
    (said,) = json.loads((tmp_path / "answer.json").read_text()).values()
    assert said and "\n" not in said and len(said) <= 300


def test_an_error_of_the_runner_says_more_than_the_profiler(
    card: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The profiler only saw no kernel."""
    path = fake_ncu(tmp_path, says="==WARNING== No kernels were profiled.")
    wrong = '{"error": "the config computes something else: y"}'
    path.write_text(
        path.read_text().replace(
            'echo \'{"calls": 5, "max_ratio": 0.5, "sm_count": 132}\'', f"echo '{wrong}'"
        )
    )
    monkeypatch.setattr(cli_profile, "find_ncu", lambda: str(path))
    assert main([*COMMAND, "--quiet"]) == 2
    assert "cannot be profiled: the config computes something else: y" in capsys.readouterr().err


def side(name: str, *kernels: str, predicted: Predicted | str = "no clock") -> Side:
    """Every kernel takes 10 us at 2 GHz."""
    values = {quantity.key: 10.0 if quantity.key == "duration_us" else 2.0 for quantity in QUANTITIES}
    counts = CallCounts(calls=3, kernels=tuple(KernelCounts(kernel=one, values=values) for one in kernels))
    return Side(
        name=name,
        config=KernelConfigSm100a(),
        source="a test",
        worst=0.5,
        counts=counts,
        mfu=0.25 if kernels else None,
        predicted=predicted,
    )


def test_the_clock_stands_beside_the_counters(capsys: pytest.CaptureFixture[str]) -> None:
    predicted = Predicted(us=8.0, low_us=7.0, high_us=9.0, bound="prologue", tensor_us=2.0)
    sides = [side("A", "gemm", predicted=predicted), side("B", "gemm")]
    ((_, call), (heading, _)) = tables(sides)
    assert heading == "gemm"
    assert {row.label: row.cells() for row in call} == {
        "duration of a call": ("10.00 us", "10.00 us", "+0.0%"),
        "MFU at that clock": ("25.0 %", "25.0 %", "+0.0 points"),
        "duration, simulated": ("8.00 us", "n/a", "n/a"),
        "tensor pipe, simulated": ("25.0 %", "n/a", "n/a"),
    }
    print_sides(GemmProblem.parse(SHAPE), sides, select_device("b200"), "a profiler")
    printed = capsys.readouterr().out
    assert "A: 8.00 us simulated (interval 7.00 to 9.00), bound by prologue" in printed
    assert "B: not: no clock" in printed


def test_calls_of_different_kernels_follow_one_another() -> None:
    found = list(tables([side("A", "quantize", "gemm"), side("B", "fused")]))
    assert [heading for heading, _ in found] == ["", "A: quantize", "A: gemm", "B: fused"]
    assert found[0][1][0].cells() == ("20.00 us", "10.00 us", "-50.0%")
    both = list(tables([side("A", "quantize", "gemm"), side("B", "quantize", "gemm_pdl")]))
    assert [heading for heading, _ in both] == ["", "quantize", "gemm / gemm_pdl"]


@pytest.mark.slow
def test_the_prediction_is_that_of_time(capsys: pytest.CaptureFixture[str]) -> None:
    problem, device = GemmProblem.parse("64,512,256,32"), select_device("b200")
    legal = legalize(KernelConfigSm100a(), problem, SM100A)
    assert isinstance(legal, Legal)
    compiled = build(legal.config, problem.problem_class, SM100A)
    found = cli_profile._predicted(compiled, legal, problem, device)  # type: ignore[arg-type]  # no card here
    arguments = ["--shape", str(problem), "--device", "b200", "--config", str(legal.config), "--changes", "0"]
    assert main(["time", *arguments, "--json"]) == 0
    there = json.loads(capsys.readouterr().out)["results"][0]["simulated"]
    assert isinstance(found, Predicted)
    assert (found.us, found.low_us, found.high_us, found.bound) == tuple(
        there[name] for name in ("us", "low_us", "high_us", "bound")
    )
    tensor = sum(us for cause, us in there["terms_us"].items() if cause.startswith("tensor"))
    assert found.tensor_us == pytest.approx(tensor)

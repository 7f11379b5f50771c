"""The command line as a user meets it: a process, its exit code, stdout, stderr and the files it leaves."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from tuner.cli.main import COMMANDS, parser_of
from tuner.cli.tune.tune import _slower
from tuner.report.write import read_trials
from tuner.trials.rank_stability import NEAR

ROOT = Path(__file__).resolve().parents[2]
SHAPE = "256,3840,3072,128"
DEFAULT_STAGES = "mma_tiler_mn=256x128 num_ab_stage=4 num_lora_stage=2"


def run(*arguments: str, cwd: Path = ROOT, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "tune.py"), *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def files_below(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


BAD_INPUT = {
    "N not a multiple": (
        ["--shape", "4352,3840,3071,128"],
        "N must be a multiple of 8, got 3071; use 3064 or 3072",
    ),
    "K not a multiple": (
        ["--shape", "4352,3841,3072,128"],
        "K must be a multiple of 32, got 3841; use 3840 or 3872",
    ),
    "R not a multiple": (["--shape", "4352,3840,3072,24"], "R must be a multiple of 16, got 24"),
    "no shape at all": ([], "--shape M,K,N,R"),
    "not a shape": (["--shape", "foo"], "four integers M,K,N,R, got 'foo'"),
    "shape without value": (["--shape"], "expected one argument"),
    "M of zero": (["--shape", "0,3840,3072,128"], "M must be between 1"),
    "unknown device": (["--shape", SHAPE, "--device", "tpu"], "got 'tpu'"),
    "absent card": (["--shape", SHAPE, "--device", "cuda:9"], "cuda:9 is not there"),
    "unknown dtype": (["--shape", SHAPE, "--dtype", "fp8"], "got 'fp8'"),
    "no trials": (["--shape", SHAPE, "--trials", "0"], "at least 1, got '0'"),
    "no jobs": (["--shape", SHAPE, "--jobs", "none"], "at least 1, got 'none'"),
    "no time": (["--shape", SHAPE, "--timeout", "-5"], "above 0, got '-5'"),
    "endless": (["--shape", SHAPE, "--timeout", "inf"], "above 0, got 'inf'"),
    "unknown option": (["--shape", SHAPE, "--fast"], "unrecognized arguments: --fast"),
    "abbreviated option": (["--shape", SHAPE, "--trial", "3"], "unrecognized arguments: --trial"),
    "unknown command": (["tuen", "--shape", SHAPE], "unknown command 'tuen'"),
    "missing shapes file": (["--shapes", "absent.yaml"], "cannot read --shapes absent.yaml: No such file"),
    "illegal config": (
        ["explain", "--shape", SHAPE, "--config", "mma_tiler_mn=256x128 cluster_shape_mn=1x1"],
        "by rule cluster_of_pairs: cta_group 2 (mma_tiler_mn 256x128) needs an even cluster M, got 1x1; use 2x1",
    ),
    "config too large": (
        ["compile", "--shape", SHAPE, "--config", "num_ab_stage=40"],
        "by rule smem_capacity: SMEM per CTA must hold",
    ),
    "unknown knob": (["explain", "--shape", SHAPE, "--config", "speed=9"], "unknown knob 'speed'"),
    "config not a config": (["explain", "--shape", SHAPE, "--config", "fast"], "knob=value"),
    "device without a kernel": (["space", "--shape", SHAPE, "--device", "a100"], "got 'a100'"),
    "no folder of objects": (
        ["--shape", SHAPE, "--device", "b200", "--objects", "."],
        "must hold a folder objects",
    ),
    "report of nothing": (["report", "--shape", SHAPE], "there are no trials of 256,3840,3072,128"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD_INPUT.values(), ids=BAD_INPUT.keys())
def test_bad_input_is_one_line_and_leaves_nothing(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr
    assert files_below(tmp_path) == []


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="there is a GPU here")
def test_selfcheck_without_a_card_is_one_line() -> None:
    done = run("selfcheck")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("error: selfcheck needs an NVIDIA GPU")


@pytest.mark.parametrize(
    "command", [name for name in COMMANDS if "--out" in parser_of(name)._option_string_actions]
)
@pytest.mark.parametrize("below", ["", "results", "results/deep"])
def test_out_below_a_file(command: str, below: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("precious")
    shape = (
        [] if command in ("bundle", "merge", "calibrate") else ["--shape", SHAPE]
    )  # it takes all of a table
    folder = ["objects"] if command in ("measure", "merge") else []
    folder = [str(ROOT / "results" / "h200")] if command == "calibrate" else folder
    done = run(command, *folder, *shape, "--out", str(file / below), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "file is a file" in done.stderr
    assert files_below(tmp_path) == [file]
    assert file.read_text() == "precious"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("- 256,3840,3072,128\n- foo\n", "entry 2: a shape must be four integers M,K,N,R, got 'foo'"),
        ("a: [", "is not YAML"),
        ("problems: {}\n", "must hold a list"),
        ("- {dtype: 3}\n", "entry 1: a shape must be four integers"),
    ],
)
def test_bad_shapes_file(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "shapes.yaml"
    path.write_text(content)
    done = run("explain", "--shapes", str(path), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_help_is_quick_and_names_every_command() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert all(name in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("arguments", [["--help"], ["lookup", "--shape", SHAPE]], ids=["help", "lookup"])
def test_quick_commands_load_nothing_slow(arguments: list[str], dispatched: Path) -> None:
    """Import time of torch and the DSL is seconds; a machine that only looks up needs neither."""
    out = [] if arguments == ["--help"] else ["--out", str(dispatched)]
    program = (
        "import sys; from tuner.cli.main import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "loaded = {'torch', 'cutlass', 'optuna', 'pandas', 'llvmlite', 'sklearn'} & set(sys.modules)\n"
        "sys.exit(f'loaded {sorted(loaded)}' if loaded else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments, *out],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def dispatched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results with one row, recorded by hand for the production shape."""
    from kernel_space.build.key import kernel_source_hash
    from kernel_space.core.arch import SM100A
    from kernel_space.core.registry import kernel
    from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
    from tuner.devices.select import select_device
    from tuner.stages.record import current
    from tuner.tables.dispatch import record
    from tuner.tables.row import DispatchKey, Provenance, Row
    from tuner.trials.outcome import Kind

    device = select_device("b200")
    now = current(device)
    config = KernelConfigSm100a.parse(f"{DEFAULT_STAGES} num_acc_stage=2 num_c_stage=2")
    row = Row(
        key=DispatchKey.of(GemmProblem.parse(SHAPE), SM100A.name),
        config=str(config),
        kind=Kind.MODELLED,
        time_us=8.0,
        low_us=6.0,
        high_us=11.0,
        provenance=Provenance(
            kernel_source=kernel_source_hash(kernel("svdquant_gemm", "sm100a")),
            dsl_version=now.dsl_version,
            model=now.model(Kind.MODELLED, "svdquant_gemm"),
        ),
        protocol="by hand",
        date="2026-01-01T00:00:00+00:00",
    )
    out = tmp_path_factory.mktemp("out")
    (out / device.name).mkdir()
    record(out / device.name / "dispatch.json", [row], now)
    run(
        "lookup", "--shape", SHAPE, "--out", str(out)
    )  # the first of all reads the layouts, whose sizes are kept
    return out


def lookup(out: Path, shape: str) -> dict:
    done = run("lookup", "--shape", shape, "--device", "b200", "--out", str(out), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)["results"][0]


def test_lookup_exact_nearest_and_default(dispatched: Path) -> None:
    exact, near, default = (lookup(dispatched, s) for s in (SHAPE, "300,3840,3072,128", "256,3840,3072,64"))
    assert exact["source"] == "exact"
    assert exact["row"]["time_us"] == 8.0
    assert exact["row"]["kind"] == "modelled"
    assert DEFAULT_STAGES.split()[1] in exact["config"]
    assert near["source"] == "nearest M 256"
    assert near["config"] == exact["config"]
    assert default["source"] == "default"
    assert default["row"] is None
    assert "auto" not in default["config"]


def test_lookup_as_text_says_what_the_time_is(dispatched: Path) -> None:
    done = run("lookup", "--shape", SHAPE, "--device", "b200", "--out", str(dispatched))
    assert "8.00 us modelled (interval 6.00 to 11.00) at 256,3840,3072,128" in done.stdout


@pytest.mark.slow
def test_the_example_of_the_readme_runs() -> None:
    """Without a card the torch reference computes y; what ``explain`` names is in the committed results."""
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert code is not None
    done = subprocess.run(
        [sys.executable, "-c", f"{code[1]}\nassert y.shape == (17, 3072) and y.isfinite().all()"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert found["problem"].startswith("17,3840,3072,128") and "nearest M 16: measured" in found["source"]
    index = json.loads((ROOT / "results" / "h200" / "objects" / "index.json").read_text())["objects"]
    files = {entry["file"] for entry in index if entry["config"] == found["config"]}
    assert Path(found["object"]).name in files and Path(found["object"]).is_file()


def test_explain_budget_is_the_published_one() -> None:
    """28672 B per A/B stage, 32768 + 16384 B for LoRA operands of whole R = 128, 8192 B per C stage."""
    config = f"{DEFAULT_STAGES} num_c_stage=2 lora_tile_k=all"
    done = run("explain", "--shape", "4352,3840,3072,128", "--device", "b200", "--json", "--config", config)
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads(done.stdout)["results"][0]
    each = {row["name"]: (row["each"], row["copies"]) for row in result["budget"]["smem"]["rows"]}
    assert sum(each[name][0] for name in ("A", "B", "SFA", "SFB")) == 28672
    assert each["A"][1] == 4
    assert each["LoRA act"] == (32768, 2)
    assert each["LoRA up"] == (16384, 2)
    assert each["C"] == (8192, 2)
    modelled = result["modelled"]
    assert sum(modelled["terms_us"].values()) == pytest.approx(modelled["us"])
    assert modelled["low_us"] < modelled["us"] < modelled["high_us"]
    assert result["schedule"]["waves"] == 6


def test_explain_as_text_shows_both_tables() -> None:
    done = run("explain", "--shape", SHAPE, "--device", "b200")
    assert done.returncode == 0
    for words in ("SMEM per CTA", "TMEM per SM", "allocated", "us modelled", "every rule passes"):
        assert words in done.stdout


def test_several_shapes_and_dtypes(tmp_path: Path) -> None:
    shapes = tmp_path / "shapes.yaml"
    shapes.write_text(f"problems:\n- {SHAPE}\n- shape: 17,64,8,0\n  out_dtype: bf16\n")
    done = run("explain", "--shape", SHAPE, "--shapes", str(shapes), "--dtype", "bf16/fp16", "--json")
    results = json.loads(done.stdout)["results"]
    assert [(one["shape"], one["lora_dtype"], one["out_dtype"]) for one in results] == [
        (SHAPE, "bf16", "fp16"),
        ("17,64,8,0", "bf16", "bf16"),
    ]


@pytest.mark.slow
def test_compile_names_files_that_hold_what_it_says() -> None:
    done = run("compile", "--shape", SHAPE, "--device", "b200", "--json", "--config", DEFAULT_STAGES)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)["results"][0]
    assert "tcgen05.mma.cta_group::2.kind::mxf4nvf4" in Path(result["ptx"]).read_text()
    assert "UTCOMMA" in Path(result["sass"]).read_text()
    cubin = Path(result["cubin"]).read_bytes()
    assert cubin[:4] == b"\x7fELF"
    assert cubin in Path(result["object"]).read_bytes()
    assert result["dynamic_smem_bytes"] <= 232448
    assert 0 < result["registers"] <= 255


@pytest.mark.slow
def test_space_counts_every_point(tmp_path: Path) -> None:
    import math

    import yaml

    done = run("space", "--shape", SHAPE, "--device", "b200", "--json")
    result = json.loads(done.stdout)["results"][0]
    knobs = yaml.safe_load((ROOT / "search_spaces" / "svdquant_gemm" / "sm100a.yaml").read_text())["knobs"]
    assert result["size"] == math.prod(
        len(knobs[name]["choices"]) for name in KernelConfigSm100a.knob_names()
    )
    assert result["legal_points"] + sum(result["rejected"].values()) == result["size"]
    assert 0 < result["legal_kernels"] <= result["legal_points"]


@pytest.mark.slow
def test_tune_end_to_end(tmp_path: Path) -> None:
    """Few trials: winner, table, report; then lookup finds it, resume adds nothing, report is written again."""
    out = str(tmp_path / "out")
    arguments = ("--shape", SHAPE, "--device", "b200", "--trials", "4", "--jobs", "1", "--out", out)
    done = run(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)["results"][0]
    winner = result["winner"]
    assert winner["kind"] == "simulated"
    assert "trials" in done.stderr
    assert result["trials"]["new"] == 4
    trials = read_trials(Path(result["report"]["parquet"]))
    assert winner["us"] <= min(trial.us for trial in trials if trial.us) * (1 + NEAR)
    assert result["default"]["margin"] >= 0
    html = Path(result["report"]["html"])
    assert "simulated" in html.read_text()
    assert html.stat().st_size < 500_000

    found = lookup(Path(out), SHAPE)
    assert (found["source"], found["config"]) == ("exact", winner["config"])
    assert Path(found["object"]).read_bytes()[:4] == b"\x7fELF"

    again = run(*arguments)
    assert again.returncode == 0, again.stderr
    assert winner["config"] in again.stdout
    assert "0 new and 4 known of 4" in again.stdout

    html.unlink()
    assert run("report", "--shape", SHAPE, "--device", "b200", "--out", out).returncode == 0
    assert html.is_file()


@pytest.mark.parametrize(
    "margin, text", [(0.2874, "28.7% slower"), (-0.00004, "0.0% slower"), (-0.0031, "0.3% faster")]
)
def test_a_runner_up_is_never_a_negative_per_cent_slower(margin: float, text: str) -> None:
    assert _slower(margin) == text

"""What steers the CuTe DSL from the environment reaches no cubin: real compilations in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernel_space.build import dsl_env
from kernel_space.build.build import CompiledKernel, build
from kernel_space.core.arch import SM100A
from kernel_space.core.registry import kernel, operator
from tuner.compile.pool import CompilePool

STAMP = SM100A
CLASS = operator("stamp").problem.class_of(r=0)
CONFIG = kernel("stamp", "stamp").config_class(value=7, behaviour=1, num_stage=1)
STEERED = {"CUTE_DSL_COMPILER_OPT": "opt-level=0", "CUTE_DSL_LINEINFO": "1"}
IGNORED = "ignored, as it would change what is compiled: CUTE_DSL_COMPILER_OPT, CUTE_DSL_LINEINFO\n"
FILES = ("kernel.ptx", "kernel.cubin", "kernel.o")

BUILD = """
import os, sys
from pathlib import Path
from kernel_space.build.build import build
from tests.build.test_dsl_env import CLASS, CONFIG, STAMP
print(build(CONFIG, CLASS, STAMP, cache_dir=Path(sys.argv[1])).directory)
"""
IMPORTED_BEFORE = """
import os
os.environ["CUTE_DSL_ARCH"] = "sm_100a"
import cutlass
for name in ("CUTE_DSL_COMPILER_OPT", "CUTE_DSL_LINEINFO"):
    os.environ.pop(name, None)  # too late
from kernel_space.core.errors import InputError
try:
    exec(BUILD)
except InputError as error:
    print(f"refused: {error}")
"""


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> CompiledKernel:
    """Made by this process, whose environment has nothing of the kind."""
    assert not STEERED.keys() & os.environ.keys()
    return build(CONFIG, CLASS, STAMP, cache_dir=tmp_path_factory.mktemp("clean"))


def run(program: str, cache_dir: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"BUILD = {BUILD!r}\n{program}", str(cache_dir)]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )


def same(directory: Path, clean: CompiledKernel) -> bool:
    assert directory.name == clean.key, "the environment is no part of the key"
    return all((directory / name).read_bytes() == (clean.directory / name).read_bytes() for name in FILES)


def test_a_process_that_compiles_ignores_what_would_change_a_cubin(
    clean: CompiledKernel, tmp_path: Path
) -> None:
    done = run("exec(BUILD)", tmp_path, **STEERED)
    assert same(Path(done.stdout.strip()), clean)
    assert done.stderr.count(IGNORED) == 1


def test_a_compiler_that_was_imported_with_it_is_refused(clean: CompiledKernel, tmp_path: Path) -> None:
    done = run(IMPORTED_BEFORE, tmp_path, **STEERED)
    assert done.stdout.startswith("refused: the CuTe DSL must compile with its default settings")
    assert "CUTE_DSL_COMPILER_OPT=opt-level=0" in done.stdout and "CUTE_DSL_LINEINFO=True" in done.stdout
    assert done.stdout.count("\n") == 1 and not list(tmp_path.glob("*/kernel.o"))
    fine = run(IMPORTED_BEFORE, tmp_path, CUTE_DSL_SHOW_STACKTRACE="1", CUTE_DSL_ARCH="sm_90a")
    assert same(Path(fine.stdout.strip()), clean)


def test_workers_get_a_clean_environment_and_the_user_is_told(
    clean: CompiledKernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in STEERED.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CUTE_DSL_LOG_LEVEL", "10")
    with CompilePool(1, 60.0, tmp_path) as pool:
        result = pool.submit(CONFIG, CLASS, STAMP).result()
    assert same(result.compiled.directory, clean)
    assert capfd.readouterr().err == IGNORED
    assert not STEERED.keys() & os.environ.keys() and os.environ["CUTE_DSL_LOG_LEVEL"] == "10"


def test_what_has_nothing_to_do_with_the_compiler_stays(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = {
        "CUTE_DSL_ARCH": "sm_90a",
        "CUTE_DSL_CACHE_DIR": "/tmp/x",
        "CUDA_HOME": "/usr/local/cuda",
        "NVCC_PREPEND_FLAGS": "-O0",
        "MLIR_ENABLE_DUMP": "1",  # Triton's
        "LLVM_SYMBOLIZER_PATH": "/usr/bin",
    }
    gone = {
        "CUTE_DSL_KEEP": "all",
        "CUTLASS_X": "1",
        "LIBNVVM_DISABLE_CONCURRENT_API": "1",
        "PTXAS_OPTIONS": "-O0",
    }
    for name, value in {**kept, **gone}.items():
        monkeypatch.setenv(name, value)
    assert dsl_env.clean_environment() == sorted(gone)
    assert {name: os.environ[name] for name in kept} == kept and not gone.keys() & os.environ.keys()
    assert capsys.readouterr().err.count("\n") == 1
    assert dsl_env.clean_environment() == [] and capsys.readouterr().err == ""


def test_every_setting_of_the_compiler_that_enters_its_own_cache_key_is_taken_out() -> None:
    """The DSL says which of its settings decide what it compiles: no name of theirs is among those that are kept."""
    program = (
        "import json, os\n"
        "os.environ['CUTE_DSL_ARCH'] = 'sm_100a'\n"
        "import cutlass\n"
        "from cutlass.cutlass_dsl import CuTeDSL\n"
        "spec = CuTeDSL._get_dsl().envar._ENV_VAR_SPEC\n"
        "print(json.dumps([[e.source, e.affects_compile] for e in spec if isinstance(e.source, str)]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    settings: list[tuple[Any, bool]] = json.loads(done.stdout)
    decide = {f"CUTE_DSL_{name}" for name, affects in settings if affects} - {"CUTE_DSL_ARCH"}
    assert len(decide) > 8 and not decide & dsl_env._KEPT


def test_a_machine_without_the_dsl_is_told_so(tmp_path: Path) -> None:
    """One line and exit code 2, no traceback: a card's machine has none, and may be asked for what needs it."""
    code = """
import sys
sys.modules["cutlass"] = sys.modules["cutlass.cute"] = None
from tuner.cli.start import start
sys.exit(start())
"""
    asked = ["explain", "--device", "h200", "--op", "svdquant_linear_16bit", "--shape", "48,1312,136,16"]
    config = ["--dtype", "bf16", "--config", "kernel=staged tile_mnk=64x136x128 split_k=1"]
    done = subprocess.run(
        [sys.executable, "-c", code, *asked, *config],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SVDQUANT_TUNE_CACHE": str(tmp_path)},  # sizes that were read once are kept
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr and "needs the CuTe DSL" in done.stderr

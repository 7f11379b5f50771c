"""The wheel in an empty environment, from another folder: what a user gets who has no checkout.

Both environments are empty but for links to packages that are installed beside the tests: with all of them, and with
those alone that the wheel's core asks for. pip resolves what the wheel says against them.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
SHAPE, SMALL = "256,3840,3072,128", "64,256,128,32"
COPIED = ("kernel_space", "tuner", "search_spaces", "results", "setup.py", "pyproject.toml", "README.md")
pytestmark = pytest.mark.slow


def run(*command: object, cwd: Path, code: int = 0, timeout: float = 240) -> str:
    """Standard output of a process that knows of no checkout."""
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(cwd),
        "SVDQUANT_TUNE_RESULTS": str(cwd / "results"),
        "SVDQUANT_TUNE_CACHE": str(cwd / "cache"),
    }
    done = subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: setuptools leaves a folder in the sources, from which it also takes what is gone since."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.html")
            )
        else:
            shutil.copy(ROOT / name, source / name)
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(out), str(source), cwd=out)
    (found,) = out.glob("svdquant_tune-*-py3-none-any.whl")
    return found


def pip(*arguments: str, cwd: Path) -> None:
    run(sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments, cwd=cwd)


def environment(folder: Path, packages: Path, requirement: str) -> Path:
    """The ``bin`` of a new environment that finds ``packages``, with ``requirement`` installed by pip."""
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    own = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    (own / "beside.pth").write_text(f"import site; site.addsitedir({str(packages)!r})\n")
    python = str(folder / "bin" / "python")
    pip("--python", python, "install", "--no-index", "--quiet", requirement, cwd=folder.parent)
    return folder / "bin"


@pytest.fixture(scope="module")
def tuner_bin(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    packages = Path(sysconfig.get_path("purelib"))
    return environment(
        tmp_path_factory.mktemp("tune") / "venv", packages, f"svdquant-tune[tune] @ {wheel.as_uri()}"
    )


@pytest.fixture(scope="module")
def core_bin(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("core")
    link_packages(folder / "packages", ["pip", *core_of(wheel)])
    return environment(folder / "venv", folder / "packages", wheel.as_uri().join(("svdquant-tune @ ", "")))


def core_of(wheel: Path) -> list[str]:
    text = subprocess.run(
        ["unzip", "-p", wheel, "*/METADATA"], capture_output=True, text=True, check=True
    ).stdout
    asked = [Requirement(line) for line in re.findall(r"^Requires-Dist: (.*)$", text, re.M)]
    return [one.name for one in asked if one.marker is None or one.marker.evaluate({"extra": ""})]


def closure(names: list[str]) -> Iterator[importlib.metadata.Distribution]:
    """The distributions of ``names`` and of all that they need."""
    waiting, seen = list(names), set()
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        found = importlib.metadata.distribution(name)
        yield found
        asked = [Requirement(text) for text in found.requires or ()]
        waiting += [one.name for one in asked if one.marker is None or one.marker.evaluate({"extra": ""})]


def link_packages(target: Path, names: list[str]) -> None:
    target.mkdir()
    for found in closure(names):
        for top in {Path(file).parts[0] for file in found.files or () if ".." not in Path(file).parts}:
            source = Path(str(found.locate_file(top)))
            if top != "__pycache__" and source.exists() and not (target / top).exists():
                (target / top).symlink_to(source)


@pytest.fixture(scope="module")
def other_bin(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of the other Python that is supported, with what its package index gives; without torch, which
    is gigabytes."""
    python = other_python()
    if python is None:
        pytest.skip("there is only one of Python 3.11 and 3.12 here")
    folder = tmp_path_factory.mktemp("other")
    run(python, "-m", "venv", "venv", cwd=folder)
    here = str(folder / "venv" / "bin" / "python")
    light = [name for name in core_of(wheel) if name != "torch"]
    index = ("--quiet", "--constraint", str(ROOT / "constraints.txt"))
    pip("--python", here, "install", *index, *light, cwd=folder)
    pip("--python", here, "install", "--quiet", "--no-deps", str(wheel), cwd=folder)
    return folder / "venv" / "bin"


def other_python() -> str | None:
    for minor in {11, 12} - {sys.version_info.minor}:
        name = f"python3.{minor}"
        for path in (
            shutil.which(name),
            *map(str, Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/{name}")),
        ):
            if path and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
                return path
    return None


def installed(python: Path, cwd: Path, *modules: str) -> list[bool]:
    program = (
        f"import importlib.util as u, json; print(json.dumps([bool(u.find_spec(n)) for n in {modules!r}]))"
    )
    return json.loads(run(python, "-c", program, cwd=cwd))


def reference_call(bin: Path, cwd: Path) -> None:
    """A layer on the CPU is the torch reference; its answer is near the float layer it was made from."""
    program = """
import torch, tuner
from pathlib import Path
from tuner.runtime import SVDQuantLinear, explain
assert "site-packages" in tuner.__file__, tuner.__file__
torch.manual_seed(0)
linear = torch.nn.Linear(256, 128).half()
layer, x = SVDQuantLinear.from_linear(linear, rank=32), torch.randn(5, 256).half()
expected = torch.nn.functional.linear(x.float(), linear.weight.float(), linear.bias.float())
error = (layer(x).float() - expected).norm() / expected.norm()
assert error < 0.2, error
choice = explain("256,3840,3072,128", "h200")
assert choice.source == "exact" and Path(choice.object.path).is_file(), choice
"""
    run(bin / "python", "-c", program, cwd=cwd)


def test_the_core_looks_up_and_computes_without_dsl_and_search(core_bin: Path, tmp_path: Path) -> None:
    there = installed(core_bin / "python", tmp_path, "torch", "cutlass", "optuna", "pandas", "sklearn")
    assert there == [True, False, False, False, False]
    command = core_bin / "svdquant-tune"
    found = json.loads(run(command, "lookup", "--shape", SHAPE, "--device", "h200", "--json", cwd=tmp_path))
    (result,) = found["results"]
    assert result["source"] == "exact" and result["object_state"] == "whole"
    assert "svdquant_tune_data" in result["table"]
    assert "svdquant_linear" in run(command, "ops", "--json", cwd=tmp_path)
    reference_call(core_bin, tmp_path)
    assert not (tmp_path / "results").exists(), "to look is not to write"


def test_the_core_says_what_a_tune_lacks(core_bin: Path, tmp_path: Path) -> None:
    for command in ((), ("explain",), ("compile",)):
        done = subprocess.run(
            [core_bin / "svdquant-tune", *command, "--shape", SHAPE, "--device", "b200"],
            cwd=tmp_path, env={"HOME": str(tmp_path)}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
        assert "svdquant-tune[tune]" in done.stderr


def test_a_user_tunes_from_any_folder(tuner_bin: Path, tmp_path: Path) -> None:
    """Lookup, explain, a call and ten trials: rows and reports lie in the user's folder, nothing in site-packages."""
    command, data = (
        tuner_bin / "svdquant-tune",
        Path(sysconfig.get_path("purelib", vars={"base": str(tuner_bin.parent)})),
    )
    before = files(data / "svdquant_tune_data")
    shape = ("--shape", SMALL, "--device", "b200")
    assert "every rule passes" in run(command, "explain", *shape, cwd=tmp_path)
    reference_call(tuner_bin, tmp_path)
    told = json.loads(run(command, *shape, "--trials", "10", "--json", cwd=tmp_path))
    (result,) = told["results"]
    assert result["trials"]["new"] == 10 and result["row"]["recorded"]
    table = tmp_path / "results" / "b200" / "dispatch.json"
    assert result["table"] == str(table) and Path(result["report"]["html"]).is_relative_to(
        tmp_path / "results"
    )
    (found,) = json.loads(run(command, "lookup", *shape, "--json", cwd=tmp_path))["results"]
    assert (found["source"], found["table"], found["config"]) == (
        "exact",
        str(table),
        result["winner"]["config"],
    )
    assert files(data / "svdquant_tune_data") == before


def test_the_other_python_finds_what_is_shipped(other_bin: Path, tmp_path: Path) -> None:
    """And what runs on a user's machine is hashed there as here: a row that is fresh for one is for the other."""
    command = other_bin / "svdquant-tune"
    assert installed(other_bin / "python", tmp_path, "numpy", "torch", "cutlass") == [True, False, False]
    found = json.loads(run(command, "lookup", "--shape", SHAPE, "--device", "h200", "--json", cwd=tmp_path))
    (result,) = found["results"]
    assert result["source"] == "exact" and result["object_state"] == "whole"
    assert "svdquant_linear" in run(command, "ops", "--json", cwd=tmp_path)
    program = """
from kernel_space.build.key import kernel_source_hash
from kernel_space.core.arch import arch
from kernel_space.core.registry import kernels_of, operator_names
for name in operator_names():
    for kernel in kernels_of(name, arch("sm_90a")):
        print(kernel.full_name, kernel_source_hash(kernel))
"""
    there = run(other_bin / "python", "-c", program, cwd=tmp_path)
    clean = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    here = subprocess.run(
        [sys.executable, "-c", program], env=clean, capture_output=True, text=True, check=True
    )
    assert there == here.stdout and there.count("sm90a_ring") >= 1


def test_models_are_known_by_name_from_any_folder(tuner_bin: Path, tmp_path: Path) -> None:
    told = run(
        tuner_bin / "svdquant-tune",
        "lookup",
        "--model",
        "qwen-image",
        "--device",
        "h200",
        "--json",
        cwd=tmp_path,
    )
    model = yaml.safe_load((ROOT / "search_spaces" / "models.yaml").read_text())["models"]["qwen-image"]
    assert len(json.loads(told)["results"]) == len(model["layers"])


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_wheel_ships_spaces_tables_and_objects_as_they_are(tuner_bin: Path) -> None:
    own = Path(sysconfig.get_path("purelib", vars={"base": str(tuner_bin.parent)}))
    shipped = files(own / "svdquant_tune_data")
    patterns = (
        "search_spaces/**/*.yaml",
        "results/*/dispatch.json",
        "results/*/estimates.json",
        "results/*/objects/*.*",
    )
    expected = {
        path.relative_to(ROOT).as_posix(): path for pattern in patterns for path in ROOT.glob(pattern)
    }
    expected = {
        name: path
        for name, path in expected.items()
        if not path.name.startswith(".") and path.suffix != ".lock"
    }
    assert {name for name in shipped if "__pycache__" not in name} == set(expected)
    assert all(shipped[name] == path.read_bytes() for name, path in expected.items())
    assert not (own / "tune.py").exists() and not (own / "setup.py").exists() and not (own / "tests").exists()

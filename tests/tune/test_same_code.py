"""Rows whose kernel is still what was timed: built by the real compiler, as nothing else says what code is the same."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from kernel_space.build import key as build_key
from kernel_space.build.build import CompiledKernel, build
from kernel_space.core.arch import SM90A
from kernel_space.core.registry import parse_config
from kernel_space.launch.elf import read_elf
from kernel_space.launch.host_code import same_host_code
from kernel_space.operators.nvfp4_quantize.problem import QuantizeProblem
from tests.tables.test_dispatch import row as made_row
from tuner.cli.main import main
from tuner.tables.bundle import FOLDER, INDEX
from tuner.tables.bundle_write import write_bundle
from tuner.tables.dispatch import DispatchTable, render_table
from tuner.tables.row import DispatchKey, ObjectRef, Provenance, Row
from tuner.trials.outcome import Kind

PROBLEM = QuantizeProblem.parse("64,3840,0")
CONFIG = (
    "kernel=rows tile_mk=8x256 threads_per_cta=128 threads_per_row=16 vector_width=16 row_loads=1 ctas_per_sm=4 "
    "persistent=false use_pdl=true"
)
OF_THEN = "0" * 64


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CompiledKernel]:
    """``then``: of other sources, by all that its key says; ``other``: another kernel's code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_key, "KEY_SCHEMA", 1000)
        then, other = (
            build(
                parse_config(PROBLEM.operator, SM90A, config),
                PROBLEM.problem_class,
                SM90A,
                cache_dir=tmp_path_factory.mktemp("then"),
            )
            for config in (CONFIG, CONFIG.replace("row_loads=1", "row_loads=2"))
        )
    return {"then": then, "other": other}


@pytest.fixture
def out(tmp_path: Path, builds: dict[str, CompiledKernel]) -> Path:
    """A table with a stale row of what ``then`` built, and its bundle."""
    then = builds["then"]
    row = dataclasses.replace(
        made_row(us=2.0, kind=Kind.MEASURED),
        key=DispatchKey.of(PROBLEM, SM90A.name),
        config=CONFIG,
        cubin_sha256=then.cubin_sha256,
        provenance=Provenance(kernel_source=OF_THEN, dsl_version=then.dsl_version),
        object=ObjectRef(key=then.directory.name, file="kernel.o", sha256=then.object_sha256),
    )
    folder = tmp_path / "results" / "h200"
    folder.mkdir(parents=True)
    save(folder, row)
    bundled = write_bundle(folder, SM90A, [row], caches=[then.directory.parent])
    assert not bundled.refused
    assert then.object_sha256 in {entry.sha256 for entry in bundled.entries}
    return tmp_path / "results"


def save(folder: Path, row: Row) -> None:
    (folder / "dispatch.json").write_text(render_table([row], SM90A.name))


def own_row(out: Path) -> Row:
    (found,) = DispatchTable.load(out / "h200", arch=SM90A).own(PROBLEM)
    return found


def change(out: Path, **changes: Any) -> None:
    save(out / "h200", dataclasses.replace(own_row(out), **changes))


def same_code(out: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What is found of the one row, which is stale."""
    arguments = ["retime", "--same-code", "--device", "h200", "--out", str(out), "--op", PROBLEM.operator]
    capsys.readouterr()
    assert main([*arguments, "--shape", str(PROBLEM), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["results"]
    assert isinstance(found, dict)
    return found


def test_the_same_code_of_other_sources_stands(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = own_row(out)
    found = same_code(out, capsys)
    assert found["same_code"] and found["reason"] == "" and OF_THEN[:12] in found["changed"]
    now = own_row(out)
    (seen,) = now.evidence.pop("same_code")
    assert seen["kernel_source"] == OF_THEN and now.provenance.kernel_source not in ("", OF_THEN)
    assert dataclasses.replace(now, provenance=before.provenance) == before, "nothing else was claimed"
    assert main(["retime", "--same-code", "--device", "h200", "--out", str(out), "--shape", str(PROBLEM),
                 "--op", PROBLEM.operator]) == 0  # fmt: skip
    assert "nothing is stale" in capsys.readouterr().out


@pytest.mark.parametrize(("silent", "is_same"), [(" persistent=false", True), (" use_pdl=true", False)])
def test_a_knob_that_a_row_did_not_have_yet_has_its_default(
    silent: str, is_same: bool, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kernels get knobs; a row of before is of the default, false for both here, whose code may be the same."""
    change(out, config=CONFIG.replace(silent, ""))
    found = same_code(out, capsys)
    assert found["same_code"] is is_same and ("its cubin is" in found["reason"]) is not is_same


def test_other_machine_code_stays_stale(
    out: Path, builds: dict[str, CompiledKernel], capsys: pytest.CaptureFixture[str]
) -> None:
    assert builds["other"].cubin_sha256 != builds["then"].cubin_sha256
    change(out, cubin_sha256=builds["other"].cubin_sha256)
    before = own_row(out)
    found = same_code(out, capsys)
    assert not found["same_code"] and "its cubin is" in found["reason"]
    assert own_row(out) == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"object": None}, "names no object"),
        ({"object": ObjectRef(key="1" * 64, file="kernel.o", sha256="2" * 64)}, "is in no bundle"),
    ],
)
def test_without_the_object_that_was_timed(
    out: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], words: str
) -> None:
    change(out, **changes)
    found = same_code(out, capsys)
    assert not found["same_code"] and words in found["reason"]


def test_a_launch_with_other_facts(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = out / "h200" / FOLDER / INDEX
    index.write_text(index.read_text().replace('"workspace_bytes": 0', '"workspace_bytes": 64'))
    assert "another room" in same_code(out, capsys)["reason"]


def test_other_host_code(
    out: Path, builds: dict[str, CompiledKernel], capsys: pytest.CaptureFixture[str]
) -> None:
    """The cubin is the one that was timed; one instruction of what launches it is not."""
    then = builds["then"]
    data = then.object_path.read_bytes()
    section = read_elf(data).section(".ltext")
    assert section is not None
    changed = data.replace(
        section.data, section.data[:16] + bytes([section.data[16] ^ 1]) + section.data[17:]
    )
    digest = hashlib.sha256(changed).hexdigest()
    folder = out / "h200" / FOLDER
    (folder / f"{digest[:16]}.o").write_bytes(changed)
    index = (folder / INDEX).read_text()
    index = index.replace(then.object_sha256, digest).replace(
        f"{then.object_sha256[:16]}.o", f"{digest[:16]}.o"
    )
    (folder / INDEX).write_text(index)
    change(out, object=ObjectRef(key="1" * 64, file="kernel.o", sha256=digest))
    found = same_code(out, capsys)
    assert not found["same_code"] and "the host code that launches it is not" in found["reason"]


def test_a_damaged_object(
    out: Path, builds: dict[str, CompiledKernel], capsys: pytest.CaptureFixture[str]
) -> None:
    file = out / "h200" / FOLDER / f"{builds['then'].object_sha256[:16]}.o"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert "is damaged" in same_code(out, capsys)["reason"]


def test_a_judge_of_another_day_is_asked_again(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a model said depends on the model."""
    change(out, provenance=dataclasses.replace(own_row(out).provenance, model="of another day"))
    assert "only a retime tells" in same_code(out, capsys)["reason"]


@pytest.mark.parametrize("more", [["--all"], ["--objects", "somewhere"]])
def test_it_is_about_stale_rows_built_here(
    out: Path, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    assert main(["retime", "--same-code", "--device", "h200", "--out", str(out), *more]) == 2
    assert "without --all and --objects" in capsys.readouterr().err


# -- host code --


def today(tmp_path: Path) -> CompiledKernel:
    return build(
        parse_config(PROBLEM.operator, SM90A, CONFIG), PROBLEM.problem_class, SM90A, cache_dir=tmp_path
    )


def test_only_the_prefix_may_differ(tmp_path: Path, builds: dict[str, CompiledKernel]) -> None:
    then, now = builds["then"], today(tmp_path)
    old, new = then.object_path.read_bytes(), now.object_path.read_bytes()
    assert then.prefix != now.prefix and old != new
    assert same_host_code(old, then.prefix, new, now.prefix)
    assert not same_host_code(old, "", new, ""), "names are part of it"
    other = builds["other"]
    assert not same_host_code(old, then.prefix, other.object_path.read_bytes(), other.prefix)


@pytest.mark.parametrize("kind", ["code", "data", "relocation", "symbol"])
def test_one_bit_of_what_is_loaded(builds: dict[str, CompiledKernel], kind: str) -> None:
    then = builds["then"]
    data = then.object_path.read_bytes()
    names = {"code": ".ltext", "data": ".lrodata", "relocation": ".rela.ltext", "symbol": ".symtab"}
    section = read_elf(data).section(names[kind])
    assert section is not None and len(section.data) > 32
    at = data.index(section.data) + {"symbol": len(section.data) - 8}.get(kind, 16)  # the last symbol's size
    changed = bytearray(data)
    changed[at] ^= 1
    assert not same_host_code(data, then.prefix, bytes(changed), then.prefix)

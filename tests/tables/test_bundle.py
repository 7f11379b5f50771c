"""tune.py bundle: from a build cache filled by hand to a folder that the run time reads."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernel_space.build.cache import BuildCache, default_cache_dir
from kernel_space.core.arch import SM90A
from kernel_space.core.errors import InputError
from kernel_space.core.registry import operator
from tests.runtime.test_choice import CLASS, PLAIN, SPLIT, row
from tuner.cli.main import main
from tuner.runtime.choice.choose import Library
from tuner.runtime.load.trampoline import trampoline_of
from tuner.tables import bundle_write
from tuner.tables.bundle import FOLDER, INDEX, Bundle
from tuner.tables.bundle_write import Bundled, take_over, write_bundle
from tuner.tables.dispatch import render_table
from tuner.tables.row import ObjectRef, Row

SIGNATURE = trampoline_of("svdquant_gemm").arguments
CUBIN = "c" * 64
NEVER = "the compiler must not be asked"


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise InputError(NEVER)

    monkeypatch.setattr(bundle_write, "_built", refuse)
    monkeypatch.setattr(bundle_write, "_add_widest", lambda *_: None)  # tests/tables/test_bundle_widest.py


def key_of(config: str) -> str:
    return hashlib.sha256(config.encode()).hexdigest()


def cached(
    cache: Path, config: str, *, cubin: str = CUBIN, problem_class: str = CLASS
) -> tuple[dict[str, Any], bytes]:
    """An entry of the build cache as ``build`` would leave it, without a kernel in it: (meta, object)."""
    data = f"object of {config} for {problem_class}".encode()
    meta = {
        "config": config,
        "problem_class": problem_class,
        "prefix": "kernel",
        "arguments": [dataclasses.asdict(argument) for argument in SIGNATURE],
        "cubin_sha256": cubin,
        "object_sha256": hashlib.sha256(data).hexdigest(),
        "source_hash": "src",
        "dsl_version": "4.8.1",
    }
    BuildCache(cache).store(key_of(config), {"kernel.o": data}, meta)
    return meta, data


def tuned(cache: Path, shape: str, config: str = PLAIN, **dtypes: str) -> Row:
    """A row whose object is in the cache."""
    meta, _ = cached(cache, config)
    reference = ObjectRef(key=key_of(config), file="kernel.o", sha256=meta["object_sha256"])
    return dataclasses.replace(row(shape, config, object=reference, **dtypes), cubin_sha256=CUBIN)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Bundled]:
    def run(rows: list[Row], **options: Any) -> Bundled:
        return write_bundle(
            tmp_path / "h200", SM90A, rows, caches=[tmp_path / "nothing", tmp_path / "cache"], **options
        )

    return run


def files(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "h200" / FOLDER).iterdir() if path.suffix != ".lock")


def test_winners_are_copied_and_served_without_the_cache(
    tmp_path: Path, write: Callable[..., Bundled]
) -> None:
    rows = [
        tuned(tmp_path / "cache", "16,3840,3072,128", SPLIT),
        tuned(tmp_path / "cache", "256,3840,3072,128"),
    ]
    done = write(rows)
    assert (len(done.entries), done.refused, done.removed) == (2, (), ())
    (tmp_path / "h200" / "dispatch.json").write_text(render_table(sorted(rows, key=lambda one: one.key)))
    library = Library.load(tmp_path / "h200", SM90A, cache_dir=tmp_path / "elsewhere")
    for one in rows:
        assert library.choose(one.key.problem).object.read() == f"object of {one.config} for {CLASS}".encode()


def test_one_object_serves_every_shape_of_its_config(tmp_path: Path, write: Callable[..., Bundled]) -> None:
    done = write([tuned(tmp_path / "cache", f"{m},3840,3072,128") for m in (128, 256, 512)])
    assert len(done.entries) == 1
    assert len(files(tmp_path)) == 2  # with the index


def test_what_has_no_row_any_more_is_removed(tmp_path: Path, write: Callable[..., Bundled]) -> None:
    write(
        [tuned(tmp_path / "cache", "16,3840,3072,128", SPLIT), tuned(tmp_path / "cache", "256,3840,3072,128")]
    )
    done = write([tuned(tmp_path / "cache", "256,3840,3072,128")])
    assert len(done.removed) == 1
    assert files(tmp_path) == sorted([INDEX, done.entries[0].file])


def test_twice_is_no_change(tmp_path: Path, write: Callable[..., Bundled]) -> None:
    rows = [tuned(tmp_path / "cache", "256,3840,3072,128")]
    write(rows)
    before = {name: (tmp_path / "h200" / FOLDER / name).read_bytes() for name in files(tmp_path)}
    write(rows)
    assert before == {name: (tmp_path / "h200" / FOLDER / name).read_bytes() for name in files(tmp_path)}


def test_an_object_stays_when_the_cache_has_gone(
    tmp_path: Path, write: Callable[..., Bundled], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [tuned(tmp_path / "cache", "256,3840,3072,128")]
    first = write(rows)
    again = write_bundle(tmp_path / "h200", SM90A, rows, caches=[tmp_path / "empty"])
    assert again.entries == first.entries and not again.refused
    (tmp_path / "h200" / FOLDER / first.entries[0].file).write_bytes(b"damaged")
    damaged = write_bundle(tmp_path / "h200", SM90A, rows, caches=[tmp_path / "empty"])
    assert [reason for _, reason in damaged.refused] == [NEVER]
    assert files(tmp_path) == [INDEX]


def test_a_kernel_that_nobody_judged_is_refused(
    tmp_path: Path, write: Callable[..., Bundled], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sources changed since the tune: what is built now is another kernel under the same config."""
    unbuilt = dataclasses.replace(row("256,3840,3072,128"), cubin_sha256=CUBIN)
    built = cached(tmp_path / "elsewhere", PLAIN, cubin="d" * 64)
    monkeypatch.setattr(bundle_write, "_built", lambda *_: built)
    done = write([unbuilt])
    assert not done.entries
    assert "the row was judged with cccccccccccc" in done.refused[0][1]


def test_other_dtypes_are_built_for_the_rows_configs(
    tmp_path: Path, write: Callable[..., Bundled], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def build(one: Row, problem: Any, *_: Any) -> tuple[dict[str, Any], bytes]:
        asked.append((one.config, str(problem.problem_class)))
        return cached(
            tmp_path / "built", one.config, cubin="e" * 64, problem_class=str(problem.problem_class)
        )

    monkeypatch.setattr(bundle_write, "_built", build)
    bf16 = CLASS.replace("fp16", "bf16")
    done = write(
        [tuned(tmp_path / "cache", f"{m},3840,3072,128") for m in (128, 256)],
        also=[{"lora_dtype": "bf16", "out_dtype": "bf16"}],
    )
    assert asked == [(PLAIN, bf16)]
    assert {one.problem_class for one in done.entries} == {CLASS, bf16}


def test_what_a_row_was_judged_with_comes_before_what_is_built_for_another(
    tmp_path: Path, write: Callable[..., Bundled], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of both dtypes have one config: the first one's, built with the second's dtype, is not what was timed."""
    bf16 = {"lora_dtype": "bf16", "out_dtype": "bf16"}
    monkeypatch.setattr(
        bundle_write,
        "_built",
        lambda one, problem, *_: cached(
            tmp_path / "built", one.config, problem_class=str(problem.problem_class)
        ),
    )
    other = row("256,3840,3072,128", **bf16)
    judged = b"what was timed in bf16"
    meta, _ = cached(tmp_path / "unused", PLAIN, problem_class=str(other.key.problem.problem_class))
    reference = ObjectRef(key="b" * 64, file="kernel.o", sha256=hashlib.sha256(judged).hexdigest())
    meta = {**meta, "object_sha256": reference.sha256}
    BuildCache(tmp_path / "cache").store(reference.key, {"kernel.o": judged}, meta)
    second = dataclasses.replace(other, object=reference, cubin_sha256=CUBIN)
    done = write([tuned(tmp_path / "cache", "128,3840,3072,128"), second], also=[bf16])
    assert reference.sha256 in {one.sha256 for one in done.entries}


def test_a_config_that_is_not_legal_with_other_dtypes_is_not_built_for_them() -> None:
    """``merged`` is for bf16 alone: in fp16 it would give NaN."""
    layer = operator("svdquant_linear_16bit").problem.parse("4352,3840,3072,128", dtype="bf16")
    chain = "kernel=smooth_tma+wide gemm_tile_mnk=128x200x128"
    wanted = {}
    for config in (chain, "kernel=merged tile_mnk=128x200x64"):
        one: Any = SimpleNamespace(key=SimpleNamespace(problem=layer), config=config)
        wanted[config] = [one.dtype for one in bundle_write._problems(one, [{"dtype": "fp16"}], SM90A)]
    assert list(wanted.values()) == [["bf16", "fp16"], ["bf16"]]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = tuned(default_cache_dir(), "256,3840,3072,128")
    (tmp_path / "h200").mkdir()
    (tmp_path / "h200" / "dispatch.json").write_text(render_table([one]))
    assert main(["bundle", "--device", "h200", "--out", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["objects"][0]["config"] == PLAIN and document["refused"] == []
    assert len(Bundle.load(tmp_path / "h200" / FOLDER, SM90A).entries) == 1
    assert main(["bundle", "--device", "h200", "--out", str(tmp_path)]) == 0
    assert "1 objects" in capsys.readouterr().out


def test_objects_of_compile_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = tuned(tmp_path / "carried" / "objects", "256,3840,3072,128", SPLIT)
    (tmp_path / "h200").mkdir()
    (tmp_path / "h200" / "dispatch.json").write_text(render_table([one]))
    command = ["bundle", "--device", "h200", "--out", str(tmp_path)]
    assert main(command) == 1
    assert main([*command, "--objects", str(tmp_path / "carried")]) == 0
    assert main([*command, "--objects", str(tmp_path)]) == 2
    assert "must hold a folder objects" in capsys.readouterr().err


def test_a_refused_row_is_exit_code_1_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "h200").mkdir()
    (tmp_path / "h200" / "dispatch.json").write_text(render_table([row("64,3840,3072,128")]))
    assert main(["bundle", "--device", "h200", "--out", str(tmp_path)]) == 1
    assert f"64,3840,3072,128 ({CLASS}): {NEVER}" in capsys.readouterr().out


def test_no_table_is_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bundle", "--device", "h200", "--out", str(tmp_path)]) == 2
    assert "there is no row" in capsys.readouterr().err


def test_lookup_names_the_bundled_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = tuned(tmp_path / "cache", "256,3840,3072,128")
    done = write_bundle(tmp_path / "h200", SM90A, [one], caches=[tmp_path / "cache"])
    # The row's provenance is of no compiler here, so it is stale and resolved again; the config is the same.
    (tmp_path / "h200" / "dispatch.json").write_text(render_table([one]))
    assert (
        main(["lookup", "--device", "h200", "--shape", "256,3840,3072,128", "--out", str(tmp_path), "--json"])
        == 0
    )
    answer = json.loads(capsys.readouterr().out)["results"][0]
    assert answer["object"] == str(done.folder / done.entries[0].file)


def test_objects_of_another_results_folder_are_taken_over(
    tmp_path: Path, write: Callable[..., Bundled]
) -> None:
    """Ours for 256 stays, theirs for 16 comes, theirs for a config that nobody took does not."""
    write([tuned(tmp_path / "cache", "256,3840,3072,128")])
    other = "tile_mnk=64x16x128"
    theirs = [
        tuned(tmp_path / "theirs", "16,3840,3072,128", SPLIT),
        tuned(tmp_path / "theirs", "8,3840,3072,128", other),
    ]
    write_bundle(tmp_path / "far" / "h200", SM90A, theirs, caches=[tmp_path / "theirs"])
    far = tmp_path / "far" / "h200" / FOLDER
    assert take_over(Bundle.load(far, SM90A), tmp_path / "h200", SM90A, [("svdquant_gemm", SPLIT)]) == 1
    assert take_over(Bundle.load(far, SM90A), tmp_path / "h200", SM90A, [("svdquant_gemm", SPLIT)]) == 0
    bundle = Bundle.load(tmp_path / "h200" / FOLDER, SM90A)
    assert sorted(entry.config for entry in bundle.entries) == sorted([PLAIN, SPLIT])
    (taken,) = (entry for entry in bundle.entries if entry.config == SPLIT)
    expected = f"object of {SPLIT} for {CLASS}".encode()
    assert (tmp_path / "h200" / FOLDER / taken.file).read_bytes() == expected
    (far / taken.file).write_bytes(b"damaged")
    table = render_table(sorted(theirs, key=lambda one: one.key))
    (tmp_path / "far" / "h200" / "dispatch.json").write_text(table)
    assert main(["merge", str(tmp_path / "far"), "--out", str(tmp_path / "ours")]) == 2
    assert not (tmp_path / "ours").exists(), "no row without its object"
    with pytest.raises(InputError, match="SHA-256"):
        take_over(Bundle.load(far, SM90A), tmp_path / "new", SM90A, [("svdquant_gemm", SPLIT)])
    assert (tmp_path / "h200" / FOLDER / taken.file).read_bytes() == expected

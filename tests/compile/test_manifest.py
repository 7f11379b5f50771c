"""A folder of objects: what travels, who may join it, and a measure on a machine without compiler and sampler."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kernel_space.build import key as build_key
from kernel_space.build.build import HEADER, OBJECT, cached_build
from kernel_space.build.cache import BuildCache
from kernel_space.build.resources import Resources
from kernel_space.core.arch import SM90A, SM100A
from kernel_space.core.config import KernelConfig
from kernel_space.core.errors import InputError
from kernel_space.core.registry import kernel_of, operator, parse_config
from kernel_space.core.rules import Legal, legalize
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tuner.compile.footprints import adopt_footprints, known_footprints
from tuner.compile.given import GivenCandidates, ObjectsPool
from tuner.compile.manifest import FILE_NAME, OBJECTS, Entry, Folder, Manifest, fill
from tuner.compile.worker import CompileResult
from tuner.search.offline_search import choose_candidates
from tuner.space.space import SearchSpace
from tuner.tables.dispatch import DispatchTable
from tuner.trials.outcome import Origin, Status
from tuner.tune.turns import in_turn

ROOT = Path(__file__).resolve().parents[2]
PROBLEM = GemmProblem.parse("64,3840,3072,128")
OTHER = GemmProblem.parse("128,3840,3072,0")
SPACE = SearchSpace.load(GemmProblem.operator, SM90A)


class Compiler:
    """Stands in for ``CompilePool``: entries as ``build`` writes them, with other bytes. Refuses ``refused``."""

    def __init__(
        self, home: Path, refused: tuple[str, ...] = (), status: Status = Status.COMPILE_FAILED
    ) -> None:
        self.cache, self.refused, self.status = BuildCache(home), refused, status
        self.asked = Counter[str]()

    def submit(
        self, config: KernelConfig, problem_class: Any, arch: Any
    ) -> concurrent.futures.Future[CompileResult]:
        self.asked[str(config)] += 1
        future: concurrent.futures.Future[CompileResult] = concurrent.futures.Future()
        if str(config) in self.refused:
            future.set_result(CompileResult(status=self.status, reason="ptxas says no", seconds=0.1))
            return future
        key = build_key.build_key(config, problem_class, arch)
        files = {
            OBJECT: f"object {config}".encode(),
            HEADER: b"header",
            "kernel.ptx": b"ptx",
            "kernel.cubin": b"cubin",
        }
        meta = {
            "kernel": kernel_of(config, problem_class).full_name,
            "arch": arch.name,
            "config": str(config),
            "problem_class": str(problem_class),
            "prefix": f"k{key[:16]}",
            "arguments": [],
            "resources": dict.fromkeys([field.name for field in dataclasses.fields(Resources)], 168),
            "source_hash": build_key.kernel_source_hash(kernel_of(config, problem_class)),
            "cubin_sha256": "cubin",
            "object_sha256": hashlib.sha256(files[OBJECT]).hexdigest(),
            "dsl_version": build_key.toolchain().dsl_version,
            "variant": build_key.toolchain().variant,
        }
        self.cache.store(key, files, meta)
        found = cached_build(config, problem_class, arch, cache_dir=self.cache.directory)
        future.set_result(CompileResult(status=Status.OK, compiled=found, seconds=0.5))
        return future


def chosen(count: int = 5, problem: GemmProblem = PROBLEM) -> list[Any]:
    return choose_candidates(SPACE, problem, SM90A, trials=count)


def filled(
    path: Path, home: Path, count: int = 5, problem: GemmProblem = PROBLEM, **options: Any
) -> list[Entry]:
    return fill(
        Folder(path, "h200", SM90A), problem, chosen(count, problem), Compiler(home, **options), SM90A
    )


# -- compiling --


def test_objects_travel_and_the_rest_stays_at_home(tmp_path: Path) -> None:
    entries = filled(tmp_path / "dir", tmp_path / "home")
    assert [entry.status for entry in entries] == [Status.OK] * 5 and entries[0].origin is Origin.DEFAULT
    folders = [path for path in (tmp_path / "dir" / OBJECTS).iterdir() if path.is_dir()]
    assert {frozenset(file.name for file in folder.iterdir()) for folder in folders} == {
        frozenset({"kernel.o", "kernel.h", "meta.json"})
    }
    loaded = Manifest.load(tmp_path / "dir")
    assert loaded.problems == {PROBLEM: tuple(entries)} and loaded.toolchain == build_key.toolchain()
    candidate = chosen(1)[0]
    found = cached_build(
        candidate.legal.config, PROBLEM.problem_class, SM90A, cache_dir=tmp_path / "dir" / OBJECTS
    )
    assert found is not None and found.object_path.read_bytes() == f"object {candidate.resolved}".encode()
    assert found.resources.registers == 168


def test_a_second_run_compiles_what_is_new_and_keeps_what_is_there(tmp_path: Path) -> None:
    path, home = tmp_path / "dir", tmp_path / "home"
    filled(path, home, 4)
    filled(path, home, 3, OTHER)
    compiler = Compiler(home)
    entries = fill(Folder(path, "h200", SM90A), PROBLEM, chosen(6), compiler, SM90A)
    assert len(compiler.asked) == 2 and len(entries) == 6
    loaded = Manifest.load(path)
    assert [len(entries) for entries in loaded.problems.values()] == [6, 3]
    assert [entry.resolved for entry in loaded.problems[PROBLEM]] == [one.resolved for one in chosen(6)]


@pytest.mark.parametrize(
    ("status", "again"),
    [(Status.COMPILE_FAILED, Status.COMPILE_FAILED), (Status.COMPILE_TIMEOUT, Status.OK)],
)
def test_failures_are_written_down_and_only_chance_ones_tried_again(
    status: Status, again: Status, tmp_path: Path
) -> None:
    path, refused = tmp_path / "dir", chosen(3)[2].resolved
    compiler = Compiler(tmp_path / "home", (refused,), status)
    entries = fill(Folder(path, "h200", SM90A), PROBLEM, chosen(3), compiler, SM90A)
    assert [entry.status for entry in entries] == [Status.OK, Status.OK, status]
    assert entries[2].reason == "ptxas says no"
    compiler = Compiler(tmp_path / "home")
    fill(Folder(path, "h200", SM90A), PROBLEM, chosen(3), compiler, SM90A)
    assert [entry.status for entry in Manifest.load(path).problems[PROBLEM]] == [Status.OK, Status.OK, again]
    assert set(compiler.asked) == ({refused} if again is Status.OK else set())


class Interrupted(Compiler):
    def submit(self, config: KernelConfig, *args: Any) -> concurrent.futures.Future[CompileResult]:
        future = super().submit(config, *args)
        if len(self.asked) == 3:
            future = concurrent.futures.Future()
            future.set_exception(KeyboardInterrupt())
        return future


def test_what_was_compiled_before_an_interrupt_is_in_the_manifest(tmp_path: Path) -> None:
    path = tmp_path / "dir"
    with pytest.raises(KeyboardInterrupt):
        fill(Folder(path, "h200", SM90A), PROBLEM, chosen(5), Interrupted(tmp_path / "home"), SM90A)
    entries = Manifest.load(path).problems.get(PROBLEM, ())
    assert len(entries) < 5 and all(entry.status is Status.OK for entry in entries)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "dir"
    filled(path, tmp_path / "home", 1)
    with pytest.raises(InputError, match="another device"):
        Folder(path, "b200", SM100A)
    record = json.loads((path / FILE_NAME).read_text())
    (path / FILE_NAME).write_text(json.dumps({**record, "sources": {"svdquant_gemm": "0" * 64}}))
    with pytest.raises(InputError, match="another source hash"):
        Folder(path, "h200", SM90A)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "damaged"),
        ("[]", "is no manifest"),
        ('{"version": 99}', "version 99"),
        ('{"version": 2}', "is no manifest"),
        ('{"version": 1}', "version 1, this reads 2; compile again"),
    ],
)
def test_a_damaged_manifest_is_one_line(content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text(content)
    with pytest.raises(InputError, match=said):
        Manifest.load(tmp_path)
    with pytest.raises(InputError, match="compile-only"):
        Manifest.load(tmp_path / "elsewhere")


# -- measuring --


def test_objects_of_other_sources_are_not_measured(tmp_path: Path) -> None:
    filled(tmp_path / "dir", tmp_path / "home", 1)
    loaded = Manifest.load(tmp_path / "dir")
    with pytest.raises(InputError, match="compiled from other sources"):
        dataclasses.replace(loaded, sources={"svdquant_gemm": "0" * 64}).adopt(SM90A)
    with pytest.raises(InputError, match="for sm_90a, this card runs sm_100a"):
        loaded.adopt(SM100A)


def test_given_candidates_come_once_in_order(tmp_path: Path) -> None:
    entries = filled(tmp_path / "dir", tmp_path / "home", 4)
    illegal = dataclasses.replace(entries[1], config="kernel=sm90a_ring tile_mnk=256x256x128", resolved="x")
    given = GivenCandidates([*entries, illegal], PROBLEM, SM90A)
    asked = [given.ask() for _ in range(5)]
    assert [one and one.resolved for one in asked] == [*(entry.resolved for entry in entries), None]
    assert [one.number for one in asked if one] == [0, 1, 2, 3] and given.planned == 4
    assert [rejection.rule for rejection in given.rejected.values()] == ["accumulators"]


def test_a_pool_of_objects_answers_missing_ones_too(tmp_path: Path) -> None:
    candidates = chosen(4)
    path = tmp_path / "dir"
    entries = filled(path, tmp_path / "home", 3, refused=(candidates[1].resolved,))
    (
        path
        / OBJECTS
        / build_key.build_key(candidates[2].legal.config, PROBLEM.problem_class, SM90A)
        / OBJECT
    ).write_text("cut")
    pool = ObjectsPool(path, entries)
    answers = [pool.submit(one.legal.config, PROBLEM.problem_class, SM90A).result() for one in candidates]
    assert [answer.status for answer in answers] == [
        Status.OK,
        Status.COMPILE_FAILED,
        Status.COMPILE_CRASHED,
        Status.COMPILE_CRASHED,
    ]
    assert answers[1].reason == "ptxas says no" and "damaged" in answers[2].reason
    compiler = Compiler(tmp_path / "home")
    behind = ObjectsPool(path, otherwise=compiler)
    assert all(
        behind.submit(one.legal.config, PROBLEM.problem_class, SM90A).result().status is Status.OK
        for one in candidates
    )
    assert set(compiler.asked) == {one.resolved for one in candidates[1:]}


BARE_MACHINE = """
import importlib.abc, importlib.metadata, importlib.util, sys

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("cutlass", "optuna"):
            raise ModuleNotFoundError(f"blocked: {name}")

found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "optuna" else found(name, package)

sys.meta_path.insert(0, Blocker())
everything = importlib.metadata.distributions
hidden = ("nvidia-cutlass-dsl", "optuna")
importlib.metadata.distributions = lambda: [
    one for one in everything() if not (one.metadata["Name"] or "").startswith(hidden)
]
version = importlib.metadata.version
def own_version(name):
    if name.startswith(hidden):
        raise importlib.metadata.PackageNotFoundError(name)
    return version(name)
importlib.metadata.version = own_version

from kernel_space.core.arch import SM90A
from tests.tune.test_driver_finals import MeasuringDevice
import tuner.cli.tune.measure, tuner.cli.tune.retime, tuner.cli.tune.tune
device = MeasuringDevice(name="CARD", arch=SM90A, sm_count=132)
tuner.cli.tune.measure.cuda_device = lambda name: device
tuner.cli.tune.tune.select_device = lambda name, **options: device
tuner.cli.tune.retime.select_device = lambda name, **options: device
from tuner.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def on_a_bare_machine(
    tmp_path: Path, *arguments: str, card: str = "h200"
) -> subprocess.CompletedProcess[str]:
    """A process without DSL and Optuna, with a cache and a user's folder of its own and a card of arithmetic, of class
    ``card``."""
    return subprocess.run(
        [sys.executable, "-c", BARE_MACHINE.replace("CARD", card), *arguments],
        cwd=ROOT,
        env={
            **os.environ,
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
            "XDG_DATA_HOME": str(tmp_path / "data"),
        },
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_measure_needs_neither_compiler_nor_sampler(tmp_path: Path) -> None:
    path, out = tmp_path / "dir", tmp_path / "results"
    filled(path, tmp_path / "home", 12)
    filled(path, tmp_path / "home", 3, OTHER)
    done = on_a_bare_machine(tmp_path, "measure", str(path), "--out", str(out), "--json")
    assert done.returncode == 0, done.stderr
    first, second = json.loads(done.stdout)["results"]
    assert (first["shape"], second["shape"]) == (str(PROBLEM), str(OTHER))
    assert first["trials"]["new"] == 12 and first["winner"]["kind"] == "measured"
    assert first["winner"]["evidence"]["final_place"] == 1
    assert (
        first["row"]["recorded"]
        and (out / "h200" / "svdquant_gemm" / "64x3840x3072x128" / "report.html").is_file()
    )
    again = on_a_bare_machine(
        tmp_path, "measure", str(path), "--out", str(out), "--json", "--shape", str(OTHER)
    )
    (known,) = json.loads(again.stdout)["results"]
    assert known["trials"]["new"] == 0 and known["winner"] == second["winner"]


@pytest.mark.parametrize("activation", ["gelu_tanh", "swiglu"])
def test_what_is_known_of_a_class_that_is_printed_longer_stays_at_home(
    tmp_path: Path, activation: str
) -> None:
    """``r=128 ... activation=gelu`` begins as ``r=128 ...`` does; its footprints are of the other class."""
    longer = dataclasses.replace(PROBLEM, activation=activation)
    assert str(longer.problem_class).startswith(str(PROBLEM.problem_class))
    assert chosen(2, longer), "their budgets were solved: what they stand on is known here"
    path = tmp_path / "dir"
    filled(path, tmp_path / "home", 2)
    own = [key for kept in Manifest.load(path).footprints.values() for key in kept]
    assert own and not [key for key in own if "activation" in key]


@pytest.mark.parametrize("kernel", ["whole", "merged"])
def test_sizes_of_a_kernel_in_place_of_a_chain_travel(kernel: str) -> None:
    """Where such objects are measured there is no DSL to read them from layouts."""
    layer = operator("svdquant_linear_16bit").problem.parse("16,416,72,48", dtype="bf16")
    text = f"kernel={kernel}" + (" tile_mnk=64x16x128" if kernel == "whole" else "")
    assert isinstance(legalize(parse_config(layer.operator, SM90A, text), layer, SM90A), Legal)
    found = known_footprints(layer, SM90A)
    assert found[f"{layer.operator}/{kernel}"]
    adopt_footprints(found, [layer], SM90A)


def test_objects_chosen_for_a_sibling_are_measured_as_what_the_card_is(tmp_path: Path) -> None:
    """They are of its architecture; the row is the card's own, whatever the folder says."""
    path, out = tmp_path / "dir", tmp_path / "results"
    filled(path, tmp_path / "home", 3)
    done = on_a_bare_machine(tmp_path, "measure", str(path), "--out", str(out), "--json", card="h100")
    assert done.returncode == 0, done.stderr
    assert "the objects were chosen for h200; the results are those of h100" in done.stderr
    assert sorted(one.name for one in out.iterdir() if one.name != ".studies") == ["h100"]
    assert (out / "h100" / "svdquant_gemm" / "64x3840x3072x128" / "report.html").is_file()
    [row] = DispatchTable.load(out / "h100").rows.values()
    assert row.protocol.startswith("measured on h100, ")


@pytest.mark.slow
def test_a_spent_budget_leaves_problems_for_the_next_visit(tmp_path: Path) -> None:
    path, out = tmp_path / "dir", tmp_path / "results"
    filled(path, tmp_path / "home", 4)
    filled(path, tmp_path / "home", 3, OTHER)
    done = on_a_bare_machine(
        tmp_path, "measure", str(path), "--out", str(out), "--json", "--budget-seconds", "0.001"
    )
    assert "1 problems are left for the next run" in done.stderr
    assert not (out / "h200" / "svdquant_gemm" / "128x3840x3072x0").exists()
    again = on_a_bare_machine(tmp_path, "measure", str(path), "--out", str(out), "--json")
    first, second = json.loads(again.stdout)["results"]
    assert first["trials"]["new"] + first["trials"]["known"] == 4 and first["stopped"] is None
    assert second["trials"]["new"] == 3


@pytest.mark.slow
def test_a_problem_that_another_tuner_is_at_comes_later(tmp_path: Path) -> None:
    """Held by this process at first, as by a measure on another card of the machine."""
    path, out = tmp_path / "dir", tmp_path / "results"
    filled(path, tmp_path / "home", 3)
    filled(path, tmp_path / "home", 2, OTHER)
    turns = in_turn([PROBLEM], out, "h200")
    assert next(turns) == PROBLEM
    measure = ("measure", str(path), "--out", str(out), "--json")
    done = on_a_bare_machine(tmp_path, *measure, "--budget-seconds", "0.5")
    assert f"other tuners are at {PROBLEM}: waiting for them" in done.stderr
    assert "1 problems are left for the next run" in done.stderr
    assert [one["shape"] for one in json.loads(done.stdout)["results"]] == [str(OTHER)]
    turns.close()
    done = on_a_bare_machine(tmp_path, *measure)
    assert "other tuners" not in done.stderr
    first, second = json.loads(done.stdout)["results"]
    assert (first["shape"], first["trials"]["new"], second["trials"]["known"]) == (str(PROBLEM), 3, 2)


@pytest.mark.slow
def test_lookup_needs_neither_where_the_table_has_a_row(tmp_path: Path) -> None:
    path, out = tmp_path / "dir", tmp_path / "results"
    (entry,) = filled(path, tmp_path / "home", 1)
    assert on_a_bare_machine(tmp_path, "measure", str(path), "--out", str(out)).returncode == 0
    ask = ("lookup", "--device", "h200", "--out", str(out), "--json", "--shape")
    for shape, source in ((str(PROBLEM), "exact"), ("48,3840,3072,128", "nearest M 64")):
        done = on_a_bare_machine(tmp_path, *ask, shape)
        (answer,) = json.loads(done.stdout)["results"]
        assert (answer["source"], answer["config"]) == (source, entry.resolved)
        assert "stale rows are not told from fresh ones" in done.stderr
    done = on_a_bare_machine(tmp_path, *ask, "64,512,512,0")  # the default rule solves a budget
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert "the CuTe DSL is not installed" in done.stderr


def test_tune_without_a_compiler_says_what_to_do(tmp_path: Path) -> None:
    done = on_a_bare_machine(tmp_path, "tune", "--shape", str(PROBLEM), "--out", str(tmp_path / "results"))
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert "compile-only --device h200" in done.stderr and "measure DIR --device cuda:N" in done.stderr


def test_measure_names_what_it_lacks(tmp_path: Path) -> None:
    filled(tmp_path / "dir", tmp_path / "home", 1)
    done = on_a_bare_machine(tmp_path, "measure", str(tmp_path / "dir"), "--shape", "1,2048,2048,0")
    assert done.returncode == 2 and "has nothing for 1,2048,2048,0, it has 64,3840,3072,128" in done.stderr

"""Two operators in one folder of results, one with a problem of its own: journal, row, table, merge, objects, lookup.

And what becomes of the records of an operator by those who do not have it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from kernel_space.build.cache import BuildCache
from kernel_space.core.arch import SM90A
from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from kernel_space.core.registry import operator, parse_config
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tuner.report.write import read_trials, report_folder, trials_parquet
from tuner.tables import bundle_write
from tuner.tables.bundle import FOLDER, INDEX, Bundle
from tuner.tables.bundle_write import write_bundle
from tuner.tables.dispatch import DispatchTable, record
from tuner.tables.distance import times_larger
from tuner.tables.merge import Current
from tuner.tables.row import DispatchKey, ObjectRef, Row, make_row
from tuner.trials.journal_read import read_journal
from tuner.trials.outcome import Kind, Status, Trial
from tuner.trials.study import Identity, Study
from tuner.trials.subject import NotInstalled
from tuner.tune.merge import merge, read_source

PAIR = operator("pair").problem
GEMM = GemmProblem.parse("256,3840,3072,128")
TALL = str(parse_config("pair", SM90A, "kernel=tall value=3 num_stage=1"))
RING = str(
    parse_config(
        "svdquant_gemm",
        SM90A,
        "kernel=sm90a_ring tile_mnk=128x128x128 num_ab_stage=4 num_dq_stage=2 num_lora_stage=1 num_c_stage=1",
    )
)
CURRENT = Current(kernel_source=lambda row: "src", dsl_version="4.8.1")
CUBIN = "c" * 64


def pair(batch: int, width: int = 64, groups: int = 4, **options: str) -> Problem:
    return PAIR(batch=batch, width=width, groups=groups, **{"order": "down", **options})


def trial(problem: Problem, config: str, us: float = 10.0, **changes: Any) -> Trial:
    plain = Trial(
        number=0,
        op=problem.operator,
        problem=str(problem),
        options=problem.options,
        device="h200",
        arch="sm_90a",
        config=config,
        resolved=config,
        status=Status.OK,
        kind=Kind.MEASURED,
        us=us,
        low_us=us,
        high_us=us,
        validation="checked by hand; then by hand again",
        build={"source_hash": "src", "dsl_version": "4.8.1", "cubin_sha256": CUBIN},
        finished="2026-01-01T00:00:00+00:00",
    )
    return dataclasses.replace(plain, **changes)


def identity(problem: Problem) -> Identity:
    return Identity(
        op=problem.operator,
        device="h200",
        arch="sm_90a",
        problem=str(problem),
        options=problem.options,
        source_hash="src",
        dsl_version="4.8.1",
        judge="a card",
    )


def row(problem: Problem, config: str, cache: Path, us: float = 10.0) -> Row:
    """With its object in ``cache``."""
    data = f"object of {config} for {problem.problem_class}".encode()
    key, digest = (hashlib.sha256(text).hexdigest() for text in (data, data))
    abi = operator(problem.operator).signature.abi
    meta = {
        "prefix": "kernel",
        "arguments": [dataclasses.asdict(argument) for argument in abi],
        "cubin_sha256": CUBIN,
        "object_sha256": digest,
        "source_hash": "src",
        "dsl_version": "4.8.1",
    }
    BuildCache(cache).store(key, {"kernel.o": data}, meta)
    made = make_row(
        trial(problem, config, us),
        model="",
        protocol="by hand",
        object=ObjectRef(key=key, file="kernel.o", sha256=digest),
    )
    return dataclasses.replace(made, evidence={"checked": "by hand; then again"})


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a problem of each operator."""
    monkeypatch.setattr(bundle_write, "_add_widest", lambda *_: None)
    root, cache = tmp_path / "results", tmp_path / "cache"
    rows = [row(pair(8), TALL, cache), row(GEMM, RING, cache)]
    for one in rows:
        problem = one.key.problem
        Study(root / ".studies", identity(problem)).append(trial(problem, one.config))
        folder = report_folder(root, "h200", problem)
        folder.mkdir(parents=True)
        (folder / "trials.parquet").write_bytes(trials_parquet([trial(problem, one.config)]))
    record(root / "h200" / "dispatch.json", rows, CURRENT)
    done = write_bundle(root / "h200", SM90A, rows, caches=[cache])
    assert (len(done.entries), done.refused) == (2, ())
    return root


def others(results: Path, name: str = "elsewhere") -> None:
    """The records of ``pair`` become those of an operator that nobody here has."""
    for path in (results / "h200" / "dispatch.json", results / "h200" / FOLDER / INDEX):
        path.write_text(path.read_text().replace('"op": "pair"', f'"op": "{name}"'))
    studies = results / ".studies" / "h200"
    (studies / "pair").rename(studies / name)
    (journal,) = (studies / name).glob("*.jsonl")
    header = json.loads(journal.read_text().splitlines()[0])
    header.pop("crc")
    header["identity"]["op"] = name
    journal.write_text(json.dumps(header) + "\n")


def test_each_lies_in_the_folder_of_its_operator(results: Path) -> None:
    assert (results / "h200" / "pair" / "8x64x4-down-no" / "trials.parquet").is_file()
    (journal,) = (results / ".studies" / "h200" / "pair").glob("8x64x4-down-no-*.jsonl")
    assert read_journal(journal).trials == (trial(pair(8), TALL),)
    (read,) = read_trials(str(results / "h200" / "pair" / "8x64x4-down-no" / "trials.parquet"))
    assert (read.subject, read.resolved_config) == (pair(8), parse_config("pair", SM90A, TALL))


def test_one_table_answers_for_both(results: Path) -> None:
    table = DispatchTable.load(str(results / "h200"))
    assert [key.op for key in table.rows] == ["pair", "svdquant_gemm"]
    exact, near = table.lookup(pair(8)), table.lookup(pair(11))
    assert (exact.source, str(exact.config)) == ("exact", TALL)
    assert (near.source, str(near.config), near.row) == ("nearest BATCH 8", TALL, exact.row)
    assert str(table.lookup(GEMM).config) == RING
    # of its own operator alone, whatever the numbers
    assert [one.key.problem for one in table.neighbours(pair(16), 5)] == [pair(8)]
    document = json.loads((results / "h200" / "dispatch.json").read_text())
    assert document["rows"][0]["problem"] == {
        "batch": 8, "width": 64, "groups": 4, "order": "down", "carry": "no",
    }  # fmt: skip


def test_every_size_has_its_own_place_in_the_order_of_keys() -> None:
    first = [pair(8, order="up"), pair(9), pair(16), pair(16, 128), pair(16, 128, 8)]
    keys = [DispatchKey("sm_90a", one) for one in (*first, GEMM)]
    # options are words: down before up; sizes numbers: 9 before 16
    assert sorted(reversed(keys)) == [*keys[1:5], keys[0], keys[5]]
    assert len({key.bucket for key in keys}) == 5, "9 and 16 rows are of one bucket"


@pytest.mark.parametrize(
    ("one", "other", "times"),
    [
        (pair(8), pair(2), 4.0),
        (pair(8, 64), pair(16, 32), 4.0),
        (pair(8, groups=0), pair(8, groups=4), 2.0),  # a multiple of 4: 0 + 4 against 4 + 4
        (pair(8, groups=12), pair(8, groups=0), 4.0),
        (GEMM, dataclasses.replace(GEMM, r=0), 9.0),  # 128 + 16 against 16
    ],
)
def test_distance_is_the_product_of_ratios(one: Problem, other: Problem, times: float) -> None:
    assert times_larger(one, other) == times_larger(other, one) == times


def test_objects_of_both_are_found_by_config_and_class(results: Path) -> None:
    bundle = Bundle.load(str(results / "h200" / FOLDER), SM90A)
    config = parse_config("pair", SM90A, TALL)
    found = bundle.find(config, pair(1000))
    assert found is not None and found.read() == f"object of {TALL} for groups=4 order=down carry=no".encode()
    assert bundle.find(config, pair(8, groups=8)) is None and bundle.find(config, pair(8, order="up")) is None
    (entry,) = [one for one in bundle.entries if one.op == "pair"]
    assert entry.launch["workspace_bytes"] == 16 * 8 and entry.launch["zeroed_bytes"] == 16
    assert bundle.find(parse_config("svdquant_gemm", SM90A, RING), GEMM) is not None


def test_merge_brings_all_of_both(results: Path, tmp_path: Path) -> None:
    done = merge(read_source(str(results), "h200"), str(tmp_path / "ours"))
    assert [decision.recorded for decision in done.decisions] == [True, True]
    assert (done.trials, done.objects) == (2, 2)
    assert (tmp_path / "ours" / "h200" / "pair" / "8x64x4-down-no" / "trials.parquet").is_file()
    mine = DispatchTable.load(tmp_path / "ours" / "h200")
    assert mine.rows == DispatchTable.load(results / "h200").rows
    again = merge(read_source(results, "h200"), tmp_path / "ours")
    assert (again.trials, again.objects) == (0, 0)


def test_rows_of_an_operator_that_is_not_here_are_passed_over_and_kept(results: Path, tmp_path: Path) -> None:
    others(results)
    said: list[str] = []
    table = DispatchTable.load(results / "h200", say=said.append)
    assert [key.op for key in table.rows] == ["svdquant_gemm"] and len(said) == 1
    assert "1 row of the operator 'elsewhere', which is not installed here, passed over" in said[0]
    path = results / "h200" / "dispatch.json"
    (theirs,) = [line for line in path.read_text().splitlines() if "elsewhere" in line]
    faster = row(GEMM, RING, tmp_path / "cache", us=5.0)
    record(path, [dataclasses.replace(faster, date="2026-02-02T00:00:00+00:00")], CURRENT, say=said.append)
    lines = path.read_text().splitlines()
    assert theirs in lines and '"time_us": 5.0' in lines[2]
    assert not list(path.parent.glob("*.damaged*")), "nothing is wrong with it"


def test_objects_of_an_operator_that_is_not_here_stay(results: Path, tmp_path: Path) -> None:
    others(results)
    folder = results / "h200" / FOLDER
    before = {path.name: path.read_bytes() for path in folder.glob("*.o")}
    rows = list(DispatchTable.load(results / "h200", say=[].append).rows.values())
    done = write_bundle(results / "h200", SM90A, rows, caches=[tmp_path / "cache"])
    assert len(done.entries) == 1 and not done.removed
    assert {path.name: path.read_bytes() for path in folder.glob("*.o")} == before and len(before) == 2
    said: list[str] = []
    assert len(Bundle.load(folder, SM90A, say=said.append).foreign) == 1
    assert len(said) == 1 and "1 object of the operator 'elsewhere'" in said[0]


def test_merge_passes_over_what_is_of_an_operator_that_is_not_here(results: Path, tmp_path: Path) -> None:
    others(results)
    said: list[str] = []
    done = merge(read_source(results, "h200", say=said.append), tmp_path / "ours", say=said.append)
    assert (len(done.decisions), done.trials, done.objects) == (1, 1, 1)
    assert len(said) == 3 and all("'elsewhere'" in line for line in said)
    assert not (tmp_path / "ours" / ".studies" / "h200" / "elsewhere").exists()
    (journal,) = (results / ".studies" / "h200" / "elsewhere").glob("*.jsonl")
    with pytest.raises(NotInstalled, match="the operator 'elsewhere' is not installed here"):
        read_journal(journal)


def test_what_the_version_before_wrote_is_one_line_that_says_what_migrates_it(results: Path) -> None:
    table, index = results / "h200" / "dispatch.json", results / "h200" / FOLDER / INDEX
    for path in (table, index):
        path.write_text(path.read_text().replace('"schema": 2', '"schema": 1'))
    with pytest.raises(
        InputError, match=r"schema 1, .*; python -m benchmarks\.migrate_results migrates"
    ) as one:
        DispatchTable.load(table)
    with pytest.raises(
        InputError, match=r"schema 1, .*; python -m benchmarks\.migrate_results migrates"
    ) as two:
        Bundle.load(index.parent, SM90A)
    (journal,) = (results / ".studies" / "h200" / "pair").glob("*.jsonl")
    header = json.loads(journal.read_text().splitlines()[0]) | {"version": 1}
    header.pop("crc")
    journal.write_text(json.dumps(header) + "\n")
    with pytest.raises(InputError, match=r"of version 1, .*; python -m benchmarks\.migrate_results") as three:
        read_journal(journal)
    assert not any("\n" in str(error.value) for error in (one, two, three))
    shutil.move(journal, results / ".studies" / "h200" / journal.name)
    table.unlink()
    shutil.rmtree(index.parent)
    (results / "h200" / "dispatch.json").write_text('{"schema": 2, "arch": "sm_90a", "rows": [\n\n]}\n')
    with pytest.raises(InputError, match="must lie in the folder of its operator; python -m benchmarks"):
        read_source(results, "h200")

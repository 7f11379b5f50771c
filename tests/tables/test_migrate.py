"""Results of the version before in today's form: texts by hand, code that is the same and code that is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import migrate_results
from benchmarks.earlier_texts import translated, translated_within
from benchmarks.migrate_trials import migrate_journals
from benchmarks.same_ptx import Job, Made, code_of
from kernel_space.core.errors import InputError
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tuner.report.write import read_trials
from tuner.tables.bundle import FOLDER, INDEX, Bundle
from tuner.tables.dispatch import DispatchTable
from tuner.trials.journal_lines import write_line
from tuner.trials.journal_read import read_journal

SMALL = (
    "tile_mnk=32x8x128 consumer_warpgroups=1 pingpong=false cluster_shape_mn=1x1 num_ab_stage=5 num_dq_stage=0 "
    "num_lora_stage=0 num_c_stage=0 epi_tile_n=0 register_operand=wgt num_dequant_warpgroups=1 mainloop=mma wgmma_k=16 "
    "raster_order=m swizzle_size=1 ctas_per_sm=2 split_k=2 stream_k=false use_pdl=true"
)
EXPAND = (
    "tile_mnk=128x200x128 consumer_warpgroups=2 pingpong=false cluster_shape_mn=2x1 num_ab_stage=4 num_dq_stage=6 "
    "num_lora_stage=2 num_c_stage=1 epi_tile_n=16 register_operand=wgt num_dequant_warpgroups=1 mainloop=expand "
    "wgmma_k=32 raster_order=n swizzle_size=1 ctas_per_sm=1 split_k=1 stream_k=true use_pdl=true"
)
RING = SMALL.replace("mainloop=mma", "mainloop=wgmma").replace("num_c_stage=0", "num_c_stage=1")
NEW_SMALL = (
    "kernel=sm90a_small_m tile_mnk=32x8x128 consumer_warpgroups=1 num_ab_stage=5 num_dq_stage=0 register_operand=wgt "
    "num_dequant_warpgroups=1 ctas_per_sm=2 split_k=2 use_pdl=true"
)
NEW_EXPAND = (
    "kernel=sm90a_expand tile_mnk=128x200x128 consumer_warpgroups=2 pingpong=false cluster_shape_mn=2x1 num_ab_stage=4 "
    "num_dq_stage=6 num_lora_stage=2 epi_tile_n=16 wgmma_k=32 raster_order=n swizzle_size=1 split_k=1 stream_k=true "
    "use_pdl=true"
)
NEW_RING = (
    "kernel=sm90a_ring tile_mnk=32x8x128 consumer_warpgroups=1 pingpong=false num_ab_stage=5 num_dq_stage=0 "
    "num_lora_stage=0 num_c_stage=1 epi_tile_n=0 register_operand=wgt num_dequant_warpgroups=1 wgmma_k=16 "
    "raster_order=m swizzle_size=1 ctas_per_sm=2 split_k=2 use_pdl=true"
)
SHAPE = {"m": 1, "k": 3840, "n": 3072, "r": 128, "lora_dtype": "fp16", "out_dtype": "fp16"}
CLASS = "r=128 lora_dtype=fp16 out_dtype=fp16"
OLD = "0" * 64


@pytest.mark.parametrize(
    ("old", "new"),
    [(SMALL, NEW_SMALL), (EXPAND, NEW_EXPAND), (RING, NEW_RING)],
    ids=["mma", "expand", "wgmma"],
)
def test_each_main_loop_is_a_kernel_with_the_knobs_that_it_has(old: str, new: str) -> None:
    assert translated(old) == new
    assert translated_within({"a": [old, "mean 1"], "b": 2}) == {"a": [new, "mean 1"], "b": 2}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SMALL.replace("wgmma_k=16", "wgmma_k=32"), "sm90a_small_m has no wgmma_k: it must be 16"),
        (EXPAND.replace("=expand", "=other"), "no kernel of today is mainloop=other"),
    ],
)
def test_a_config_that_no_kernel_has_is_refused(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        translated(text)
    assert translated_within([text], resolved=True) == [text]


PTX = """// made by a compiler
.version 8.8
.visible .entry kernel_of_module_a_Gemm_0(
  .param .b64 kernel_of_module_a_Gemm_0_param_0
) {
  .loc 1 20 3
  ld.param.b64 %rd1, [kernel_of_module_a_Gemm_0_param_0];  // an operand
  add.s32 %r1, %r2, 16;
}
"""


def test_code_is_the_same_under_another_name_and_not_with_another_number() -> None:
    moved = (
        PTX.replace("module_a_Gemm", "module_b_Ring").replace("1 20 3", "2 7 1").replace("an operand", "b")
    )
    assert moved != PTX and code_of(moved) == code_of(PTX)
    for old, new in (("16;", "32;"), ("%r2", "%r3"), ("param_0]", "param_1]"), ("8.8", "8.7")):
        assert code_of(PTX.replace(old, new)) != code_of(PTX)


def row(config: str) -> dict:
    return {
        "op": "svdquant_gemm",
        "arch": "sm_90a",
        **{name: SHAPE[name] for name in ("lora_dtype", "out_dtype", "m", "k", "n", "r")},
        "config": config,
        "kind": "measured",
        "time_us": 4.0,
        "low_us": 3.9,
        "high_us": 4.1,
        "noise_us": None,
        "runner_up": {
            "config": config.replace("num_ab_stage=5", "num_ab_stage=4"),
            "time_us": 5.0,
            "margin": 0.25,
        },
        "object": {"key": OLD, "file": "kernel.o", "sha256": OLD},
        "evidence": {
            "protocol": "by hand",
            "date": "2026-01-01",
            "provenance": {"kernel_source": OLD, "dsl_version": "4.8.1", "model": ""},
            "cubin_sha256": OLD,
            "checked": "by hand; then again",
            "default_config": config,
        },
    }


def entry() -> dict:
    checked = {
        "card": "c",
        "driver": "d",
        "date": "e",
        "version": "v",
        "problems": ["1"],
        "launches": 3,
        "worst": 0.5,
    }
    return {
        "arch": "sm_90a",
        "config": SMALL,
        "problem_class": CLASS,
        "problem": "1,3840,3072,128",
        "host": "x86_64",
        "checked": checked,
    }


def trial(config: str, **changes: object) -> dict:
    plain = {
        "number": 0, "problem": "1,3840,3072,128", "lora_dtype": "fp16", "out_dtype": "fp16", "device": "h200",
        "arch": "sm_90a", "config": config, "resolved": config, "status": "ok", "reason": "", "origin": "default",
        "seed": 0, "kind": "measured", "us": 4.0, "low_us": 3.9, "high_us": 4.1, "validation": "by hand",
        "evidence": {}, "build": {"source_hash": OLD}, "legal_seconds": 0.0, "compile_seconds": 0.0,
        "validate_seconds": 0.0, "time_seconds": 0.0, "finished": "2026-01-01",
    }  # fmt: skip
    return {**plain, **changes}


def made(folder: Path, ptx: str, source: str) -> Made:
    import hashlib

    folder.mkdir(parents=True)
    (folder / "kernel.ptx").write_text(ptx)
    (folder / "kernel.o").write_bytes(ptx.encode())
    meta = {
        "prefix": "kernel",
        "arguments": [{"name": "y", "kind": "pointer"}],
        "cubin_sha256": "c" * 64,
        "object_sha256": hashlib.sha256(ptx.encode()).hexdigest(),
        "source_hash": source,
        "dsl_version": "4.8.1",
    }
    (folder / "meta.json").write_text(json.dumps(meta))
    return Made(directory=folder, source=source)


def results(root: Path) -> Path:
    device = root / "h200"
    (device / FOLDER).mkdir(parents=True)
    for path, name, records in (
        (device / "dispatch.json", "rows", [row(SMALL)]),
        (device / FOLDER / INDEX, "objects", [entry()]),
    ):
        path.write_text(json.dumps({"schema": 1, "arch": "sm_90a", name: records}))
    folder = device / "1x3840x3072x128"
    folder.mkdir()
    (folder / "report.md").write_text("a page")
    (folder / "final.json").write_text(json.dumps({"tied": [SMALL]}))
    parquet(folder / "trials.parquet", [trial(SMALL), trial(EXPAND, number=1)])
    return root


def parquet(path: Path, records: list[dict]) -> None:
    import pyarrow
    import pyarrow.parquet

    texts = [one | {name: json.dumps(one[name]) for name in ("evidence", "build")} for one in records]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(texts), path)


@pytest.mark.parametrize("same", [True, False], ids=["the same code", "another code"])
def test_a_row_keeps_its_time_if_its_code_is_the_same(
    same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = made(tmp_path / "before" / OLD, PTX, OLD)
    after = made(tmp_path / "now" / ("1" * 64), PTX if same else PTX.replace("16;", "32;"), "1" * 64)
    problem = GemmProblem(**SHAPE)
    answers = [{Job("sm_90a", SMALL, problem).key: before}, {Job("sm_90a", NEW_SMALL, problem).key: after}]
    monkeypatch.setattr(migrate_results, "compile_with", lambda *_: answers.pop(0))
    source, out = results(tmp_path / "results"), tmp_path / "out"
    code = migrate_results.main([str(source), "--old", str(tmp_path), "--out", str(out)])
    (found,) = DispatchTable.load(out / "h200").rows.values()
    assert (found.config, found.key.problem, found.time_us) == (NEW_SMALL, problem, 4.0)
    assert found.evidence["default_config"] == NEW_SMALL and found.check.name == "WINNER"
    assert found.runner_up is not None
    assert found.runner_up.config == NEW_SMALL.replace("num_ab_stage=5", "num_ab_stage=4")
    entries = Bundle.load(out / "h200" / FOLDER, migrate_results.find_arch("sm_90a")).entries
    said = capsys.readouterr().out
    if same:
        assert code == 0 and found.provenance.kernel_source == "1" * 64
        assert found.object is not None and found.object.key == "1" * 64
        assert found.evidence["migrated"] == {"from": OLD, "proof": "PTX equal"}
        assert [(one.config, one.problem, one.checked.card) for one in entries] == [(NEW_SMALL, problem, "c")]
    else:
        assert code == 1 and found.provenance.kernel_source == OLD and "migrated" not in found.evidence
        assert found.object is not None and found.object.key == OLD and not entries
        assert said.count("not proven: h200: ") == 2 and "its PTX is another one" in said
    folder = out / "h200" / "svdquant_gemm" / "1x3840x3072x128"
    assert (folder / "report.md").read_text() == "a page"
    assert json.loads((folder / "final.json").read_text()) == {"tied": [NEW_SMALL]}
    trials = read_trials(folder / "trials.parquet")
    assert [one.resolved for one in trials] == [NEW_SMALL, NEW_EXPAND] and trials[0].subject == problem
    assert trials[0].build == {"source_hash": OLD}


def test_journals_keep_what_they_know(tmp_path: Path) -> None:
    identity = {
        "op": "svdquant_gemm", "device": "h200", "arch": "sm_90a", "problem": "1,3840,3072,128", "lora_dtype": "fp16",
        "out_dtype": "fp16", "source_hash": OLD, "dsl_version": "4.8.1", "judge": "a card",
    }  # fmt: skip
    folder = tmp_path / "results" / ".studies" / "h200"
    folder.mkdir(parents=True)
    lines = [
        write_line({"version": 1, "identity": identity}),
        write_line({"note": "start", "value": [SMALL]}),
        write_line(trial(SMALL)),
        write_line(trial(EXPAND)).replace(b'"us":4.0', b'"us":5.0'),  # damaged: its checksum says so
        write_line(trial(EXPAND)),
    ]
    (folder / "1x3840x3072x128_fp16_fp16-0123456789ab.jsonl").write_bytes(b"".join(lines))
    said = migrate_journals(tmp_path / "results", tmp_path / "out")
    assert len(said) == 1 and said[0].startswith("passed over 1 lines of") and "checksum" in said[0]
    (journal,) = (tmp_path / "out" / ".studies" / "h200" / "svdquant_gemm").glob("*.jsonl")
    read = read_journal(journal)
    assert [one.resolved for one in read.trials] == [NEW_SMALL, NEW_EXPAND]
    assert (read.identity.file_name, read.identity.judge, read.unverified) == (journal.name, "a card", 0)
    assert json.loads(journal.read_bytes().split(b"\n")[1])["value"] == [NEW_SMALL]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda folder: None, "no folder in it has a dispatch.json"),
        (lambda folder: results(folder), "must be a checkout of this project"),
    ],
)
def test_bad_input_is_one_line(
    make: object, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    make(folder)  # type: ignore[operator]
    arguments = [str(folder), "--old", str(tmp_path / "nothing"), "--out", str(tmp_path / "out")]
    assert migrate_results.main(arguments) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1 and error.startswith("error: ")
    (tmp_path / "out" / "x").write_text("mine")
    assert migrate_results.main(arguments) == 2 and "--out must be an empty folder" in capsys.readouterr().err

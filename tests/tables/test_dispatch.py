"""Dispatch tables: the merge rule as a truth table written by hand, lookups whose answers one can work out."""

from __future__ import annotations

import dataclasses
import json
import math
import multiprocessing
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernel_space.core.arch import SM100A, SM103A, Arch
from kernel_space.core.errors import InputError
from kernel_space.core.rules import Legal, Rejection
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from tuner.tables.dispatch import DispatchTable, Lookup, record
from tuner.tables.merge import Current, choose, noise_of_difference, stale_reason
from tuner.tables.row import DispatchKey, ObjectRef, Provenance, Row, RunnerUp, make_row
from tuner.trials.outcome import Kind, Status, Trial

CONFIG_A = str(
    KernelConfigSm100a(
        num_ab_stage=4, num_lora_stage=2, num_acc_stage=2, num_c_stage=2, mma_tiler_mn=(256, 128)
    )
)
CONFIG_B = CONFIG_A.replace("num_ab_stage=4", "num_ab_stage=5")
OLD_A = CONFIG_A.replace(" use_pdl=false", "")  # as it was printed before there was that knob
MODELS = {Kind.MODELLED: "model-1", Kind.SIMULATED: "sim-1"}
CURRENT = Current(kernel_source=lambda row: "src-1", dsl_version="4.8.1", models=MODELS)
KEY = DispatchKey("sm_100a", GemmProblem(m=4352, k=3840, n=3072, r=128))
SPAWN = multiprocessing.get_context("spawn")


def row(
    kind: Kind = Kind.MODELLED,
    us: float = 20.0,
    half: float = 1.0,
    *,
    key: DispatchKey = KEY,
    config: str = CONFIG_A,
    date: str = "2025-01-02T00:00:00+00:00",
    noise_us: float | None = None,
    evidence: dict[str, Any] | None = None,
    **provenance: str,
) -> Row:
    fresh = {"kernel_source": "src-1", "dsl_version": "4.8.1", "model": MODELS.get(kind, "")}
    return Row(
        key=key,
        config=config,
        kind=kind,
        time_us=us,
        low_us=us - half,
        high_us=us + half,
        noise_us=noise_us,
        provenance=Provenance(**{**fresh, **provenance}),
        protocol="by hand",
        date=date,
        evidence=evidence or {},
    )


def at(m: int, arch: str = "sm_100a", **changes: Any) -> DispatchKey:
    return DispatchKey(arch, dataclasses.replace(KEY.problem, m=m, **changes))


MEASURED, SIMULATED, MODELLED = Kind.MEASURED, Kind.SIMULATED, Kind.MODELLED
STALE = {"kernel_source": "src-0"}
EARLY, LATE = "2025-01-01T00:00:00+00:00", "2025-01-03T00:00:00+00:00"
B = {"config": CONFIG_B}

# old row, new row, does the new one stand. Times in us, half widths of the intervals after them.
TRUTH = [
    ("none before", None, row(), True),
    # one stale: the fresh one, whatever kind and time
    ("stale measured loses to fresh modelled", row(MEASURED, 10, **STALE), row(MODELLED, 20, **B), True),
    ("fresh modelled stays before stale measured", row(MODELLED, 20), row(MEASURED, 10, **STALE, **B), False),
    ("another DSL is stale", row(MEASURED, 10, dsl_version="4.7.0"), row(MODELLED, 20, **B), True),
    ("another model is stale", row(SIMULATED, 10, model="sim-0"), row(MODELLED, 20, **B), True),
    ("another simulator does not age a modelled row", row(MODELLED, 10), row(MODELLED, 20, **B), False),
    # fresh, kinds differ: the better kind, whatever time
    ("measured over simulated", row(SIMULATED, 10), row(MEASURED, 20, **B), True),
    ("measured over modelled", row(MODELLED, 10), row(MEASURED, 20, **B), True),
    ("simulated over modelled", row(MODELLED, 10), row(SIMULATED, 20, **B), True),
    ("modelled never over simulated", row(SIMULATED, 20), row(MODELLED, 10, **B), False),
    ("modelled never over measured", row(MEASURED, 20), row(MODELLED, 10, **B), False),
    ("simulated never over measured", row(MEASURED, 20), row(SIMULATED, 10, **B), False),
    # fresh, same kind, another config: noise of +-1 and +-1 is sqrt(2) = 1.414
    ("faster by 2.0 > 1.414", row(MEASURED, 20, 1), row(MEASURED, 18, 1, **B), True),
    ("faster by 1.4 < 1.414", row(MEASURED, 20, 1), row(MEASURED, 18.6, 1, **B), False),
    ("faster by 1.42 > 1.414", row(MEASURED, 20, 1), row(MEASURED, 18.58, 1, **B), True),
    ("equal time", row(MEASURED, 20, 0), row(MEASURED, 20, 0, **B), False),
    ("slower", row(MEASURED, 20, 1), row(MEASURED, 30, 1, **B), False),
    ("the rule holds for modelled rows too", row(MODELLED, 20, 4), row(MODELLED, 16, 4, **B), False),
    (
        "stated noise: 3-4-5",
        row(MODELLED, 20, 9, noise_us=0.3),
        row(MODELLED, 19.4, 9, noise_us=0.4, **B),
        True,
    ),
    ("within it", row(MODELLED, 20, 9, noise_us=0.3), row(MODELLED, 19.6, 9, noise_us=0.4, **B), False),
    ("a later date does not help", row(MEASURED, 20, 1), row(MEASURED, 19, 1, date=LATE, **B), False),
    # fresh, same kind, same config: later evidence, even when slower
    ("same config, later, slower", row(MEASURED, 20), row(MEASURED, 25, date=LATE), True),
    ("same config, earlier", row(MEASURED, 20), row(MEASURED, 15, date=EARLY), False),
    ("nothing but the date", row(MODELLED, 20), row(MODELLED, 20, date=LATE), False),
    # both stale
    ("both stale, better kind", row(MODELLED, 10, **STALE), row(MEASURED, 20, **STALE, **B), True),
    ("both stale, worse kind", row(MEASURED, 20, **STALE), row(MODELLED, 10, **STALE, **B), False),
    ("both stale alike, faster", row(MEASURED, 20, **STALE), row(MEASURED, 10, **STALE, **B), True),
    (
        "both stale alike, slower",
        row(MEASURED, 10, **STALE),
        row(MEASURED, 20, date=LATE, **STALE, **B),
        False,
    ),
    (
        "both stale differently, later",
        row(MEASURED, 10, **STALE),
        row(MEASURED, 20, date=LATE, kernel_source="src-00", **B),
        True,
    ),
    (
        "both stale differently, same date",
        row(MEASURED, 20, **STALE),
        row(MEASURED, 10, kernel_source="src-00", **B),
        False,
    ),
]


NEVER = {"evidence": {"checked": "not checked: the tune ended before"}}
ONCE = {"evidence": {"checked": "checked on NVIDIA H200 against float64: 9 launches"}}
WHOLE = {
    "evidence": {"checked": f"{ONCE['evidence']['checked']}; then checked on NVIDIA H200: 51 launches each"}
}
SILENT = {"evidence": {}}

# What a check is worth: nothing that was never checked replaces what was, whatever else speaks for it.
TRUTH += [
    ("unchecked and faster", row(MEASURED, 20, **WHOLE), row(MEASURED, 10, **NEVER, **B), False),
    ("says nothing of a check", row(MEASURED, 20, **ONCE), row(MEASURED, 10, **SILENT, **B), False),
    (
        "unchecked, same config, later",
        row(MEASURED, 20, **ONCE),
        row(MEASURED, 20, date=LATE, **NEVER),
        False,
    ),
    ("unchecked, better kind", row(SIMULATED, 20, **ONCE), row(MEASURED, 10, **NEVER, **B), False),
    ("unchecked and fresh", row(MEASURED, 20, **ONCE, **STALE), row(MEASURED, 10, **NEVER, **B), False),
    ("checked over unchecked, slower", row(MEASURED, 10, **NEVER), row(MEASURED, 20, **ONCE, **B), True),
    (
        "stale but checked over unchecked",
        row(MEASURED, 10, **NEVER),
        row(MEASURED, 20, **ONCE, **STALE),
        True,
    ),
    ("both unchecked, faster", row(MEASURED, 20, **NEVER), row(MEASURED, 10, **NEVER, **B), True),
    ("a candidate's check only, faster", row(MEASURED, 20, **WHOLE), row(MEASURED, 10, **ONCE, **B), False),
    ("the winner's check, slower", row(MEASURED, 10, **ONCE), row(MEASURED, 20, **WHOLE, **B), True),
    ("a candidate's check, fresh", row(MEASURED, 20, **WHOLE, **STALE), row(MEASURED, 30, **ONCE, **B), True),
    ("a candidate's check, better kind", row(SIMULATED, 20, **WHOLE), row(MEASURED, 30, **ONCE, **B), True),
    ("both checked whole, faster", row(MEASURED, 20, **WHOLE), row(MEASURED, 10, **WHOLE, **B), True),
    (
        "same config, checked again less",
        row(MEASURED, 20, **WHOLE),
        row(MEASURED, 20, date=LATE, **ONCE),
        False,
    ),
]


def on(
    card: str, ratio: float | None = None, half: float = 0.001, default: str = "d", **more: Any
) -> dict[str, Any]:
    """Evidence of a row of ``card``: ``ratio`` to the default with +-``half``; 1 is the default itself."""
    evidence = {"card": card, "driver": "580", **more}
    if ratio is not None:
        half = 0.0 if ratio == 1 else half
        bounds = {"default_ratio_low": ratio - half, "default_ratio_high": ratio + half}
        evidence |= {"default_config": default, "default_ratio": ratio, **bounds}
    return {"evidence": evidence}


def us(time_us: float, config: str = CONFIG_A, **more: Any) -> Row:
    return row(MEASURED, time_us, 0.2, config=config, noise_us=0.01 * time_us, **more)


def ahead(one: Row, config: str, low: float) -> Row:
    """``one`` won a final in which ``config`` was second and took ``low`` times as long at least."""
    second = RunnerUp(config=config, time_us=one.time_us * low, margin=low - 1)
    evidence = one.evidence | {"versus": "runner-up", "ratio_low": low}
    return dataclasses.replace(one, runner_up=second, evidence=evidence)


# Two cards: 156.8 us of one card's default against 163.8 us of the other's winner, 1.3 % ahead of its own default.
# Ratios: 0.5 % a visit and the halves of both intervals, as squares; a default has neither.
TRUTH += [
    ("another card's default", us(163.8, **on("one", 0.987)), us(156.8, CONFIG_B, **on("two", 1.0)), False),
    ("another card's winner", us(156.8, **on("two", 1.0)), us(163.8, CONFIG_B, **on("one", 0.987)), True),
    (
        "0.4 % ahead of a default elsewhere",
        us(100, **on("one", 1.0)),
        us(90, CONFIG_B, **on("two", 0.996)),
        False,
    ),
    (
        "0.6 % ahead of a default elsewhere",
        us(100, **on("one", 1.0)),
        us(120, CONFIG_B, **on("two", 0.994)),
        True,
    ),
    ("0.6 % between two visits", us(100, **on("one", 0.8)), us(90, CONFIG_B, **on("two", 0.795)), False),
    ("1.3 % between two visits", us(100, **on("one", 0.8)), us(120, CONFIG_B, **on("two", 0.79)), True),
    ("a wide interval", us(100, **on("one", 0.8)), us(90, CONFIG_B, **on("two", 0.79, 0.02)), False),
    ("one card: times decide", us(100, **on("one", 0.8)), us(97, CONFIG_B, **on("one", 0.9)), True),
    ("one card, within the noise", us(100, **on("one", 0.8)), us(99, CONFIG_B, **on("one", 0.7)), False),
    (
        "another driver is another card",
        us(100, **on("one", 0.8)),
        us(97, CONFIG_B, **on("one", 0.9, driver="590")),
        False,
    ),
    # no ratios to one default: only by more than two cards may differ, 6 % and the noise of 1.4 %
    (
        "5 % faster, no ratio in the table",
        us(163.8, **on("one")),
        us(156.8, CONFIG_B, **on("two", 1.0)),
        False,
    ),
    (
        "5 % faster, no ratio in the new row",
        us(163.8, **on("one", 0.9)),
        us(156.8, CONFIG_B, **on("two")),
        False,
    ),
    ("9 % faster, no ratios", us(100, **on("one")), us(91, CONFIG_B, **on("two")), True),
    ("slower, no ratios", us(100, **on("one")), us(101, CONFIG_B, **on("two")), False),
    (
        "another default",
        us(100, **on("one", 1.0)),
        us(95, CONFIG_B, **on("two", 0.9, default="other")),
        False,
    ),
    # both in one final
    ("its runner-up, 4 %", us(100, **on("one")), ahead(us(104, CONFIG_B, **on("two")), CONFIG_A, 1.04), True),
    (
        "its runner-up as an earlier version printed it",
        us(100, OLD_A, **on("one")),
        ahead(us(104, CONFIG_B, **on("two")), CONFIG_A, 1.04),
        True,
    ),
    ("the same config as an earlier version printed it", us(100, OLD_A), us(120, date=LATE), True),
    (
        "the same default as an earlier version printed it",
        us(100, **on("one", 0.8, default=OLD_A)),
        us(120, CONFIG_B, **on("two", 0.79, default=CONFIG_A)),
        True,
    ),
    (
        "its runner-up, 0.4 %",
        us(100, **on("one")),
        ahead(us(95, CONFIG_B, **on("two")), CONFIG_A, 1.004),
        False,
    ),
    ("another runner-up", us(100, **on("one")), ahead(us(99, CONFIG_B, **on("two")), "c", 1.04), False),
    (
        "each the other's runner-up",
        ahead(us(100, **on("one")), CONFIG_B, 1.04),
        ahead(us(99, CONFIG_B, **on("two")), CONFIG_A, 1.04),
        False,
    ),
    (
        "a runner-up, and nobody says by how much",
        us(100, **on("one")),
        ahead(us(99, CONFIG_B, **on("two")), CONFIG_A, float("nan")),
        False,
    ),
    ("a ratio that is none", us(100, **on("one", 1.0)), us(95, CONFIG_B, **on("two", -0.9)), False),
    ("no card named against a card", us(100), us(95, CONFIG_B, **on("two")), False),
    ("another card, the same config", us(100, **on("one", 0.9)), us(120, date=LATE, **on("two", 0.9)), True),
]


@pytest.mark.parametrize(
    ("old", "new", "stands"), [case[1:] for case in TRUTH], ids=[case[0] for case in TRUTH]
)
def test_merge_rule(old: Row | None, new: Row, stands: bool) -> None:
    decision = choose(old, new, CURRENT)
    assert decision.recorded is stands
    assert decision.row is (new if stands else old)
    assert decision.reason and "\n" not in decision.reason


def test_an_earlier_version_printed_no_pdl() -> None:
    assert OLD_A != CONFIG_A


def test_noise_uses_the_sides_that_face_each_other() -> None:
    old = dataclasses.replace(row(us=20.0), low_us=17.0, high_us=90.0)  # 3 towards faster
    new = dataclasses.replace(row(us=10.0), low_us=1.0, high_us=14.0)  # 4 towards slower
    assert noise_of_difference(old, new) == pytest.approx(5.0)


def test_stale_reason_names_what_changed() -> None:
    assert stale_reason(row(), CURRENT) == ""
    assert stale_reason(row(**STALE), CURRENT) == "kernel source src-0, now src-1"
    assert stale_reason(row(dsl_version="4.7.0", model="m"), CURRENT) == (
        "dsl version 4.7.0, now 4.8.1, model m, now model-1"
    )
    assert stale_reason(row(MEASURED), CURRENT) == ""  # no model enters a measurement
    assert stale_reason(row(**STALE), None) == ""


# ---- file -----------------------------------------------------------------------------------------------------------


def test_row_round_trip() -> None:
    full = dataclasses.replace(
        row(),
        object=ObjectRef(key="ab" * 32, file="kernel.o", sha256="0" * 64),
        evidence={"mma": 12.5, "versions": {"torch": "2.13"}},
        cubin_sha256="ff",
    )
    for one in (row(), full):
        assert Row.from_record(json.loads(json.dumps(one.to_record()))) == one


@pytest.mark.parametrize("times", [(math.nan, 1, 2), (1, 2, 3), (3, 1, 2), (0, 0, 0), (1, 1, math.inf)])
def test_row_needs_a_time(times: tuple[float, float, float]) -> None:
    us, low, high = times
    with pytest.raises(InputError, match="low_us <= time_us <= high_us"):
        dataclasses.replace(row(), time_us=us, low_us=low, high_us=high)


def test_file_is_sorted_json_with_one_row_per_line(tmp_path: Path) -> None:
    keys = [at(4352), at(256), at(17), at(256, k=256), at(256, lora_dtype="bf16")]
    record(tmp_path, [row(key=key) for key in keys], CURRENT)
    lines = (tmp_path / "dispatch.json").read_text().splitlines()
    assert len(lines) == 1 + len(keys) + 1
    document = json.loads("\n".join(lines))
    assert document["schema"] == 2
    shapes = [
        tuple(entry["problem"][name] for name in ("lora_dtype", "m", "k")) for entry in document["rows"]
    ]
    # dtypes as words, sizes as numbers: 17 before 256 before 4352
    assert shapes == [
        ("bf16", 256, 3840),
        ("fp16", 17, 3840),
        ("fp16", 256, 256),
        ("fp16", 256, 3840),
        ("fp16", 4352, 3840),
    ]
    for line, entry in zip(lines[1:-1], document["rows"], strict=True):
        assert json.loads(line.removesuffix(",")) == entry


def test_another_tune_changes_one_line(tmp_path: Path) -> None:
    path = tmp_path / "dispatch.json"
    record(path, [row(key=at(m)) for m in (17, 256, 4352)], CURRENT)
    before = path.read_text().splitlines()
    record(path, [row(MEASURED, 5, key=at(256))], CURRENT)
    after = path.read_text().splitlines()
    assert [one == other for one, other in zip(before, after, strict=True)] == [True, True, False, True, True]


def test_record_twice_is_no_change(tmp_path: Path) -> None:
    path = tmp_path / "dispatch.json"
    assert [decision.recorded for decision in record(path, [row()], CURRENT)] == [True]
    before = path.stat().st_ino
    decisions = record(path, [row(date=LATE)], CURRENT)
    assert [decision.recorded for decision in decisions] == [False]
    assert path.stat().st_ino == before


def _record_many(path: Path, first: int, count: int) -> None:
    for m in range(first, first + count):
        record(path, [row(key=at(m))], CURRENT)


def test_two_tuners_on_one_table(tmp_path: Path) -> None:
    path = tmp_path / "dispatch.json"
    tuners = [SPAWN.Process(target=_record_many, args=(path, first, 50)) for first in (1, 1001)]
    for tuner in tuners:
        tuner.start()
    for tuner in tuners:
        tuner.join(120)
        assert tuner.exitcode == 0
    expected = [*range(1, 51), *range(1001, 1051)]
    assert [entry["problem"]["m"] for entry in json.loads(path.read_text())["rows"]] == expected


def test_unknown_schema_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "dispatch.json"
    text = '{"schema": 99, "rows": []}'
    path.write_text(text)
    for attempt in (lambda: DispatchTable.load(path), lambda: record(path, [row()], CURRENT)):
        with pytest.raises(InputError, match=r"dispatch\.json has schema 99, this version reads 2"):
            attempt()
    assert path.read_text() == text


NO_TABLE = {"cut": '{"schema": 2, "ro', "no schema": "[]", "empty": "", "bytes": "\x00" * 9}


@pytest.mark.parametrize("text", NO_TABLE.values(), ids=NO_TABLE)
def test_what_is_no_table_is_kept_aside(tmp_path: Path, text: str) -> None:
    path = tmp_path / "dispatch.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"dispatch\.json is damaged") as caught:
        DispatchTable.load(path)
    assert "\n" not in str(caught.value)
    assert path.read_text() == text
    told: list[str] = []
    record(path, [row()], CURRENT, say=told.append)
    assert (tmp_path / "dispatch.json.damaged-1").read_text() == text
    assert len(told) == 1 and "kept as dispatch.json.damaged-1" in told[0]
    assert list(DispatchTable.load(path).rows) == [KEY]


def test_rows_of_two_archs_do_not_share_a_table(tmp_path: Path) -> None:
    record(tmp_path, [row()], CURRENT)
    before = (tmp_path / "dispatch.json").read_text()
    with pytest.raises(InputError, match="one arch, got sm_100a, sm_103a"):
        record(tmp_path, [row(key=at(1, arch="sm_103a"))], CURRENT)
    assert (tmp_path / "dispatch.json").read_text() == before
    with pytest.raises(InputError, match="one arch"):
        DispatchTable.load(tmp_path, arch=SM103A)


def test_a_table_without_rows_is_of_its_arch(tmp_path: Path) -> None:
    path = tmp_path / "dispatch.json"
    text = '{"schema": 2, "arch": "sm_103a", "rows": [\n\n]}\n'
    path.write_text(text)
    assert DispatchTable.load(tmp_path, arch=SM103A).rows == {}
    assert DispatchTable.load(tmp_path).arch is SM103A
    with pytest.raises(InputError, match="one arch, got sm_100a, sm_103a"):
        DispatchTable.load(tmp_path, arch=SM100A)
    with pytest.raises(InputError, match="one arch, got sm_100a, sm_103a"):
        record(tmp_path, [row()], CURRENT)
    record(tmp_path, [], CURRENT)
    assert path.read_text() == text


def test_an_arch_that_is_no_name_is_damage(tmp_path: Path) -> None:
    (tmp_path / "dispatch.json").write_text('{"schema": 2, "arch": 90, "rows": []}')
    with pytest.raises(InputError, match='"arch" must be a name, got 90'):
        DispatchTable.load(tmp_path, arch=SM100A)


def test_no_table(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no dispatch table at .*; tune first"):
        DispatchTable.load(tmp_path)
    assert DispatchTable.load(tmp_path, arch=SM100A).rows == {}


# ---- lookup ---------------------------------------------------------------------------------------------------------

DEFAULT = KernelConfigSm100a.parse(CONFIG_A).replace(mma_tiler_mn=(128, 64), cluster_shape_mn=(1, 1))


def accept(config: KernelConfigSm100a, problem: GemmProblem, arch: Arch) -> Legal | Rejection:
    """Legality that needs no DSL; the budget is not looked at."""
    return Legal(config, None)  # type: ignore[arg-type]


def table_of(*rows: Row, **options: Any) -> DispatchTable:
    return DispatchTable(rows, SM100A, **{"default": lambda problem: DEFAULT, "rules": accept, **options})


def look(table: DispatchTable, m: int, k: int = 3840, n: int = 3072, r: int = 128, **dtypes: str) -> Lookup:
    return table.lookup(GemmProblem(m=m, k=k, n=n, r=r, **dtypes))


@pytest.mark.parametrize(
    ("m", "source"),
    [
        (128, "exact"),
        (512, "exact"),
        (1, "nearest M 128"),
        (255, "nearest M 128"),  # 255/128 = 1.992, 512/255 = 2.008
        (256, "nearest M 512"),  # both are one doubling away: the larger
        (257, "nearest M 512"),
        (100_000, "nearest M 512"),
    ],
)
def test_nearest_m(m: int, source: str) -> None:
    table = table_of(row(key=at(128)), row(key=at(512)))
    found = look(table, m)
    assert found.source == source
    assert found.row is not None and f"{found.row.key.problem.m}" in (source.split()[-1], str(m))
    assert found.config == KernelConfigSm100a.parse(CONFIG_A)
    assert found.problem_class == GemmProblem(m=m, k=3840, n=3072, r=128).problem_class
    assert found.reason.startswith(source)


@pytest.mark.parametrize(
    "other",
    [{"k": 3872}, {"n": 3080}, {"r": 0}, {"lora_dtype": "bf16"}, {"out_dtype": "bf16"}],
    ids=lambda other: next(iter(other)),
)
def test_other_bucket_falls_to_the_default(other: dict[str, Any]) -> None:
    found = look(table_of(row()), 4352, **other)
    assert (found.source, found.row, found.config) == ("default", None, DEFAULT)
    assert "default rule" in found.reason


def test_nearest_row_that_is_illegal_gives_way_to_the_next() -> None:
    # K = 3840 has 15 k-tiles of 256, so that 16 splits are one too many: the rules themselves refuse it
    illegal = CONFIG_A.replace("split_k=1", "split_k=16")
    unknown = CONFIG_A.replace("num_c_stage=2", "num_d_stage=2")
    table = table_of(row(key=at(128), config=illegal), row(key=at(64), config=unknown), row(key=at(2048)))
    found = look(table, 100)
    assert found.source == "nearest M 2048"
    assert "passed over nearest M 128: split_k" in found.reason
    assert "unknown knob 'num_d_stage'" in found.reason


def test_only_illegal_rows_fall_to_the_default() -> None:
    illegal = CONFIG_A.replace("cluster_shape_mn=2x1", "cluster_shape_mn=1x1")
    found = look(table_of(row(config=illegal)), 4352)
    assert found.source == "default"
    assert "passed over exact: cluster_of_pairs" in found.reason


def test_illegal_default_is_a_bug_of_ours() -> None:
    table = table_of(rules=lambda config, problem, arch: Rejection("smem_capacity", "too much"))
    with pytest.raises(AssertionError, match="smem_capacity: too much"):
        look(table, 4352)


def test_stale_row_is_found_named_and_checked_again() -> None:
    asked = []

    def rules(config: KernelConfigSm100a, problem: GemmProblem, arch: Arch) -> Legal | Rejection:
        asked.append(config)
        return accept(config, problem, arch)

    found = look(table_of(row(**STALE), current=CURRENT, rules=rules), 4352)
    assert found.source == "exact"
    assert "stale (kernel source src-0, now src-1)" in found.reason
    assert asked == [KernelConfigSm100a.parse(CONFIG_A)]
    asked.clear()
    look(table_of(row(), current=CURRENT, rules=rules), 4352)
    look(table_of(row(), current=CURRENT, rules=rules), 4000)
    assert asked == []  # fresh rows need no budget, and so no DSL


def test_a_row_that_was_not_checked_is_shown_and_not_for_launching() -> None:
    rows = [row(key=at(4352), **NEVER), row(key=at(2176), **ONCE), row(key=at(17), **WHOLE)]
    shown = table_of(*rows)
    assert (look(shown, 4352).source, look(shown, 4352).reason) == (
        "exact",
        "exact row, modelled 20 us, not checked",
    )
    assert look(shown, 2176).reason == "exact row, modelled 20 us, checked as a candidate only"
    assert look(shown, 17).reason == "exact row, modelled 20 us"
    found = look(table_of(*rows, checked_only=True), 4352)
    assert found.source == "nearest M 2176"
    assert found.reason.endswith("passed over exact: not checked")


WITHOUT_DSL = """
import sys
from pathlib import Path
sys.modules["cutlass"] = None  # importing it raises ImportError
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tuner.tables.dispatch import DispatchTable
table = DispatchTable.load(Path(sys.argv[1]))
for m in (4352, 4000):
    print(table.lookup(GemmProblem(m=m, k=3840, n=3072, r=128)).source)
"""


def test_a_machine_without_the_dsl_can_look_up(tmp_path: Path) -> None:
    record(tmp_path, [row()], CURRENT)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_DSL, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.stdout == "exact\nnearest M 4352\n"


def test_key_of_another_arch() -> None:
    with pytest.raises(InputError, match="answers for sm_100a, got a key of sm_103a"):
        table_of(row()).lookup_key(at(1, arch="sm_103a"))


def test_second_answer_comes_from_memory() -> None:
    table = table_of(*(row(key=at(m)) for m in range(1, 200)))
    for m in (5, 1000):
        key = at(m)
        assert table.lookup_key(key) is table.lookup_key(key)


def test_answers_in_memory_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.tables.dispatch.MAX_READY", 10)
    table = table_of(row())
    for m in range(1, 100):
        assert look(table, m).row is not None
    assert len(table._ready) <= 10


def test_neighbours_are_ordered_by_doublings() -> None:
    rows = [
        row(key=at(4352)),  # itself: not a neighbour
        row(key=at(4352, k=15360)),  # 2 doublings of K, of which five count as one of M
        row(key=at(4352, r=0)),  # log2(144 / 16) = 3.17
        row(key=at(4352, k=7680, n=6144, r=32)),  # 1 + 1 + log2(144 / 48) = 3.58
        row(key=at(2176)),  # 1 doubling of M
        row(key=at(4352, out_dtype="bf16")),  # 0, but other dtypes
    ]
    found = table_of(*rows).neighbours(KEY.problem, 10)
    assert [one.key for one in found] == [one.key for one in rows[1:]]
    assert len(table_of(*rows).neighbours(KEY.problem, 2)) == 2


def test_object_path_checks_the_bytes(tmp_path: Path) -> None:
    key = "ab" * 32
    (tmp_path / key).mkdir()
    object_file = tmp_path / key / "kernel.o"
    object_file.write_bytes(b"hello")
    sha256 = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"  # of "hello"
    reference = ObjectRef(key=key, file="kernel.o", sha256=sha256)
    found = look(table_of(dataclasses.replace(row(), object=reference)), 4352)
    assert found.object_path(tmp_path) == object_file
    object_file.write_bytes(b"hellO")
    assert found.object_path(tmp_path) is None
    object_file.unlink()
    assert found.object_path(tmp_path) is None
    assert look(table_of(row()), 4352).object_path(tmp_path) is None


# ---- from trials ----------------------------------------------------------------------------------------------------


def trial(number: int, us: float, config: str, **changes: Any) -> Trial:
    fields: dict[str, Any] = {
        "number": number,
        "op": "svdquant_gemm",
        "problem": "4352,3840,3072,128",
        "options": {"lora_dtype": "fp16", "out_dtype": "fp16"},
        "device": "b200",
        "arch": "sm_100a",
        "config": config,
        "resolved": config,
        "status": Status.OK,
        "kind": Kind.MODELLED,
        "us": us,
        "low_us": us - 1,
        "high_us": us + 2,
        "evidence": {"mma": us / 3, "bound": "tensor"},
        "build": {"source_hash": "src-1", "dsl_version": "4.8.1", "cubin_sha256": "ff", "registers": 128},
        "finished": "2025-01-02T00:00:00+00:00",
    }
    return Trial(**{**fields, **changes})


def test_make_row() -> None:
    made = make_row(
        trial(3, 20.0, CONFIG_A),
        model="model-1",
        protocol="analytic",
        runner_up=trial(4, 21.0, CONFIG_B),
        versions={"torch": "2.13"},
    )
    assert made.key == KEY
    assert (made.time_us, made.low_us, made.high_us) == (20.0, 19.0, 22.0)
    assert made.evidence == {"mma": 6.66667, "bound": "tensor", "versions": {"torch": "2.13"}}
    assert made.cubin_sha256 == "ff"
    assert made.runner_up is not None
    assert made.runner_up.config == CONFIG_B
    assert made.runner_up.margin == pytest.approx(0.05)
    assert stale_reason(made, CURRENT) == ""
    assert Row.from_record(made.to_record()) == made


def test_what_is_computed_has_no_noise_but_what_it_states() -> None:
    def noise(kind: Kind, **evidence: float) -> float | None:
        return make_row(
            trial(3, 20.0, CONFIG_A, kind=kind, evidence=evidence), model="", protocol=""
        ).noise_us

    assert noise(Kind.MODELLED) == 0.0
    assert noise(Kind.MODELLED, noise_us=0.5) == 0.5
    assert noise(Kind.SIMULATED) == 0.0
    assert noise(Kind.MEASURED) is None


def test_make_row_states_the_noise_once() -> None:
    made = make_row(trial(3, 20.0, CONFIG_A, evidence={"noise_us": 0.25}), model="", protocol="graph")
    assert made.noise_us == 0.25
    assert made.evidence == {}


def test_make_row_needs_a_time() -> None:
    untimed = dataclasses.replace(trial(3, 20.0, CONFIG_A), us=None, status=Status.FAILED)
    with pytest.raises(ValueError, match="trial 3 has no time"):
        make_row(untimed, model="", protocol="")


@pytest.mark.parametrize("faster", ["old", "new"])
def test_fresh_rows_of_two_kernels_are_compared_by_time(faster: str) -> None:
    """Each is of today's sources of its own kernel, and these differ: neither is stale, whichever is later."""
    current = dataclasses.replace(
        CURRENT, kernel_source=lambda row: "src-2" if row.config == CONFIG_B else "src-1"
    )
    old = row(Kind.SIMULATED, 10.0 if faster == "old" else 20.0, 0.1)
    later = "2025-02-02T00:00:00+00:00"
    new = row(
        Kind.SIMULATED,
        20.0 if faster == "old" else 10.0,
        0.1,
        config=CONFIG_B,
        date=later,
        kernel_source="src-2",
        model=MODELS[Kind.SIMULATED],
    )
    assert not stale_reason(old, current) and not stale_reason(new, current)
    assert choose(old, new, current).row == (old if faster == "old" else new)

"""Which object is launched for a problem: tables and bundles written by hand, answers one can work out."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernel_space.build.cache import BuildCache
from kernel_space.core.arch import SM90A
from kernel_space.core.errors import InputError
from kernel_space.core.registry import parse_config
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tuner.runtime import explain, prepare, state, use_table
from tuner.runtime.choice.choice import Choice
from tuner.runtime.choice.choose import Library
from tuner.runtime.load.trampoline import trampoline_of
from tuner.tables.bundle import FOLDER, INDEX, Bundle, Entry, launch_facts, render_index
from tuner.tables.card_check import CardCheck
from tuner.tables.dispatch import Lookup, render_table
from tuner.tables.row import DispatchKey, ObjectRef, Provenance, Row
from tuner.trials.checked import NEVER_CHECKED
from tuner.trials.outcome import Kind

SIGNATURE = trampoline_of("svdquant_gemm").arguments
STAGES = "num_ab_stage=4 num_dq_stage=2 num_lora_stage=1 num_c_stage=1"
PLAIN = str(parse_config(GemmProblem.operator, SM90A, f"kernel=sm90a_ring tile_mnk=128x128x128 {STAGES}"))
SPLIT = str(
    parse_config(
        GemmProblem.operator,
        SM90A,
        f"kernel=sm90a_ring tile_mnk=64x32x128 consumer_warpgroups=1 {STAGES} split_k=4",
    )
)
CLASS = "r=128 lora_dtype=fp16 out_dtype=fp16"


CHECKED = "checked by hand; then by hand again"


def row(
    shape: str,
    config: str = PLAIN,
    us: float = 10.0,
    object: ObjectRef | None = None,
    checked: str = CHECKED,
    **dtypes: str,
) -> Row:
    return Row(
        key=DispatchKey.of(GemmProblem.parse(shape, **dtypes), "sm_90a"),
        config=config,
        kind=Kind.MEASURED,
        time_us=us,
        low_us=us,
        high_us=us,
        provenance=Provenance(kernel_source="src", dsl_version="4.8.1"),
        protocol="by hand",
        date="2026-01-01T00:00:00+00:00",
        object=object,
        evidence={"checked": checked},
    )


def entry(config: str, problem_class: str = CLASS, **changes: Any) -> Entry:
    data = data_of(config, problem_class)
    digest = hashlib.sha256(data).hexdigest()
    rank, *options = (item.partition("=")[2] for item in problem_class.split())
    dtypes = dict(zip(("lora_dtype", "out_dtype"), options, strict=True))
    problem = GemmProblem.parse(f"256,3840,3072,{rank}", **dtypes)
    values: dict[str, Any] = {
        "arch": "sm_90a",
        "config": config,
        "problem": problem,
        "host": platform.machine(),
        "file": f"{digest[:16]}.o",
        "sha256": digest,
        "cubin_sha256": "c" * 64,
        "prefix": "kernel",
        "arguments": SIGNATURE,
        "launch": launch_facts(parse_config(GemmProblem.operator, SM90A, config), problem),
        "source_hash": "src",
        "dsl_version": "4.8.1",
    }
    return Entry(**{**values, **changes})


def data_of(config: str, problem_class: str) -> bytes:
    return f"object of {config} for {problem_class}".encode()


def write(root: Path, rows: list[Row], entries: list[Entry], device: str = "h200") -> Path:
    """``root/<device>`` with a table and a bundle; returns root."""
    objects = root / device / FOLDER
    objects.mkdir(parents=True)
    (root / device / "dispatch.json").write_text(render_table(sorted(rows, key=lambda one: one.key)))
    for one in entries:
        (objects / one.file).write_bytes(data_of(one.config, one.problem_class))
    (objects / INDEX).write_text(render_index(entries))
    return root


def choose(root: Path, shape: str, **dtypes: str) -> Choice:
    library = Library.load(root / "h200", SM90A, cache_dir=root / "cache")
    return library.choose(GemmProblem.parse(shape, **dtypes))


BOTH = [entry(PLAIN), entry(SPLIT)]


@pytest.mark.parametrize(
    ("m", "source", "config"),
    [
        (16, "exact", SPLIT),
        (256, "exact", PLAIN),
        (17, "nearest M 16", SPLIT),
        (63, "nearest M 16", SPLIT),  # 3.94 times 16; 256 is 4.06 times 63
        (64, "nearest M 256", PLAIN),  # four times from both: the larger
        (100_000, "nearest M 256", PLAIN),
    ],
)
def test_rows_of_the_layer_by_distance_of_m(tmp_path: Path, m: int, source: str, config: str) -> None:
    root = write(tmp_path, [row("16,3840,3072,128", SPLIT), row("256,3840,3072,128")], BOTH)
    answer = choose(root, f"{m},3840,3072,128")
    assert (answer.source, str(answer.config)) == (source, config)
    assert answer.object.read() == data_of(config, CLASS)
    assert "measured 10 us" in answer.reason


def test_a_layer_without_rows_takes_the_nearest_other(tmp_path: Path) -> None:
    rows = [row("16,3840,3072,128", SPLIT), row("16,15360,3840,128"), row("16,3840,3072,32")]
    answer = choose(write(tmp_path, rows, BOTH), "16,4096,4096,128")
    assert answer.source == "nearest layer 16,3840,3072,128"
    assert answer.problem == GemmProblem.parse("16,4096,4096,128")


@pytest.mark.parametrize(
    ("m", "source"),
    [
        (
            16,
            "nearest layer 16,15360,3840,128",
        ),  # 8.1 doublings of M are more than 2.3 of K and N, which count a fifth
        (4352, "exact"),
        (3000, "nearest M 4352"),  # 0.54 doublings; 7.55 and more from the other
    ],
)
def test_a_row_of_its_batch_comes_before_one_of_its_layer(tmp_path: Path, m: int, source: str) -> None:
    """A kernel for 4352 rows is far too large for 16, whichever layer it was tuned for."""
    rows = [row("4352,3840,3072,128"), row("16,15360,3840,128", SPLIT)]
    assert choose(write(tmp_path, rows, BOTH), f"{m},3840,3072,128").source == source


def test_rows_in_other_dtypes_come_a_little_behind(tmp_path: Path) -> None:
    """By a quarter of a doubling of M: behind an equal row and one of a layer a doubling away, before one of half M."""
    bf16, dtypes = CLASS.replace("fp16", "bf16"), {"lora_dtype": "bf16", "out_dtype": "bf16"}
    objects = [entry(PLAIN), entry(PLAIN, bf16), entry(SPLIT, bf16)]
    for number, (other, source) in enumerate(
        [
            ("16,7680,3072,128", "nearest layer 16,7680,3072,128"),
            ("32,3840,3072,128", "nearest layer 16,3840,3072,128"),
        ]
    ):
        rows = [row("16,3840,3072,128"), row(other, SPLIT, **dtypes)]
        root = write(tmp_path / str(number), rows, objects)
        assert choose(root, "16,3840,3072,128", **dtypes).source == source


def of_rank(rank: int) -> str:
    return f"r={rank} lora_dtype=fp16 out_dtype=fp16"


@pytest.mark.parametrize(
    ("shape", "launched", "source"),
    [
        ("256,3840,3072,128", 128, "exact"),
        ("256,3840,3072,112", 128, "exact, R padded to 128"),
        ("256,3840,3072,16", 32, "exact, R padded to 32"),  # the smallest that will do
        ("256,3840,3072,0", 32, "exact, R padded to 32"),
        ("250,3840,3072,144", 256, "nearest M 16, R padded to 256"),
        ("16,4096,3072,240", 256, "nearest layer 16,3840,3072,256, R padded to 256"),
        # R = 32 at eight times its M costs as much as four doublings less of M, a copy and work for R = 128.
        ("2048,3840,3072,32", 32, "nearest M 256"),
        ("16,3840,3072,32", 256, "exact, R padded to 256"),  # 2 + 3 log2(4864 / 3968) = 2.9, and 4 doublings
    ],
)
def test_any_rank_is_launched_as_one_that_has_an_object(
    tmp_path: Path, shape: str, launched: int, source: str
) -> None:
    rows = [row(f"256,3840,3072,{rank}") for rank in (32, 128)] + [row("16,3840,3072,256")]
    root = write(tmp_path, rows, [entry(PLAIN, of_rank(rank)) for rank in (32, 128, 256)])
    answer = choose(root, shape)
    assert (answer.source, answer.launched.r) == (source, launched)
    assert (
        dataclasses.replace(answer.launched, r=answer.problem.r) == answer.problem == GemmProblem.parse(shape)
    )
    assert answer.object.read() == data_of(PLAIN, of_rank(launched))
    assert answer.is_padded == (
        f"launched   {answer.launched}: R padded to {answer.launched.r}" in str(answer)
    )
    again = choose(root, str(answer.launched))  # what is called with padded operands
    assert (again.object, again.row, again.config) == (answer.object, answer.row, answer.config)
    assert not again.is_padded


def test_a_rank_without_an_object_goes_to_the_next(tmp_path: Path) -> None:
    rows = [row(f"256,3840,3072,{rank}") for rank in (32, 64, 128)]
    answer = choose(write(tmp_path, rows, [entry(PLAIN, of_rank(128))]), "256,3840,3072,32")
    assert answer.launched.r == 128 and "passed over exact: its object for r=32" in answer.reason


def test_the_object_for_any_shape_is_the_last_resort(tmp_path: Path) -> None:
    """Bundled without a row: for ranks above all rows', and for sizes that no row's config is legal for."""
    wide = PLAIN.replace("num_c_stage=1", "num_c_stage=2")
    root = write(
        tmp_path,
        [row("16,3840,3072,128", SPLIT)],
        [entry(SPLIT), entry(wide, of_rank(256), problem=GemmProblem.parse("4352,3840,3072,256"))],
    )
    assert choose(root, "5000,3840,3072,48").source == "nearest M 16, R padded to 128"
    for shape in ("1,32,8,144", "1,32,8,0", "16,3840,3072,256"):
        answer = choose(root, shape)
        assert answer.source.startswith("any shape of R=256") and str(answer.config) == wide
        assert "never timed" in answer.reason and answer.launched.r == 256
    with pytest.raises(InputError, match="no kernel for"):
        choose(root, "16,3840,3072,256", out_dtype="bf16")


EVIDENCE = CardCheck(
    card="NVIDIA H200",
    driver="580.1",
    date="2026-11-23",
    version="check version 1",
    problems=("256,3840,3072,128", "1,96,8,128"),
    launches=51,
    worst=0.4321,
)


@pytest.mark.parametrize("checked", [None, EVIDENCE])
@pytest.mark.parametrize("rank", [128, 256])
def test_the_reason_says_what_was_measured_and_what_was_checked(
    tmp_path: Path, checked: CardCheck | None, rank: int
) -> None:
    """A row's time is of its own dtypes; what is launched for others, or for any shape, is another object."""
    bf16 = of_rank(rank).replace("fp16", "bf16")
    root = write(tmp_path, [row("256,3840,3072,128")], [entry(PLAIN), entry(PLAIN, bf16, checked=checked)])
    reason = choose(root, f"256,3840,3072,{rank}", lora_dtype="bf16", out_dtype="bf16").reason
    said = (
        "was checked on NVIDIA H200 (driver 580.1, 2026-11-23, 2 problems, 51 launches each, worst error 0.43 x "
        "tolerance)"
        if checked
        else "was not checked on a card"
    )
    if rank == 128:
        assert reason == f"measured 10 us at 256,3840,3072,128 as fp16; this bf16 object {said}"
    else:
        assert reason.startswith("bundled without a row of R=256, never timed") and reason.endswith(
            f"; it {said}"
        )
    own = choose(root, "256,3840,3072,128").reason
    assert "as fp16" not in own and "not checked" not in own


def test_what_cannot_be_launched_is_passed_over_and_named(tmp_path: Path) -> None:
    rows = [
        row("16,256,3072,128", SPLIT),  # K = 256 has two k-tiles for four splits
        row("64,256,3072,128", PLAIN.replace("num_c_stage=1", "num_c_stage=2")),  # no object
        row("256,256,3072,128"),
    ]
    answer = choose(write(tmp_path, rows, BOTH), "16,256,3072,128")
    assert answer.source == "nearest M 256"
    assert "exact: split_k: every split needs a k-tile" in answer.reason
    assert "nearest M 64: its object for r=128" in answer.reason


def test_a_row_that_was_not_checked_is_passed_over(tmp_path: Path) -> None:
    rows = [row("16,3840,3072,128", SPLIT, checked=NEVER_CHECKED), row("256,3840,3072,128", checked="passed")]
    answer = choose(write(tmp_path / "both", rows, BOTH), "16,3840,3072,128")
    assert (answer.source, str(answer.config)) == ("nearest M 256", PLAIN)
    assert (
        "checked as a candidate only" in answer.reason and "passed over exact: not checked" in answer.reason
    )
    with pytest.raises(InputError, match="exact: not checked.*run tune.py --shape"):
        choose(write(tmp_path / "one", rows[:1], BOTH), "16,3840,3072,128")


def test_what_is_compiled_on_request_is_not_a_row_that_was_not_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table's own answer was never checked: the next one's config is compiled, and said to be unchecked here."""
    compiled: list[str] = []

    def build(lookup: Lookup) -> SimpleNamespace:
        compiled.append(str(lookup.config))
        data = (tmp_path / "kernel.o").write_bytes(b"object")
        assert data
        return SimpleNamespace(
            object_path=tmp_path / "kernel.o", prefix="kernel", arguments=SIGNATURE, object_sha256="00"
        )

    monkeypatch.setattr(Lookup, "build", build)
    rows = [row("16,3840,3072,128", SPLIT, checked=NEVER_CHECKED), row("256,3840,3072,128")]
    with use_table(write(tmp_path, rows, [])):
        answer = prepare("16,3840,3072,128", "h200", compile=True)
    assert compiled == [PLAIN] == [str(answer.config)]
    assert answer.source == "compiled for 16,3840,3072,128" and "not checked" in answer.reason


def test_nothing_to_launch_says_what_to_do(tmp_path: Path) -> None:
    root = write(tmp_path, [row("16,3840,3072,128", SPLIT)], [])
    with pytest.raises(InputError, match="neither bundled nor in the build cache.*prepare") as caught:
        choose(root, "16,3840,3072,128")
    assert "\n" not in str(caught.value)
    with pytest.raises(
        InputError, match="no row with R=144 or more.*tune.py bundle --device h200 makes an object of R=256"
    ):
        choose(root, "16,3840,3072,144")
    with pytest.raises(InputError, match="tune.py bundle --device h200 --also-dtype bf16/fp16 makes"):
        choose(root, "16,3840,3072,144", lora_dtype="bf16")


def test_a_damaged_object_is_not_handed_out(tmp_path: Path) -> None:
    root = write(tmp_path, [row("256,3840,3072,128")], [entry(PLAIN)])
    answer = choose(root, "256,3840,3072,128")
    answer.object.path.write_bytes(b"something else")
    with pytest.raises(InputError, match="is damaged"):
        answer.object.read()
    answer.object.path.unlink()
    with pytest.raises(InputError, match="cannot read the object"):
        answer.object.read()


def test_an_object_that_would_be_launched_in_another_way_is_refused(tmp_path: Path) -> None:
    """Workspace and grid come from the sources of today, the code from the object."""
    facts = {**entry(SPLIT).launch, "workspace_bytes": 256}
    root = write(tmp_path, [row("16,3840,3072,128", SPLIT)], [entry(SPLIT, launch=facts)])
    with pytest.raises(InputError, match="bundled with launch facts .*run tune.py bundle again"):
        choose(root, "16,3840,3072,128")


def test_host_code_of_another_machine_is_not_ours(tmp_path: Path) -> None:
    root = write(tmp_path, [row("256,3840,3072,128")], [entry(PLAIN, host="riscv64")])
    with pytest.raises(InputError, match="neither bundled"):
        choose(root, "256,3840,3072,128")


@pytest.mark.parametrize("whole", [True, False], ids=["as recorded", "other bytes"])
def test_the_build_cache_serves_what_is_not_bundled(tmp_path: Path, whole: bool) -> None:
    data = data_of(PLAIN, CLASS)
    digest = hashlib.sha256(data if whole else b"other").hexdigest()
    arguments = [dataclasses.asdict(argument) for argument in SIGNATURE]
    meta = {"prefix": "kernel", "arguments": arguments, "object_sha256": hashlib.sha256(data).hexdigest()}
    BuildCache(tmp_path / "cache").store("0" * 64, {"kernel.o": data}, meta)
    reference = ObjectRef(key="0" * 64, file="kernel.o", sha256=digest)
    root = write(tmp_path, [row("256,3840,3072,128", object=reference)], [])
    if whole:
        answer = choose(root, "256,3840,3072,128")
        assert (answer.object.read(), answer.object.arguments) == (data, SIGNATURE)
    else:
        with pytest.raises(InputError, match="neither bundled"):
            choose(root, "256,3840,3072,128")


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"schema": 2}', '{"schema": 1, "objects": []}', '{"schema": 3, "objects": []}'],
)
def test_a_damaged_index_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(InputError) as caught:
        Bundle.load(tmp_path, SM90A)
    assert "\n" not in str(caught.value)


def test_an_index_from_before_checks_loads(tmp_path: Path) -> None:
    document = json.loads(render_index(BOTH))
    for record in document["objects"]:
        assert record.pop("checked") is None
    (tmp_path / INDEX).write_text(json.dumps(document))
    assert sorted(Bundle.load(tmp_path, SM90A).entries, key=str) == sorted(BOTH, key=str)


@pytest.mark.parametrize(
    "change",
    [
        {"launches": "many"},
        {"worst": None},
        {"problems": "256"},
        {"problems": [1]},
        {"card": 5},
        {"more": 1},
        7,
        [],
    ],
)
def test_evidence_that_is_none_costs_its_entry(tmp_path: Path, change: Any) -> None:
    document = json.loads(render_index([entry(PLAIN, checked=EVIDENCE), entry(SPLIT)]))
    checked = document["objects"][0]["checked"]
    document["objects"][0]["checked"] = {**checked, **change} if isinstance(change, dict) else change
    (tmp_path / INDEX).write_text(json.dumps(document))
    said: list[str] = []
    assert [one.config for one in Bundle.load(tmp_path, SM90A, say=said.append).entries] == [SPLIT]
    assert len(said) == 1 and "entry 1 is passed over" in said[0] and "checked must" in said[0]


def test_index_round_trip_has_a_line_per_entry(tmp_path: Path) -> None:
    both = [dataclasses.replace(BOTH[0], checked=EVIDENCE), BOTH[1]]
    text = render_index(both)
    assert len(text.splitlines()) == 2 + len(both)
    assert json.loads(text)["objects"][0]["arguments"].startswith("act pointer, ascales pointer")
    (tmp_path / INDEX).write_text(text)
    loaded = Bundle.load(tmp_path, SM90A).entries
    assert sorted(loaded, key=str) == sorted(both, key=str)


def test_use_table_holds_until_its_end(tmp_path: Path) -> None:
    first = write(tmp_path / "one", [row("256,3840,3072,128")], BOTH)
    second = write(tmp_path / "two", [row("256,3840,3072,128", SPLIT)], BOTH)
    with use_table(first):
        with use_table(second / "h200"):
            assert str(explain("256,3840,3072,128", "h200").config) == SPLIT
        assert str(explain("256,3840,3072,128", "h200").config) == PLAIN
        assert prepare("256,3840,3072,128", "h200").source == "exact"
    with pytest.raises(InputError, match="no dispatch table"), use_table(tmp_path):
        pass


@pytest.mark.slow
def test_prepare_compiles_only_when_asked(tmp_path: Path) -> None:
    """With the compiler, from a table that has nothing for this R; then the object serves other M and other layers."""
    with use_table(write(tmp_path, [row("256,3840,3072,128")], [])):
        for shape in ("16,512,256,32", "256,3840,3072,128"):
            with pytest.raises(InputError, match="no kernel for"):
                prepare(shape, "h200")
        before = state.generation
        answer = prepare("16,512,256,32", "h200", compile=True)
        assert answer.source == "compiled for 16,512,256,32"
        assert answer.object.arguments == SIGNATURE
        assert answer.object.read()[:4] == b"\x7fELF"
        assert state.generation > before
        assert explain("100,1024,512,32", "h200").object == answer.object
        before = state.generation
        assert prepare("16,512,256,32", "h200", compile=True).object == answer.object
        assert state.generation == before


def test_a_device_that_is_none() -> None:
    with pytest.raises(InputError, match="device"):
        explain("256,3840,3072,128", "gpu")
    with pytest.raises(InputError, match="device"):
        explain("256,3840,3072,128", "cpu")

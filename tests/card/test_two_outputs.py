"""The check of a card on an operator outside of the project: x -> y, floating-point numbers, and count, whole ones.

Kernels are torch functions on CPU memory; what is right is written out here, not asked of the operator's oracle.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernel_space.core.arguments import Argument
from kernel_space.core.errors import InputError
from kernel_space.core.kernel import Room
from kernel_space.core.registry import kernel, operator
from tuner.card.worker import candidate as candidates
from tuner.card.worker.arena import GUARD_BYTES, Arena
from tuner.card.worker.candidate import Case, Loadable
from tuner.card.worker.chains import LINK, chain_bytes, chain_of, check_chains
from tuner.card.worker.check import CaseReport, CheckFailed, check_case, describe, make_inputs
from tuner.card.worker.launch import OperandSets, bind
from tuner.card.worker.timed_outputs import TimedOutputs
from tuner.devices.card import bytes_needed, oracle_bytes
from tuner.trials.outcome import Status

pytestmark = pytest.mark.usefixtures("one_thread")

ROWSTATS = operator("rowstats")
CONFIG = kernel("rowstats", "rows").config_class()
PROBLEM = ROWSTATS.problem.parse("37,96")
CASE = Case(problem=PROBLEM)
COUNT_BYTES = 37 * 4
Places = Mapping[str, torch.Tensor]
Kernel = Callable[[Places, Arena, int], None]  # tensors by name, memory, number of the launch


def right(places: Places, arena: Arena, launch: int) -> None:
    x = places["x"]
    places["y"].copy_(x * 2)
    places["count"].copy_(torch.tensor([sum(value > 0 for value in row) for row in x.tolist()]))


def run(kernel_: Kernel, repeats: int = 4) -> CaseReport:
    launches = 0

    def bind_(arena: Arena) -> Callable[[], None]:
        places = {
            "x": arena.view("x", torch.float16, (37, 96)),
            "y": arena.view("y", torch.float16, (37, 96)),
            "count": arena.view("count", torch.int32, (37,)),
        }

        def launch() -> None:
            nonlocal launches
            launches += 1
            kernel_(places, arena, launches)

        return launch

    report = check_case(
        bind_, CASE, config=CONFIG, repeats=repeats, seed=3, device="cpu", wait=lambda what: None
    )
    assert report.launches == launches
    return report


def test_a_right_kernel_passes_and_both_outputs_are_counted() -> None:
    report = run(right)
    assert (report.elements, report.max_ratio, report.launches) == (37 * 96 + 37, 0.0, 5)
    assert report.sources == "plain"
    said = describe([report], "a card")
    assert "37,96, operands plain, 5 launches bitwise equal" in said and "mean" not in said


def counts_zeros(places: Places, arena: Arena, launch: int) -> None:
    right(places, arena, launch)
    places["count"].copy_((places["x"] >= 0).sum(dim=1))


def counts_on(places: Places, arena: Arena, launch: int) -> None:
    held = places["count"].clone()
    right(places, arena, launch)
    places["count"] += (held + 1) % 2  # 0 over -1, 1 over the other pattern


def flips_a_sign_of_zero(places: Places, arena: Arena, launch: int) -> None:
    right(places, arena, launch)
    places["y"].view(torch.int16)[0, 5] ^= -0x8000


def one_count_late(places: Places, arena: Arena, launch: int) -> None:
    right(places, arena, launch)
    if launch == 3:
        places["count"][36] += 1


def behind_count(places: Places, arena: Arena, launch: int) -> None:
    right(places, arena, launch)
    start = arena.bytes_of("count").data_ptr() - arena._memory.data_ptr()
    arena._memory[start + COUNT_BYTES] = 1


DEFECTS = {
    "zeros counted": (counts_zeros, Status.WRONG_RESULT, "37,96: count: 11 of 37 elements differ"),
    "counts on": (counts_on, Status.WRONG_RESULT, "what y or count held before), 37,96: count: 37 of 37 elements"),
    "a sign of zero": (flips_a_sign_of_zero, Status.WRONG_RESULT, "37,96: y: 1 of 3552 elements differ"),
    "one launch differs": (one_count_late, Status.RACE, "37,96: count: 1 of 37 elements in elements 36..36: [36] is"),
    "behind count": (behind_count, Status.ILLEGAL_ACCESS, "1 bytes changed behind count, the first 0 past its end"),
}  # fmt: skip


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_of_an_output_is_found_and_the_output_named(name: str) -> None:
    wrong, status, words = DEFECTS[name]
    with pytest.raises(CheckFailed) as failure:
        run(wrong)
    assert (failure.value.status, words in str(failure.value)) == (status, True), str(failure.value)
    assert "\n" not in str(failure.value)


def test_guards_are_as_wide_as_rows_of_each_output() -> None:
    """256 rows of 4096 fp16 are 2 MiB; a count has one element a row."""
    wide: list[Arena] = []

    def bind_(arena: Arena) -> Callable[[], None]:
        wide.append(arena)
        raise InterruptedError

    case = Case(problem=ROWSTATS.problem.parse("3,4096"))
    with pytest.raises(InterruptedError):
        check_case(bind_, case, config=CONFIG, repeats=2, seed=0, device="cpu", wait=lambda what: None)
    starts = [wide[0].address(name) for name in ("x", "y", "count")]
    row = 2 * 4096
    assert starts[1] - (starts[0] + 3 * row) >= 256 * row
    assert starts[2] - (starts[1] + 3 * row) >= 256 * row
    assert starts[0] - wide[0]._memory.data_ptr() >= GUARD_BYTES


def with_changes(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """The operator with other parts, wherever the worker asks for it."""
    changed = dataclasses.replace(ROWSTATS, **changes)
    for module in ("check", "chains", "launch", "candidate"):
        monkeypatch.setattr(f"tuner.card.worker.{module}.operator_of", lambda problem: changed)


def test_an_operator_must_judge_each_output(monkeypatch: pytest.MonkeyPatch) -> None:
    with_changes(
        monkeypatch, check=lambda *args: {"y": ROWSTATS.check(*args)["y"]}
    )  # a count that nobody looks at is never wrong
    with pytest.raises(
        InputError, match="the check of rowstats must judge each of its outputs, y, count; it judges y"
    ):
        run(right)


def test_an_operator_must_judge_by_what_reports_are_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """A verdict without elements and tolerance came as far as the report, and ended the worker there."""
    verdict = SimpleNamespace(ok=True, max_ratio=0.0)
    with_changes(monkeypatch, check=lambda *args: {**ROWSTATS.check(*args), "count": verdict})
    with pytest.raises(InputError, match="must say how count compares by an OutputCheck, it does by Simple"):
        run(right)


def test_an_operator_must_make_the_inputs_that_it_declares(monkeypatch: pytest.MonkeyPatch) -> None:
    with_changes(monkeypatch, inputs=lambda problem, *rest: {"x": torch.zeros(37, 96)})
    with pytest.raises(InputError, match=r"x must be float16 \[37, 96\], got float32"):
        run(right)


# -- every source of operands


def test_each_source_is_tried_and_the_last_one_most_often(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def inputs(problem: Any, seed: int, source: str, device: Any) -> Mapping[str, torch.Tensor]:
        asked.append(source)
        return ROWSTATS.inputs(problem, seed, source, device)

    with_changes(monkeypatch, sources=("plain", "large", "rare"), inputs=inputs)
    report = run(right, repeats=6)
    assert asked == ["plain", "large", "rare"]
    assert report.launches == 3 + 3 + 7 and report.sources == "plain, large, rare"


# -- launches that overlap


class Overlapping:
    """``chains.Lane``: what a launch reads early it reads before the launch ahead of it has stored anything."""

    def __init__(self, early: bool, late_counts: bool = False) -> None:
        self.early, self.late_counts = early, late_counts
        self.sets: Sequence[Places] = ()
        self.chain: list[int] | None = None

    def bind(self, sets: Sequence[Places]) -> Callable[[int], None]:
        self.sets = sets
        return lambda index: self._run([index]) if self.chain is None else self.chain.append(index)

    def eager(self, launch: Callable[[int], None], count: int) -> None:
        self.chain = []
        for index in range(count):
            launch(index)
        chain, self.chain = self.chain, None
        self._run(chain)

    def graph(self, launch: Callable[[int], None], count: int) -> Callable[[], None]:
        return lambda: self._run(range(count))

    def wait(self, what: str) -> None:
        assert "37,96" in what

    def _run(self, order: Iterable[int]) -> None:
        ahead: tuple[Places, torch.Tensor] | None = None
        late: list[tuple[torch.Tensor, torch.Tensor]] = []
        for index in order:
            places = self.sets[index]
            read = self._x(places).clone()
            if ahead is not None:
                self._store(*ahead, late)
            ahead = places, read if self.early else self._x(places)
        assert ahead is not None
        self._store(*ahead, late)
        for place, counts in late[:1]:
            place.copy_(counts)

    def _store(self, places: Places, x: torch.Tensor, late: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        x = x.clone()
        places["y"].view(torch.float16).copy_((x + x).view(-1))
        counts = (x > 0).sum(dim=1, dtype=torch.int32).view(torch.uint8)
        places["count"].copy_(counts)
        if self.late_counts:
            late.append((places["count"], counts))

    def _x(self, places: Places) -> torch.Tensor:
        return places["x"].reshape(-1).view(torch.float16).view(37, 96)


def chained(lane: Overlapping) -> int:
    return check_chains(lane, CASE, repeats=1, seed=0, device="cpu")


def test_the_dtype_of_an_output_says_what_a_launch_reads_of_the_one_before() -> None:
    chain = chain_of(PROBLEM, 1, "cpu")
    assert (chain.output, list(chain.shared)) == ("y", ["x"])
    written = [writer["x"] for writer in chain.writers]
    assert len(written) == 3 and not any(torch.equal(written[0], other) for other in written[1:])
    lane = Overlapping(early=False)
    assert chained(lane) > 0
    assert len(lane.sets) == 2 * LINK
    for link in (0, LINK):
        first, second, reader = lane.sets[link : link + LINK]
        assert first["y"].data_ptr() == second["y"].data_ptr() == reader["x"].data_ptr()
        assert first["count"].data_ptr() == second["count"].data_ptr() != reader["count"].data_ptr()
        assert reader["y"].data_ptr() != first["y"].data_ptr()


def test_a_kernel_that_reads_too_early_is_a_race() -> None:
    with pytest.raises(
        CheckFailed, match=r"37,96: \d+ elements of y of launch 3 of a chain of 6 .* eagerly"
    ) as failure:
        chained(Overlapping(early=True))
    assert failure.value.status is Status.RACE


def test_an_integer_output_that_is_stored_late_is_a_race() -> None:
    """Over the counts of the launch after it, which lie in the same place."""
    with pytest.raises(CheckFailed, match=r"elements of count of launch 2 of a chain of 6") as failure:
        chained(Overlapping(early=False, late_counts=True))
    assert failure.value.status is Status.RACE


def test_weights_are_not_written_by_the_launch_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel may read them early."""
    with_changes(monkeypatch, weights=("x",))
    chain = chain_of(PROBLEM, 1, "cpu")
    assert list(chain.shared) == []
    lane = Overlapping(early=True)
    assert chained(lane) > 0 and len(lane.sets) == 2 * LINK
    with pytest.raises(InputError, match="weights of operator rowstats must be inputs of it, 'y' is none"):
        dataclasses.replace(ROWSTATS, weights=("y",))


# -- launching and timing


def test_arguments_are_those_of_the_signature() -> None:
    seen: list[list[int]] = []
    loaded = SimpleNamespace(
        arguments=ROWSTATS.signature.abi,
        prefix="k",
        call_pointers=lambda pointers: seen.append(list(pointers)),
    )
    addresses = {"x": 256, "y": 512, "count": 1024}
    launch = bind(loaded, PROBLEM, [addresses], 5, stream=lambda: 77)
    launch(0)
    assert len(seen[0]) == 6
    values = [ctypes.c_uint64.from_address(place).value for place in seen[0][:3]]
    numbers = [ctypes.c_int32.from_address(place).value for place in seen[0][3:5]]
    assert (values, numbers) == ([256, 512, 1024], [37, 96])
    assert ctypes.c_uint64.from_address(seen[0][5]).value == 77
    other = SimpleNamespace(**{**vars(loaded), "arguments": (Argument("x", "pointer"),)})
    with pytest.raises(
        InputError, match=r"object k must take the operator's arguments \(x pointer, y pointer, "
    ):
        bind(other, PROBLEM, [addresses], 5, stream=lambda: 0)


def test_operand_sets_have_every_output() -> None:
    sets = OperandSets(PROBLEM, "cpu", 100_000, seed=0)
    each = 2 * 37 * 96 * 2 + COUNT_BYTES
    assert (sets.set_bytes, sets.count) == (each, 300_000 // each + 1)
    assert [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in sets.outputs[0].items()] == [
        ("y", torch.float16, (37, 96)),
        ("count", torch.int32, (37,)),
    ]
    places = [address for one in sets.addresses for address in one.values()]
    assert len(set(places)) == 3 * sets.count
    assert sets.addresses[1]["count"] == sets.outputs[1]["count"].data_ptr()


def test_a_timed_integer_output_that_differs_is_a_race() -> None:
    outputs = [
        {"y": torch.zeros(4, dtype=torch.float16), "count": torch.zeros(3, dtype=torch.int32)} for _ in "ab"
    ]

    def launch(index: int) -> None:
        outputs[index]["y"].fill_(index)
        outputs[index]["count"].fill_(index)

    judged = TimedOutputs(PROBLEM, launch, outputs, lambda what: None)
    for number in range(2):
        launch(number)
    judged.judge()
    outputs[1]["count"][2] = 9
    with pytest.raises(CheckFailed, match="outputs of 1 of 2 operand sets .*: 1 elements of count of set 1"):
        judged.judge()
    judged.blank()
    assert outputs[0]["y"].isnan().all() and (outputs[0]["count"] == -1).all()


# -- what is asked of the worker


def test_a_case_and_a_candidate_come_back_from_json() -> None:
    case = Case.of(CONFIG, PROBLEM)
    record = json.loads(json.dumps(case.record()))
    assert record["op"] == "rowstats" and record["problem"] == {"m": 37, "k": 96}
    assert Case.from_record(record) == case
    candidate = Loadable(
        object_path="k.o", object_sha256="0", prefix="k", arguments=ROWSTATS.signature.abi, config=str(CONFIG)
    )
    back = Loadable.from_record(json.loads(json.dumps(candidate.record())))
    assert back == candidate and back.config_for(PROBLEM) == CONFIG


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"op": "nowhere"}, "there is no operator 'nowhere'"),
        ({"problem": {"m": 37}}, "a problem of rowstats must have m k"),
        ({"rows": 1}, "not the record of a case"),
    ],
)
def test_another_record_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Case.from_record({**CASE.record(), **change})


@pytest.mark.parametrize("config", ["rows=4 vec=2", "kernel=columns rows=4", "kernel=rows lanes=4"])
def test_a_config_that_is_none_is_refused(config: str) -> None:
    candidate = Loadable(object_path="", object_sha256="", prefix="", arguments=(), config=config)
    with pytest.raises(
        InputError, match=r"must begin with kernel=NAME|no kernel 'columns'|unknown knob 'lanes'"
    ):
        candidate.config_for(PROBLEM)


def test_a_kernel_that_needs_a_workspace_needs_one_in_the_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = dataclasses.replace(kernel("rowstats", "rows"), room=lambda config, problem: Room(size=64))
    monkeypatch.setattr(candidates, "kernel_of", lambda config, problem: rows)
    with pytest.raises(
        InputError, match="signature of rowstats must have a Workspace: rowstats/rows needs 64 bytes"
    ):
        Case.of(CONFIG, PROBLEM)


def test_a_worker_finds_an_operator_outside_of_the_project(tmp_path: Path) -> None:
    """In a process of its own, from another folder, with nothing but the environment to tell it."""
    program = (
        f"import sys, json; sys.path[:] = {sys.path!r}\n"
        "from tuner.card.worker.candidate import Case\n"
        f"case = Case.from_record(json.loads({json.dumps(CASE.record())!r}))\n"
        "print(case.problem, type(case.problem).__module__, 'cutlass' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True
    )
    assert done.stdout.strip() == "37,96 rowstats.operator False", done.stderr


def test_memory_is_estimated_from_the_tensors() -> None:
    """Four float64 for each element of x, twelve for each of y and count; a chain holds S thrice and more."""
    elements = 37 * 96
    assert oracle_bytes(PROBLEM) == 8 * (4 * elements + 12 * (elements + 37))
    size = 2 * elements
    assert 3 * 3 * size < chain_bytes(PROBLEM) < 30 * size
    large = ROWSTATS.problem.parse("65536,16384")
    assert bytes_needed(large, 60 << 20) > 8 * 16 * 65536 * 16384


def test_inputs_are_those_of_the_signature_alone() -> None:
    assert list(make_inputs(PROBLEM, 1, "plain", "cpu")) == ["x"]


@pytest.mark.parametrize(
    ("name", "shape", "output", "shared"),
    [
        ("nvfp4_quantize", "37,96,0", "act", []),
        ("nvfp4_quantize", "37,96,16", "lora_act_in", ["x"]),
        ("svdquant_gemm", "37,128,24,16", "y", ["act", "ascales", "lora_act_in"]),
        ("svdquant_gemm", "37,96,24,0", "y", ["act"]),
    ],
)
def test_chains_of_the_project_s_operators(name: str, shape: str, output: str, shared: list[str]) -> None:
    problem = operator(name).problem.parse(shape)
    chain = chain_of(problem, 1, "cpu")
    assert (chain.output, list(chain.shared), len(chain.writers)) == (output, shared, 3)
    names = set(operator(name).signature.inputs)
    assert all(set(tensors) == names for tensors in (chain.reader, *chain.writers))
    assert not set(shared) & set(operator(name).weights)

"""Estimates: the file, the order of kernels that they give, and that a lookup and a launch agree."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from kernel_space.core.arch import SM90A
from kernel_space.core.config import KernelConfig
from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from kernel_space.core.registry import kernel_of, operator, parse_config
from kernel_space.core.traits import Effort, traits_of
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tests.runtime.test_choice import BOTH, PLAIN, SPLIT, row, write
from tuner.cli.main import main
from tuner.devices.classes import DEVICE_CLASSES
from tuner.runtime.choice.choose import Library
from tuner.tables.borrow import table_of
from tuner.tables.estimates import FILE_NAME, Estimate, Estimates, read_estimates, write_estimates
from tuner.tables.order import Offer, by_estimate, efforts, in_steps

ROOT = Path(__file__).parents[2]
H200, H100 = DEVICE_CLASSES["h200"], DEVICE_CLASSES["h100"]
CONFIG = parse_config(GemmProblem.operator, SM90A, PLAIN)
FAR = GemmProblem.parse("64,8192,8192,128")


def effort(problem: GemmProblem = FAR) -> Effort:
    stated = traits_of(kernel_of(CONFIG, problem)).effort
    assert stated is not None
    return stated(CONFIG, problem, H200)


def nominal(problem: GemmProblem = FAR) -> float:
    """Microseconds where every factor is 1."""
    one = effort(problem)
    return float(one.us(dict.fromkeys(one.needs, 1.0), dict.fromkeys(one.choices, 0.0)))


def record(scale: float = 1.0, error: float | None = 0.1, **shares: float) -> dict[str, Any]:
    one = effort()
    fitted = {
        "trials": 99,
        "error": error,
        "factors": dict.fromkeys(one.needs, scale),
        "shares": {**dict.fromkeys(one.choices, 0.0), **shares},
    }
    return {"date": "2026-01-02", "kernels": {"sm90a_ring": fitted}}


def results(tmp_path: Path, *rows: tuple[str, str], **options: float) -> Path:
    root = write(tmp_path, [row(shape, config) for shape, config in rows], BOTH)
    write_estimates(root / "h200", "h200", {"svdquant_gemm": record(**options)})
    return root


# ------------------------------------------------------------------ the file


def test_constants_are_read_as_they_were_written(tmp_path: Path) -> None:
    write_estimates(tmp_path, "h200", {"svdquant_gemm": record(scale=2.0)})
    write_estimates(tmp_path, "h200", {"another": {"date": "2026-01-03", "kernels": {}}})
    found = Estimates.over([tmp_path], H200).of(CONFIG, FAR)
    assert found is not None and found.us == pytest.approx(2 * nominal())
    text = "within 10% (fitted on 99 trials measured on h200, 2026-01-02)"
    assert str(found) == f"estimated {found.us:.4g} us {text}"
    assert set(json.loads((tmp_path / FILE_NAME).read_text())["operators"]) == {"another", "svdquant_gemm"}


def test_folders_shadow_later_ones_kernel_by_kernel(tmp_path: Path) -> None:
    for name, scale in (("user", 3.0), ("shipped", 1.0)):
        write_estimates(tmp_path / name, "h200", {"svdquant_gemm": record(scale=scale)})
    folders = [tmp_path / "none", tmp_path / "user", tmp_path / "shipped"]
    found = Estimates.over(folders, H200).of(CONFIG, FAR)
    assert found is not None and found.us == pytest.approx(3 * nominal())


def test_a_sibling_with_slower_memory_takes_longer(tmp_path: Path) -> None:
    write_estimates(tmp_path, "h200", {"svdquant_gemm": record()})
    here, there = (Estimates.over([tmp_path], one).of(CONFIG, FAR) for one in (H200, H100))
    assert here is not None and there is not None and there.us > here.us


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"schema": 2, "device": "h200", "operators": {}}',
        '{"schema": 1, "operators": []}',
        "null x",
    ],
)
def test_what_is_no_file_of_estimates_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / FILE_NAME
    path.write_text(text)
    with pytest.raises(InputError, match="fit them again, or remove it"):
        read_estimates(path)
    with pytest.raises(InputError):
        write_estimates(tmp_path, "h200", {})
    assert path.read_text() == text


@pytest.mark.parametrize("value", [-1.0, "1", True, 1e300, None])
def test_constants_that_are_none_are_refused(tmp_path: Path, value: object) -> None:
    bad = record()
    bad["kernels"]["sm90a_ring"]["factors"]["mma"] = value
    text = {"schema": 1, "device": "h200", "operators": {"svdquant_gemm": bad}}
    (tmp_path / FILE_NAME).write_text(json.dumps(text))
    with pytest.raises(InputError, match="mma must be a number from 0"):
        read_estimates(tmp_path / FILE_NAME)


def test_constants_of_other_needs_estimate_nothing(tmp_path: Path) -> None:
    """As after a change of the kernel's effort: the nearest row stands until they are fitted again."""
    old = record()
    del old["kernels"]["sm90a_ring"]["factors"]["mma"]
    write_estimates(tmp_path, "h200", {"svdquant_gemm": old})
    assert Estimates.over([tmp_path], H200).of(CONFIG, FAR) is None


# ------------------------------------------------------------------ the order


def offers(*shapes: str) -> list[Offer[str]]:
    configs = (PLAIN, SPLIT)
    asked = GemmProblem.parse("64,3840,3072,128")
    return [
        Offer(
            item=shape,
            config=parse_config("svdquant_gemm", SM90A, configs[number % 2]),
            launched=asked,
            known=GemmProblem.parse(shape),
        )
        for number, shape in enumerate(shapes)
    ]


class Told(Estimates):
    """Microseconds by split_k."""

    def __init__(self, times: dict[int, float | None], error: float) -> None:
        super().__init__(H200)
        self.times, self.error = times, error

    def of(self, config: KernelConfig, problem: Problem) -> Estimate | None:
        us = self.times[int(config.fields()["split_k"])]
        return None if us is None else Estimate(us=us, error=self.error, basis="by hand")


@pytest.mark.parametrize(
    ("known", "split_us", "first"),
    [
        ("64,3840,3072,128", 9.5, "plain"),  # its own row: 10 us less the error of 10 %
        ("64,3840,3072,128", 8.9, "split"),
        ("128,3840,3072,128", 9.5, "split"),  # a doubling away: what is estimated faster
        ("64,4096,3072,128", 9.5, "split"),  # another layer
    ],
)
def test_a_row_near_by_is_left_for_what_is_faster_by_more_than_the_error(
    known: str, split_us: float, first: str
) -> None:
    own = offers(known, "4352,8192,8192,128")
    order = by_estimate(own, Told({1: 10.0, 4: split_us}, error=0.1))
    assert order[0] == {"plain": known, "split": "4352,8192,8192,128"}[first]


def test_adapting_inputs_costs_its_microseconds() -> None:
    own = offers("1,256,256,128", "2,256,256,128")
    padded = Offer(
        item="padded", config=own[1].config, launched=own[1].launched, known=own[1].known, adapting_us=5
    )
    told = Told({1: 10.0, 4: 6.0}, error=0.1)
    assert by_estimate(own, told)[0] == "2,256,256,128"
    assert by_estimate([own[0], padded], told)[0] == "1,256,256,128"


def test_without_an_estimate_the_nearest_stands() -> None:
    own = offers("64,3840,3072,128", "128,3840,3072,128")
    names = [one.item for one in own]
    assert by_estimate(own, None) == names
    assert by_estimate(own, Told({1: None, 4: 1.0}, error=0.1)) == names
    assert (
        by_estimate(own[::-1], Told({1: None, 4: 1.0}, error=0.1)) == names[::-1]
    )  # what has none comes last


def timed(asked: str, *known: tuple[str, float, str]) -> list[str]:
    """Shapes in the order in which their kernels are tried for ``asked``; nothing is estimated."""
    told = Told({1: None, 4: None}, error=0.1)
    config = parse_config("svdquant_gemm", SM90A, PLAIN)
    problem = GemmProblem.parse(asked)
    rows = [
        Offer(
            item=shape,
            config=config,
            launched=problem,
            known=GemmProblem.parse(shape),
            took_us=us,
            origin=origin,
        )
        for shape, us, origin in known
    ]
    return by_estimate(rows, told)


def test_a_row_near_by_is_chosen_by_what_it_is_expected_to_take() -> None:
    """Of 24 columns of tiles of 128 rows 132 SMs take five rows at once. So for 720 rows, six rows of tiles, the
    kernel of 640 takes twice its time, and that of 1024, eight, its own.
    """
    few, many = "640,3840,3072,128", "1024,3840,3072,128"
    assert timed("720,3840,3072,128", (few, 10.0, "a"), (many, 14.0, "a"))[0] == many
    assert timed("720,3840,3072,128", (few, 10.0, "a"), (many, 30.0, "a"))[0] == few
    assert timed("720,3840,3072,128", (few, 10.0, "a"), (many, 14.0, "b"))[0] == few, "of another card"
    assert timed("630,3840,3072,128", (few, 10.0, "a"), (many, 14.0, "a"))[0] == few


def test_the_very_layer_comes_before_a_lent_row_of_another_within_a_doubling() -> None:
    other, own, far = "300,4096,3072,128", "512,3840,3072,128", "640,3840,3072,128"
    assert timed("300,3840,3072,128", (other, 5.0, "b"), (own, 14.0, "a"))[0] == own
    assert timed("300,3840,3072,128", (other, 5.0, "b"), (far, 14.0, "a"))[0] == other
    assert timed("300,3840,3072,128", (other, 5.0, "a"), (own, 14.0, "a"))[0] == other, "of one card"


def test_batches_are_decided_in_steps() -> None:
    sizes = {1: 1, 15: 15, 17: 24, 256: 256, 257: 288, 1025: 1088, 4352: 4352}
    assert {m: in_steps(GemmProblem(m=m, k=256, n=256, r=0)).m for m in sizes} == sizes


# ------------------------------------------------------------------ a table's answers


def test_lookup_and_launch_agree_on_what_is_estimated_fastest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """64,8192,8192 has no row. By nearness the row of M = 64 is taken; 4 splits of its 64 steps are far faster."""
    root = results(tmp_path, ("64,3840,3072,128", PLAIN), ("1024,3840,3072,128", SPLIT))
    library = Library.of_class(root, H200, cache_dir=tmp_path / "cache")
    choice = library.choose(FAR)
    assert str(choice.config) == SPLIT and choice.source == "nearest layer 1024,3840,3072,128"
    assert choice.reason.startswith("estimated ") and "within 10%" in choice.reason
    assert str(table_of(root, H200).table.lookup(FAR).config) == SPLIT
    assert main(["lookup", "--shape", str(FAR), "--device", "h200", "--out", str(root), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["results"]
    assert (found["config"], found["run_time"]) == (SPLIT, None)
    assert found["reason"] == choice.reason and found["object"] == str(choice.object.path)
    (root / "h200" / FILE_NAME).unlink()
    plain = Library.of_class(root, H200, cache_dir=tmp_path / "cache").choose(FAR)
    assert str(plain.config) == PLAIN and "estimated" not in plain.reason


def test_a_problem_with_a_row_keeps_it(tmp_path: Path) -> None:
    root = results(tmp_path, ("64,8192,8192,128", PLAIN), ("1024,3840,3072,128", SPLIT))
    choice = Library.of_class(root, H200, cache_dir=tmp_path / "cache").choose(FAR)
    assert (str(choice.config), choice.source) == (PLAIN, "exact") and "estimated" not in choice.reason


def test_the_shipped_estimates_are_of_today() -> None:
    """Every row of a kernel that states its effort has an estimate within a factor of two of what was measured."""
    from kernel_space.places import shipped

    table = table_of(shipped("results"), H200).table
    rows = [one for one in table.rows.values() if one.key.op in ("svdquant_gemm", "svdquant_gemm_16bit")]
    assert table.estimates is not None and len(rows) > 30
    for one in rows:
        config = parse_config(one.key.op, SM90A, one.config)
        found = table.estimates.of(config, one.key.problem)
        assert found is None or 0.5 < found.us / one.time_us < 2, one.key
    assert (
        sum(
            table.estimates.of(parse_config(r.key.op, SM90A, r.config), r.key.problem) is not None
            for r in rows
        )
        > len(rows) / 2
    )


# ------------------------------------------------------------------ rows that this package brings


@pytest.mark.parametrize("name", ["h100", "h200"])
def test_every_row_can_be_carried_over_to_other_sizes(name: str) -> None:
    """What a layer without a row of its own asks of its neighbour's: a config that has no answer ends it."""
    device = DEVICE_CLASSES[name]
    table = json.loads((ROOT / "results" / name / "dispatch.json").read_text())
    asked = 0
    for item in table["rows"]:
        known = operator(item["op"]).problem(**item["problem"])
        config = parse_config(item["op"], SM90A, item["config"])
        other = dataclasses.replace(known, m=known.m + 8)
        found = efforts(config, [known, other], device)
        if found is not None:
            asked += 1
            for one in found:
                us = one.us(dict.fromkeys(one.needs, 1.0), dict.fromkeys(one.choices, 0.0))
                assert 0.5 < us < 1e5, item["config"]
    assert asked > len(table["rows"]) / 2

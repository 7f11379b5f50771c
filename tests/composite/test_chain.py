"""What follows from the links of a chain, counted by hand: ``tests/plugins/twice`` is ``rowstats`` two times over."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest
import torch

from kernel_space.build.key import kernel_source_hash
from kernel_space.check.version import check_version
from kernel_space.composite.kernel import composite_kernel
from kernel_space.composite.link import Link, single_problems
from kernel_space.composite.operator import composite
from kernel_space.core import registry
from kernel_space.core.arch import SM90A, SM100A
from kernel_space.core.errors import InputError
from kernel_space.core.kernel import Room
from kernel_space.core.operator import Operator
from kernel_space.core.problem import Problem, option, size
from kernel_space.core.rules import Legal, Rejection, legalize

TWICE = registry.operator("twice")
KNOBS = "rows vec fused use_pdl"
PLAIN = "first_rows=4 first_vec=2 second_rows=1 second_vec=4"


def problem(text: str = "37,68") -> Problem:
    return TWICE.problem.parse(text)


def link(name: str = "only", **changes: Any) -> Link:
    return dataclasses.replace(
        Link(name=name, operator="rowstats", fields={"m": "rows", "k": "width"}), **changes
    )


def chain(*links: Link, of: type[Problem] = TWICE.problem) -> Operator:
    return composite(name=of.operator, formula="", problem=of, links=links)


# -- arguments --


def test_each_tensor_and_size_is_one_argument() -> None:
    assert [argument.name for argument in TWICE.signature.abi] == [
        *("x", "half", "before", "y", "count"),
        *("rows", "width", "stream"),
    ]
    assert TWICE.signature.inputs == ("x",)
    assert TWICE.tensor_bytes(problem()) == {
        "x": 2 * 37 * 68,
        "half": 2 * 37 * 68,
        "before": 4 * 37,
        "y": 2 * 37 * 68,
        "count": 4 * 37,
    }


def test_work_is_that_of_all_links() -> None:
    assert TWICE.work(problem()).operations == {"fp32": 2 * 2 * 37 * 68}


def test_a_chain_of_the_project_reads_what_it_wrote() -> None:
    layer = registry.operator("svdquant_linear")
    inside = {"act", "ascales"}
    assert inside <= set(layer.signature.outputs) and not inside & set(layer.signature.inputs)
    assert layer.signature.outputs[-1] == "y"
    assert not inside & set(layer.weights) and {"wgt", "wscales", "bias"} <= set(layer.weights)


# -- problems --


def test_each_link_has_its_own_problem() -> None:
    assert [str(one) for one in single_problems(problem("5,16"))] == ["5,16", "5,16"]
    assert [one.operator for one in single_problems(problem())] == ["rowstats", "rowstats"]
    assert [one.operator for one in single_problems(registry.operator("rowstats").problem(m=1, k=2))] == [
        "rowstats"
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class OneRow(Problem, operator="one_row", example="64"):
    width: int = size(multiple=2)
    kind: str = option("a", "b")


def test_a_size_may_be_the_same_in_every_problem() -> None:
    rows = Link(name="rows", operator="rowstats", fields={"k": "width"}, fixed={"m": 3})
    other = dataclasses.replace(rows, name="again", tensors={"x": "y", "y": "z", "count": "counts"})
    found = chain(rows, other, of=OneRow)
    assert [argument.name for argument in found.signature.abi][-2:] == ["width", "stream"]
    assert found.tensor_bytes(OneRow(width=10))["x"] == 2 * 3 * 10


@pytest.mark.parametrize(
    "links, says",
    [
        ([link()], "two links or more"),
        ([link("a"), link("a")], "a name of its own"),
        ([link("a"), link("b")], "y is written by link b and taken by one before it"),
        ([link("a"), link("b", fields={"m": "rows"})], "size k of rowstats must have a source"),
        ([link("a"), link("b", fields={"m": "rows", "k": "depth"})], "twice has no field 'depth'"),
        ([link("a"), link("b", fixed={"depth": 3})], "rowstats has no field 'depth'"),
        ([link("a"), link("b", operator="no_such")], "there is no operator 'no_such'"),
        (
            [link("a", tensors={"count": "half"}), link("b", tensors={"x": "half", "y": "z"})],
            "half is int32 .256. for link a and fp16 .256, 1024. for link b",
        ),
    ],
)
def test_links_that_do_not_fit_are_named(links: list[Link], says: str) -> None:
    with pytest.raises(InputError, match=says):
        chain(*links)


def test_what_is_compiled_into_a_link_is_compiled_into_the_chain() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Loose(Problem, operator="loose", example="8,64,16"):
        a: int = size()
        b: int = size(multiple=32)
        c: int = size(multiple=16)

    gemm = Link(name="gemm", operator="svdquant_gemm", fields={"m": "a", "k": "b", "n": "b", "r": "c"})
    with pytest.raises(InputError, match="r is compiled into an object, so c of loose must be"):
        gemm.check(Loose)


# -- kernels and configs --


def test_a_kernel_of_a_chain_is_one_of_each_link() -> None:
    assert TWICE.kernels == ("rows+rows",)
    layer = registry.operator("svdquant_linear")
    for arch in (SM90A, SM100A):
        first, second = (
            [one.name for one in registry.kernels_of(name, arch)]
            for name in ("nvfp4_quantize", "svdquant_gemm")
        )
        found = [one.name for one in registry.kernels_of(layer.name, arch) if one.parts]
        assert sorted(found) == sorted(f"{a}+{b}" for a in first for b in second)


def test_knobs_are_the_links_with_their_name() -> None:
    config_class = registry.kernel("twice", "rows+rows").config_class
    assert list(config_class.knob_names()) == [
        f"{one}_{knob}" for one in ("first", "second") for knob in KNOBS.split()
    ]
    config = config_class.parse(PLAIN)
    assert str(config_class.parse(str(config))) == str(config)
    assert str(config.of("second")) == "kernel=rows rows=1 vec=4 fused=true use_pdl=false"
    assert config_class.join({"first": config.of("first"), "second": config.of("second")}) == config


def test_a_config_goes_to_another_process() -> None:
    config = registry.parse_config("twice", SM100A, PLAIN)
    found = pickle.loads(pickle.dumps(config))
    assert found == config and type(found) is type(config)


def test_rules_are_the_links_own() -> None:
    """A vector must divide the width, 68."""
    found = legalize(registry.parse_config("twice", SM100A, PLAIN), problem(), SM100A)
    assert isinstance(found, Legal) and found.budget.smem_bytes == 0
    found = legalize(registry.parse_config("twice", SM100A, f"{PLAIN} second_fused=false"), problem(), SM100A)
    assert isinstance(found, Legal)
    bad = PLAIN.replace("second_vec=4", "second_vec=8")
    found = legalize(registry.parse_config("twice", SM100A, bad), problem(), SM100A)
    assert found == Rejection("second_vec", "in second, vec must divide K, got 8 at K = 68")


def test_stages_are_solved_and_the_budget_is_the_fullest_links() -> None:
    layer = registry.operator("svdquant_linear").problem.parse("300,3840,3072,0")
    knobs = "kernel=rows+sm100a gemm_mma_tiler_mn=256x192 gemm_cluster_shape_mn=2x1"
    alone = registry.operator("svdquant_gemm").problem.parse("300,3840,3072,0")
    gemm = registry.parse_config(
        "svdquant_gemm", SM100A, "kernel=sm100a mma_tiler_mn=256x192 cluster_shape_mn=2x1"
    )
    whole = legalize(registry.parse_config("svdquant_linear", SM100A, knobs), layer, SM100A)
    part = legalize(gemm, alone, SM100A)
    assert isinstance(whole, Legal) and isinstance(part, Legal)
    assert str(whole.config.of("gemm")) == str(part.config)
    assert whole.budget.smem_bytes == part.budget.smem_bytes
    assert whole.budget.tmem_columns_allocated == part.budget.tmem_columns_allocated
    assert [table.title for table in whole.budget.tables] == ["gemm: SMEM per CTA", "gemm: TMEM per SM"]
    assert whole.config.cluster_size == 2
    crowded = registry.parse_config("svdquant_linear", SM100A, f"{knobs} gemm_num_ab_stage=12")
    rejection = legalize(crowded, layer, SM100A)
    assert isinstance(rejection, Rejection) and rejection.rule == "smem_capacity"
    assert "gemm: SMEM per CTA must hold" in rejection.reason


def test_only_the_last_link_may_take_workspace() -> None:
    """Links overlap in time, and counters are at its start."""
    plain = registry.kernel("rowstats", "rows")
    greedy = dataclasses.replace(plain, room=lambda config, problem: Room(size=4 * problem.m, zeroed=8))
    assert TWICE.composed is not None
    links = TWICE.composed.links
    last = composite_kernel("twice", links, (plain, greedy))
    config = last.config_class.parse(PLAIN)
    assert last.room(config, problem()) == Room(size=4 * 37, zeroed=8)
    assert not any(rule(config, problem()) for rule in last.knob_rules.values())
    first = composite_kernel("twice", links, (greedy, plain))
    reason = first.knob_rules["first_workspace"](config, problem())
    assert reason == "in first, a link that others follow must take no workspace, rows takes 148 bytes"


def test_sources_of_all_links_count() -> None:
    """What a chain is compiled from, and what its verdicts depend on, changes with any of its links."""
    whole, part = registry.kernel("twice", "rows+rows"), registry.kernel("rowstats", "rows")
    assert kernel_source_hash(whole) != kernel_source_hash(part)
    changed = dataclasses.replace(whole, parts=(part, registry.kernel("nvfp4_quantize", "rows")))
    assert kernel_source_hash(changed) != kernel_source_hash(whole)
    assert len({check_version(name) for name in ("twice", "rowstats", "svdquant_linear")}) == 3


# -- inputs and oracle --


def outputs_of(x: torch.Tensor) -> dict[str, torch.Tensor]:
    """By the formulas."""
    counts = [(one > 0).sum(dim=1, dtype=torch.int32) for one in (x, 2 * x)]
    return {"x": x, "half": 2 * x, "before": counts[0], "y": 4 * x, "count": counts[1]}


def test_right_outputs_are_right_and_a_wrong_one_is_named() -> None:
    whole, config = problem("5,16"), registry.parse_config("twice", SM100A, PLAIN)
    given = TWICE.inputs(whole, 0, TWICE.sources[0], "cpu")
    assert list(given) == ["x"]
    right = outputs_of(given["x"])
    assert all(check.ok for check in TWICE.compare(whole, right, config).values())
    right["before"][2] += 1
    found = TWICE.compare(whole, right, config)
    assert {name for name, check in found.items() if not check.ok} == {"before"}


def test_a_link_is_judged_on_what_the_one_before_really_wrote() -> None:
    """One wrong element stays one finding: it does not make everything behind it wrong."""
    whole, config = problem("5,16"), registry.parse_config("twice", SM100A, PLAIN)
    wrong = outputs_of(TWICE.inputs(whole, 0, TWICE.sources[0], "cpu")["x"])
    wrong["half"][1, 3] = 96.0
    wrong["y"][1, 3] = 192.0
    wrong["count"] = (wrong["half"] > 0).sum(dim=1, dtype=torch.int32)
    found = TWICE.compare(whole, wrong, config)
    assert {name for name, check in found.items() if not check.ok} == {"half"}


def test_ragged_problems_are_those_of_all_links() -> None:
    """rowstats: 2 rows + 1 and one row, of 3 turns of a warp + 2 and one vector twice."""
    config = registry.parse_config("twice", SM100A, PLAIN)
    assert TWICE.ragged is not None
    assert [str(one) for one in TWICE.ragged(config, problem())] == ["9,196", "1,4", "3,392", "1,8"]

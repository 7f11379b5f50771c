"""The search space: choices, the default rule on every kind of problem, designs and spelling."""

from __future__ import annotations

import itertools
import random
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernel_space.core.arch import SM90A, SM100A, Arch
from kernel_space.core.config import print_knob
from kernel_space.core.errors import InputError
from kernel_space.core.rules import Legal, legalize
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from tests.space.brute_force import small
from tuner.cli.options.common import problems_of
from tuner.space.files import SPACES, read_kernel_space
from tuner.space.space import SearchSpace


@pytest.fixture(scope="module")
def space() -> SearchSpace:
    return SearchSpace.load(GemmProblem.operator, SM100A)


# -- choices --


def test_choices_are_printed_forms_of_the_configs_own_fields(space: SearchSpace) -> None:
    assert tuple(space.knobs) == KernelConfigSm100a.knob_names()
    for name, knob in space.knobs.items():
        assert [print_knob(KernelConfigSm100a.parse_knob(name, text)) for text in knob.choices] == list(
            knob.choices
        )
        assert len(knob.reason) > 40


def test_raw_size_is_the_number_of_combinations(space: SearchSpace) -> None:
    part = small(space, mma_tiler_mn="128x64 256x64", split_k="1 2 4", use_pdl="false true")
    assert part.raw_size == 2 * 3 * 2
    assert space.raw_size > 10**7


def test_every_choice_is_legal_somewhere(space: SearchSpace) -> None:
    """A choice that no rule ever lets through would be dead weight for the sampler."""
    problem, generator = GemmProblem.parse("4352,15360,3840,128"), random.Random(1)
    part = small(
        space,
        **{name: " ".join(space.knobs[name].choices) for name in ("mma_tiler_mn", "cluster_shape_mn")},
        lora_tile_k="64 all",
        num_ab_stage="auto 3",
    )
    for name, choice in ((name, choice) for name, knob in space.knobs.items() for choice in knob.choices):
        tries = (
            KernelConfigSm100a.from_fields({**part.random_config(generator).fields(), name: choice})
            for _ in range(400)
        )
        assert any(isinstance(legalize(config, problem, SM100A), Legal) for config in tries), (name, choice)


# -- the default rule --

DEFAULT_GRID = list(
    itertools.product(
        (1, 2, 17, 64, 65, 128, 255, 256, 257, 2047, 2048, 4352, 1_000_000),
        (32, 64, 96, 256, 3840, 16384),
        (8, 16, 72, 3072, 8184, 8192, 16384),
        (0, 16, 32, 48, 64, 128, 240, 256),
        ("fp16", "bf16"),
    )
)


def test_default_is_legal_for_every_problem(space: SearchSpace) -> None:
    for m, k, n, r, dtype in DEFAULT_GRID:
        problem = GemmProblem(m=m, k=k, n=n, r=r, lora_dtype=dtype, out_dtype=dtype)
        assert isinstance(legalize(space.default(problem), problem, SM100A), Legal), problem


def test_default_is_a_point_of_the_space(space: SearchSpace) -> None:
    for rule in space.defaults:
        assert all(text in space.knobs[name].choices for name, text in rule.config.fields().items())


@pytest.mark.parametrize(
    ("shape", "tile", "swap_ab"),
    [
        ("1,32,8,0", (128, 64), True),
        ("64,3840,3072,128", (128, 64), True),
        ("65,3840,3072,128", (128, 64), False),
        ("256,3840,3072,128", (128, 64), False),
        ("257,3840,3072,128", (256, 128), False),
        ("4352,3840,15360,128", (256, 256), False),
        ("2047,3840,15360,128", (256, 128), False),
        ("4352,10240,3072,32", (256, 128), False),
    ],
)
def test_first_default_rule_that_holds_decides(
    space: SearchSpace, shape: str, tile: tuple[int, int], swap_ab: bool
) -> None:
    config = space.default(GemmProblem.parse(shape))
    assert (config.mma_tiler_mn, config.swap_ab) == (tile, swap_ab)


def test_designs_are_legal_where_their_bounds_say_and_found_there_only() -> None:
    sm90a = SearchSpace.load(GemmProblem.operator, SM90A)
    designs = [design for one in sm90a.kernels.values() for design in one.designs]
    assert {design.config.kernel for design in designs} == {"sm90a_expand", "sm90a_small_m"}
    for design in designs:
        low = design.when.get("m_at_least", 1)
        high = design.when.get("m_at_most", 4352)
        for m in (low, high):
            problem = GemmProblem.parse(f"{m},3840,3072,128")
            assert isinstance(legalize(design.config, problem, SM90A), Legal), (design.config, m)
            assert design.config in sm90a.starts(problem)
        if "m_at_most" in design.when:
            assert design.config not in sm90a.starts(GemmProblem.parse(f"{high + 1},3840,3072,128"))


def test_a_design_outside_the_space_is_named(tmp_path: Path) -> None:
    text = (SPACES / GemmProblem.operator / "sm100a.yaml").read_text()
    path = tmp_path / "space.yaml"
    path.write_text(text + "designs:\n  - config: mma_tiler_k=512\n    reason: none\n")
    with pytest.raises(
        InputError, match="a design must be made of the knobs' choices, mma_tiler_k is not one in"
    ):
        read_kernel_space(path, GemmProblem.operator)


# -- spelling --


def test_spell_turns_a_solved_stage_count_back_into_auto(space: SearchSpace) -> None:
    problem = GemmProblem.parse("4352,3840,3072,128")
    legal = legalize(KernelConfigSm100a(), problem, SM100A)
    assert isinstance(legal, Legal) and legal.config.num_ab_stage == 5
    spelled = space.spell(legal.config, problem, SM100A)
    assert spelled is not None and spelled["num_ab_stage"] == "auto"
    assert legalize(space.config(spelled), problem, SM100A).config == legal.config


def test_spell_gives_up_on_what_is_no_choice(space: SearchSpace) -> None:
    problem = GemmProblem.parse("4352,3840,3072,128")
    assert space.spell(KernelConfigSm100a(prefetch_dist=3), problem, SM100A) is None
    assert space.spell(KernelConfigSm100a(num_ab_stage=2), problem, SM100A) is None  # auto would be 5


# -- files --


def test_unknown_operator_is_one_line() -> None:
    with pytest.raises(
        InputError, match=r"there is no operator 'nothing'; the operators are .*svdquant_gemm"
    ):
        SearchSpace.load("nothing", SM100A)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("  mma_tiler_k:", "  mma_tile_k:", "unknown knob 'mma_tile_k'"),
        ("choices: [256, 128]", "choices: [256, 256]", "mma_tiler_k needs choices, each once, got 256 256"),
        ("choices: [256, 128]", "choices: []", "mma_tiler_k needs choices, each once, got none"),
        ("choices: [256, 128]", "choices: [wide]", "mma_tiler_k must be a whole number, got 'wide'"),
        ("m_at_most: 64", "m_below: 64", "got m_below: 64"),
        ("m_at_most: 64", "m_at_most: few", "got m_at_most: few"),
        (
            "default:",
            "defaults:",
            "it must hold kernel and knobs, and may hold designs and default; got kernel knobs defaults",
        ),
        ("m_at_most: 64", "m_at_most: true", "got m_at_most: True"),
        ("m_at_most: 64", "out_dtype: int8", "got out_dtype: int8"),
        ("knobs:", "knobs: [", "is not YAML"),
        (
            "  - config: mma",
            "  - when: {r_at_least: 1}\n    config: mma",
            "last default rule must hold for every problem",
        ),
    ],
)
def test_mistakes_in_the_file_are_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = (SPACES / GemmProblem.operator / "sm100a.yaml").read_text()
    assert old in text
    path = tmp_path / "space.yaml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError) as error:
        read_kernel_space(path, GemmProblem.operator)
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The operator's files, to be changed."""
    shutil.copytree(SPACES / GemmProblem.operator, tmp_path / GemmProblem.operator)
    monkeypatch.setattr("tuner.space.files.SPACES", tmp_path)
    return tmp_path / GemmProblem.operator


def refused(arch: Arch) -> str:
    with pytest.raises(InputError) as error:
        SearchSpace.load(GemmProblem.operator, arch)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_several_kernels_need_a_default_rule_across_them(files: Path) -> None:
    (files / "sm_90a.yaml").rename(files / "default.yaml")
    found = SearchSpace.load(GemmProblem.operator, SM90A)
    assert found.default(GemmProblem.parse("1,3840,3072,128")).kernel == "sm90a_small_m"
    (files / "default.yaml").unlink()
    assert (
        "has the kernels sm90a_ring, sm90a_expand, sm90a_small_m for sm_90a, so sm_90a.yaml must"
        in refused(SM90A)
    )
    (files / "sm90a_expand.yaml").unlink()
    (files / "sm90a_ring.yaml").unlink()
    assert "sm90a_small_m.yaml must hold the default rule" in refused(SM90A)
    (files / "sm90a_small_m.yaml").unlink()
    assert refused(SM90A).startswith(
        "there is no search space for svdquant_gemm on sm_90a; a kernel for it needs"
    )


@pytest.mark.parametrize("name", ["svdquant_gemm_16bit", "svdquant_linear_16bit"])
def test_an_operator_without_kernels_for_the_device_says_where_it_has_some(name: str) -> None:
    """A chain too, by the first link that has none there."""
    with pytest.raises(InputError, match="has kernels for sm_90a, none for sm_100a; choose another --device"):
        SearchSpace.load(name, SM100A)


def test_one_default_rule_not_two(files: Path) -> None:
    entry = "default: [{config: kernel=sm100a, reason: none}]"
    (files / "sm_100a.yaml").write_text(entry)
    assert "the default rule is in sm_100a.yaml, so sm100a.yaml must not hold one, too" in refused(SM100A)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("default: []", "the last default rule must hold for every problem"),
        ("default: [{config: tile_mnk=32x8x128, reason: r}]", "must begin with kernel=NAME"),
        ("default: [{config: kernel=sm100a, reason: r}]", "kernel must be one of sm90a_ring, sm90a_expand"),
        ("default: [{config: kernel=sm90a_ring, reason: ''}]", "kernel=sm90a_ring needs a reason"),
        ("default: [{config: kernel=sm90a_ring}]", "no file of a search space as docs/search.md says"),
        ("knobs: {}\ndefault: []", "it must hold default alone"),
        ("- default", "it must hold default alone"),
        ("default: 3", "no file of a search space as docs/search.md says"),
        (
            "default: [{when: [m], config: kernel=sm90a_ring, reason: r}]",
            "when must map m_at_least m_at_most",
        ),
    ],
)
def test_mistakes_in_the_rule_across_kernels_are_named(files: Path, text: str, message: str) -> None:
    (files / "sm_90a.yaml").write_text(text)
    said = refused(SM90A)
    assert message in said and said.startswith("sm_90a.yaml")


def test_problem_list_parses() -> None:
    args = SimpleNamespace(
        op=GemmProblem.operator,
        shape=[],
        shapes=SPACES / "problems.yaml",
        dtype="fp16",
        option=[],
        model=None,
    )
    problems = problems_of(args)
    assert len(problems) == len(set(problems)) == 10
    assert GemmProblem.parse("4352,3840,3072,128") in problems

"""A kernel of a composite operator that is no chain: found, searched and judged beside the chains."""

from __future__ import annotations

import itertools

import pytest
import torch

from kernel_space.core import registry
from kernel_space.core.arch import SM90A
from kernel_space.core.errors import InputError
from kernel_space.core.rules import Legal, legalize
from kernel_space.operators.svdquant_linear_16bit import runtime
from kernel_space.operators.svdquant_linear_16bit.problem import HalfLinearProblem
from tuner.space.space import SearchSpace

NAME = "svdquant_linear_16bit"
OWN = "kernel=whole tile_mnk=32x8x128"
CHAIN = "kernel=smooth_mma+narrow"
PROBLEM = HalfLinearProblem.parse("5,416,40,16", dtype="bf16")


def test_it_stands_beside_the_chains() -> None:
    operator = registry.operator(NAME)
    assert "whole" in operator.kernels and "smooth_mma+narrow" in operator.kernels
    assert operator.composed is not None and "whole" not in operator.composed.kernels
    assert registry.kernel(NAME, "whole").parts == ()
    assert len(registry.kernel(NAME, "smooth_mma+narrow").parts) == 2
    with pytest.raises(InputError, match="has no kernel 'half'"):
        registry.kernel(NAME, "half")


def test_one_search_tries_both() -> None:
    space = SearchSpace.load(NAME, SM90A)
    tried = [config.kernel for config in space.starts(PROBLEM)]
    assert tried[:3] == ["sliced", "whole", "staged"] and "+" in tried[3], "designs of the kernels in turn"
    assert "+" in space.default(PROBLEM).kernel


@pytest.mark.slow
def test_its_space_is_counted() -> None:
    """By the rules asked point by point, over part of the choices."""
    some = {
        "num_ab_stage": ("auto", "2"),
        "num_dq_stage": ("auto",),
        "split_k": ("1", "8"),
        "use_pdl": ("false",),
    }
    space = SearchSpace.load(NAME, SM90A).restrict({f"whole.{name}": kept for name, kept in some.items()})
    own = space.kernels["whole"]
    found, choices = own.count(PROBLEM, SM90A), own.values
    points = [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]
    kind = registry.kernel(NAME, "whole").config_class
    legal = sum(isinstance(legalize(kind(**point), PROBLEM, SM90A), Legal) for point in points)
    assert found.raw == len(points) and found.spelled == legal > 0


def made(text: str) -> tuple[dict[str, torch.Tensor], dict[str, bool]]:
    """Inputs with right outputs, but xs, which nobody wrote; which outputs are found right."""
    operator = registry.operator(NAME)
    legal = legalize(registry.parse_config(NAME, SM90A, text), PROBLEM, SM90A)
    assert isinstance(legal, Legal), legal
    inputs = operator.inputs(PROBLEM, 1, "gaussian", "cpu")
    tensors = {**inputs, **runtime.reference(inputs, PROBLEM)}
    tensors["xs"] = torch.full_like(tensors["xs"], torch.nan)
    checks = operator.compare(PROBLEM, tensors, legal.config)
    return tensors, {name: check.ok for name, check in checks.items()}


def test_what_it_leaves_out_is_not_judged_and_feeds_nothing() -> None:
    assert made(OWN)[1] == {"xs": True, "lora_act_in": True, "y": True}
    assert made(CHAIN)[1] == {"xs": False, "lora_act_in": True, "y": False}


def test_what_it_writes_is_judged() -> None:
    tensors, _ = made(OWN)
    config = registry.parse_config(NAME, SM90A, OWN)
    for name in ("lora_act_in", "y"):
        wrong = tensors[name].clone()
        wrong[2, 3] = 2 * wrong[2, 3] + 100
        checks = registry.operator(NAME).compare(PROBLEM, {**tensors, name: wrong}, config)
        assert not checks[name].ok

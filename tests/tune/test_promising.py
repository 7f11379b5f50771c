"""What a search is told of candidates that nobody timed: of a chain, what is known of its links."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_space.core.config import KernelConfig
from kernel_space.core.problem import Problem
from kernel_space.core.registry import operator, parse_config
from kernel_space.core.rules import Legal, legalize
from kernel_space.places import shipped
from tuner.devices.classes import DEVICE_CLASSES
from tuner.devices.select import select_device
from tuner.search.guided import _family
from tuner.simulated.model import modelled_us
from tuner.space.space import SearchSpace
from tuner.tables.borrow import table_of
from tuner.tune.promising import estimate_for, promising

SHAPE = "4352,3840,3072,128"
B200, H200 = DEVICE_CLASSES["b200"], DEVICE_CLASSES["h200"]
LINEAR = operator("svdquant_linear").problem.parse(SHAPE)
NOWHERE = Path("/nonexistent")


def row_of(op: str, device: str, shape: str = SHAPE) -> tuple[Problem, KernelConfig]:
    table = table_of(shipped("results"), DEVICE_CLASSES[device]).table
    (row,) = [one for one in table.rows.values() if (one.key.op, str(one.key.problem)) == (op, shape)]
    return row.key.problem, parse_config(op, DEVICE_CLASSES[device].arch, row.config)


def gemm_of(config: KernelConfig) -> tuple[KernelConfig, Problem]:
    """The GEMM of a layer, put together by hand: the knobs whose names begin with ``gemm_``."""
    knobs = {
        name.removeprefix("gemm_"): text for name, text in config.fields().items() if name.startswith("gemm_")
    }
    kernel = config.kernel.partition("+")[2]
    text = " ".join([f"kernel={kernel}", *(f"{name}={value}" for name, value in knobs.items())])
    arch = B200.arch if kernel == "sm100a" else H200.arch
    return parse_config("svdquant_gemm", arch, text), operator("svdquant_gemm").problem.parse(SHAPE)


def test_of_a_chain_on_b200_the_formula_of_its_gemm() -> None:
    """The quantizer has none: what two layers with the same GEMM are estimated at is the same."""
    _, config = row_of("svdquant_linear", "b200")
    other = config.replace(quantize_tile_m=64)
    us = estimate_for(LINEAR, B200, NOWHERE)
    gemm = modelled_us(*gemm_of(config), B200)
    assert gemm is not None and us(config) == us(other) == pytest.approx(gemm)
    slower = config.replace(gemm_mma_tiler_mn=(128, 64), gemm_cluster_shape_mn=(1, 1))
    found, alone = us(slower), modelled_us(*gemm_of(slower), B200)
    assert found == pytest.approx(alone) and found and found > 1.2 * gemm


def test_of_a_chain_on_h200_what_was_fitted_of_its_gemm() -> None:
    _, config = row_of("svdquant_linear", "h200")
    estimates = table_of(shipped("results"), H200).table.estimates
    assert estimates is not None and (alone := estimates.of(*gemm_of(config))) is not None
    assert estimate_for(LINEAR, H200, shipped("results"))(config) == pytest.approx(alone.us)


def test_of_what_nobody_knows_nothing() -> None:
    problem, config = row_of("nvfp4_quantize", "b200", "4352,3840,128")
    assert estimate_for(problem, B200, NOWHERE)(config) is None


def quantizer_of(config: KernelConfig) -> set[tuple[str, str]]:
    return {(name, text) for name, text in config.fields().items() if name.startswith("quantize_")}


@pytest.mark.slow
def test_a_chain_begins_with_what_its_gemm_promises_and_a_usual_quantizer() -> None:
    """From nothing: the best of them by the GEMM's formula is near the committed row, and each has a quantizer of the
    default rule, which is what nothing is estimated of."""
    space = SearchSpace.load("svdquant_linear", B200.arch)
    found = promising(space, LINEAR, select_device("b200"), NOWHERE, limit=4)
    best, row = (modelled_us(*gemm_of(one), B200) for one in (found[0], row_of("svdquant_linear", "b200")[1]))
    assert len(found) == 4 and best and row and best < 1.05 * row
    rule = [legalize(one, LINEAR, B200.arch) for one in (space.default(LINEAR), *space.starts(LINEAR))]
    usual = [quantizer_of(one.config) for one in rule if isinstance(one, Legal)]
    for one in found:
        assert isinstance(legalize(one, LINEAR, B200.arch), Legal) and quantizer_of(one) in usual


def test_links_that_split_k_otherwise_are_another_family() -> None:
    _, config = row_of("svdquant_linear", "b200")
    assert _family(config) == _family(config.replace(gemm_swizzle_size=8))
    assert _family(config) != _family(config.replace(gemm_split_k=2))
    assert _family(config) != _family(config.replace(quantize_split_k=2))

"""How many clusters each link of a chain is told that the card holds, by the grid it launches."""

from __future__ import annotations

import math

import pytest

from kernel_space.build.build import build
from kernel_space.core.arch import SM100A
from kernel_space.core.registry import operator, parse_config
from kernel_space.core.rules import Legal, legalize
from kernel_space.launch.capture import capture

OPERATOR = operator("svdquant_linear")


@pytest.mark.parametrize(
    ("quantize", "clusters", "pairs"),
    [(3, 49, 73), pytest.param(4, 37, 74, marks=pytest.mark.slow), (2, 74, 74)],
)
def test_a_link_of_pairs_fills_the_card(quantize: int, clusters: int, pairs: int) -> None:
    """148 SMs hold ``clusters`` of the quantizer's ``quantize`` CTAs; as many pairs as fit there multiply."""
    shape = OPERATOR.problem.parse("4352,3840,3072,128")
    text = (
        f"kernel=lora_tcgen05+sm100a quantize_tile_m=96 quantize_split_k={quantize} "
        "gemm_mma_tiler_mn=256x192 gemm_cluster_shape_mn=2x1"
    )
    found = legalize(parse_config(OPERATOR.name, SM100A, text), shape, SM100A)
    assert isinstance(found, Legal), found
    kernel = build(found.config, shape.problem_class, SM100A)
    pointers = {name: 1 << 20 for name in OPERATOR.signature.pointers}
    _, gemm = capture(kernel, *OPERATOR.signature.values(shape, pointers, clusters=clusters))
    assert math.prod(gemm.grid) == 2 * pairs  # 272 tiles

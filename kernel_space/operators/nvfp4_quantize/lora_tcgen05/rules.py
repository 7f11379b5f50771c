"""Legality of the space of ``lora_tcgen05``: the only list of its rules. Each has a name and returns a reason."""

from __future__ import annotations

from kernel_space.core.config import AUTO
from kernel_space.core.kernel import Rule
from kernel_space.operators.nvfp4_quantize.lora_mma.rules import MOST_TILES, rank, split_k
from kernel_space.operators.nvfp4_quantize.lora_tcgen05.budget import LEAST_STAGES
from kernel_space.operators.nvfp4_quantize.lora_tcgen05.config import ROLE_REGISTERS, LoraTcgen05Config
from kernel_space.operators.nvfp4_quantize.lora_tcgen05.layouts import LOAD_N
from kernel_space.operators.nvfp4_quantize.parts.rule_forms import one_of
from kernel_space.operators.nvfp4_quantize.problem import QuantizeProblem

MOST_ROWS = 256  # N of one tcgen05.mma, and of a box of TMA
MOST_STAGES = 16


def canonical(config: LoraTcgen05Config, _: QuantizeProblem) -> LoraTcgen05Config:
    """Every knob has an effect for every problem."""
    return config


def _tile_m(config: LoraTcgen05Config, _: QuantizeProblem) -> str | None:
    if LOAD_N <= config.tile_m <= MOST_ROWS and config.tile_m % LOAD_N == 0:
        return None
    return f"tile_m must be a multiple of {LOAD_N} up to {MOST_ROWS} (N of tcgen05.mma), got {config.tile_m}"


def _quant_warps(config: LoraTcgen05Config, _: QuantizeProblem) -> str | None:
    return one_of("quant_warps", config.quant_warps, (4, 8, 12, 16))


def _ctas_per_sm(config: LoraTcgen05Config, _: QuantizeProblem) -> str | None:
    if (config.quant_warps, config.ctas_per_sm) in ROLE_REGISTERS:
        return None
    known = ", ".join(f"{warps}-{ctas}" for warps, ctas in ROLE_REGISTERS)
    return (
        f"registers suffice for one of these numbers of quant_warps, ctas_per_sm: {known}; got "
        f"{config.quant_warps}-{config.ctas_per_sm}"
    )


def _num_stage(config: LoraTcgen05Config, _: QuantizeProblem) -> str | None:
    if config.num_stage == AUTO:
        return None
    if LEAST_STAGES <= config.num_stage <= MOST_STAGES:  # type: ignore[operator]  # a number, if not AUTO
        return None
    return f"num_stage must be auto or from {LEAST_STAGES} to {MOST_STAGES}, got {config.num_stage}"


def _tiles(config: LoraTcgen05Config, problem: QuantizeProblem) -> str | None:
    ctas = -(-problem.m // config.tile_m) * config.split_k
    if ctas <= MOST_TILES:
        return None
    return f"M must have at most {MOST_TILES} CTAs, got {ctas} of {config.tile_m} rows"


KNOB_RULES: dict[str, Rule] = {
    "rank": rank,
    "tile_m": _tile_m,
    "quant_warps": _quant_warps,
    "split_k": split_k,
    "ctas_per_sm": _ctas_per_sm,
    "num_stage": _num_stage,
    "tiles": _tiles,
}

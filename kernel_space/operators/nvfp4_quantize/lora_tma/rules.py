"""Legality of the space of ``lora_tma``: the only list of its rules. Each has a name and returns a reason."""

from __future__ import annotations

from kernel_space.core.config import AUTO
from kernel_space.core.kernel import Rule
from kernel_space.operators.nvfp4_quantize.lora_mma.rules import MOST_TILES, REGISTERS, rank, split_k
from kernel_space.operators.nvfp4_quantize.lora_tma.budget import LEAST_STAGES
from kernel_space.operators.nvfp4_quantize.lora_tma.config import ROLE_REGISTERS, LoraTmaConfig
from kernel_space.operators.nvfp4_quantize.lora_tma.layouts import MMA_ROWS, QUANT_ROWS
from kernel_space.operators.nvfp4_quantize.packing import CHUNK_K
from kernel_space.operators.nvfp4_quantize.parts.rule_forms import one_of
from kernel_space.operators.nvfp4_quantize.problem import QuantizeProblem

MOST_ROWS = 256  # N of one wgmma
MOST_STAGES = 16
MOST_PREFETCH = 64
WGMMA_REGISTERS = 30  # that a thread wants at launch beside the sums of one wgmma (ptxas 13)
OTHER_REGISTERS = 40  # that a multiplying thread wants beside all its sums


def canonical(config: LoraTmaConfig, _: QuantizeProblem) -> LoraTmaConfig:
    """Every knob has an effect for every problem."""
    return config


def _tile_m(config: LoraTmaConfig, _: QuantizeProblem) -> str | None:
    if QUANT_ROWS <= config.tile_m <= MOST_ROWS and config.tile_m % QUANT_ROWS == 0:
        return None
    return f"tile_m must be a multiple of {QUANT_ROWS} up to {MOST_ROWS} (N of wgmma), got {config.tile_m}"


def _quant_warps(config: LoraTmaConfig, _: QuantizeProblem) -> str | None:
    return one_of("quant_warps", config.quant_warps, (4, 8, 12, 16))


def _ctas_per_sm(config: LoraTmaConfig, _: QuantizeProblem) -> str | None:
    if (config.quant_warps, config.ctas_per_sm) in ROLE_REGISTERS:
        return None
    known = ", ".join(f"{warps}-{ctas}" for warps, ctas in ROLE_REGISTERS)
    return (
        f"registers suffice for one of these numbers of quant_warps, ctas_per_sm: {known}; got "
        f"{config.quant_warps}-{config.ctas_per_sm}"
    )


def _num_stage(config: LoraTmaConfig, _: QuantizeProblem) -> str | None:
    if config.num_stage == AUTO:
        return None
    if not LEAST_STAGES <= config.num_stage <= MOST_STAGES:  # type: ignore[operator]  # a number, if not AUTO
        return f"num_stage must be auto or from {LEAST_STAGES} to {MOST_STAGES}, got {config.num_stage}"
    return None


def _turns(config: LoraTmaConfig, _: QuantizeProblem) -> str | None:
    """A warp may look at a slot only if it has followed all of its rounds: so those of a turn keep their slots."""
    turns, slots = config.turns, config.num_stage
    if turns < 1 or config.quant_warps % turns:
        return f"turns must divide quant_warps={config.quant_warps}, got {turns}"
    if slots != AUTO and int(slots) % turns:
        return f"turns must divide num_stage={slots}, got {turns}"
    return None


def _idle_turns(config: LoraTmaConfig, problem: QuantizeProblem) -> str | None:
    """A warp that has seen no x does not know that the kernel before has ended, and clears padding all the same."""
    if not config.use_pdl or config.turns <= 1 or split_k(config, problem) is not None:
        return None
    chunks = -(-problem.k // CHUNK_K) // config.split_k
    if config.turns <= chunks:
        return None
    return (
        f"with use_pdl each turn needs a chunk of {CHUNK_K} along K in every CTA: K={problem.k} over "
        f"split_k={config.split_k} has {chunks}, got turns={config.turns}"
    )


def _prefetch_dist(config: LoraTmaConfig, _: QuantizeProblem) -> str | None:
    if 0 <= config.prefetch_dist <= MOST_PREFETCH:
        return None
    return f"prefetch_dist must be from 0 to {MOST_PREFETCH} chunks, got {config.prefetch_dist}"


def _registers(config: LoraTmaConfig, problem: QuantizeProblem) -> str | None:
    """A kernel that spills its sums is slower than any other choice."""
    if _ctas_per_sm(config, problem) is not None:
        return None  # that rule says why
    one, blocks = config.tile_m // 2, -(-problem.r // MMA_ROWS)
    there = config.role_registers[1] - OTHER_REGISTERS
    at_launch = REGISTERS // (config.threads * config.ctas_per_sm) // 8 * 8 - WGMMA_REGISTERS
    if one * blocks <= there and one <= at_launch:
        return None
    return (
        f"a multiplying thread can hold {there} sums and {at_launch} of one wgmma, tile_m={config.tile_m} needs "
        f"{one * blocks} and {one} at R={problem.r}; use a smaller tile_m or fewer quant_warps or ctas_per_sm"
    )


def _tiles(config: LoraTmaConfig, problem: QuantizeProblem) -> str | None:
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
    "turns": _turns,
    "idle_turns": _idle_turns,
    "prefetch_dist": _prefetch_dist,
    "registers": _registers,
    "tiles": _tiles,
}

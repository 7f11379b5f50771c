"""Analytic time of one resolved config on one problem: every number here is ``modelled``.

A timeline of one launch: fixed start, the first load's latency, the tiles of the busiest CTA group one after
another, the last epilogue. Within a tile, TMA and MMA overlap: the period of a k-tile is that of its slowest
resource. Operands are cold (nothing in L2). docs/timing_model.md derives the formulas,
docs/evidence/timing_model.md holds them against published times.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Final

from kernel_space.core.arch import Arch
from kernel_space.core.traits import Chip, ModelledTime
from kernel_space.machine.clock.constants import MMA_CYCLES, MMA_LATENCY
from kernel_space.machine.clock.power import slowdown
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from kernel_space.operators.svdquant_gemm.sm100a.model_constants import constants_of
from kernel_space.operators.svdquant_gemm.sm100a.model_work import Lora, Work, count_work

# Bounds are taken in groups, not one by one: memory is fast or slow as a whole, and so are the warps.
CORNERS: Final = ("fast memory", "slow memory", "fast core", "slow core")
NOMINAL: Final = "nominal"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelledWork(ModelledTime):
    """A modelled time with what was counted for it."""

    work: Work


@dataclasses.dataclass(frozen=True, slots=True)
class Constants:
    """One admissible value for every constant; the fields are the keys of the table."""

    clock_ghz: float
    fill_narrow: float
    fill_wide: float
    l2_bytes_clk: float
    dram_tb_s: float
    latency_l2: float
    latency_dram: float
    multicast_wait: float
    tma_issue: float
    prefetch_issue: float
    issue_clk: float
    sf_copy: float
    kind_switch: float
    affine_load: float
    subtile_fixed: float
    subtile_column: float
    store_latency: float
    store_byte: float
    drain: float
    launch_us: float
    pdl_gain_us: float
    setup: float
    split_sync: float
    partial_rate: float


def model_time(config: KernelConfigSm100a, problem: GemmProblem, device: Chip) -> ModelledWork:
    """Time of one launch. ``config`` is resolved (no ``auto``) and legal for ``problem``.

    Raises ``InputError`` for an arch without constants.
    """
    work = count_work(config, problem, device.sm_count)
    terms, demands = _timeline(work, _constants(device.arch, NOMINAL))
    us = sum(terms.values())
    corners = [sum(_timeline(work, _constants(device.arch, corner))[0].values()) for corner in CORNERS]
    duty = (terms["mma"] + terms.get("lora_mma", 0.0)) / us
    throttled = slowdown(us, duty, constants_of(device.arch)["clock_ghz"].low)
    return ModelledWork(
        us=us,
        low_us=min(us, *corners),
        high_us=max(us, *corners) * throttled,
        terms=terms,
        demands=demands,
        bound=max(demands, key=demands.__getitem__),
        work=work,
    )


def model_us(config: KernelConfigSm100a, problem: GemmProblem, device: Chip, corner: str = NOMINAL) -> float:
    """Only the time, under one set of constants: what a ranking of many configs needs."""
    work = count_work(config, problem, device.sm_count)
    return sum(_timeline(work, _constants(device.arch, corner))[0].values())


def agreement(
    faster: KernelConfigSm100a, slower: KernelConfigSm100a, problem: GemmProblem, device: Chip
) -> float:
    """Share of the constant sets (nominal and corners) under which ``faster`` is faster than ``slower``."""
    sets = (NOMINAL, *CORNERS)
    wins = sum(model_us(faster, problem, device, s) < model_us(slower, problem, device, s) for s in sets)
    return wins / len(sets)


@functools.cache
def _constants(arch: Arch, corner: str) -> Constants:
    """The table with one group at its optimistic or pessimistic bounds."""
    speed, _, group = corner.partition(" ")
    values = {}
    for name, constant in constants_of(arch).items():
        at_bound = constant.group == group
        values[name] = getattr(constant, speed) if at_bound else constant.value
    return Constants(**values)


def _timeline(work: Work, c: Constants) -> tuple[dict[str, float], dict[str, float]]:
    """(terms that add up to the time, time each resource would need alone), microseconds."""
    us = 1e-3 / c.clock_ghz  # per cycle
    config, loop, waves = work.config, work.loop, work.schedule.waves
    step = MMA_CYCLES[config.cta_group][config.mma_tiler_mn[1]]
    mma, copies = loop.k_tiles * loop.mma_steps * step, loop.k_tiles * loop.sf_copies * c.sf_copy
    lora = work.lora.steps * step + _switches(work.lora) * c.kind_switch
    busy = mma + copies + lora

    latency = _latency(work, c, step)
    supply = _supply(work, c, latency)
    slowest = max(supply, key=supply.__getitem__)
    wait = max(0.0, supply[slowest] - busy)
    lora_wait = _lora_wait(work.lora, latency)
    stores = work.drain.store_bytes * c.store_byte
    epilogue = _epilogue(work, c)
    handover = MMA_LATENCY[config.cta_group] + config.mma_tiler_mn[1] / 2
    between = _between_tiles(work, c, busy, wait, epilogue, handover)

    main = (waves * (busy + wait + lora_wait) + (waves - 1) * (stores + between)) * us
    dram = work.loads.dram_bytes * 1e-6 / c.dram_tb_s
    start = c.launch_us - (c.pdl_gain_us if config.use_pdl else 0.0)
    first_load = c.latency_dram + (c.multicast_wait if work.loads.multicast else 0.0)
    split = _split_k(work, c)
    last = handover + epilogue + c.drain
    terms = {
        "launch": start,
        "setup": c.setup * us,
        "first_load": first_load * us,
        "mma": waves * mma * us,
        "sf_copy": waves * copies * us,
        "lora_mma": waves * lora * us,
        f"wait_{slowest}": waves * wait * us,
        "wait_lora": waves * lora_wait * us,
        "output_store": (waves - 1) * stores * us,
        "between_tiles": (waves - 1) * between * us,
        "wait_dram": max(0.0, dram - main),
        "split_k": split * us,
        "last_epilogue": last * us,
    }
    demands = {name: waves * cycles * us for name, cycles in supply.items()}
    demands |= {
        "tensor": waves * busy * us,
        "epilogue": waves * (epilogue + c.affine_load) * us,
        "dram": dram,
        "fixed": start + (c.setup + first_load + split + last) * us,
    }
    return {name: value for name, value in terms.items() if value}, demands


def _switches(lora: Lora) -> int:
    """Changes from NVFP4 to LoRA MMAs in one tile."""
    return min(1, lora.units) if lora.runs_in_tail else lora.units


def _latency(work: Work, c: Constants, step: float) -> float:
    """Cycles from a TMA request to its data, averaged over a tile; an L2 prefetch hides the DRAM part."""
    ahead = work.config.prefetch_dist * work.loop.mma_steps * step
    beyond_l2 = max(0.0, c.latency_dram - c.latency_l2 - ahead)
    return c.latency_l2 + work.loads.cold * beyond_l2 + (c.multicast_wait if work.loads.multicast else 0.0)


def _supply(work: Work, c: Constants, latency: float) -> dict[str, float]:
    """Cycles a tile takes if only this resource limited the stream of k-tiles and LoRA slices."""
    loads, loop = work.loads, work.loop
    fill = c.fill_narrow + (c.fill_wide - c.fill_narrow) * max(0, loads.box_rows - 128) / 128
    # The first ring of loads is in flight at once, under the first load's latency.
    rounds = max(0.0, loop.slots / loop.stages - 1 / work.schedule.waves)
    issue = c.tma_issue + (c.prefetch_issue if work.config.prefetch_dist else 0.0)
    return {
        "smem_fill": loads.tile_bytes / fill,
        "l2": loads.tile_l2_bytes / (c.l2_bytes_clk * work.schedule.idle_share),
        "load_latency": rounds * (latency + loads.stage_bytes / fill),
        "tma_issue": loop.slots * issue,
        "mma_issue": loop.instructions * c.issue_clk,
    }


def _lora_wait(lora: Lora, latency: float) -> float:
    """In the tail, slices that find no free slot: one round trip per turn of the ring."""
    if not lora.runs_in_tail or not lora.ring_slots:
        return 0.0
    return max(0, lora.slices - lora.ring_slots) * latency / lora.ring_slots


def _epilogue(work: Work, c: Constants) -> float:
    """Cycles to drain one accumulator."""
    step = c.subtile_fixed + work.config.epi_tile_n * c.subtile_column
    slot_wait = max(0.0, c.store_latency - (int(work.config.num_c_stage) - 1) * step)
    return work.drain.subtiles * (step + slot_wait)


def _between_tiles(
    work: Work, c: Constants, busy: float, wait: float, epilogue: float, handover: float
) -> float:
    """Cycles per tile that MMAs wait for the epilogue of the tile before."""
    behind = max(0.0, epilogue + c.affine_load - busy - wait)
    overlap = work.drain.acc_overlap_subtiles
    if work.config.num_acc_stage == 2 and not overlap:
        return behind
    held = handover + epilogue * (overlap / work.drain.subtiles if overlap else 1.0)
    # TMA fills the ring meanwhile: where supply is the limit, that much of the wait is made up for.
    saved = wait * min(1.0, work.loop.stages / work.loop.slots)
    return max(behind, held - saved)


def _split_k(work: Work, c: Constants) -> float:
    """Cycles of the last CTA from writing its partial sums to having added all of them in order."""
    if work.config.split_k == 1:
        return 0.0
    transfers = 1 + work.config.split_k
    return c.split_sync + transfers * work.drain.partial_bytes / c.partial_rate

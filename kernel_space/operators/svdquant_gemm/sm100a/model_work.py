"""What one launch has to do, counted: tiles, waves, bytes, instructions.

It follows the kernel's schedule: static persistent tiles in cluster units, splits of a tile adjacent, LoRA
units between the segments of the K loop. Per-tile numbers are one CTA's share of one MMA tile and split.
"""

from __future__ import annotations

import dataclasses

from kernel_space.core.config import ALL
from kernel_space.machine.clock.constants import L2_OPERAND_BYTES, cluster_places
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a

SF_ATOM_ROWS = 128  # rows of one scale-factor atom: 512 bytes per 64 elements of K
SF_ATOM_BYTES = 512
SF_ATOM_COLUMNS = 4  # of TMEM
MMA_K = 64  # NVFP4 elements of K per instruction
LORA_MMA_K = 16
LORA_UNIT_K = 64  # columns of R that are issued together
HALF_BYTES = 2
ACC_BYTES = 4
AFFINE_BYTES = 8  # wcscale and bias of one column
# SASS instructions of the MMA warp per k-tile: 73 in NVIDIA's kernel with 8 copies, 4 MMAs and a commit.
LOOP_INSTRUCTIONS = 20.0
INSTRUCTIONS_PER_OPERATION = (73 - LOOP_INSTRUCTIONS) / 13


@dataclasses.dataclass(frozen=True, slots=True)
class Schedule:
    """Tiles over the chip. ``places`` is the number of clusters that run at once."""

    clusters_m: int
    clusters_n: int
    clusters: int  # cluster tiles times split_k
    places: int
    waves: int
    idle_share: float  # SMs of the chip per busy SM
    used_a: float  # share of the MMA rows that lie inside the problem
    used_b: float


@dataclasses.dataclass(frozen=True, slots=True)
class Lora:
    """LoRA of one tile. ``segments`` of the K loop have a unit of MMAs after each but the last."""

    steps: int  # MMA instructions
    slices: int  # loads
    units: int
    ring_slots: int  # slots of a ring of its own; 0 when slices ride in A/B stages
    runs_in_tail: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Loop:
    """The K loop of one tile."""

    k_tiles: int
    mma_steps: int  # MMA instructions per k-tile
    sf_copies: int  # tcgen05.cp per k-tile
    instructions: float  # of the MMA warp, per tile
    slots: int  # turns of the A/B ring per tile
    stages: float  # k-tiles that can be in flight


@dataclasses.dataclass(frozen=True, slots=True)
class Loads:
    """Operand bytes of one CTA."""

    stage_bytes: float
    tile_bytes: float
    tile_l2_bytes: float  # requested by this CTA; multicast peers request the rest
    box_rows: int  # of the largest operand box
    multicast: bool
    cold: float  # share of the requests that are the first for their bytes
    dram_bytes: float  # of the whole launch, with y


@dataclasses.dataclass(frozen=True, slots=True)
class Drain:
    """The epilogue of one tile."""

    subtiles: int
    acc_overlap_subtiles: int  # drained before the next tile may start; 0 unless accumulators overlap
    store_bytes: float
    partial_bytes: float  # fp32 sums of one split; 0 without split_k


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    config: KernelConfigSm100a
    schedule: Schedule
    lora: Lora
    loop: Loop
    loads: Loads
    drain: Drain


def count_work(config: KernelConfigSm100a, problem: GemmProblem, sm_count: int) -> Work:
    """Everything the timeline needs, for a resolved config that is legal for the problem."""
    schedule = _schedule(config, problem, sm_count)
    lora = _lora(config, problem.r)
    loop = _loop(config, problem, lora)
    return Work(
        config=config,
        schedule=schedule,
        lora=lora,
        loop=loop,
        loads=_loads(config, problem, schedule, loop),
        drain=_drain(config, schedule),
    )


def _ceil_div(value: int, by: int) -> int:
    return -(-value // by)


def _rows(config: KernelConfigSm100a, problem: GemmProblem) -> tuple[int, int]:
    """Rows of the MMA's operands A and B: under swap_ab A is wgt."""
    return (problem.n, problem.m) if config.swap_ab else (problem.m, problem.n)


def _schedule(config: KernelConfigSm100a, problem: GemmProblem, sm_count: int) -> Schedule:
    rows_a, rows_b = _rows(config, problem)
    cluster_rows = config.mma_tiler_mn[0] * config.cluster_shape_mn[0] // config.cta_group
    cluster_columns = config.mma_tiler_mn[1] * config.cluster_shape_mn[1]
    clusters_m, clusters_n = _ceil_div(rows_a, cluster_rows), _ceil_div(rows_b, cluster_columns)
    clusters = clusters_m * clusters_n * config.split_k
    places = cluster_places(sm_count, config.cluster_size)
    return Schedule(
        clusters_m=clusters_m,
        clusters_n=clusters_n,
        clusters=clusters,
        places=places,
        waves=_ceil_div(clusters, places),
        idle_share=sm_count / (min(clusters, places) * config.cluster_size),
        used_a=rows_a / (clusters_m * cluster_rows),
        used_b=rows_b / (clusters_n * cluster_columns),
    )


def _lora(config: KernelConfigSm100a, r: int) -> Lora:
    slice_k = r if config.lora_tile_k == ALL else int(config.lora_tile_k)
    slices = _ceil_div(r, slice_k) if r else 0
    own_ring = r and config.lora_buffer == "dedicated"
    return Lora(
        steps=r // LORA_MMA_K,
        slices=slices,
        units=_ceil_div(r, LORA_UNIT_K),
        ring_slots=int(config.num_lora_stage) if own_ring else 0,
        runs_in_tail=config.lora_schedule == "tail",
    )


def _loop(config: KernelConfigSm100a, problem: GemmProblem, lora: Lora) -> Loop:
    k_tiles = _ceil_div(_ceil_div(problem.k, config.mma_tiler_k), config.split_k)
    steps = config.mma_tiler_k // MMA_K
    copies = steps * (1 + _ceil_div(config.mma_tiler_mn[1], SF_ATOM_ROWS))
    per_k_tile = LOOP_INSTRUCTIONS + INSTRUCTIONS_PER_OPERATION * (steps + copies + 1)
    lora_instructions = LOOP_INSTRUCTIONS * lora.units + INSTRUCTIONS_PER_OPERATION * lora.steps
    return Loop(
        k_tiles=k_tiles,
        mma_steps=steps,
        sf_copies=copies,
        instructions=k_tiles * per_k_tile + lora_instructions,
        slots=k_tiles + (0 if lora.ring_slots else lora.slices),
        stages=_stages_in_flight(int(config.num_ab_stage), k_tiles, lora),
    )


def _stages_in_flight(num_ab_stage: int, k_tiles: int, lora: Lora) -> float:
    """k-tiles TMA can run ahead of the MMA: the ring, or less where it first waits for a LoRA slot.

    TMA loads a slice where the MMA warp will read it. With L slots of u units each, the slot comes free L - 1
    slices and one unit earlier in the sequence of segments; a tile end between adds one segment.
    """
    if not lora.ring_slots or lora.runs_in_tail:
        return num_ab_stage
    segments = (lora.ring_slots - 1) * lora.units / lora.slices + 1 + lora.ring_slots // lora.slices
    return min(num_ab_stage, max(1.0, segments * k_tiles / (lora.units + 1)))


def _loads(config: KernelConfigSm100a, problem: GemmProblem, schedule: Schedule, loop: Loop) -> Loads:
    group, (cluster_m, cluster_n) = config.cta_group, config.cluster_shape_mn
    box_a, box_b = (extent // group for extent in config.mma_tiler_mn)
    # Rows past the end are zeros without traffic; scale-factor atoms always come whole.
    # Of the fullest CTA, for which the others wait.
    rows_a, rows_b = map(min, (box_a, box_b), _rows(config, problem))
    sf_bytes = loop.mma_steps * SF_ATOM_BYTES
    sfb_bytes = sf_bytes * _ceil_div(config.mma_tiler_mn[1], SF_ATOM_ROWS)
    a_bytes, b_bytes = rows_a * config.mma_tiler_k / 2 + sf_bytes, rows_b * config.mma_tiler_k / 2
    lora_a, lora_b = rows_a * problem.r * HALF_BYTES, rows_b * problem.r * HALF_BYTES
    tile_a, tile_b, tile_sfb = (
        loop.k_tiles * a_bytes + lora_a,
        loop.k_tiles * b_bytes + lora_b,
        loop.k_tiles * sfb_bytes,
    )
    pairs_m = cluster_m // group
    cold, dram_bytes = _reuse(config, problem, schedule)
    return Loads(
        stage_bytes=a_bytes + b_bytes + sfb_bytes,
        tile_bytes=tile_a + tile_b + tile_sfb,
        tile_l2_bytes=tile_a / cluster_n + tile_b / pairs_m + tile_sfb / cluster_m,
        box_rows=max(box_a, box_b),
        multicast=cluster_n > 1 or pairs_m > 1,
        cold=cold,
        dram_bytes=dram_bytes,
    )


def _reuse(config: KernelConfigSm100a, problem: GemmProblem, schedule: Schedule) -> tuple[float, float]:
    """(share of a wave's distinct operand bytes that no earlier wave touched, DRAM bytes of the launch)."""
    rows_a, rows_b = _rows(config, problem)
    row_bytes = problem.k / 2 + problem.k / 16 + problem.r * HALF_BYTES
    operands = (rows_a + rows_b) * row_bytes
    tiles_m, tiles_n = _wave_extent(config, schedule)
    wave = (rows_a * tiles_m / schedule.clusters_m + rows_b * tiles_n / schedule.clusters_n) * row_bytes
    read = operands
    if operands > L2_OPERAND_BYTES:
        read = max(operands, schedule.waves * wave)
    written = problem.m * problem.out_columns * HALF_BYTES
    cold = min(1.0, operands / (schedule.waves * wave))
    return cold, read + written + problem.n * AFFINE_BYTES


def _wave_extent(config: KernelConfigSm100a, schedule: Schedule) -> tuple[float, float]:
    """Cluster tiles along M and N that one wave touches, under the raster and its bands."""
    tiles = max(1.0, min(schedule.clusters, schedule.places) / config.split_k)
    along_m = config.raster_order == "m"
    major, minor = schedule.clusters_m, schedule.clusters_n
    if not along_m:
        major, minor = minor, major
    width: float = min(config.swizzle_size, minor)
    if tiles <= width * major:
        width = min(width, tiles)
        extent: tuple[float, float] = (tiles / width, width)
    else:
        extent = (major, min(minor, tiles / major))
    return extent if along_m else (extent[1], extent[0])


def _drain(config: KernelConfigSm100a, schedule: Schedule) -> Drain:
    tile_m, tile_n = config.mma_tiler_mn
    elements = tile_m // config.cta_group * tile_n * schedule.used_a * schedule.used_b
    overlap = 0
    if tile_n == 256 and config.num_acc_stage == 2:
        atoms = config.mma_tiler_k // MMA_K * (1 + _ceil_div(tile_n, SF_ATOM_ROWS))
        overlap = _ceil_div(atoms * SF_ATOM_COLUMNS, config.epi_tile_n)
    # A partial sum is written and read as a whole tile, whatever of it lies inside the problem.
    partial_bytes = float(tile_m // config.cta_group * tile_n * ACC_BYTES) if config.split_k > 1 else 0.0
    return Drain(
        subtiles=tile_n // config.epi_tile_n,
        acc_overlap_subtiles=overlap,
        store_bytes=partial_bytes + elements * HALF_BYTES / config.split_k,
        partial_bytes=partial_bytes,
    )

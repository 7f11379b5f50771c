"""Legality of the sm_90a kernel space: the only list of its rules. Each has a name and returns a reason."""

from __future__ import annotations

from kernel_space.core.config import AUTO, print_knob
from kernel_space.core.kernel import Rule
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm90a import rules_small_m as rules_small_m_sm90a
from kernel_space.operators.svdquant_gemm.sm90a_parts.config import MMA_ROWS, KernelConfigSm90a

TILE_ROWS = (64, 128, 256)
MAX_COLUMNS = 256  # N of one wgmma
COLUMN_STEP = 8
TILE_K = 128
MAX_ACCUMULATORS = 144  # fp32 accumulators a consumer thread can hold beside its operand registers
# Registers that ptxas 13 wants at launch beside the accumulators of a wgmma: with 128 a thread 192 columns compile,
# 200 do not; with 96 128, not 136.
BESIDE_WGMMA = 30
MAX_SHARED_ACCUMULATORS = 16  # with half of the registers
CLUSTER_SHAPES = {"wgmma": ((1, 1),), "expand": ((1, 1), (2, 1))}
SWIZZLE_SIZES = (1, 2, 4, 8, 16)
MAX_SPLIT_K = 16
MAX_DEQUANT_GROUPS = 2
EPI_TILES_N = (16, 32, 64, 128)


def canonical(config: KernelConfigSm90a, problem: GemmProblem) -> KernelConfigSm90a:
    if config.mainloop == "mma":
        return rules_small_m_sm90a.canonical(config).replace(pingpong=False, epi_tile_n=0)
    if config.epi_tile_n == config.usual_epi_tile_n:
        config = config.replace(epi_tile_n=0)
    if not problem.r:
        config = config.replace(num_lora_stage=0)
    if config.mainloop == "expand":
        # TMA fills the dq ring, and what a warp transposes of y leaves it before the next piece.
        return config.replace(num_dequant_warpgroups=1, num_c_stage=1)
    if config.num_c_stage != AUTO and config.num_c_stage > config.staged_parts:
        config = config.replace(num_c_stage=config.staged_parts)
    return config


def _mainloop(config: KernelConfigSm90a, _: GemmProblem) -> str | None:
    if config.mainloop != "expand":
        return None
    if config.register_operand != "wgt":
        got = config.register_operand
        return f"mainloop=expand takes 64 rows of weights from registers: register_operand must be wgt, got {got}"
    if config.ctas_per_sm != 1:
        return f"mainloop=expand has one CTA of its GEMM on an SM: ctas_per_sm must be 1, got {config.ctas_per_sm}"
    return None


def _tile_rows(config: KernelConfigSm90a, _: GemmProblem) -> str | None:
    rows = config.tile_mnk[0]
    if rows not in TILE_ROWS:
        return f"rows of tile_mnk must be one of {' '.join(map(str, TILE_ROWS))}, got {rows}"
    return None


def _tile_columns(config: KernelConfigSm90a, _: GemmProblem) -> str | None:
    columns = config.tile_mnk[1]
    if columns < COLUMN_STEP or columns > MAX_COLUMNS or columns % COLUMN_STEP:
        return (
            f"columns of tile_mnk must be a multiple of 8 from 8 to {MAX_COLUMNS} (N of wgmma), got {columns}"
        )
    return None


def _tile_k(config: KernelConfigSm90a, _: GemmProblem) -> str | None:
    if config.tile_mnk[2] != TILE_K:
        return f"K of tile_mnk must be {TILE_K} (a lane owns 32 elements of a row), got {config.tile_mnk[2]}"
    return None


def _consumers(config: KernelConfigSm90a, _: GemmProblem) -> str | None:
    groups, rows = config.consumer_warpgroups, config.tile_mnk[0]
    if groups not in (1, 2) or rows % (MMA_ROWS * config.warpgroups_of_tile):
        return f"consumer_warpgroups must be 1 or 2 and own a multiple of {MMA_ROWS} of {rows} rows each, got {groups}"
    return None


def _accumulators(config: KernelConfigSm90a, _: GemmProblem) -> str | None:
    each = config.row_blocks * config.tile_mnk[1] // 2
    if each > MAX_ACCUMULATORS:
        return (
            f"a consumer thread can hold {MAX_ACCUMULATORS} accumulators, tile {print_knob(config.tile_mnk)} with "
            f"{config.consumer_warpgroups} consumer warpgroups needs {each}; use a smaller tile or more warpgroups"
        )
    return None


def _cluster_shape(config: KernelConfigSm90a, _: GemmProblem) -> str | None:
    legal = CLUSTER_SHAPES[config.mainloop]
    if config.cluster_shape_mn not in legal:
        shapes = " ".join(print_knob(shape) for shape in legal)
        return (
            f"cluster_shape_mn must be one of {shapes} with mainloop={config.mainloop}, got "
            f"{print_knob(config.cluster_shape_mn)}"
        )
    return None


def _stages(config: KernelConfigSm90a, problem: GemmProblem) -> str | None:
    # The dequantizing warps fill both halves of a k-tile before they take the next packed slot, and consumers read
    # one packed slot ahead: fewer slots deadlock.
    least = {"num_ab_stage": 2, "num_dq_stage": 2, "num_c_stage": 1}
    if problem.r:
        least["num_lora_stage"] = 1
    for name, count in least.items():
        value = getattr(config, name)
        if value != AUTO and value < count:
            return f"{name} must be at least {count} or auto, got {value}"
    return None


def _dequant_groups(config: KernelConfigSm90a, _: GemmProblem) -> str | None:
    if not 1 <= config.num_dequant_warpgroups <= MAX_DEQUANT_GROUPS:
        return (
            f"num_dequant_warpgroups must be 1 or {MAX_DEQUANT_GROUPS}, got {config.num_dequant_warpgroups}"
        )
    return None


def _wgmma_k(config: KernelConfigSm90a, _: GemmProblem) -> str | None:
    return None if config.wgmma_k in (16, 32) else f"wgmma_k must be 16 or 32, got {config.wgmma_k}"


def _swizzle(config: KernelConfigSm90a, _: GemmProblem) -> str | None:
    if config.swizzle_size not in SWIZZLE_SIZES:
        return f"swizzle_size must be one of {' '.join(map(str, SWIZZLE_SIZES))}, got {config.swizzle_size}"
    return None


def _ctas_per_sm(config: KernelConfigSm90a, _: GemmProblem) -> str | None:
    if config.ctas_per_sm not in (1, 2):
        return f"ctas_per_sm must be 1 or 2, got {config.ctas_per_sm}"
    accumulators = config.row_blocks * config.tile_mnk[1] // 2
    if config.ctas_per_sm == 2 and accumulators > MAX_SHARED_ACCUMULATORS:
        return (
            f"with ctas_per_sm=2 a consumer thread can hold {MAX_SHARED_ACCUMULATORS} accumulators, tile "
            f"{print_knob(config.tile_mnk)} needs {accumulators}; use fewer columns"
        )
    return None


def _launch_registers(config: KernelConfigSm90a, _: GemmProblem) -> str | None:
    """Only of ``mainloop=wgmma``: without dequantizing warps there are always enough."""
    groups = 1 + config.num_dequant_warpgroups + config.consumer_warpgroups
    registers = rules_small_m_sm90a.REGISTERS // (128 * groups * config.ctas_per_sm) // 8 * 8
    accumulators = config.tile_mnk[1] // 2
    if config.mainloop == "wgmma" and accumulators + BESIDE_WGMMA > registers:
        return (
            f"{groups} warpgroups start with {registers} registers a thread, and ptxas wants {BESIDE_WGMMA} beside the "
            f"{accumulators} accumulators of one wgmma; use fewer columns"
        )
    return None


def _split_k(config: KernelConfigSm90a, problem: GemmProblem) -> str | None:
    k_tiles = -(-problem.k // config.tile_mnk[2])
    if not 1 <= config.split_k <= MAX_SPLIT_K:
        return f"split_k must be between 1 and {MAX_SPLIT_K}, got {config.split_k}"
    if config.split_k > k_tiles:
        return f"every split needs a k-tile: K={problem.k} has {k_tiles} of {config.tile_mnk[2]}, got {config.split_k}"
    return None


def _stream_k(config: KernelConfigSm90a, _: GemmProblem) -> str | None:
    if config.stream_k and (config.mainloop != "expand" or config.split_k != 1):
        return (
            "stream_k deals out the k-tiles of mainloop=expand by itself: it needs mainloop=expand and split_k=1, got "
            f"mainloop={config.mainloop} split_k={config.split_k}"
        )
    return None


def _pingpong(config: KernelConfigSm90a, _: GemmProblem) -> str | None:
    if not config.pingpong:
        return None
    if config.consumer_warpgroups != 2:
        return f"pingpong takes turns of two: consumer_warpgroups must be 2, got {config.consumer_warpgroups}"
    if config.split_k != 1 or config.stream_k:
        # A warpgroup passes over the slots of the other's tile, whose number must be that of its own.
        got = f"split_k={config.split_k} stream_k={print_knob(config.stream_k)}"
        return f"pingpong needs tiles that all have the same k-tiles: split_k=1 stream_k=false, got {got}"
    return None


def _epi_tile(config: KernelConfigSm90a, _: GemmProblem) -> str | None:
    staged, columns = config.epi_tile_n, config.tile_mnk[1]
    if staged == 0:
        return None
    if staged not in EPI_TILES_N:
        return f"epi_tile_n must be 0 or one of {' '.join(map(str, EPI_TILES_N))}, got {staged}"
    if staged > columns:
        return f"epi_tile_n must be 0 or at most the {columns} columns of the tile, got {staged}"
    if config.mainloop == "wgmma" and columns % staged:
        return f"TMA stores whole boxes: epi_tile_n must be 0 or divide the {columns} columns of the tile, got {staged}"
    return None


_RING_RULES: dict[str, Rule] = {
    "mainloop": _mainloop,
    "tile_rows": _tile_rows,
    "tile_columns": _tile_columns,
    "tile_k": _tile_k,
    "consumers": _consumers,
    "pingpong": _pingpong,
    "accumulators": _accumulators,
    "cluster_shape": _cluster_shape,
    "stages": _stages,
    "epi_tile": _epi_tile,
    "dequant_groups": _dequant_groups,
    "wgmma_k": _wgmma_k,
    "swizzle": _swizzle,
    "ctas_per_sm": _ctas_per_sm,
    "launch_registers": _launch_registers,
    "split_k": _split_k,
    "stream_k": _stream_k,
}


def _by_mainloop(name: str) -> Rule:
    """Rule ``name`` of the main loop that the config asks for; some have no such rule, as the knob has no effect."""

    def rule(config: KernelConfigSm90a, problem: GemmProblem) -> str | None:
        if config.mainloop != "mma" or name in _SHARED:
            return _RING_RULES[name](config, problem)
        own = rules_small_m_sm90a.SMALL_M_RULES.get(name)
        return own(config, problem) if own else None

    return rule


_SHARED = ("tile_k", "stream_k")
KNOB_RULES: dict[str, Rule] = {name: _by_mainloop(name) for name in _RING_RULES}

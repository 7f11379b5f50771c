"""Legality of the sm_100a kernel space: the only list of its rules. Each has a name and returns a reason."""

from __future__ import annotations

from typing import Any

from kernel_space.core.config import ALL, AUTO, print_knob
from kernel_space.core.kernel import Rule
from kernel_space.operators.svdquant_gemm.problem import SWIGLU, GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a

MMA_TILERS_MN = frozenset((m, n) for m in (128, 256) for n in (64, 128, 192, 256))
MMA_TILERS_K = (128, 256)
MAX_CLUSTER_EXTENT = 4  # one SFB atom of 512 bytes is split over the CTAs that share it
EPI_TILES_N = (16, 32, 64, 128)
SWIZZLE_SIZES = (1, 2, 4, 8)
SPLITS_K = (1, 2, 4, 8, 16)
MAX_PREFETCH_DIST = 16
LORA_RIDE_TILER_K = 256
LORA_RIDE_SLICE_K = 64


def canonical(config: KernelConfigSm100a, problem: GemmProblem) -> KernelConfigSm100a:
    """Give knobs without effect one value, so that two spellings of one kernel are one candidate."""
    if problem.r == 0:
        defaults = KernelConfigSm100a()
        config = config.replace(
            lora_tile_k=defaults.lora_tile_k,
            lora_schedule=defaults.lora_schedule,
            lora_buffer=defaults.lora_buffer,
            num_lora_stage=0,
        )
    if problem.r == LORA_RIDE_SLICE_K and config.lora_tile_k == ALL:
        config = config.replace(lora_tile_k=LORA_RIDE_SLICE_K)
    if config.lora_buffer == "ab_stage":
        config = config.replace(num_lora_stage=0)
    return config


def _mma_tiler(config: KernelConfigSm100a, _: GemmProblem) -> str | None:
    if config.mma_tiler_mn in MMA_TILERS_MN:
        return None
    tiles = " ".join(print_knob(tile) for tile in sorted(MMA_TILERS_MN))
    return f"mma_tiler_mn must be one of {tiles}, got {print_knob(config.mma_tiler_mn)}"


def _mma_tiler_k(config: KernelConfigSm100a, _: GemmProblem) -> str | None:
    return _one_of("mma_tiler_k", config.mma_tiler_k, MMA_TILERS_K)


def _cluster_shape(config: KernelConfigSm100a, _: GemmProblem) -> str | None:
    for extent in config.cluster_shape_mn:
        if extent < 1 or extent > MAX_CLUSTER_EXTENT or extent & (extent - 1):
            shape = print_knob(config.cluster_shape_mn)
            return f"each extent of cluster_shape_mn must be 1, 2 or 4, got {shape}"
    return None


def _cluster_of_pairs(config: KernelConfigSm100a, _: GemmProblem) -> str | None:
    if config.cta_group == 2 and config.cluster_shape_mn[0] % 2:
        m, n = config.cluster_shape_mn
        tile = print_knob(config.mma_tiler_mn)
        return f"cta_group 2 (mma_tiler_mn {tile}) needs an even cluster M, got {m}x{n}; use 2x{n}"
    return None


def _epi_tile(config: KernelConfigSm100a, _: GemmProblem) -> str | None:
    reason = _one_of("epi_tile_n", config.epi_tile_n, EPI_TILES_N)
    if reason is None and config.mma_tiler_mn[1] % config.epi_tile_n:
        reason = f"epi_tile_n must divide N of the tile, {config.mma_tiler_mn[1]}, got {config.epi_tile_n}"
    return reason


def _stages(config: KernelConfigSm100a, problem: GemmProblem) -> str | None:
    for name, least in (("num_ab_stage", 1), ("num_acc_stage", 1), ("num_c_stage", 1)):
        value = getattr(config, name)
        if value != AUTO and value < least:
            return f"{name} must be at least {least} or auto, got {value}"
    acc: Any = config.num_acc_stage  # a number where it is not AUTO
    if acc != AUTO and acc > 2:
        return f"num_acc_stage must be 1 or 2, got {acc}"
    return None


def _lora_stages(config: KernelConfigSm100a, problem: GemmProblem) -> str | None:
    if problem.r and config.lora_buffer == "dedicated" and config.num_lora_stage == 0:
        return "num_lora_stage must be at least 1 or auto with lora_buffer=dedicated and R > 0, got 0"
    return None


def _lora_slice(config: KernelConfigSm100a, _: GemmProblem) -> str | None:
    if config.lora_tile_k in (LORA_RIDE_SLICE_K, ALL):
        return None
    return f"lora_tile_k must be {LORA_RIDE_SLICE_K} or {ALL}, got {config.lora_tile_k}"


def _lora_ride(config: KernelConfigSm100a, problem: GemmProblem) -> str | None:
    if problem.r == 0 or config.lora_buffer != "ab_stage":
        return None
    slice_k = problem.r if config.lora_tile_k == ALL else config.lora_tile_k
    if config.mma_tiler_k == LORA_RIDE_TILER_K and slice_k == LORA_RIDE_SLICE_K:
        return None
    return (
        f"lora_buffer=ab_stage needs mma_tiler_k={LORA_RIDE_TILER_K} and slices of {LORA_RIDE_SLICE_K} columns "
        f"(both 128 bytes a row), got mma_tiler_k={config.mma_tiler_k} and slices of {slice_k}; "
        "use lora_buffer=dedicated"
    )


def _swizzle(config: KernelConfigSm100a, _: GemmProblem) -> str | None:
    return _one_of("swizzle_size", config.swizzle_size, SWIZZLE_SIZES)


def _prefetch(config: KernelConfigSm100a, _: GemmProblem) -> str | None:
    if 0 <= config.prefetch_dist <= MAX_PREFETCH_DIST:
        return None
    return f"prefetch_dist must be between 0 and {MAX_PREFETCH_DIST} k-tiles, got {config.prefetch_dist}"


def _split_k(config: KernelConfigSm100a, problem: GemmProblem) -> str | None:
    reason = _one_of("split_k", config.split_k, SPLITS_K)
    k_tiles = -(-problem.k // config.mma_tiler_k)
    if reason is None and config.split_k > k_tiles:
        reason = (
            f"every split needs a k-tile: K={problem.k} has {k_tiles} of {config.mma_tiler_k}, "
            f"got split_k={config.split_k}"
        )
    return reason


def _activation(config: KernelConfigSm100a, problem: GemmProblem) -> str | None:
    if problem.activation != SWIGLU:
        return None
    if config.swap_ab:
        return "under swap_ab a gate and what it is for are in different threads: activation=swiglu needs swap_ab=false"
    if config.mma_tiler_mn[1] % (2 * config.epi_tile_n):
        return (
            f"with activation=swiglu a subtile is made of two loads: 2 x epi_tile_n must divide N of the tile, "
            f"{config.mma_tiler_mn[1]}, got epi_tile_n={config.epi_tile_n}"
        )
    return None


def _one_of(name: str, value: int, choices: tuple[int, ...]) -> str | None:
    if value in choices:
        return None
    return f"{name} must be one of {' '.join(map(str, choices))}, got {value}"


KNOB_RULES: dict[str, Rule] = {
    "mma_tiler_mn": _mma_tiler,
    "mma_tiler_k": _mma_tiler_k,
    "cluster_shape": _cluster_shape,
    "cluster_of_pairs": _cluster_of_pairs,
    "epi_tile": _epi_tile,
    "stages": _stages,
    "lora_stages": _lora_stages,
    "lora_slice": _lora_slice,
    "lora_ride": _lora_ride,
    "swizzle": _swizzle,
    "prefetch": _prefetch,
    "split_k": _split_k,
    "activation": _activation,
}

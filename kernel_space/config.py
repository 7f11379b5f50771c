"""KernelConfig: one point of the sm_100a kernel space. Prints as it parses.

Legality is not decided here but in ``rules.py``; this file only knows spelling and types.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Self

from kernel_space.errors import InputError

AUTO = "auto"
ALL = "all"


@dataclasses.dataclass(frozen=True, kw_only=True)
class KernelConfig:
    """Knobs of ``svdquant_gemm_sm100a``.

    ``mma_tiler_mn``      M, N of one MMA tile over the whole CTA group; M = 256 means cta_group 2
    ``mma_tiler_k``       K elements of one A/B stage
    ``cluster_shape_mn``  CTAs per cluster along M, N (of the MMA, so swapped under ``swap_ab``)
    ``num_ab_stage``      SMEM ring slots of A, B, SFA, SFB; ``auto`` = the most that fit
    ``num_lora_stage``    SMEM ring slots of one LoRA slice; 0 without LoRA or with lora_buffer=ab_stage
    ``num_acc_stage``     TMEM accumulators; 2 at N = 256 means overlapped by the scale-factor columns
    ``num_c_stage``       SMEM ring slots of one epilogue subtile
    ``lora_tile_k``       columns of R in one LoRA slice: 64, or ``all`` of R (0 once resolved at R = 0)
    ``lora_schedule``     ``interleave`` LoRA MMAs through the K loop, or issue them at its ``tail``
    ``lora_buffer``       ``dedicated`` SMEM ring, or a slice rides in an ``ab_stage`` slot
    ``raster_order``      ``m``: consecutive tiles walk along M first; ``n``: along N first
    ``swizzle_size``      clusters per band of the raster; 1 = none
    ``epi_tile_n``        columns of one epilogue subtile
    ``split_k``           CTA groups that share one output tile along K; reduced in a fixed order
    ``swap_ab``           compute y.T: wgt is operand A (M of the MMA runs over N), act operand B
    ``prefetch_dist``     k-tiles of L2 prefetch ahead of the TMA loads; 0 = none
    ``use_pdl``           programmatic dependent launch: the prologue overlaps the previous kernel
    """

    mma_tiler_mn: tuple[int, int] = (256, 128)
    mma_tiler_k: int = 256
    cluster_shape_mn: tuple[int, int] = (2, 1)
    num_ab_stage: int | str = AUTO
    num_lora_stage: int | str = AUTO
    num_acc_stage: int | str = AUTO
    num_c_stage: int | str = AUTO
    lora_tile_k: int | str = 64
    lora_schedule: str = "interleave"
    lora_buffer: str = "dedicated"
    raster_order: str = "m"
    swizzle_size: int = 1
    epi_tile_n: int = 32
    split_k: int = 1
    swap_ab: bool = False
    prefetch_dist: int = 0
    use_pdl: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """``"mma_tiler_mn=256x128 num_ab_stage=4"`` -> config; knobs not named keep their default.

        Raises ``InputError`` for an unknown or repeated knob and for a value of the wrong form.
        """
        return cls.from_fields(_split_fields(text))

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Self:
        """Knob name -> value or its printed form. Raises ``InputError`` as ``parse`` does."""
        known = knob_names()
        for name in fields:
            if name not in known:
                raise InputError(f"unknown knob {name!r}; the knobs are {' '.join(known)}")
        return cls(**{name: parse_knob(name, value) for name, value in fields.items()})

    def fields(self) -> dict[str, str]:
        """Knob name -> printed form, in the order of the dataclass."""
        return {name: print_knob(getattr(self, name)) for name in knob_names()}

    def replace(self, **changes: Any) -> Self:
        return dataclasses.replace(self, **changes)

    @property
    def cta_group(self) -> int:
        """CTAs that issue one MMA together: 2 when M of the tile is 256."""
        return 2 if self.mma_tiler_mn[0] == 256 else 1

    @property
    def cta_tile_mnk(self) -> tuple[int, int, int]:
        """What one CTA owns."""
        m, n = self.mma_tiler_mn
        return (m // self.cta_group, n, self.mma_tiler_k)

    @property
    def cluster_size(self) -> int:
        return self.cluster_shape_mn[0] * self.cluster_shape_mn[1]

    def __str__(self) -> str:
        return " ".join(f"{name}={text}" for name, text in self.fields().items())


_PAIRS = frozenset({"mma_tiler_mn", "cluster_shape_mn"})
_FLAGS = frozenset({"swap_ab", "use_pdl"})
_STAGES = frozenset({"num_ab_stage", "num_lora_stage", "num_acc_stage", "num_c_stage"})
_WORDS = {
    "lora_schedule": ("interleave", "tail"),
    "lora_buffer": ("dedicated", "ab_stage"),
    "raster_order": ("m", "n"),
}


def knob_names() -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(KernelConfig))


def print_knob(value: Any) -> str:
    """One spelling for logs, YAML, Optuna, cache keys and tables."""
    if isinstance(value, tuple):
        return "x".join(str(part) for part in value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def parse_knob(name: str, value: Any) -> Any:
    """The value of knob ``name`` from its printed form (or from the value itself)."""
    text = print_knob(tuple(value) if isinstance(value, list) else value)
    if name in _PAIRS:
        parts = text.split("x")
        if len(parts) != 2 or not all(_is_number(part) for part in parts):
            raise InputError(f"{name} must be MxN such as 256x128, got {text!r}")
        return (int(parts[0]), int(parts[1]))
    if name in _FLAGS:
        if text not in ("true", "false"):
            raise InputError(f"{name} must be true or false, got {text!r}")
        return text == "true"
    if name in _WORDS:
        if text not in _WORDS[name]:
            raise InputError(f"{name} must be one of {', '.join(_WORDS[name])}, got {text!r}")
        return text
    if (name in _STAGES and text == AUTO) or (name == "lora_tile_k" and text == ALL):
        return text
    if not _is_number(text):
        word = AUTO if name in _STAGES else ALL if name == "lora_tile_k" else None
        hint = f" or {word}" if word else ""
        raise InputError(f"{name} must be a whole number{hint}, got {text!r}")
    return int(text)


def _is_number(text: str) -> bool:
    """Decimal digits that ``int`` takes; ``isdigit`` alone also accepts superscripts."""
    return text.isascii() and text.isdigit()


def _split_fields(text: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for item in text.split():
        name, equals, value = item.partition("=")
        if not equals or not value:
            raise InputError(f"a config is written knob=value knob=value ..., got {item!r}")
        if name in fields:
            raise InputError(f"knob {name!r} is given twice")
        fields[name] = value
    return fields

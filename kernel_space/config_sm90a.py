"""KernelConfigSm90a: one point of the sm_90a kernel space. Prints as it parses.

Legality is not decided here but in ``rules_sm90a.py``; this file only knows spelling and types.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Self

from kernel_space.config import AUTO, print_knob
from kernel_space.errors import InputError

MMA_ROWS = 64  # rows of one wgmma instruction


@dataclasses.dataclass(frozen=True, kw_only=True)
class KernelConfigSm90a:
    """Knobs of ``svdquant_gemm_sm90a``. "Rows" are rows of the register operand, "columns" rows of the other one.

    ``tile_mnk``            rows, columns, K elements of one CTA tile and of one slot of the packed ring
    ``consumer_warpgroups``  warpgroups that share the rows of a tile; each owns a multiple of 64
    ``cluster_shape_mn``    CTAs per cluster along rows, columns; they share packed operands by multicast
    ``num_ab_stage``        SMEM ring slots of both packed operands and their scales; ``auto`` = the most that fit
    ``num_dq_stage``        SMEM ring slots of the dequantized column operand, 64 K elements each
    ``num_lora_stage``      SMEM ring slots of one LoRA slice of 64 columns of R; 0 without LoRA
    ``num_c_stage``         SMEM ring slots of 16 rows of y per consumer warp
    ``register_operand``    ``act`` or ``wgt``: which one wgmma takes from registers; ``wgt`` computes y.T
    ``num_dequant_warpgroups``  warpgroups that dequantize the column operand into the dq ring
    ``wgmma_k``             K elements between two waits for wgmma: 16 waits for each instruction with dequantizing in
                            between, 32 for four with 64 rows each or two
    ``raster_order``        ``m``: consecutive tiles walk along rows first; ``n``: along columns first
    ``swizzle_size``        clusters per band of the raster; 1 = none
    ``ctas_per_sm``         CTAs that share an SM; with 2 each has half of its registers and shared memory
    ``split_k``             CTAs that share one output tile along K; reduced in a fixed order
    ``use_pdl``             programmatic dependent launch: the prologue overlaps the previous kernel
    """

    tile_mnk: tuple[int, int, int] = (256, 128, 128)
    consumer_warpgroups: int = 2
    cluster_shape_mn: tuple[int, int] = (1, 1)
    num_ab_stage: int | str = AUTO
    num_dq_stage: int | str = AUTO
    num_lora_stage: int | str = AUTO
    num_c_stage: int | str = AUTO
    register_operand: str = "act"
    num_dequant_warpgroups: int = 1
    wgmma_k: int = 16
    raster_order: str = "m"
    swizzle_size: int = 1
    ctas_per_sm: int = 1
    split_k: int = 1
    use_pdl: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """``"tile_mnk=256x128x128 num_ab_stage=3"`` -> config; knobs not named keep their default.

        Raises ``InputError`` for an unknown or repeated knob and for a value of the wrong form.
        """
        fields: dict[str, str] = {}
        for item in text.split():
            name, equals, value = item.partition("=")
            if not equals or not value:
                raise InputError(f"a config is written knob=value knob=value ..., got {item!r}")
            if name in fields:
                raise InputError(f"knob {name!r} is given twice")
            fields[name] = value
        return cls.from_fields(fields)

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Self:
        """Knob name -> value or its printed form. Raises ``InputError`` as ``parse`` does."""
        known = knob_names_sm90a()
        for name in fields:
            if name not in known:
                raise InputError(f"unknown knob {name!r}; the knobs are {' '.join(known)}")
        return cls(**{name: parse_knob_sm90a(name, value) for name, value in fields.items()})

    def fields(self) -> dict[str, str]:
        """Knob name -> printed form, in the order of the dataclass."""
        return {name: print_knob(getattr(self, name)) for name in knob_names_sm90a()}

    def replace(self, **changes: Any) -> Self:
        return dataclasses.replace(self, **changes)

    @property
    def swap_ab(self) -> bool:
        """Whether the kernel computes y.T: its rows run over N of the problem."""
        return self.register_operand == "wgt"

    @property
    def cta_tile_mnk(self) -> tuple[int, int, int]:
        """What one CTA owns."""
        return self.tile_mnk

    @property
    def cluster_size(self) -> int:
        return self.cluster_shape_mn[0] * self.cluster_shape_mn[1]

    @property
    def row_blocks(self) -> int:
        """Blocks of 64 rows that one consumer warpgroup owns."""
        return self.tile_mnk[0] // (MMA_ROWS * self.consumer_warpgroups)

    def __str__(self) -> str:
        return " ".join(f"{name}={text}" for name, text in self.fields().items())


_TUPLES = {"tile_mnk": (3, "RxCxK such as 256x128x128"), "cluster_shape_mn": (2, "MxN such as 2x1")}
_FLAGS = frozenset({"use_pdl"})
_STAGES = frozenset({"num_ab_stage", "num_dq_stage", "num_lora_stage", "num_c_stage"})
_WORDS = {"register_operand": ("act", "wgt"), "raster_order": ("m", "n")}


def knob_names_sm90a() -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(KernelConfigSm90a))


def parse_knob_sm90a(name: str, value: Any) -> Any:
    """The value of knob ``name`` from its printed form (or from the value itself)."""
    text = print_knob(tuple(value) if isinstance(value, list) else value)
    if name in _TUPLES:
        length, form = _TUPLES[name]
        parts = text.split("x")
        if len(parts) != length or not all(_is_number(part) for part in parts):
            raise InputError(f"{name} must be {form}, got {text!r}")
        return tuple(int(part) for part in parts)
    if name in _FLAGS:
        if text not in ("true", "false"):
            raise InputError(f"{name} must be true or false, got {text!r}")
        return text == "true"
    if name in _WORDS:
        if text not in _WORDS[name]:
            raise InputError(f"{name} must be one of {', '.join(_WORDS[name])}, got {text!r}")
        return text
    if name in _STAGES and text == AUTO:
        return text
    if not _is_number(text):
        hint = f" or {AUTO}" if name in _STAGES else ""
        raise InputError(f"{name} must be a whole number{hint}, got {text!r}")
    return int(text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()

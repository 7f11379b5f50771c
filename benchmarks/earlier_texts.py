"""Configs as the version before printed them, in today's words: which kernel it is, and which of its knobs are kept.

One kernel per architecture had a knob ``mainloop`` then; its values are kernels of their own now, each with the knobs
that have an effect there. The others stood at one value, which a resolved config must have.
"""

from __future__ import annotations

from typing import Any

from kernel_space.core.errors import InputError
from kernel_space.core.registry import kernel

OP = "svdquant_gemm"
FIRST = {"mma_tiler_mn": "sm_100a", "tile_mnk": "sm_90a"}  # knob with which a config began -> architecture
_NO_RING = {"pingpong": "false", "stream_k": "false", "cluster_shape_mn": "1x1", "epi_tile_n": "0"}
KERNELS: dict[str, dict[str, tuple[str, dict[str, str]]]] = {
    # architecture -> mainloop -> kernel, and the value of each knob that it has not
    "sm_100a": {"": ("sm100a", {})},
    "sm_90a": {
        "wgmma": ("sm90a_ring", {"cluster_shape_mn": "1x1", "stream_k": "false"}),
        "expand": (
            "sm90a_expand",
            {
                "num_c_stage": "1",
                "register_operand": "wgt",
                "num_dequant_warpgroups": "1",
                "ctas_per_sm": "1",
            },
        ),
        "mma": (
            "sm90a_small_m",
            {
                **_NO_RING,
                "num_lora_stage": "0",
                "num_c_stage": "0",
                "wgmma_k": "16",
                "raster_order": "m",
                "swizzle_size": "1",
            },
        ),
    },
}


def is_earlier(text: Any) -> bool:
    """Is it a config that the version before printed?"""
    return isinstance(text, str) and text.partition("=")[0] in FIRST and " " in text


def translated(text: str, *, resolved: bool = True) -> str:
    """``text`` in today's words. ``resolved``: every knob without effect must have the value that it had then; a config
    as it was asked may have any. Raises ``InputError`` for what this version has no kernel for.
    """
    fields = dict(item.split("=", 1) for item in text.split())
    arch = FIRST[text.partition("=")[0]]
    mainloop = fields.pop("mainloop", "")
    if mainloop not in KERNELS[arch]:
        raise InputError(f"no kernel of today is mainloop={mainloop} on {arch}")
    name, dropped = KERNELS[arch][mainloop]
    for knob, value in dropped.items():
        if fields.pop(knob, value) != value and resolved:
            raise InputError(f"{name} has no {knob}: it must be {value} in {text}")
    return str(kernel(OP, name).config_class.from_fields(fields))


def translated_within(value: Any, *, resolved: bool = False) -> Any:
    """``value``, as JSON holds it, with every config in it translated; one that cannot be stays."""
    if isinstance(value, dict):
        return {name: translated_within(one, resolved=resolved) for name, one in value.items()}
    if isinstance(value, list):
        return [translated_within(one, resolved=resolved) for one in value]
    if not is_earlier(value):
        return value
    try:
        return translated(value, resolved=resolved)
    except InputError:
        return value

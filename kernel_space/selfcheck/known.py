"""What card and machine are known to disagree on, and what the machine is known not to model.

A test fails when a probe listed here agrees: then it is struck from the list.
"""

from __future__ import annotations

DIFFERENCES: dict[str, tuple[str, ...]] = {
    "A NaN result is canonical on the card: 7fffffff in f32, 7fff in f16 and bf16, whatever the operands' bits.": (
        "tma_store.reduce.add.float32",
        "tma_store.reduce.add.float16",
        "bulk_reduce.add.f32",
        "bulk_reduce.add.noftz.f16",
    ),
    "mapa.u64 of a generic address is a generic address in the shared window of the other CTA.": (
        "cluster.generic",
    ),
    "The lanes of one shared access may go to several CTAs of the cluster.": ("cluster.lanes_of_two_ctas",),
    "A map of type TFLOAT32 or TFLOAT32_FTZ turns every NaN into 7fffe000.": ("tma_load.type.tfloat32_ftz",),
    "Swizzle units of 64 bytes and of 32 with a flip: not modelled, but reported as a broken tensor map.": (
        "tma_load.swizzle_128_atom_32_flip_8",
        "tma_load.swizzle_128_atom_64",
    ),
    "Tensor stores and reductions write the 16 bytes that hold a row's last element as a whole.": (
        "tma_store.ragged.uint8_1",
        "tma_store.ragged.uint8_15",
        "tma_store.ragged.uint8_37",
        "tma_store.ragged.float16_19",
        "tma_store.ragged.add_float16_19",
        "tma_store.ragged.float32_9",
        "tma_store.ragged.add_float32_9",
    ),
    "Bulk min and max of f16 and bf16 with one NaN give the other operand.": (
        "tma_store.reduce.min.float16",
        "tma_store.reduce.max.float16",
        "tma_store.reduce.min.bfloat16",
        "tma_store.reduce.max.bfloat16",
        "bulk_reduce.min.f16",
        "bulk_reduce.max.bf16",
    ),
    "A shared-to-shared bulk copy completes on the destination's mbarrier, in no bulk group: no race.": (
        "bulk.to_peer",
    ),
    "Tensor stores and reductions at a negative coordinate are an illegal instruction; loads there read zeros.": (
        "fault.store_negative_column",
        "fault.store_negative_row",
        "fault.store_all_negative",
        "fault.reduce_negative_row",
    ),
    "trap ends the grid with an error.": ("fault.trap",),
}
"""What the card does -> the probes in which the machine does something else."""

UNSUPPORTED: tuple[str, ...] = (
    "convert.rna.tf32.f32",
    "convert.rn.tf32.f32",
    "convert.rz.tf32.f32",
    "convert.rn.relu.tf32.f32",
    "float.add.rz.f32",
    "float.mul.rz.f32",
    "float.fma.rz.f32",
    "float.testp.finite.f32",
    "float.testp.subnormal.f32",
    "integer.add.u16x2",
    "integer.mad_carry",
    "warp.match",
    "mbarrier.pending_count",
    "named_barrier.reduction",
    "cluster.st_async",
    "tma_load.oob.nan_fill.float16",
    "tma_load.oob.nan_fill.bfloat16",
    "tma_load.oob.nan_fill.float32",
    "tma_load.oob.nan_fill.float64",
    "tma_load.oob.nan_fill.float32_ftz",
    "tma_load.oob.nan_fill.tfloat32",
    "tma_load.stride.every_second_row",
    "tma_load.stride.every_second_word",
    "tma_store.reduce.inc.uint32",
    "tma_store.reduce.dec.uint32",
    "tma_store.reduce.add.float32_ftz",
    "bulk_reduce.inc.u32",
    "bulk_reduce.dec.u32",
    "tmem.cp.64x128b.warpx2_01_23.group_1",
    "tmem.cp.64x128b.warpx2_01_23.group_2",
    "tmem.cp.unpack.b4x16_p64",
    "tmem.cp.unpack.b6x16_p32",
)
"""Probes that the machine refuses by name of opcode and modifier."""


def reason_of(name: str) -> str:
    """What is known about the difference of a probe; '' if nothing is."""
    return next((reason for reason, names in DIFFERENCES.items() if name in names), "")

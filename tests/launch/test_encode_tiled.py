"""``cuTensorMapEncodeTiled`` without a driver, against a second encoder and the decoder's reading of each field."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from kernel_space.core.errors import InputError
from kernel_space.launch.capture import CaptureRuntime
from kernel_space.launch.encode_tiled import encode_tiled
from kernel_space.launch.tensor_map import decode_tensor_map
from tests.machine.tensor_maps import tensor_map

ENUM = {"u8": 0, "u16": 1, "u32": 2, "f16": 6, "f32": 7, "bf16": 9, "fp4": 13}  # of cuda.h
GOOD: dict[str, Any] = {
    "data_type": 6, "address": 0x7F00_1234_5670, "dims": (200, 72, 3), "strides": (400, 1 << 36), "box": (64, 8, 1),
    "element_strides": (1, 1, 1), "interleave": 0, "swizzle": 3, "l2_promotion": 2, "oob_fill": 0,
}  # fmt: skip


@pytest.mark.parametrize("kind", ENUM)
@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_bytes_that_mean_something(kind: str, swizzle: int) -> None:
    found = encode_tiled(
        **{**GOOD, "data_type": ENUM[kind], "swizzle": {0: 0, 32: 1, 64: 2, 128: 3}[swizzle]}
    )
    again = tensor_map(GOOD["address"], kind, GOOD["dims"], GOOD["strides"], GOOD["box"], swizzle)
    assert found[:52] == again[:52] and found[55:58] == again[55:58]


def test_fields_of_the_others() -> None:
    read = decode_tensor_map(
        encode_tiled(**{**GOOD, "data_type": 11, "element_strides": (1, 2, 8), "swizzle": 4, "oob_fill": 1})
    )
    assert (read.element_type.name, read.round_to_tf32, read.oob_fill_nan) == ("F32", True, True)
    assert (read.element_strides, read.swizzle_bytes, read.swizzle_atom_bytes) == ((1, 2, 8), 128, 32)
    assert (read.dims, read.strides, read.box) == (GOOD["dims"], GOOD["strides"], GOOD["box"])
    assert read.address == GOOD["address"] and read.l2_promotion_bytes == 128


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"address": 8}, "is not a multiple of 16"),
        ({"strides": (400, 24)}, "of multiples of 16"),
        ({"box": (64, 257, 1)}, "of 1 to 256"),
        ({"dims": (200, 0, 3)}, "of 1 to 2^32"),
        ({"element_strides": (1, 9, 1)}, "of 1 to 8"),
        ({"data_type": 16}, "data type 16 is not known"),
        ({"swizzle": 6}, "swizzle 6 is not modelled"),
    ],
)
def test_what_the_driver_refuses(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words.replace("^", r"\^")):
        encode_tiled(**{**GOOD, **change})


def test_host_code_calls_it_by_pointers() -> None:
    """As C does: the bytes lie where it says, and an error is a code there and an exception here."""
    runtime = CaptureRuntime("")
    call = ctypes.CFUNCTYPE(
        ctypes.c_int32,
        ctypes.c_void_p,
        ctypes.c_int32,
        ctypes.c_uint32,
        *[ctypes.c_void_p] * 5,
        *[ctypes.c_int32] * 4,
    )(runtime.addresses()["_cuTensorMapEncodeTiled"])
    out = (ctypes.c_uint8 * 128)()
    dims, strides = (ctypes.c_uint64 * 3)(*GOOD["dims"]), (ctypes.c_uint64 * 2)(*GOOD["strides"])
    box, steps = (ctypes.c_uint32 * 3)(*GOOD["box"]), (ctypes.c_uint32 * 3)(1, 1, 1)
    assert call(ctypes.addressof(out), 6, 3, GOOD["address"], dims, strides, box, steps, 0, 3, 2, 0) == 0
    runtime.check()
    assert bytes(out) == encode_tiled(**GOOD)
    assert call(ctypes.addressof(out), 6, 3, 8, dims, strides, box, steps, 0, 3, 2, 0) != 0
    with pytest.raises(InputError, match="multiple of 16"):
        runtime.check()

"""Which M and N an MMA may have, by kind and group: the limits that NVIDIA's compiler checks."""

from __future__ import annotations

import pytest

from kernel_space.machine.units.tensor_core import instruction_shape
from kernel_space.machine.values.faults import ProtocolError

F32, S32 = 1 << 4, 2 << 4
B_MN_MAJOR = 1 << 16


def _descriptor(m: int, n: int, rest: int) -> int:
    return rest | n >> 3 << 17 | m >> 4 << 24


@pytest.mark.parametrize(
    ("kind", "group", "m", "n", "rest", "legal"),
    [
        ("f16", 1, 128, 8, F32, True),
        ("f16", 1, 64, 24, F32, True),
        ("f16", 1, 256, 16, F32, False),
        ("f16", 2, 256, 16, F32, True),
        ("f16", 2, 256, 24, F32, False),
        ("f16", 2, 64, 16, F32, False),
        ("f16", 1, 128, 264, F32, False),
        ("f8f6f4", 1, 128, 8, F32, True),
        ("f8f6f4", 1, 128, 8, F32 | B_MN_MAJOR, False),
        ("f8f6f4", 1, 128, 16, F32 | B_MN_MAJOR, True),
        ("f8f6f4", 2, 256, 16, F32 | B_MN_MAJOR, False),
        ("f8f6f4", 2, 256, 32, F32 | B_MN_MAJOR, True),
        ("i8", 1, 128, 8, S32, False),
        ("i8", 1, 64, 8, S32, True),
        ("i8", 2, 256, 32, S32, True),
        ("mxf4nvf4", 1, 128, 8, 1 << 7 | 1 << 10, True),
        ("mxf4nvf4", 2, 256, 8, 1 << 7 | 1 << 10, False),
    ],
)
def test_shape(kind: str, group: int, m: int, n: int, rest: int, legal: bool) -> None:
    idesc = _descriptor(m, n, rest)
    if legal:
        shape = instruction_shape(idesc, kind, group)
        assert (shape.m, shape.n) == (m, n)
    else:
        with pytest.raises(ProtocolError, match="no shape"):
            instruction_shape(idesc, kind, group)

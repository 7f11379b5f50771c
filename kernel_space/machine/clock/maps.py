"""TMA descriptors as the clock sees them."""

from __future__ import annotations

import dataclasses
import functools
import math

from kernel_space.launch.tensor_map import TensorMap


@dataclasses.dataclass(frozen=True, kw_only=True)
class TimedMap:
    """``rows``: longest side of the box but the contiguous one; ``tensor_bytes``: of the whole tensor."""

    index: int
    name: str
    box_bytes: int
    rows: int
    tensor_bytes: int

    @functools.cached_property
    def cause(self) -> str:
        return f"tma {self.name}"


def timed_map(index: int, tensor: TensorMap, name: str) -> TimedMap:
    elements = math.prod(tensor.dims)
    return TimedMap(
        index=index,
        name=name,
        box_bytes=tensor.box_bytes,
        rows=max(tensor.box[1:], default=1),
        tensor_bytes=elements * tensor.element_type.bits // 8,
    )

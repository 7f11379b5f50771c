"""Is the card itself in order: exact arithmetic, memory that keeps what is written, and room to work in.

Run by a fresh worker before its first candidate, and so after every fault. Each result has one right value: products of
small integers are exact in every format, and are compared with the CPU's.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from tuner.card.worker.cuda_calls import CudaCalls
from tuner.card.worker.telemetry import Telemetry

SIZE = 512  # sums of so many products of -1, 0, 1 are exact in fp16 too
MEMORY_BYTES = 256 << 20
WORDS = (0x5555_5555, -0x5555_5556)
LIMIT_S = 10.0


class SelfTestFailed(Exception):
    """The card gave a wrong result or lost data; one line."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Health:
    """The card of a worker. ``driver`` is the driver's own version, ``cuda`` the CUDA version it supports, ``policy``
    what bounds its clocks, as found."""

    uuid: str
    name: str
    sm_count: int
    compute_capability: tuple[int, int]
    l2_bytes: int
    driver: str
    cuda: str
    policy: str
    total_bytes: int
    free_bytes: int

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Health:
        return cls(**{**record, "compute_capability": tuple(record["compute_capability"])})


def self_test(device: torch.device, calls: CudaCalls) -> None:
    """Raises ``SelfTestFailed``, and ``CudaFault`` when the card does not answer or reports an error."""
    random = torch.Generator().manual_seed(1)
    a, b = (torch.randint(-1, 2, (SIZE, SIZE), generator=random) for _ in range(2))
    expected = a.float() @ b.float()
    products = {
        dtype: a.to(device, dtype) @ b.to(device, dtype)
        for dtype in (torch.float16, torch.bfloat16, torch.float64)
    }
    calls.wait(torch.cuda.current_stream(device).cuda_stream, LIMIT_S, "the self test's matrix products")
    for dtype, product in products.items():
        if not torch.equal(product.cpu().float(), expected):
            raise SelfTestFailed(f"a {dtype} matrix product of small integers is wrong")
    _memory(device)


def _memory(device: torch.device) -> None:
    """Two patterns, each bit once 0 and once 1, written, copied and read back."""
    for word in WORDS:
        written = torch.full((MEMORY_BYTES // 8,), word, dtype=torch.int32, device=device)
        copied = torch.empty_like(written).copy_(written)
        wrong = int((copied != word).sum())
        if wrong:
            raise SelfTestFailed(f"{wrong} of {copied.numel()} words do not hold what was written")


def health(device: torch.device, calls: CudaCalls, telemetry: Telemetry) -> Health:
    """What this card is and how much of its memory is free."""
    properties = torch.cuda.get_device_properties(device)
    free, total = torch.cuda.mem_get_info(device)
    return Health(
        uuid=str(properties.uuid),
        name=properties.name,
        sm_count=properties.multi_processor_count,
        compute_capability=(properties.major, properties.minor),
        l2_bytes=properties.L2_cache_size,
        driver=telemetry.driver or "unknown",
        cuda=calls.driver_version(),
        policy=telemetry.policy(),
        total_bytes=total,
        free_bytes=free,
    )

"""SmoothRowsConfig: one point of the space of the kernel ``smooth_rows``."""

from __future__ import annotations

import dataclasses

from kernel_space.core.config import KernelConfig, flag, number

VECTOR = 16  # consecutive elements of a thread, which are those of a lane in the quad order


@dataclasses.dataclass(frozen=True, kw_only=True)
class SmoothRowsConfig(KernelConfig, kernel="smooth_rows"):
    """Knobs of the kernel ``smooth_rows``. A thread has 16 elements of a row.

    ``rows``             rows of a CTA
    ``threads_per_cta``  all of them convert
    ``threads_per_row``  threads that stand side by side along K; the others stand on the next rows
    ``row_loads``        rows of which a thread loads its elements before it converts the first of them
    ``ctas_per_sm``      CTAs that must fit on an SM at once: bounds the registers of a thread
    ``use_pdl``          programmatic dependent launch: smooth is read while the previous kernel ends
    """

    rows: int = number(32)
    threads_per_cta: int = number(128)
    threads_per_row: int = number(16)
    row_loads: int = number(2)
    ctas_per_sm: int = number(4)
    use_pdl: bool = flag()

    # What ``QuantizeRows`` asks of a config.

    @property
    def vector_width(self) -> int:
        return VECTOR

    @property
    def rows_per_pass(self) -> int:
        """Rows that the threads of a CTA stand on at once."""
        return self.threads_per_cta // self.threads_per_row

    @property
    def tile_mk(self) -> tuple[int, int]:
        """Rows of a CTA, and its elements along K."""
        return self.rows, VECTOR * self.threads_per_row

    @property
    def sums_along_k(self) -> int:
        """Of LoRA-down, which this kernel has not."""
        return 1

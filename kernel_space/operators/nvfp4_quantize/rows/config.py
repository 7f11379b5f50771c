"""RowsConfig: one point of the space of the kernel ``rows``."""

from __future__ import annotations

import dataclasses

from kernel_space.core.config import KernelConfig, flag, number, sizes


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowsConfig(KernelConfig, kernel="rows"):
    """Knobs of the kernel ``rows``.

    ``tile_mk``          rows and elements along K that a CTA converts before it takes another tile or ends
    ``threads_per_cta``  all of them convert
    ``threads_per_row``  threads that stand side by side along K; the others stand on the next rows
    ``vector_width``     consecutive elements that a thread converts at once
    ``row_loads``        rows of which a thread loads its vector before it converts the first of them
    ``ctas_per_sm``      CTAs that must fit on an SM at once: bounds the registers of a thread
    ``persistent``       a grid of as many CTAs as the chip holds walks over all tiles, else one CTA per tile
    ``use_pdl``          programmatic dependent launch: the prologue overlaps the previous kernel
    """

    tile_mk: tuple[int, int] = sizes(32, 256, form="MxK such as 32x256")
    threads_per_cta: int = number(128)
    threads_per_row: int = number(16)
    vector_width: int = number(16)
    row_loads: int = number(2)
    ctas_per_sm: int = number(4)
    persistent: bool = flag()
    use_pdl: bool = flag()

    @property
    def rows_per_pass(self) -> int:
        """Rows that the threads of a CTA stand on at once."""
        return self.threads_per_cta // self.threads_per_row

    @property
    def columns_per_pass(self) -> int:
        """Elements along K that the threads of a row convert at once."""
        return self.threads_per_row * self.vector_width

    @property
    def sums_along_k(self) -> int:
        """Of LoRA-down, which this kernel has not."""
        return 1

"""MergedFp8Config: one point of the space of the kernel ``merged_fp8``."""

from __future__ import annotations

import dataclasses

from kernel_space.core.config import flag, number, sizes
from kernel_space.operators.svdquant_linear_16bit.merged.config import MergingConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class MergedFp8Config(MergingConfig, kernel="merged_fp8"):
    """Knobs of ``merged_fp8``, of which all but two are those of ``merged``. "Rows" are rows of weights, "columns" rows
    of x: the second kernel computes y.T.

    ``tile_mnk``            rows, columns, K elements of one CTA tile of the second kernel and of one slot of its ring
    ``consumer_warpgroups``  warpgroups that share the rows of a tile; each owns a multiple of 64
    ``cluster_shape_mn``    CTAs per cluster along rows, columns; with 2x1 both share x by multicast, with 1x2 weights
    ``num_ab_stage``        SMEM ring slots of merged weights and x; ``auto`` = the most that fit
    ``epi_tile_n``          columns of the tile that a consumer warp stages at a time where y is gated; 0 is 32
    ``raster_order``        ``m``: consecutive tiles walk along rows first; ``n``: along columns first
    ``swizzle_size``        clusters per band of the raster; 1 = none
    ``stream_k``            tiles of the last, ragged waves are dealt out by k-tiles, in equal shares; partial sums are
                            added in a fixed order, through the workspace
    ``merge_chunks``        chunks of 64 K that a CTA of the first kernel merges of its rows of weights
    ``use_pdl``             programmatic dependent launch: the first kernel loads while the kernel before still works
    ``quantize_rows``       rows of x that a CTA of the first kernel quantizes
    ``quantize_last``       it does so behind the weights that it merges, not while these are on their way
    """

    tile_mnk: tuple[int, int, int] = sizes(128, 128, 128, form="RxCxK such as 128x128x128")
    quantize_rows: int = number(16)
    quantize_last: bool = flag()

"""The kernel ``staged``: a layer on a middle number of rows of 16-bit activations in one launch.

``lora_act_in[M,R] = x[M,K] @ lora_down[K,R]``,
``y[M,N] = f((x @ round16(wgt[N,K] * round16(1 / smooth[K])).T + lora_act_in @ lora_up[N,R].T) * wcscale[N] + bias[N])``

The formula is that of ``fused``. There the warps that multiply dequantize, too: 64 rows of weights at a time, in
registers, between two wgmma. Here other warps dequantize into shared memory, and both operands of wgmma come from
there. So a tile has as many columns (rows of weights) as make one wave of CTAs, nobody who dequantizes waits for a
product, and a lane has 16 neighbours along K of a row, in their order.

| clusters of a tile of rows of x | B operand | result |
|---|---|---|
| the first: a tile's columns are columns of lora_down | lora_down as it is packed | lora_act_in |
| the others | weights, dequantized (``dequant.py``) | y |

| warps | role |
|---|---|
| 0 | TMA loads of packed weights and their scales, then waits for lora_act_in (``branch.py``); or copies of lora_down |
| 1, 3 | 1 / smooth of k-tiles in even or in odd places of their ring, beside the weights |
| 2 | TMA loads of x, then of lora_act_in |
| dequantizing warpgroups | packed slots -> slots of weights; then TMA loads of lora_up |
| multiplying warpgroups | wgmma; sums of the cluster; epilogue (``multiply.py``, ``finish.py``) |

| ring | producer -> consumer | slots | full barrier | empty barrier |
|---|---|---|---|---|
| smooth | bulk copies -> warps 1, 3 | the same slots | bytes of one slot | none: that of ab |
| ab | TMA, warps 1, 3 -> dequantizing warps | num_ab_stage | bytes, a lane of a warp | a lane of a warpgroup's warps |
| dq | dequantizing -> multiplying warps | num_dq_stage | a lane of a warpgroup's warps | of every multiplying warp |
| down | bulk copies -> multiplying warps | the same memory, in CTAs of lora_act_in | bytes of one slot | the same |
| x | TMA, multicast -> multiplying warps | num_x_stage | bytes of one slot | of every multiplying warp of all sharers |
| branch | warp 0 -> warp 2 | once: lora_act_in is there | a lane | none |
| peers | multiplying warps of the cluster -> multiplying warps | once | a lane of each of those with this tile | none |
| sums | multiplying warps of the cluster -> multiplying warps | once | bytes of a strip of all CTAs | none |

| counter, of each tile of rows of x | counted up by | waited for by |
|---|---|---|
| ready | CTAs of the first kind, their part written (release) | warp 0 of the others (acquire) |
| taken | those CTAs, when they have seen that | nobody; the last one sets both to 0 |

CTAs of the first kind wait for nobody of another cluster, and come first in the launch: so they are under way or done
wherever another waits.

With ``use_pdl`` weights are read before the previous kernel has ended (``griddepcontrol.wait``, in warps 0 and 2): that
kernel must not be the one that writes them. Dependents are let go after that wait. y is touched only behind x, which
comes after it.
"""

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Int32, cute
from cutlass.cute.nvgpu import cpasync

from kernel_space.core.arch import Arch
from kernel_space.core.problem import ProblemClass
from kernel_space.operators.nvfp4_quantize.parts.ptx import of_bits, unless_zero
from kernel_space.operators.svdquant_gemm.sm90a_parts.dequant import (
    load_shared,
)
from kernel_space.operators.svdquant_gemm.sm90a_parts.layouts import (
    WARPS_PER_GROUP,
)
from kernel_space.operators.svdquant_gemm.sm90a_parts.split_k import GROUP_THREADS
from kernel_space.operators.svdquant_linear_16bit.host import typed_arguments
from kernel_space.operators.svdquant_linear_16bit.staged.branch import Branch
from kernel_space.operators.svdquant_linear_16bit.staged.config import HALF_K, StagedConfig, StagedKnobs
from kernel_space.operators.svdquant_linear_16bit.staged.dequant import Dequantizer
from kernel_space.operators.svdquant_linear_16bit.staged.finish import Finish
from kernel_space.operators.svdquant_linear_16bit.staged.layouts import (
    BRANCH_READY,
    HALVES,
    INVERSE,
    PEERS_DONE,
    SMOOTH,
    SUMS_FULL,
    StagedLayouts,
)
from kernel_space.operators.svdquant_linear_16bit.staged.multiply import Multiplier
from kernel_space.operators.svdquant_linear_16bit.staged.ptx import store_pair
from kernel_space.operators.svdquant_linear_16bit.staged.rows import StagedLoads
from kernel_space.operators.svdquant_linear_16bit.whole.inverses import inverses


class StagedLayer(Multiplier, Finish, Branch, Dequantizer, StagedLoads):
    """Generator of one kernel: a resolved config (no ``auto``) and a problem class."""

    over_smooth = True  # weights are: x is multiplied as it is
    quantizes = False  # x, before it is multiplied

    def __init__(self, config: StagedKnobs, problem_class: ProblemClass):
        self.config = config
        self.problem_class = problem_class
        self.split_k, self.share = config.split_k, config.share
        self.has_lora = problem_class.r > 0
        self.dequant_groups = config.num_dequant_warpgroups
        self.threads = GROUP_THREADS * (1 + self.dequant_groups + config.consumer_warpgroups)

    def _layouts(self) -> StagedLayouts:
        return StagedLayouts(self.config, self.problem_class)

    @cute.jit
    def __call__(
        self,
        x: cute.Pointer,
        smooth: cute.Pointer,
        lora_down: cute.Pointer,
        wgt: cute.Pointer,
        wscales: cute.Pointer,
        lora_up: cute.Pointer,
        wcscale: cute.Pointer,
        bias: cute.Pointer,
        xs: cute.Pointer,
        lora_act_in: cute.Pointer,
        y: cute.Pointer,
        workspace: cute.Pointer,
        m: Int32,
        k: Int32,
        n: Int32,
        max_active_clusters: Int32,
        stream: cuda.CUstream,
    ):
        """Launch ``split_k`` CTAs for every tile of lora_act_in and of y, ``share`` tiles a cluster; not persistent.
        Tiles that fill up the last cluster have no columns. ``xs``, which the links of a chain hand on, is not written.
        """
        lay = self._layouts()
        tma_w, mW = self._tma_halves(lay, wgt, n, k)
        tma_sf, mSF = self._tma_blocks(lay, wscales, n, k)
        tma_x, mX = self._tma_rows(lay, x, m, k)
        tma_b, mB = self._tma_branch(lay, lora_act_in, lora_up, m, n) if self.has_lora else ((), ())
        pointers = (smooth, lora_down, wcscale, bias, lora_act_in, y, workspace)
        atoms, tensors = (tma_w, tma_sf, *tma_x, *tma_b), (mW, mSF, *mX, *mB)
        self._start(lay, atoms, tensors, pointers, (m, n, k), stream)

    def _start(
        self, lay: StagedLayouts, atoms: Any, tensors: Any, pointers: Any, sizes: Any, stream: Any
    ) -> None:
        m, n, _ = sizes
        tiles = cute.round_up(lay.down_tiles + cute.ceil_div(n, lay.columns), self.share)
        self.kernel(atoms, tensors, pointers, *sizes).launch(
            grid=(self.split_k, tiles, cute.ceil_div(m, lay.rows)),
            block=[self.threads, 1, 1],
            cluster=(self.split_k, self.share, 1),
            stream=stream,
            min_blocks_per_mp=self.config.ctas_per_sm,
            preferred_smem_carveout=100,
            use_pdl=self.config.use_pdl,
        )

    @cute.kernel
    def kernel(self, atoms: Any, tensors: Any, pointers: Any, m: Int32, n: Int32, k: Int32):
        lay = self._layouts()
        warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        if warp_idx == 0:
            for atom in atoms:
                cpasync.prefetch_descriptor(atom)
        buffers = self._allocate(lay)
        self._init_barriers(lay, buffers, warp_idx)
        if cutlass.const_expr(self.split_k * self.share > 1):
            # Others write into this CTA's shared memory, and count at its barriers: who does so waits first.
            cute.arch.cluster_arrive_relaxed()
        place = self._place(lay, pointers, k)
        if cutlass.const_expr(self.quantizes):
            if (warp_idx >= WARPS_PER_GROUP) & (place["tile"] >= lay.down_tiles):
                self.quantize_own(lay, place, buffers, m)
        loaders, dequantizers, multipliers = self.config.registers
        multiplying = WARPS_PER_GROUP * (1 + self.dequant_groups)
        if warp_idx < WARPS_PER_GROUP:
            cute.arch.setmaxregister_decrease(loaders)
            self._load(lay, place, atoms, tensors, pointers, buffers, warp_idx, m, k)
        elif warp_idx < multiplying:
            cute.arch.setmaxregister_decrease(dequantizers)
            if place["tile"] >= lay.down_tiles:
                self.dequantize(place, buffers, warp_idx - WARPS_PER_GROUP)
                if cutlass.const_expr(self.has_lora):
                    self.load_ups(lay, place, atoms[-1], tensors[-1], buffers, warp_idx - WARPS_PER_GROUP)
        else:
            cute.arch.setmaxregister_increase(multipliers)
            wcscale, bias, lora_act_in, y = pointers[2:6]
            if place["tile"] < lay.down_tiles:
                if cutlass.const_expr(self.has_lora):
                    self.down_consumers(place, lora_act_in, m, buffers)
            else:
                self.up_consumers(place, y, (wcscale, bias), m, n, buffers)

    @cute.jit
    def _place(self, lay: StagedLayouts, pointers: Any, k: Int32):
        """Which tile this CTA works on, and its 64s of K: first and number of them, and of slots. ``beyond``: their
        number in K. The last CTAs of a cluster have one more where they cannot be equal. ``sharer``: which of those of
        its cluster that multiply the same x; ``peers``: the first of the cluster's ranks with its tile.
        """
        rank, tile, row_tile = cute.arch.block_idx()
        beyond = cute.ceil_div(k, HALF_K)
        each = beyond // self.split_k
        fewer = self.split_k - (beyond - each * self.split_k)
        first, halves = rank * each + cutlass.max(rank - fewer, Int32(0)), each + Int32(rank >= fewer)
        slots = cute.ceil_div(halves, HALVES)
        column_tile = tile
        if tile >= lay.down_tiles:
            column_tile = tile - lay.down_tiles
        return {
            "rank": rank, "tile": tile, "row_tile": row_tile, "column_tile": column_tile,
            "first": first, "halves": halves, "slots": slots, "beyond": beyond,
            "sharer": tile % self.share, "peers": tile % self.share * self.split_k,
            "ready": cute.recast_ptr(pointers[6], dtype=Int32) + self.counters * row_tile,
        }  # fmt: skip

    # ------------------------------------------------------------ loading warps

    @cute.jit
    def _load(
        self,
        lay: StagedLayouts,
        place: Any,
        atoms: Any,
        tensors: Any,
        pointers: Any,
        buffers: Any,
        warp_idx: Int32,
        m: Int32,
        k: Int32,
    ):
        smooth, lora_down = pointers[0], pointers[1]
        if place["tile"] < lay.down_tiles:
            if cutlass.const_expr(self.has_lora):
                if warp_idx == 0:
                    self._down_warp(lay, place, lora_down, buffers)
                if cutlass.const_expr(self.config.use_pdl):
                    if warp_idx == WARPS_PER_GROUP - 1:
                        self._prefetch_x(lay, place, atoms[2:], tensors[2:], buffers, m)
        else:
            if warp_idx == 0:
                self._weight_warp(lay, place, atoms, tensors, smooth, buffers, k)
                if cutlass.const_expr(self.has_lora):
                    self.await_acts(lay, place, buffers)
            if cutlass.const_expr(self.over_smooth):
                if warp_idx % 2 == 1:
                    self._smooth_warp(lay, place, buffers, warp_idx // 2, k)
        if warp_idx == 2:
            self._x_warp(lay, place, atoms[2:], tensors[2:], buffers, m)
            if cutlass.const_expr(self.has_lora):
                if place["tile"] >= lay.down_tiles:
                    behind = -1 - len(lay.boxes)
                    acts = atoms[behind:-1], tensors[behind:-1]
                    self.load_acts(lay, place, *acts, buffers, self._filled(lay, place, m))
                if cutlass.const_expr(self.share > 1):
                    if place["tile"] < lay.down_tiles:
                        # Sharers count at this CTA's barriers as often as at one's that has the branch.
                        stages, at = self.config.num_x_stage, place["slots"]
                        cute.arch.mbarrier_wait(
                            buffers["x_empty"].iterator + at % stages, at // stages & 1 ^ 1
                        )

    @cute.jit
    def _invert(self, lay: StagedLayouts, buffers: Any, slot: Int32, left: Int32):
        """0 beyond K, of which ``left`` begins here. A lane has four neighbours."""
        lane = cute.arch.lane_idx()
        words = load_shared(buffers[SMOOTH].iterator.toint() + slot * lay.smooth_bytes + lane * 16, 4)
        given = [of_bits(unless_zero(Int32(lane * 4 < left), word)) for word in words]
        pairs = inverses(given, lay.is_bf16)
        store_pair(buffers[INVERSE].iterator.toint() + slot * lay.inverse_bytes + lane * 8, pairs)

    # ------------------------------------------------------------ what bases ask

    def _arrivals(self, lay: Any) -> dict[str, int]:
        warps, dequantizing = lay.multiplying_warps, WARPS_PER_GROUP
        return {
            "smooth_full": 1, "ab_full": 2, "ab_empty": dequantizing,
            "dq_full": dequantizing, "dq_empty": warps,
            "x_full": 1, "x_empty": warps * self.share,
            "down_full": 1, "down_empty": warps, BRANCH_READY: 1, SUMS_FULL: 1, PEERS_DONE: warps * self.split_k,
        }  # fmt: skip


def host_function(
    config: StagedConfig, problem_class: ProblemClass, arch: Arch
) -> tuple[Any, tuple[Any, ...]]:
    """The function to compile and arguments that give it the types of a call, in the order of the signature."""
    return StagedLayer(config, problem_class), typed_arguments(problem_class)

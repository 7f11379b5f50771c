"""The kernel ``sliced``: a layer on few rows of 16-bit activations in one launch.

``lora_act_in[M,R] = x[M,K] @ lora_down[K,R]``,
``y[M,N] = f(((x / smooth) @ wgt[N,K].T + lora_act_in @ lora_up[N,R].T) * wcscale[N] + bias[N])``

Its numbers are those of ``whole``, to the rounding of x / smooth. There warps share out the columns of a tile, and each
copies what it wants; what they make of x, they make together and meet. Here K is sliced among the warps of a CTA: each
has the whole tile, and every so many-th k-tile, so that nobody meets before the sums. TMA brings what a warp wants.

| CTAs of a tile of rows of x | operand beside x | result |
|---|---|---|
| the first, ``split_k`` for a tile of columns of lora_down | lora_down, as it is packed | lora_act_in |
| the others | weights, through shared memory, dequantized in registers | y |

| warps | role |
|---|---|
| 0 | TMA loads of packed weights and their scales, bulk copies of smooth; or of lora_down |
| 1, 3 | 1 / smooth of k-tiles in even or in odd slots; in CTAs of the first kind 3 brings x into the L2 |
| 2 | TMA loads of x |
| multiplying warpgroups | ``mma.sync`` on slots of each warp (``products.py``), the branch (``branch.py``) |
| the same | sums of the warps, then of the cluster, in a fixed order; epilogue (``SmallMReduce``) |

| ring | producer -> consumer | slots | full barrier | empty barrier |
|---|---|---|---|---|
| smooth | bulk copies -> warps 1, 3 | the same | bytes of one slot | none: that of ab |
| ab | TMA, warps 1, 3 -> a multiplying warp, or two | num_ab_stage | bytes, a lane of a warp | a lane of each |
| x | TMA -> the same | the same | bytes of one slot | the same |
| down | bulk copies -> the same | where weights are elsewhere | bytes of one slot | a lane of each |
| sums | multiplying warps of the cluster -> the same | once | bytes of what a CTA owns | none |

| counter, of each tile of rows of x | counted up by | waited for by |
|---|---|---|
| taken | CTAs of the second kind, when all warps have lora_act_in | nobody; the last one sets it and the pairs to 0 |

CTAs of the first kind wait for nobody of another cluster, and come first in the launch: so they are under way or done
wherever another waits.

With ``use_pdl`` everything but x is read before the previous kernel has ended (``griddepcontrol.wait``): that kernel
must not be the one that writes weights. Dependents are let go after that wait. The workspace, lora_act_in and y are
touched only after it.
"""

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Int32, Int64, cute
from cutlass.cute.nvgpu import cpasync

from kernel_space.core.arch import Arch
from kernel_space.core.problem import ProblemClass
from kernel_space.operators.nvfp4_quantize.parts.ptx import bits_of, of_bits, store_if, unless_zero
from kernel_space.operators.svdquant_gemm.sm90a_parts.dequant import load_shared, store_shared
from kernel_space.operators.svdquant_gemm.sm90a_small_m.mma.ptx import copy_async
from kernel_space.operators.svdquant_gemm.sm90a_small_m.mma.reduce import SmallMReduce
from kernel_space.operators.svdquant_gemm.sm90a_small_m.mma.stream import exists
from kernel_space.operators.svdquant_linear_16bit.host import typed_arguments
from kernel_space.operators.svdquant_linear_16bit.sliced.branch import SlicedBranch
from kernel_space.operators.svdquant_linear_16bit.sliced.config import (
    LOADING_WARPS,
    SlicedConfig,
    SlicedKnobs,
)
from kernel_space.operators.svdquant_linear_16bit.sliced.layouts import (
    ARRIVED,
    QUAD,
    SUMS,
    SlicedLayouts,
    Sums,
)
from kernel_space.operators.svdquant_linear_16bit.sliced.products import INVERSE_BYTES, SlicedProducts
from kernel_space.operators.svdquant_linear_16bit.staged.config import HALF_K
from kernel_space.operators.svdquant_linear_16bit.staged.layouts import (
    AFFINE,
    HALVES,
    INVERSE,
    LEAST_BOX,
    PACKED,
    SMOOTH,
    WEIGHTS,
    WORD_BYTES,
    X,
)
from kernel_space.operators.svdquant_linear_16bit.staged.rows import StagedLoads
from kernel_space.operators.svdquant_linear_16bit.whole.inverses import rounded_inverses
from kernel_space.operators.svdquant_linear_16bit.whole.ptx import round_pair, store_tagged
from kernel_space.operators.svdquant_linear_16bit.whole.spec import COUNTERS, TAGGED

SUMS_BARRIER = 1


class SlicedLayer(SlicedProducts, SlicedBranch, StagedLoads, SmallMReduce):
    """Generator of one kernel: a resolved config (no ``auto``) and a problem class."""

    over_smooth = True  # smooth comes with the weights
    quantizes = False  # x, before it is multiplied with weights
    share = 1

    def __init__(self, config: SlicedKnobs, problem_class: ProblemClass):
        self.config = config
        self.problem_class = problem_class
        self.split_k = config.split_k
        self.has_lora = problem_class.r > 0
        self.threads = config.threads

    def _layouts(self) -> SlicedLayouts:
        return SlicedLayouts(self.config, self.problem_class)

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
        """Launch a cluster of ``split_k`` CTAs for every tile of lora_act_in and of y; not persistent. ``xs``, which
        the links of a chain hand on, is not written.
        """
        lay = self._layouts()
        pointers = (smooth, lora_down, lora_up, wcscale, bias, lora_act_in, y, workspace)
        tma_w, mW = self._tma_halves(lay, wgt, n, k)
        tma_sf, mSF = self._tma_blocks(lay, wscales, n, k)
        tma_x, mX = self._tma_rows(lay, x, m, k)
        self._start(lay, (tma_w, tma_sf, *tma_x), (mW, mSF, *mX), pointers, (m, n, k), stream)

    def _start(
        self, lay: SlicedLayouts, atoms: Any, tensors: Any, pointers: Any, sizes: Any, stream: Any
    ) -> None:
        m, n, _ = sizes
        self.kernel(atoms, tensors, pointers, *sizes).launch(
            grid=(self.split_k, lay.down_tiles + cute.ceil_div(n, lay.columns), cute.ceil_div(m, lay.rows)),
            block=[lay.threads, 1, 1],
            cluster=(self.split_k, 1, 1),
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
        # Slots of x are those of weights, and lora_down lies where weights are elsewhere.
        buffers = buffers | {
            "x_empty": buffers["ab_empty"],
            WEIGHTS: buffers[PACKED],
        }
        place = self._place(lay, pointers, buffers, m, n, k)
        if cutlass.const_expr(self.has_lora):
            if place["tile"] < lay.down_tiles:
                self._down(lay, place, atoms, tensors, pointers, buffers, warp_idx, m)
            else:
                self._up(lay, place, atoms, tensors, pointers, buffers, warp_idx, m, n, k)
        else:
            self._up(lay, place, atoms, tensors, pointers, buffers, warp_idx, m, n, k)

    @cute.jit
    def _place(self, lay: SlicedLayouts, pointers: Any, buffers: Any, m: Int32, n: Int32, k: Int32):
        """Which tile this CTA works on, and its 64s of K: first and number of them, and of slots. ``beyond``: their
        number in K. The last CTAs of a cluster have one more where they cannot be equal.
        """
        rank, tile, row_tile = cute.arch.block_idx()
        tidx, _, _ = cute.arch.thread_idx()
        beyond = cute.ceil_div(k, HALF_K)
        each = beyond // self.split_k
        fewer = self.split_k - (beyond - each * self.split_k)
        first, halves = rank * each + cutlass.max(rank - fewer, Int32(0)), each + Int32(rank >= fewer)
        column_tile = tile
        if tile >= lay.down_tiles:
            column_tile = tile - lay.down_tiles
        first_row = row_tile * lay.rows
        workspace = pointers[7].toint()
        affine = buffers[AFFINE].iterator.toint()
        received, arrived = None, None
        if cutlass.const_expr(self.split_k > 1):
            received, arrived = buffers[SUMS].iterator.toint(), buffers[ARRIVED].iterator
        return {
            "rank": rank, "tile": tile, "row_tile": row_tile, "column_tile": column_tile,
            "first": first, "halves": halves, "slots": cute.ceil_div(halves, HALVES), "beyond": beyond,
            "m": m, "n": n, "k": k, "thread": tidx - 32 * LOADING_WARPS, "first_row": first_row,
            "rings": buffers[X].iterator.toint(), "received": received, "arrived": arrived,
            "wcscale_smem": affine, "bias_smem": affine + lay.columns * WORD_BYTES,
            "lora_act_in": pointers[5].toint(), "y": pointers[6].toint(),
            "taken": cute.recast_ptr(pointers[7], dtype=Int32) + self.counters * row_tile,
            "pairs": workspace + Int64(COUNTERS) + Int64(first_row) * (lay.r * TAGGED),
        }  # fmt: skip

    # ------------------------------------------------------------ CTAs of lora_act_in

    @cute.jit
    def _down(
        self,
        lay: SlicedLayouts,
        place: Any,
        atoms: Any,
        tensors: Any,
        pointers: Any,
        buffers: Any,
        warp_idx: Int32,
        m: Int32,
    ):
        self._announce(lay.down, place, buffers)
        loading, multiplying = self.config.registers
        if warp_idx < LOADING_WARPS:
            cute.arch.setmaxregister_decrease(loading)
            if warp_idx == 0:
                self._down_warp(lay, place, pointers[1], buffers)
            if cutlass.const_expr(self.config.use_pdl):
                if warp_idx == LOADING_WARPS - 1:
                    self._prefetch_x(lay, place, atoms[2:], tensors[2:], buffers, m)
            if warp_idx == 2:
                self._x_warp(lay, place, atoms[2:], tensors[2:], buffers, m)
        else:
            cute.arch.setmaxregister_increase(multiplying)
            warp = warp_idx - LOADING_WARPS
            accs = self.zeros(lay.down)
            self.multiply_down(lay, place, buffers, accs, warp)
            self._meet(lay)
            self.write_sums(lay.down, place, accs, cute.arch.lane_idx() // 4)
            self._await_previous()
            self._meet(lay)
            self.add_warps(lay.down, place | {"tile": place["column_tile"], "is_down": True})

    # ------------------------------------------------------------ CTAs of y

    @cute.jit
    def _up(
        self,
        lay: SlicedLayouts,
        place: Any,
        atoms: Any,
        tensors: Any,
        pointers: Any,
        buffers: Any,
        warp_idx: Int32,
        m: Int32,
        n: Int32,
        k: Int32,
    ):
        self._announce(lay.up, place, buffers)
        loading, multiplying = self.config.registers
        if warp_idx < LOADING_WARPS:
            cute.arch.setmaxregister_decrease(loading)
            if warp_idx == 0:
                self._weight_warp(lay, place, atoms, tensors, pointers[0], buffers, k)
            if cutlass.const_expr(self.over_smooth):
                if warp_idx % 2 == 1:
                    self._smooth_warp(lay, place, buffers, warp_idx // 2, k)
            if warp_idx == 2:
                self._x_warp(lay, place, atoms[2:], tensors[2:], buffers, m)
        else:
            cute.arch.setmaxregister_increase(multiplying)
            self._copy_affine(lay, place, pointers[3], pointers[4])
            warp = warp_idx - LOADING_WARPS
            accs = self.zeros(lay.up)
            if cutlass.const_expr(self.has_lora):
                self.prefetch_up(lay, place, pointers[2], n, place["thread"], 32 * lay.warps)
            if cutlass.const_expr(self.quantizes):
                self.quantize_own(lay, place, buffers, m)
                self.quantize_others(lay, place, buffers, m, place["thread"])
            held = self.make_held(lay) if self.has_lora else {}
            self.multiply_weights(lay, place, pointers[2], buffers, accs, held, warp)
            if cutlass.const_expr(self.has_lora):
                self.multiply_up(lay, place, pointers[2], accs, held)
            self._meet(lay)
            self.write_sums(lay.up, place, accs, self.row_of_lane())
            self._await_previous()
            cute.arch.cp_async_wait_group(0)
            self._meet(lay)
            taken = Int32(0)
            if cutlass.const_expr(lay.counts):
                # Every warp of this CTA has its pairs. What the atomic returns is not waited for here.
                if place["thread"] == 0:
                    taken = cute.arch.atomic_add(place["taken"], Int32(1), sem="acq_rel", scope="gpu")
            self.add_warps(lay.up, place | {"tile": place["column_tile"], "is_down": False})
            if cutlass.const_expr(lay.counts):
                self.clear(lay, place, buffers, taken, m)

    @cute.jit
    def _await_previous(self):
        """Of what a thread touches of the kernel before it knows only after its own wait; it has ended by then."""
        if cutlass.const_expr(self.config.use_pdl):
            cute.arch.griddepcontrol_wait()

    @cute.jit
    def _announce(self, sums: Any, place: Any, buffers: Any):
        if cutlass.const_expr(self.split_k > 1):
            self.announce(sums, buffers[ARRIVED].iterator, place["rank"], place["m"] - place["first_row"])

    @cute.jit
    def _meet(self, lay: SlicedLayouts):
        """All warps of this CTA that multiply are here."""
        cute.arch.barrier(barrier_id=SUMS_BARRIER, number_of_threads=32 * lay.warps)

    @cute.jit
    def _copy_affine(self, lay: SlicedLayouts, place: Any, wcscale: Any, bias: Any):
        """wcscale and bias of the tile's columns; zeros beyond N."""
        thread, quads = place["thread"], lay.up.quads
        if thread < 2 * quads:
            quad = thread % quads
            column = place["column_tile"] * lay.columns + quad * QUAD
            source, target = wcscale.toint(), place["wcscale_smem"]
            if thread >= quads:
                source, target = bias.toint(), place["bias_smem"]
            size = exists(place["n"] - column) * 16
            copy_async(target + quad * 16, source + Int64(column) * WORD_BYTES, size, 16)
        cute.arch.cp_async_commit_group()

    # ------------------------------------------------------------ what bases ask

    def _filled(self, lay: SlicedLayouts, place: Any, m: Any) -> Any:
        """Rows of the tile that x has, in whole boxes: a small tile is one."""
        if lay.rows <= LEAST_BOX:
            return Int32(lay.rows)
        return StagedLoads._filled(self, lay, place, m)

    @cute.jit
    def _invert(self, lay: SlicedLayouts, buffers: Any, slot: Int32, left: Int32):
        """In fp32, 0 beyond K, of which ``left`` begins here. A lane has four neighbours. Of 64 of K the first four of
        each 16 come first: lanes of a quad, which have 16 each, read side by side.
        """
        lane = cute.arch.lane_idx()
        words = load_shared(buffers[SMOOTH].iterator.toint() + slot * lay.smooth_bytes + lane * 16, 4)
        given = [of_bits(unless_zero(Int32(lane * 4 < left), word)) for word in words]
        inverted = [bits_of(value) for value in rounded_inverses(given)]
        half, quarter, quad = lane // 16, lane // 4 % 4, lane % 4
        begin = buffers[INVERSE].iterator.toint() + slot * lay.smooth_bytes
        store_shared(begin + half * INVERSE_BYTES + quad * 64 + quarter * 16, inverted)

    def _arrivals(self, lay: Any) -> dict[str, int]:
        shared = self.config.slot_warps
        return {
            "smooth_full": 1, "ab_full": 2, "x_full": 1, "ab_empty": shared, "down_full": 1, "down_empty": shared,
        }  # fmt: skip

    @staticmethod
    def first_column(sums: Sums, tile: Any, quad: Any) -> Any:
        """Column of the tile's result at which quad ``quad`` of it begins."""
        return tile * sums.rows + quad * QUAD

    def _finish(self, sums: Sums, place: Any, quad: Any, values: Any) -> None:
        """Of y as everywhere; of lora_act_in one rounding, 8 bytes, and the same for the other CTAs."""
        if not place["is_down"]:
            SmallMReduce._finish(self, sums, place, quad, values)
            return
        row, column = quad // sums.quads, self.first_column(sums, place["tile"], quad % sums.quads)
        words = [round_pair(values[i], values[i + 1], is_bf16=sums.out_bf16) for i in (0, 2)]
        wanted = exists(Int32(sums.r) - column)
        at = place["lora_act_in"] + (Int64(place["first_row"] + row) * sums.r + Int64(column)) * 2
        store_if(at, words, wanted)
        store_tagged(place["pairs"] + Int64(row) * (sums.r * TAGGED) + Int64(column * TAGGED), words, wanted)


def host_function(
    config: SlicedConfig, problem_class: ProblemClass, arch: Arch
) -> tuple[Any, tuple[Any, ...]]:
    """The function to compile and arguments that give it the types of a call, in the order of the signature."""
    return SlicedLayer(config, problem_class), typed_arguments(problem_class)

"""The kernel ``fused``: a layer on a middle number of rows of 16-bit activations in one launch.

``lora_act_in[M,R] = x[M,K] @ lora_down[K,R]``,
``y[M,N] = f((x @ round16(wgt[N,K] * round16(1 / smooth[K])).T + lora_act_in @ lora_up[N,R].T) * wcscale[N] + bias[N])``

K of each tile is shared out to the CTAs of a cluster, whose sums meet in shared memory (``sums.py``). x is read as it
is: what it is divided by goes into the weights, which every CTA dequantizes anyway. So nothing that is multiplied waits
for another kernel, but for the low-rank branch, which comes last (``branch.py``).

| clusters of a tile of rows of x | A operand | result |
|---|---|---|
| the first: a tile's rows are columns of lora_down | lora_down, from shared memory (``down.py``) | lora_act_in |
| the others | weights, dequantized in registers (``consumer.py``) | y |

| warps | role |
|---|---|
| 0 | TMA loads of packed weights and their scale factors, or bulk copies of lora_down |
| 1 | TMA loads of slices of lora_up; with ``split_k`` copies of rows of lora_act_in, when they are ready |
| 2 | TMA loads of x; without ``split_k`` then those of lora_act_in, when it is ready |
| 3 | 1 / smooth of a k-tile, beside its weights |
| consumer warpgroups | operands; wgmma; sums; epilogue |

| ring | producer -> consumer | slots | full barrier | empty barrier |
|---|---|---|---|---|
| ab | TMA, warp 3 -> consumer warps | num_ab_stage | bytes of one k-tile, warp 3 | a lane of every consumer warp |
| down | bulk copies -> consumer warps | num_ab_stage / 2 (64 of K) | bytes of one slot | the same |
| dq | TMA -> consumer warps | num_dq_stage (64 of K) | bytes of one slot of x | the same |
| lora | TMA -> consumer warps | num_lora_stage | bytes of one slice | the same |
| branch | warp 1 -> consumer warps | once, with split_k | warp 1 | none |
| sums | consumer warps of the cluster -> consumer warps | once | bytes of a strip of all CTAs | none |

| counter, of each tile of rows of x | counted up by | waited for by |
|---|---|---|
| ready | CTAs of the first kind, their part written (release) | warp 1 or 2 of the others (acquire) |
| taken | those CTAs, when they have seen that | nobody; the last one sets both to 0 |

CTAs of the first kind wait for nobody of another cluster, and come first in the launch: so they are under way or done
wherever another waits.

With ``use_pdl`` everything but x is read before the previous kernel has ended (``griddepcontrol.wait``, in warp 2):
that kernel must not be the one that writes weights. Dependents are let go after that wait. Counters, lora_act_in and y
are touched only behind x, which comes after it.
"""

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.pipeline as pipeline
from cutlass import Int32, Int64, cute
from cutlass.cute.nvgpu import cpasync

from kernel_space.core.arch import Arch
from kernel_space.core.problem import ProblemClass
from kernel_space.operators.nvfp4_quantize.parts.ptx import of_bits
from kernel_space.operators.svdquant_gemm.sm90a_expand.epilogue import EpilogueExpandSm90a
from kernel_space.operators.svdquant_gemm.sm90a_parts.barriers import BarriersSm90a
from kernel_space.operators.svdquant_gemm.sm90a_parts.dequant import (
    FROM_DEQUANT_SCALE,
    load_shared,
    store_shared,
)
from kernel_space.operators.svdquant_gemm.sm90a_parts.layouts import DQ_K, SWIZZLE_ALIGN, WARPS_PER_GROUP
from kernel_space.operators.svdquant_gemm.sm90a_parts.split_k import GROUP_THREADS
from kernel_space.operators.svdquant_gemm.sm90a_small_m.mma.ptx import copy_async
from kernel_space.operators.svdquant_linear_16bit.fused.config import REGISTERS, FusedConfig
from kernel_space.operators.svdquant_linear_16bit.fused.consumer import FusedConsumer
from kernel_space.operators.svdquant_linear_16bit.fused.down import DownRoles
from kernel_space.operators.svdquant_linear_16bit.fused.layouts import (
    BRANCH_FULL,
    INVERSE,
    SUMS,
    FusedLayouts,
)
from kernel_space.operators.svdquant_linear_16bit.host import typed_arguments
from kernel_space.operators.svdquant_linear_16bit.whole.inverses import inverses

SLOTS = 2  # of x in a k-tile


class FusedLayer(EpilogueExpandSm90a, FusedConsumer, DownRoles, BarriersSm90a):
    """Generator of one kernel: a resolved config (no ``auto``) and a problem class."""

    def __init__(self, config: FusedConfig, problem_class: ProblemClass):
        self.config = config
        self.problem_class = problem_class
        self.split_k = config.split_k
        self.has_lora = problem_class.r > 0
        self.threads = GROUP_THREADS * (1 + config.consumer_warpgroups)

    def _layouts(self) -> FusedLayouts:
        return FusedLayouts(self.config, self.problem_class)

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
        tma_a, mA = self._tma_packed(lay.a_box, wgt, n, k, 1)
        tma_sfa, mSFA = self._tma_scales(lay, lay.sfa, wscales, n, k)
        tma_x, mX = self._tma_x(lay, x, m, k)
        tma_la, mLA, tma_lb, mLB = None, None, None, None
        if cutlass.const_expr(self.has_lora):
            tma_la, mLA = self._tma_lora(lay.lora_a_box, lora_up, n)
            if cutlass.const_expr(self.split_k == 1):
                tma_lb, mLB = self._tma_lora(lay.lora_b_box, lora_act_in, m)
        row_tiles = cute.ceil_div(n, lay.rows)
        self.kernel(
            (tma_a, tma_sfa, tma_x, tma_la, tma_lb),
            (mA, mSFA, mX, mLA, mLB),
            (smooth, lora_down, wcscale, bias, lora_act_in, y, workspace),
            m,
            n,
            k,
        ).launch(
            grid=(self.split_k, lay.down_tiles + row_tiles, cute.ceil_div(m, lay.columns)),
            block=[self.threads, 1, 1],
            cluster=(self.split_k, 1, 1),
            stream=stream,
            min_blocks_per_mp=self.config.ctas_per_sm,
            preferred_smem_carveout=100,
            use_pdl=self.config.use_pdl,
        )

    def _tma_x(self, lay: FusedLayouts, x: cute.Pointer, m: Int32, k: Int32) -> Any:
        """Activations ``[m, K]``; a box is one slot; zeros beyond."""
        gmem = cute.make_tensor(x, cute.make_layout((m, k), stride=(cute.assume(k, 32), 1)))
        return cpasync.make_tiled_tma_atom(self._load_op(1), gmem, lay.dq_box, (lay.columns, DQ_K))

    @cute.kernel
    def kernel(self, atoms: Any, tensors: Any, pointers: Any, m: Int32, n: Int32, k: Int32):
        lay = self._layouts()
        warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        if warp_idx == 0:
            for atom in atoms:
                if cutlass.const_expr(atom is not None):
                    cpasync.prefetch_descriptor(atom)
        buffers = self._allocate(lay)
        if cutlass.const_expr(self.has_lora and self.split_k == 1):
            slots = cute.recast_ptr(
                buffers["dequantized"].iterator.align(SWIZZLE_ALIGN),
                lay.lora_b_box.inner,
                dtype=lay.lora_dtype,
            )
            buffers["LoRA columns"] = cute.make_tensor(slots, lay.lora_in_dq)
        self._init_barriers(lay, buffers, warp_idx)
        place = self._place(lay, pointers[6], pointers[4], k)
        loader_registers, consumer_registers = REGISTERS[self.config.ctas_per_sm]
        if warp_idx < WARPS_PER_GROUP:
            cute.arch.setmaxregister_decrease(loader_registers)
            self._load(lay, place, atoms, tensors, pointers, buffers, warp_idx, m, k)
        else:
            cute.arch.setmaxregister_increase(consumer_registers)
            _, _, wcscale, bias, lora_act_in, y, _ = pointers
            if place["tile"] < lay.down_tiles:
                if cutlass.const_expr(self.has_lora):
                    self.down_consumers(place, (lora_act_in, place["ready"], m), buffers)
            else:
                self.up_consumers(place, (y, m, n), (wcscale, bias), n, buffers)

    @cute.jit
    def _place(self, lay: FusedLayouts, workspace: cute.Pointer, lora_act_in: cute.Pointer, k: Int32):
        """Which tile this CTA works on, and its part of K; the last CTAs of a cluster have one k-tile more where they
        cannot be equal, for the first has the low-rank branch.
        """
        rank, tile, column_tile = cute.arch.block_idx()
        k_tiles = cute.ceil_div(k, lay.k)
        each = k_tiles // self.split_k
        fewer = self.split_k - (k_tiles - each * self.split_k)
        k_begin, k_count = rank * each + cutlass.max(rank - fewer, Int32(0)), each + Int32(rank >= fewer)
        row_tile, slots = tile, cutlass.min(cute.ceil_div(k, DQ_K) - k_begin * SLOTS, k_count * SLOTS)
        if tile >= lay.down_tiles:
            # Of weights a whole k-tile is multiplied, with zeros beyond K.
            row_tile, slots = tile - lay.down_tiles, k_count * SLOTS
        return {
            "rank": rank, "tile": tile, "row_tile": row_tile, "column_tile": column_tile,
            "k_begin": k_begin, "k_count": k_count, "slots": slots,
            "lora_act_in": lora_act_in.toint(),
            "ready": cute.recast_ptr(workspace, dtype=Int32) + 2 * column_tile,
        }  # fmt: skip

    # ------------------------------------------------------------ loading warps

    @cute.jit
    def _load(
        self,
        lay: FusedLayouts,
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
                    self.down_warp(place, lora_down, buffers)
        else:
            if warp_idx == 0:
                self._weight_warp(lay, place, atoms, tensors, buffers)
            if warp_idx == 3:
                self._smooth_warp(lay, place, smooth, buffers, k)
            if cutlass.const_expr(self.has_lora):
                if warp_idx == 1:
                    self.branch_warp(place, atoms[3], tensors[3], buffers, m)
        if warp_idx == 2:
            self._x_warp(lay, place, (atoms[2], atoms[4]), (tensors[2], tensors[4]), buffers)

    @cute.jit
    def _weight_warp(self, lay: FusedLayouts, place: Any, atoms: Any, tensors: Any, buffers: Any):
        tAsA, tAgA = self._partition(atoms[0], buffers["rows"], tensors[0], (lay.rows, lay.k // 2))
        tAsSFA, tAgSFA = self._partition_scales(
            lay, atoms[1], buffers["row scales"], tensors[1], lay.sfa_row_blocks
        )
        full, empty = buffers["ab_full"].iterator, buffers["ab_empty"].iterator
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, self.config.num_ab_stage)
        row_tile, sf_block = place["row_tile"], place["row_tile"] * lay.rows // 128
        for kt in cutlass.range(place["k_begin"], place["k_begin"] + place["k_count"], unroll=1):
            slot = state.index
            barrier = full + slot
            cute.arch.mbarrier_wait(empty + slot, state.phase)
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(barrier, lay.ab_bytes)
            cute.copy(atoms[0], tAgA[(None, row_tile, kt)], tAsA[(None, slot)], tma_bar_ptr=barrier)
            cute.copy(atoms[1], tAgSFA[(None, sf_block, kt)], tAsSFA[(None, slot)], tma_bar_ptr=barrier)
            state.advance()

    @cute.jit
    def _smooth_warp(self, lay: FusedLayouts, place: Any, smooth: cute.Pointer, buffers: Any, k: Int32):
        """1 / smooth of every k-tile, 0 beyond K. A lane has four columns, and copies them for itself, some k-tiles
        ahead: a load from the L2 takes as long as a k-tile is multiplied.
        """
        full, empty = buffers["ab_full"].iterator, buffers["ab_empty"].iterator
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, self.config.num_ab_stage)
        lane = cute.arch.lane_idx()
        octets = lay.k // 8
        # Two lanes an octet: pairs of quarters 0 and 1, or 2 and 3.
        offset = (lane % 2 * (2 * octets) + lane // 2) * 4
        # Where y is to lie at the end.
        many = lay.smooth_ahead
        own, first = buffers["C"].iterator.toint() + lane * 16, place["k_begin"] * lay.k + lane * 4
        for i in cutlass.range_constexpr(many):
            self._copy_smooth(own + i * lay.smooth_bytes, smooth, first + i * lay.k, k, place["k_count"] > i)
        for i in cutlass.range(place["k_count"], unroll=1):
            slot, at = state.index, own + i % many * lay.smooth_bytes
            cute.arch.cp_async_wait_group(many - 1)
            given = load_shared(at, 4)
            cute.arch.mbarrier_wait(empty + slot, state.phase)
            pairs = inverses([of_bits(word) for word in given], lay.is_bf16)
            target = buffers[INVERSE].iterator.toint() + slot * lay.inverse_bytes + offset
            for pair in cutlass.range_constexpr(2):
                store_shared(target + pair * (octets * 4), [pairs[pair]])
            self._arrive(full + slot)
            state.advance()
            ahead = i + many
            self._copy_smooth(at, smooth, first + ahead * lay.k, k, ahead < place["k_count"])

    @cute.jit
    def _copy_smooth(self, target: Int32, smooth: cute.Pointer, first: Int32, k: Int32, wanted: Any):
        """Four neighbours from ``first`` on, zeros beyond K. Not ``wanted`` behind the last k-tile: nobody would wait
        for it before y lies there.
        """
        if wanted:
            copy_async(target, smooth.toint() + Int64(first) * 4, Int32(first < k) * 16, 16)
        cute.arch.cp_async_commit_group()

    @cute.jit
    def _x_warp(self, lay: FusedLayouts, place: Any, atoms: Any, tensors: Any, buffers: Any):
        """x of this CTA's part of K; then lora_act_in, where that is all of K."""
        atom = atoms[0]
        tXsX, tXgX = self._partition(atom, buffers["dequantized"], tensors[0], (lay.columns, DQ_K))
        full, empty = buffers["dq_full"].iterator, buffers["dq_empty"].iterator
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, self.config.num_dq_stage)
        first = place["k_begin"] * SLOTS
        if cutlass.const_expr(self.config.use_pdl):
            if place["tile"] < lay.down_tiles:
                # The first CTAs bring all of x into the L2, where what the kernel before still writes replaces it.
                for piece in cutlass.range(first, first + place["slots"], unroll=1):
                    cute.prefetch(atom, tXgX[(None, place["column_tile"], piece)])
            cute.arch.griddepcontrol_wait()
            # The next launch reads its weights early: they may come from any kernel but the one before it.
            cute.arch.griddepcontrol_launch_dependents()
        for piece in cutlass.range(first, first + place["slots"], unroll=1):
            slot = state.index
            cute.arch.mbarrier_wait(empty + slot, state.phase)
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(full + slot, lay.dq_bytes)
            source = tXgX[(None, place["column_tile"], piece)]
            cute.copy(atom, source, tXsX[(None, slot)], tma_bar_ptr=full + slot)
            state.advance()
        if cutlass.const_expr(self.has_lora and self.split_k == 1):
            if place["tile"] >= lay.down_tiles:
                self.load_act(lay, place, atoms[1], tensors[1], buffers, state)

    # ------------------------------------------------------------ what bases ask

    def _arrivals(self, lay: Any) -> dict[str, int]:
        warps = lay.num_reading_warps
        rings = {"ab": (2, warps), "dq": (1, warps), "lora": (1, warps), "down": (1, warps)}
        found = {
            f"{name}_{side}": counts[i]
            for name, counts in rings.items()
            for i, side in enumerate(("full", "empty"))
        }
        return {**found, SUMS: 1, BRANCH_FULL: 1}

    @cute.jit
    def _load_affine(
        self,
        lay: FusedLayouts,
        vectors: Any,
        buffers: Any,
        tile_m: Int32,
        tile_n: Int32,
        n: Int32,
        thread: Int32,
        group: Int32,
    ):
        """What the epilogue's wcscale gives back, products of dequantized operands lack; here none does."""
        EpilogueExpandSm90a._load_affine(self, lay, vectors, buffers, tile_m, tile_n, n, thread, group)
        affine = buffers["affine"]
        for i in cutlass.range_constexpr(2 * self.config.row_blocks):
            affine[0, i] = affine[0, i] * FROM_DEQUANT_SCALE


def host_function(
    config: FusedConfig, problem_class: ProblemClass, arch: Arch
) -> tuple[Any, tuple[Any, ...]]:
    """The function to compile and arguments that give it the types of a call, in the order of the signature."""
    return FusedLayer(config, problem_class), typed_arguments(problem_class)

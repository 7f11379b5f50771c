"""The kernel ``sm90a_small_m`` with ``wgmma`` (``num_dq_stage`` > 0): 17 rows and more.

One wave of CTAs, one tile of y each and, in a cluster of ``split_k``, one part of K. The register operand's rows are
64 to a consumer warpgroup; ``register_operand`` says whether these are weights (the kernel computes y.T) or act:

| warps | ``register_operand=wgt`` | ``register_operand=act`` |
|---|---|---|
| 0 | TMA loads of both operands, their scale factors, LoRA | of weights, their scale factors, lora_up |
| 1 | none | of act, its scale factors, lora_act_in |
| 2, 3 | none | none |
| dequantizing warps | columns (act): packed ring -> dq ring; LoRA likewise, as it is | the same of weights |
| consumer warpgroups | a unit of act each, the first ones, into the dq ring; then | |
| | rows: packed ring -> registers -> dequantized; wgmma; sums; epilogue | the same |

| ring | slots | producer -> consumer | full barrier | empty barrier |
|---|---|---|---|---|
| rows | num_ab_stage units | TMA -> consumer warps | bytes | a lane of every consumer warp |
| columns | num_ab_stage units | TMA -> dequantizing warps | bytes | a lane of every dequantizing warp |
| dq | num_dq_stage units | dequantizing or consumer warps -> wgmma | a lane of each | a lane of every consumer warp |

Consumers read rows one unit ahead into registers. When nobody will read packed weights again a CTA tells the cluster
that their ring is free: there the others send (``st.async``) the sums of those octets of columns that this CTA
finishes, straight from their registers, while it keeps its own. It adds them to its own in the order of ranks that
follow it: deterministic, no workspace, no counters. LoRA units come first, in CTAs with fewer units of K; then the sums
are multiplied by 2^-14 (exact: products of dequantized operands lack as much), which the epilogue gives back.

With ``ctas_per_sm=2`` the next launch's CTAs fit beside this one's, so that with ``use_pdl`` their weights arrive while
this launch computes; as columns they are also dequantized meanwhile, as far as the dq ring holds them. Then weights,
scale factors, lora_up, wcscale and bias are read before the previous kernel has ended (``griddepcontrol.wait``, in the
warp that loads act): that kernel must not be the one that writes them. Dependents are let go after that wait, so all
kernels before the previous one are complete by then. y is touched after act has passed through a ring, hence after the
wait. Act, which the previous kernel may write, is asked into L2 before the wait: nothing is read then, and what is
written meanwhile is written in L2.
"""

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Int32, cute
from cutlass.cute.nvgpu import cpasync

from kernel_space.core.problem import ProblemClass
from kernel_space.operators.svdquant_gemm.sm90a_parts.layouts import SWIZZLE_ALIGN, WARPS_PER_GROUP
from kernel_space.operators.svdquant_gemm.sm90a_parts.tma import TmaSm90a
from kernel_space.operators.svdquant_gemm.sm90a_small_m.columns import SmallMColumns
from kernel_space.operators.svdquant_gemm.sm90a_small_m.config import SmallMConfig
from kernel_space.operators.svdquant_gemm.sm90a_small_m.finish import SmallMFinish
from kernel_space.operators.svdquant_gemm.sm90a_small_m.layouts_wgmma import (
    ROW_BYTES,
    LayoutsSmallMWgmma,
    OperandRing,
)
from kernel_space.operators.svdquant_gemm.sm90a_small_m.mma.layouts import UNIT_K
from kernel_space.operators.svdquant_gemm.sm90a_small_m.mma.stream import exists
from kernel_space.operators.svdquant_gemm.sm90a_small_m.rows import SmallMRows

SF_TILE_ROWS = 128
PREFETCHERS = 4  # tiles of weights that share the units of act of a rank, to ask L2 for them


class SmallMWgmmaSm90a(SmallMColumns, SmallMRows, SmallMFinish, TmaSm90a):
    """Generator of one kernel: a resolved config and a problem class."""

    def __init__(self, config: SmallMConfig, problem_class: ProblemClass):
        self.config = config
        self.problem_class = problem_class
        self.has_lora = problem_class.r > 0

    def _layouts(self) -> LayoutsSmallMWgmma:
        return LayoutsSmallMWgmma(self.config, self.problem_class)

    @cute.jit
    def __call__(
        self,
        act: cute.Pointer,
        ascales: cute.Pointer,
        wgt: cute.Pointer,
        wscales: cute.Pointer,
        lora_act_in: cute.Pointer,
        lora_up: cute.Pointer,
        wcscale: cute.Pointer,
        bias: cute.Pointer,
        y: cute.Pointer,
        workspace: cute.Pointer,
        m: Int32,
        n: Int32,
        k: Int32,
        max_active_clusters: Int32,
        stream: cuda.CUstream,
    ):
        """Launch a cluster of ``split_k`` CTAs for every tile of y; not persistent, no workspace."""
        lay = self._layouts()
        wgt_ring, act_ring, wgt_extent, act_extent = lay.column_ring, lay.row_ring, lay.columns, lay.rows
        if cutlass.const_expr(lay.swap_ab):
            wgt_ring, act_ring, wgt_extent, act_extent = act_ring, wgt_ring, act_extent, wgt_extent
        weights = self._operand(lay, wgt_ring, wgt, wscales, lora_up, n, k)
        packed = self._operand(lay, act_ring, act, ascales, lora_act_in, m, k)
        atoms = ([atom for atom, _ in weights], [atom for atom, _ in packed])
        tensors = ([tensor for _, tensor in weights], [tensor for _, tensor in packed])
        self.kernel(atoms, tensors, (wcscale, bias, y), m, n, k).launch(
            grid=(cute.ceil_div(n, wgt_extent) * lay.splits, cute.ceil_div(m, act_extent), 1),
            block=[lay.threads, 1, 1],
            cluster=(lay.splits, 1, 1),
            stream=stream,
            min_blocks_per_mp=self.config.ctas_per_sm,
            preferred_smem_carveout=100,
            use_pdl=self.config.use_pdl,
        )

    def _operand(
        self,
        lay: LayoutsSmallMWgmma,
        ring: OperandRing,
        codes: cute.Pointer,
        scales: cute.Pointer,
        lora: cute.Pointer,
        extent: Int32,
        k: Int32,
    ) -> list[Any]:
        """(atom, coordinates) of an operand's codes, scale factors and, with LoRA, its side of LoRA."""
        loads = [
            self._tma_packed(ring.box, codes, extent, k, 1),
            self._tma_scales(lay, ring.scales, scales, extent, k),
        ]
        return [*loads, self._tma_lora(ring.lora_box, lora, extent)] if self.has_lora else loads

    @cute.kernel
    def kernel(self, atoms: Any, tensors: Any, pointers: Any, m: Int32, n: Int32, k: Int32):
        lay = self._layouts()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        buffers = self._allocate(lay)
        place = self._place(lay, pointers, buffers, m, n, k)
        if warp == 0:
            for atom in (*atoms[0], *atoms[1]):
                cpasync.prefetch_descriptor(atom)
            self._init_all(lay, place, buffers)
            self.load_units(lay, place, atoms[0], tensors[0], 0, Int32(0), Int32(lay.stages))
        if cutlass.const_expr(lay.splits > 1):
            cute.arch.cluster_arrive_relaxed()
        cute.arch.sync_threads()
        registers = self.config.role_registers
        if warp < WARPS_PER_GROUP:
            cute.arch.setmaxregister_decrease(registers[0])
            self.load_warps(lay, place, atoms, tensors, warp)
        elif warp < WARPS_PER_GROUP + lay.dequant_warps:
            cute.arch.setmaxregister_decrease(registers[1])
            if cutlass.const_expr(lay.swap_ab):
                self.dequant_act(lay, place)
            else:
                self.dequant_weights(lay, place)
        else:
            cute.arch.setmaxregister_increase(registers[2])
            self.consume(lay, place)

    @cute.jit
    def load_warps(self, lay: LayoutsSmallMWgmma, place: Any, atoms: Any, tensors: Any, warp: Int32):
        if cutlass.const_expr(lay.swap_ab):
            if warp == 0:
                self.load_both(lay, place, atoms, tensors)
        else:
            if warp == 0:
                self.load_weights(lay, place, atoms[0], tensors[0])
            if warp == 1:
                self.load_act(lay, place, atoms[1], tensors[1])

    def _place(
        self, lay: LayoutsSmallMWgmma, pointers: Any, buffers: Any, m: Int32, n: Int32, k: Int32
    ) -> dict[str, Any]:
        """Where this CTA stands: its tile, its units, its shared memory; what every role needs of the problem."""
        names = ("wcscale", "bias", "y")
        place: dict[str, Any] = {name: pointer.toint() for name, pointer in zip(names, pointers, strict=True)}
        cta, act_tile, _ = cute.arch.block_idx()
        thread, _, _ = cute.arch.thread_idx()
        wgt_tile = cta // lay.splits
        row_tile, column_tile = (wgt_tile, act_tile) if lay.swap_ab else (act_tile, wgt_tile)
        column_extent = m if lay.swap_ab else n
        rank = cta % lay.splits
        units = (k + UNIT_K - 1) // UNIT_K
        each, rest = units // lay.splits, units % lay.splits
        k_count = each + exists(rest - rank)
        # LoRA units go to the CTAs that got no unit of the rest.
        light, lora_rank = lay.splits - rest, rank - rest
        lora_each, lora_rest = Int32(lay.num_lora_slices) // light, Int32(lay.num_lora_slices) % light
        lora_count = (lora_each + exists(lora_rest - lora_rank)) * exists(lora_rank + 1)
        first_column = column_tile * lay.columns
        place |= {
            "m": m, "n": n, "thread": thread, "lane": cute.arch.lane_idx(), "rank": rank,
            "act_tile": act_tile, "wgt_tile": wgt_tile,
            "first_row": row_tile * lay.rows, "first_column": first_column,
            "k_begin": rank * each + cutlass.min(rank, rest), "k_count": k_count,
            "lora_begin": lora_rank * lora_each + cutlass.min(lora_rank, lora_rest), "lora_count": lora_count,
            "count": k_count + lora_count,
            "octets_here": (cutlass.min(column_extent - first_column, Int32(lay.columns)) + 7) // 8,
            "dq": buffers["dequantized"], "dq_address": buffers["dequantized"].iterator.toint(),
        }  # fmt: skip
        place |= {name: buffers[name].iterator for name, *_ in lay.barriers()}
        names = ("rows", "row scales", "columns", "column scales")
        place |= {name: buffers[name].iterator.toint() for name in names}
        place["received"] = place["rows" if lay.swap_ab else "columns"]
        slots = [
            self._typed_slots(lay, lay.row_ring, buffers["rows"], buffers["row scales"]),
            self._typed_slots(lay, lay.column_ring, buffers["columns"], buffers["column scales"]),
        ]
        place["slots"] = slots if lay.swap_ab else slots[::-1]  # of weights, of act
        return place

    def _typed_slots(self, lay: LayoutsSmallMWgmma, ring: OperandRing, slots: Any, scales: Any) -> list[Any]:
        """The slots of an operand as TMA writes them: codes, scale factors, its side of LoRA."""
        begin = slots.iterator.align(SWIZZLE_ALIGN)

        def typed(dtype: Any, box: Any, layout: Any) -> Any:
            return cute.make_tensor(cute.recast_ptr(begin, box.inner, dtype=dtype), layout)

        lora = typed(lay.lora_dtype, ring.lora_box, ring.lora) if self.has_lora else None
        return [typed(cutlass.Uint8, ring.box, ring.codes), scales, lora]

    @cute.jit
    def _init_all(self, lay: LayoutsSmallMWgmma, place: Any, buffers: Any):
        """Barriers, and the bytes that this CTA will get of the cluster's sums."""
        barriers = [
            (place[name] + slot, arrivals)
            for name, count, _, arrivals in lay.barriers()
            for slot in range(count)
        ]
        with cute.arch.elect_one():
            self._init_each(barriers)
        cute.arch.mbarrier_init_fence()
        cute.arch.fence_proxy("async.shared", space="cta")
        if cutlass.const_expr(lay.splits > 1):
            mine = cutlass.max(place["octets_here"] - place["rank"] + lay.splits - 1, Int32(0)) // lay.splits
            octet_bytes = (lay.splits - 1) * lay.received_octet_bytes
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(place["sums_full"], mine * octet_bytes)

    @cute.jit
    def load_both(self, lay: LayoutsSmallMWgmma, place: Any, atoms: Any, tensors: Any):
        """Load act, which the previous kernel may write, and further weights as their slots are given back."""
        self.wait_for_act(lay, place, atoms[1], tensors[1])
        self.load_units(lay, place, atoms[1], tensors[1], 1, Int32(0), Int32(lay.stages))
        phase = Int32(0)
        for first in cutlass.range(lay.stages, place["count"], lay.stages, unroll=1):
            for slot in cutlass.range_constexpr(lay.stages):
                i = first + slot
                if i < place["count"]:
                    cute.arch.mbarrier_wait(place["columns_empty"] + slot, phase)
                    self.load_units(lay, place, atoms[1], tensors[1], 1, i, i + 1)
                    cute.arch.mbarrier_wait(place["rows_empty"] + slot, phase)
                    self.load_units(lay, place, atoms[0], tensors[0], 0, i, i + 1)
            phase ^= 1

    @cute.jit
    def load_weights(self, lay: LayoutsSmallMWgmma, place: Any, atom: Any, tensor: Any):
        """Load further weights as their slots are given back."""
        self._refill(lay, place, atom, tensor, 0, place["columns_empty"])

    @cute.jit
    def load_act(self, lay: LayoutsSmallMWgmma, place: Any, atom: Any, tensor: Any):
        """Load act, which the previous kernel may write."""
        self.wait_for_act(lay, place, atom, tensor)
        self.load_units(lay, place, atom, tensor, 1, Int32(0), Int32(lay.stages))
        self._refill(lay, place, atom, tensor, 1, place["rows_empty"])

    @cute.jit
    def _refill(
        self,
        lay: LayoutsSmallMWgmma,
        place: Any,
        atom: Any,
        tensor: Any,
        operand: cutlass.Constexpr,
        empty: Any,
    ):
        phase = Int32(0)
        for first in cutlass.range(lay.stages, place["count"], lay.stages, unroll=1):
            for slot in cutlass.range_constexpr(lay.stages):
                i = first + slot
                if i < place["count"]:
                    cute.arch.mbarrier_wait(empty + slot, phase)
                    self.load_units(lay, place, atom, tensor, operand, i, i + 1)
            phase ^= 1

    @cute.jit
    def wait_for_act(self, lay: LayoutsSmallMWgmma, place: Any, atom: Any, tensor: Any):
        """With PDL: ask L2 for act, then wait for the kernel before this one."""
        if cutlass.const_expr(self.config.use_pdl):
            self.prefetch_act(lay, place, atom, tensor)
            cute.arch.griddepcontrol_wait()
            cute.arch.griddepcontrol_launch_dependents()

    @cute.jit
    def prefetch_act(self, lay: LayoutsSmallMWgmma, place: Any, atom: Any, tensor: Any):
        """Ask L2 for every ``PREFETCHERS``-th unit of act, other tiles for the others."""
        slots, tile, ring = place["slots"][1], place["act_tile"], self._ring(lay, 1)
        _, tCgC = self._partition(atom[0], slots[0], tensor[0], (ring.extent, ROW_BYTES))
        _, tSgS = self._partition_scales(lay, atom[1], slots[1], tensor[1], ring.row_blocks)
        if cutlass.const_expr(self.has_lora):
            _, tLgL = self._partition(atom[2], slots[2], tensor[2], (ring.extent, lay.lora_k))
        for i in cutlass.range(place["wgt_tile"] % PREFETCHERS, place["count"], PREFETCHERS, unroll=1):
            if i < place["lora_count"]:
                if cutlass.const_expr(self.has_lora):
                    cute.prefetch(atom[2], tLgL[(None, tile, place["lora_begin"] + i)])
            else:
                unit = place["k_begin"] + i - place["lora_count"]
                cute.prefetch(atom[0], tCgC[(None, tile, unit)])
                cute.prefetch(atom[1], tSgS[(None, tile * ring.extent // SF_TILE_ROWS, unit)])

    @staticmethod
    def _ring(lay: LayoutsSmallMWgmma, operand: int) -> OperandRing:
        """Of weights (0) or act (1)."""
        return lay.row_ring if lay.swap_ab == (operand == 0) else lay.column_ring

    @cute.jit
    def load_units(
        self,
        lay: LayoutsSmallMWgmma,
        place: Any,
        atom: Any,
        tensor: Any,
        operand: cutlass.Constexpr,
        first: Int32,
        end: Int32,
    ):
        """TMA loads of units ``first`` .. ``end`` - 1, as far as there are, of weights (0) or act (1); by one warp."""
        ring = self._ring(lay, operand)
        codes, scales, lora = place["slots"][operand]
        full = place["rows_full" if lay.swap_ab == (operand == 0) else "columns_full"]
        tile = place[("wgt_tile", "act_tile")[operand]]
        tCsC, tCgC = self._partition(atom[0], codes, tensor[0], (ring.extent, ROW_BYTES))
        tSsS, tSgS = self._partition_scales(lay, atom[1], scales, tensor[1], ring.row_blocks)
        if cutlass.const_expr(self.has_lora):
            tLsL, tLgL = self._partition(atom[2], lora, tensor[2], (ring.extent, lay.lora_k))
        for i in cutlass.range(first, cutlass.min(end, place["count"]), unroll=1):
            slot = i % lay.stages
            is_lora = i < place["lora_count"]
            size = Int32(ring.bytes + ring.scale_bytes)
            if is_lora:
                size = Int32(ring.bytes)
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(full + slot, size)
            if is_lora:
                if cutlass.const_expr(self.has_lora):
                    source = tLgL[(None, tile, place["lora_begin"] + i)]
                    cute.copy(atom[2], source, tLsL[(None, slot)], tma_bar_ptr=full + slot)
            else:
                unit = place["k_begin"] + i - place["lora_count"]
                cute.copy(atom[0], tCgC[(None, tile, unit)], tCsC[(None, slot)], tma_bar_ptr=full + slot)
                source = tSgS[(None, tile * ring.extent // SF_TILE_ROWS, unit)]
                cute.copy(atom[1], source, tSsS[(None, slot)], tma_bar_ptr=full + slot)

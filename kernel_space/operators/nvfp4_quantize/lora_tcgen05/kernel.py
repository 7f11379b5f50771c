"""Activations to NVFP4 and ``x @ lora_down`` on sm_100a: one launch that reads x once, by warps with roles.

``act, ascales = nvfp4(x * (1 / smooth))``, ``lora_act_in = x @ lora_down`` with fp32 sums

As ``lora_tma`` (``lora_tma/kernel.py``: the ring, what loads, inverts and quantizes, the end of a cluster), but the
tensor core is that of the fifth generation:

| warps | role |
|---|---|
| 4 | tcgen05.mma: sums of ``lora_down.T @ x.T`` in tensor memory, both operands from shared memory |
| 4 - 7 | in the end: sums from tensor memory, a lane for a column of lora_down, to shared memory |

A commit gives a slot back when the instructions that read it are done. Multiplying takes one thread, so that registers
go to the warps that quantize. sm_100 has conversions to E2M1 and arithmetic on pairs of fp32.

Row i of the tile is added up by CTA i % split_k: warps 4 - 7 of all write their sums of it into its shared memory, each
rank at a place of its own, while others still quantize. After one barrier of the cluster those that multiply and those
that quantize add them in the order of ranks. Alone, a CTA writes its sums from tensor memory to global memory.
"""

from typing import Any

import cutlass
import cutlass.memory as memory
import cutlass.utils.blackwell_helpers as sm100_utils
from cutlass import Boolean, Float32, Int32, cute, pipeline
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05

from kernel_space.core.arch import Arch
from kernel_space.core.problem import ProblemClass
from kernel_space.operators.nvfp4_quantize.lora_mma import kernel as lora_mma_kernel
from kernel_space.operators.nvfp4_quantize.lora_mma import ptx as mma_ptx
from kernel_space.operators.nvfp4_quantize.lora_mma.stream import scale_address
from kernel_space.operators.nvfp4_quantize.lora_tcgen05 import ptx as own_ptx
from kernel_space.operators.nvfp4_quantize.lora_tcgen05.config import LoraTcgen05Config
from kernel_space.operators.nvfp4_quantize.lora_tcgen05.layouts import (
    GROUP_ROWS,
    LOAD_N,
    MMA_M,
    LoraTcgen05Layouts,
)
from kernel_space.operators.nvfp4_quantize.lora_tma import ptx as tma_ptx
from kernel_space.operators.nvfp4_quantize.lora_tma.config import GROUP_WARPS, LANES, ROLE_WARPS
from kernel_space.operators.nvfp4_quantize.lora_tma.kernel import QuantizeLoraTma
from kernel_space.operators.nvfp4_quantize.lora_tma.layouts import QUANT_ROWS, SUM_BYTES
from kernel_space.operators.nvfp4_quantize.lora_tma.roles import K_BLOCKS
from kernel_space.operators.nvfp4_quantize.packing import CHUNK_K
from kernel_space.operators.nvfp4_quantize.parts import arithmetic, ptx

TMEM_BARRIER = 2  # named barrier of the multiplying warps: the address of tensor memory, and its end
MMA_WARP = GROUP_WARPS


class QuantizeLoraTcgen05(QuantizeLoraTma):
    """Generator of one kernel: a resolved config and a problem class."""

    layouts: LoraTcgen05Layouts  # type: ignore[assignment]  # of this kernel

    def __init__(self, config: LoraTcgen05Config, problem_class: ProblemClass) -> None:
        self.config = config
        self.layouts = LoraTcgen05Layouts(config, problem_class)
        self.half = lora_mma_kernel.DTYPES[problem_class.x_dtype]
        self.has_fp4 = True

    @cute.kernel
    def kernel(self, atom: Any, coords: Any, pointers: Any, m: Int32, k: Int32):
        lay = self.layouts
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        if warp == 0:
            cpasync.prefetch_descriptor(atom)
        smem = memory.SmemAllocator()
        regions = {}
        for region in lay.allocations():
            shape = cute.make_layout(region.bytes)
            regions[region.name] = smem.allocate_tensor(cutlass.Uint8, shape, region.align).iterator
        place = self._place(pointers, regions, warp, m, k)
        self.init_barriers(place)
        if cutlass.const_expr(lay.splits > 1):
            cute.arch.cluster_arrive_relaxed()
        loaders, multipliers, quantizers = self.config.role_registers
        if warp < GROUP_WARPS:
            cute.arch.setmaxregister_decrease(loaders)
            if warp == 0:
                self.load(place, atom, self._partition(atom, coords, regions["x"]))
            if cutlass.const_expr(lay.has_smooth):
                if (warp > 0) & (warp <= lay.invert_warps):
                    self.invert(place)
            self._leave_cluster()
        elif warp < ROLE_WARPS:
            self._take_registers(multipliers)
            self.multiply(place, *self._operands(regions))
        else:
            self._take_registers(quantizers)
            self._leave_cluster()
            self.quantize(place)
            if cutlass.const_expr(lay.splits > 1):
                cute.arch.cluster_wait()  # for those that drain; these have arrived
                self._add_up(place)

    def _leave_cluster(self) -> None:
        """All of the cluster have begun; what this warp writes is for nobody in it."""
        if self.layouts.splits > 1:
            cute.arch.cluster_wait()
            cute.arch.cluster_arrive_relaxed()

    def _previous_kernel(self) -> None:
        """Has ended, for each warp that writes: that x has come says so of warp 0 only."""
        if self.config.use_pdl:
            cute.arch.griddepcontrol_wait()

    def _take_registers(self, count: int) -> None:
        if count < self._at_launch:
            cute.arch.setmaxregister_decrease(count)
        elif count > self._at_launch:
            cute.arch.setmaxregister_increase(count)

    @cute.jit
    def init_barriers(self, place: Any):
        """As ``lora_tma``; before them the barrier of the sums."""
        if place["thread"] == 0:
            cute.arch.mbarrier_init(self._barrier(place, "ready", 0), 1)
        super().init_barriers(place)

    def _place(self, pointers: Any, regions: dict[str, Any], warp: Any, m: Any, k: Any) -> dict[str, Any]:
        place = super()._place(pointers, regions, warp, m, k)
        if self.layouts.splits > 1:
            place["sums"] = regions["sums of the cluster"].toint()
        return place | {"ready": regions["sums ready"].toint()}

    def _operands(self, regions: dict[str, Any]) -> Any:
        """The instruction; lora_down and x in every slot as its operands; tensor memory."""
        lay = self.layouts
        mma = sm100_utils.make_trivial_tiled_mma(
            self.half,
            self.half,
            OperandMajorMode.K,
            OperandMajorMode.K,
            Float32,
            tcgen05.CtaGroup.ONE,
            (MMA_M, lay.tile_m),
        )
        tiler = (lay.columns, lay.tile_m, CHUNK_K)
        columns = sm100_utils.make_smem_layout_a(mma, tiler, self.half, lay.stages)
        rows = sm100_utils.make_smem_layout_b(mma, tiler, self.half, lay.stages)
        assert cute.cosize(columns) * 2 == lay.stages * lay.slot_bytes
        assert cute.cosize(rows) * 2 == lay.stages * lay.x_bytes
        tmem = memory.TmemAllocator(
            cute.recast_ptr(regions["TMEM pointer"], dtype=Int32),
            barrier_for_retrieve=pipeline.NamedBarrier(
                barrier_id=TMEM_BARRIER, num_threads=LANES * GROUP_WARPS
            ),
            allocator_warp_id=MMA_WARP,
        )
        return (
            mma,
            mma.make_fragment_A(self._tensor(regions["lora_down"], columns)),
            mma.make_fragment_B(self._tensor(regions["x"], rows)),
            tmem,
        )

    # -- x @ lora_down -------------------------------------------------------------------------------------------

    @cute.jit
    def multiply(self, place: Any, mma: Any, columns: Any, rows: Any, tmem: Any):
        """One warp multiplies; then four take the sums to shared memory."""
        lay = self.layouts
        tmem.allocate(lay.columns_allocated)
        tmem.wait_for_alloc()
        begin = tmem.retrieve_ptr(Float32)
        layout = mma.make_fragment_C(mma.partition_shape_C((lay.columns, lay.tile_m))).layout
        assert memory.compute_tmem_cols_from_layout(layout, Float32) == lay.columns_used
        acc = cute.make_tensor(begin, layout)
        if place["warp"] == MMA_WARP:
            for i in cutlass.range(place["chunks"], unroll=1):
                slot = i % lay.stages
                self._wait_full(place, i)
                for block in cutlass.range_constexpr(K_BLOCKS):
                    mma.set(tcgen05.Field.ACCUMULATE, Boolean(i > 0) if block == 0 else True)
                    cute.gemm(
                        mma, acc, columns[(None, None, block, slot)], rows[(None, None, block, slot)], acc
                    )
                with cute.arch.elect_one():
                    tcgen05.commit(self._barrier(place, "empty", slot))
            with cute.arch.elect_one():
                tcgen05.commit(self._barrier(place, "ready", 0))
        cute.arch.mbarrier_wait(self._barrier(place, "ready", 0), 0)
        self._previous_kernel()
        if cutlass.const_expr(lay.splits > 1):
            cute.arch.cluster_wait()  # all of the cluster have begun
        self._drain(place, acc)
        tmem.relinquish_alloc_permit()
        cute.arch.barrier(barrier_id=TMEM_BARRIER, number_of_threads=LANES * GROUP_WARPS)
        tmem.free(begin)
        if cutlass.const_expr(lay.splits > 1):
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()
            self._add_up(place)

    @cute.jit
    def _drain(self, place: Any, acc: Any):
        """Sums from tensor memory, a thread for a column of lora_down, to whoever adds them up. Zeros from a CTA
        without a chunk.
        """
        lay = self.layouts
        thread = place["thread"] - LANES * GROUP_WARPS
        width = LOAD_N * 2 if lay.tile_m % (LOAD_N * 2) == 0 else LOAD_N
        times = tcgen05.Repetition.x32 if width > LOAD_N else tcgen05.Repetition.x16
        atom = cute.make_copy_atom(tcgen05.Ld32x32bOp(times), Float32)
        sums = cute.make_rmem_tensor(width, Float32)
        for block in cutlass.range_constexpr(lay.blocks):
            pieces = cute.flat_divide(acc[((None, None), block, 0)], (MMA_M, width))
            load = tcgen05.make_tmem_copy(atom, pieces[(None, None, 0, 0)])
            own = load.get_slice(thread)
            source = own.partition_S(pieces)
            shape = own.partition_D(cute.make_identity_tensor((MMA_M, width))).shape
            target = cute.make_tensor(sums.iterator, cute.make_layout(shape))
            column = block * MMA_M + thread
            owners = [self._owner(place, rank, column) for rank in range(lay.splits)]
            for piece in cutlass.range_constexpr(lay.tile_m // width):
                cute.copy(load, source[(None, None, None, 0, piece)], target)
                cute.arch.fence_view_async_tmem_load()
                if place["chunks"] == 0:
                    sums.fill(0.0)  # tensor memory of a CTA without a chunk holds anything
                if column < lay.r:
                    for row in cutlass.range_constexpr(width):
                        self._hand_over(place, owners, piece * width + row, column, sums[row])

    def _owner(self, place: Any, rank: int, column: Any) -> Any:
        """Where the CTA that adds up the rows of ``rank`` has this one's sums of a column."""
        lay = self.layouts
        if lay.splits == 1:
            return None
        own = place["sums"] + place["rank"] * (lay.owned_rows * lay.r * SUM_BYTES) + column * SUM_BYTES
        return tma_ptx.map_to_rank(own, rank)

    def _hand_over(self, place: Any, owners: list[Any], row: int, column: Any, value: Any) -> None:
        lay = self.layouts
        if lay.splits == 1:
            at = place["first_row"] + row
            target = place["lora_act_in"] + (cutlass.Int64(at) * lay.r + column) * 2
            own_ptx.store_half_below(target, value, at, place["m"], is_bf16=lay.is_bf16)
            return
        own_ptx.store_cluster_one(owners[row % lay.splits], row // lay.splits * lay.r * SUM_BYTES, value)

    @cute.jit
    def _add_up(self, place: Any):
        """This CTA's rows, four columns a thread at a time, by all warps but those that load."""
        lay = self.layouts
        thread, threads = place["thread"] - LANES * GROUP_WARPS, lay.threads - LANES * GROUP_WARPS
        quads = lay.r // 4
        rows = (lay.tile_m - place["rank"] + lay.splits - 1) // lay.splits
        if cutlass.const_expr(threads % quads == 0):
            # A thread has the same columns of every so many rows: addresses are constants apart.
            step = threads // quads
            own = thread // quads
            at = place["sums"] + thread * (4 * SUM_BYTES)
            row = place["first_row"] + own * lay.splits + place["rank"]
            target = place["lora_act_in"] + (cutlass.Int64(row) * lay.r + thread % quads * 4) * 2
            for i in cutlass.range_constexpr(-(-lay.owned_rows // step)):
                inside = own + i * step < rows
                wanted = inside & (row + i * step * lay.splits < place["m"])
                source, here = (
                    at + i * (threads * 4 * SUM_BYTES),
                    target + i * (step * lay.splits * lay.r * 2),
                )
                if cutlass.const_expr((i + 1) * step <= lay.owned_rows):
                    self._add_quad(source, here, wanted)
                else:
                    if inside:
                        self._add_quad(source, here, wanted)
        else:
            for index in cutlass.range(thread, rows * quads, threads, unroll=4):
                row = place["first_row"] + index // quads * lay.splits + place["rank"]
                target = place["lora_act_in"] + (cutlass.Int64(row) * lay.r + index % quads * 4) * 2
                self._add_quad(place["sums"] + index * (4 * SUM_BYTES), target, row < place["m"])

    def _add_quad(self, at: Any, target: Any, wanted: Any) -> None:
        """Four columns of a row, of all ranks in their order."""
        lay = self.layouts
        total = list(mma_ptx.load_shared(at))
        for rank in range(1, lay.splits):
            piece = mma_ptx.load_shared(at + rank * (lay.owned_rows * lay.r * SUM_BYTES))
            total = [a + b for a, b in zip(total, piece, strict=True)]
        tma_ptx.store_halves_if(target, total, wanted, is_bf16=lay.is_bf16)

    # -- nvfp4(x / smooth) ---------------------------------------------------------------------------------------

    @cute.jit
    def quantize(self, place: Any):
        """As ``lora_tma``, but 16 rows at a time: two blocks of a lane are in work at once, and share 1 / smooth."""
        lay = self.layouts
        own, quarter = place["lane"] // 4, place["quarter"]
        x_own = place["x_ring"] + own * lay.row_bytes + ((quarter * 2) ^ own) * 16
        group = place["warp"] - ROLE_WARPS
        self._previous_kernel()
        for i in cutlass.range(place["chunks"], unroll=1):
            slot = i % lay.stages
            self._wait_full(place, i)
            if i > 0:
                # The next copy is of another proxy.
                cute.arch.fence_proxy("async.shared", space="cta")
                cute.arch.sync_warp()
                if place["lane"] == 0:
                    cute.arch.mbarrier_arrive(
                        self._barrier(place, "empty", (i + lay.stages - 1) % lay.stages)
                    )
            if group < lay.groups:
                inverse = self._load_inverse(place, slot)
                at = x_own + slot * lay.x_bytes
                while group < lay.groups:
                    first = group * GROUP_ROWS
                    octets = range(0, GROUP_ROWS, QUANT_ROWS)
                    words = [self._load_words(at + (first + octet) * lay.row_bytes) for octet in octets]
                    for octet in cutlass.range_constexpr(GROUP_ROWS // QUANT_ROWS):
                        row = first + octet * QUANT_ROWS + own
                        self.emit(place, words[octet], inverse, place["first_chunk"] + i, row)
                    group += lay.quant_warps
            group -= lay.groups
        self.clear_padding(place)

    def emit(self, place: Any, words: list[Any], inverse: list[Any], chunk: Any, row_of_tile: Any) -> None:
        """Codes of a lane's block of a row, and the scale."""
        lay = self.layouts
        row = place["first_row"] + row_of_tile
        column = chunk * CHUNK_K + place["quarter"] * arithmetic.BLOCK
        z = [value for word in words for value in ptx.two_halves(word, "bf16" if lay.is_bf16 else "f16")]
        if lay.has_smooth:
            z = ptx.multiply_each(z, inverse, paired=True)
        scale = ptx.e4m3_bytes(arithmetic.sixth(arithmetic.largest(z)), Float32(0.0))
        codes = arithmetic.codes(z, scale, has_fp4=True)
        wanted = (row < place["m"]) & (column < place["k"])
        address = place["act"] + cutlass.Int64(row) * place["half_k"] + cutlass.Int64(column >> 1)
        ptx.store_if(address, codes, wanted)
        # Beyond M and K it is 0, whatever 1 / smooth is.
        byte = ptx.unless_zero(Int32(wanted), scale)
        address = scale_address(place, row, chunk) + place["quarter"]
        tma_ptx.store_byte_if(address, byte, row < place["padded_m"])


ARGUMENTS = lora_mma_kernel.ARGUMENTS


def host_function(
    config: LoraTcgen05Config, problem_class: ProblemClass, arch: Arch
) -> tuple[Any, tuple[Any, ...]]:
    """The function to compile and arguments that give it the types of a call, in the order of ``ARGUMENTS``.

    ``config`` must be legal. Addresses and sizes are run-time values: those given here only carry types.
    """
    return QuantizeLoraTcgen05(config, problem_class), lora_mma_kernel._typed_arguments(problem_class)

"""The kernel ``whole``: a layer on few rows of 16-bit activations in one launch.

``lora_act_in[M,R] = x[M,K] @ lora_down[K,R]``,
``y[M,N] = f(((x / smooth) @ wgt[N,K].T + lora_act_in @ lora_up[N,R].T) * wcscale[N] + bias[N])``

It is ``narrow`` of ``svdquant_gemm_16bit`` (copies, products, sums), whose y.T = weights @ x.T gets more rows: the
first clusters of the grid have columns of lora_down in place of rows of weights.

| CTAs of a tile of rows of x | A operand | result |
|---|---|---|
| the first, ``split_k`` for 32 columns of lora_down | lora_down, from global memory to registers | lora_act_in |
| the others | weights, through shared memory, dequantized in registers | y |

In CTAs of the first kind K is shared out to all warps, and lora_down of a warp's first unit is in its registers before
x is there: with few units a warp there is nothing else to load.

The second kind reads lora_act_in from the workspace, where every pair of 16-bit numbers has a word behind it that says
that it is there (``ptx.store_tagged``): a store and a load, where a counter would take a store, an atomic, a look at
it and a load, each as long as the L2 is far. Who has a LoRA unit, which comes last, looks until its pairs are there.

| counter, of each tile of rows of x | counted up by | waited for by |
|---|---|---|
| taken | CTAs of the second kind, when all warps have their pairs | nobody; the last one sets it and the pairs to 0 |

CTAs of the first kind wait for nobody of another cluster, and come first in the launch: so they are under way or done
wherever another waits. Nothing is moved twice: both kinds read x, and the weights of both are read once for each tile
of rows.

With ``use_pdl`` everything but x is read, and a unit of weights of every warp is dequantized, before the previous
kernel has ended (``griddepcontrol.wait``): that kernel must not be the one that writes weights. Dependents are let go
after that wait. The workspace, lora_act_in and y are touched only after it.
"""

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.memory as memory
from cutlass import Int32, Int64, cute

from kernel_space.core.arch import Arch
from kernel_space.core.problem import ProblemClass
from kernel_space.operators.nvfp4_quantize.parts.ptx import load_four_if, store_if
from kernel_space.operators.svdquant_gemm.sm90a_parts.dequant import (
    load_shared,
    prefetch_global_if,
    store_shared,
)
from kernel_space.operators.svdquant_gemm.sm90a_small_m.mma.stream import exists
from kernel_space.operators.svdquant_gemm_16bit.narrow.kernel import NarrowGemm
from kernel_space.operators.svdquant_gemm_16bit.narrow.layouts import (
    LORA_UNIT_K,
    OCTETS,
    PIECE,
    SPANS,
    NarrowLayouts,
)
from kernel_space.operators.svdquant_gemm_16bit.narrow.products import PAIRS, SPAN_WORDS, make_held
from kernel_space.operators.svdquant_gemm_16bit.narrow.stream import following
from kernel_space.operators.svdquant_linear_16bit.host import typed_arguments
from kernel_space.operators.svdquant_linear_16bit.whole.config import WholeConfig
from kernel_space.operators.svdquant_linear_16bit.whole.layouts import DownLayouts, WholeLayouts
from kernel_space.operators.svdquant_linear_16bit.whole.pairs import load_pairs
from kernel_space.operators.svdquant_linear_16bit.whole.products import WholeProducts
from kernel_space.operators.svdquant_linear_16bit.whole.ptx import (
    clear_tagged,
    round_pair,
    store_tagged,
)
from kernel_space.operators.svdquant_linear_16bit.whole.spec import COUNTERS, TAGGED

POINTERS = (
    "xs", "smooth", "lora_down", "wgt", "wscales", "lora_up", "wcscale", "bias", "lora_act_in", "y", "workspace",
)  # fmt: skip
# ``xs`` is x: ``narrow`` knows it by that name.
CHUNK_ROW = 128  # bytes of 64 elements of a column of packed lora_down


class WholeLayer(WholeProducts, NarrowGemm):
    """Generator of one kernel: a resolved config (no ``auto``) and a problem class."""

    pointers = POINTERS

    def _layouts(self) -> WholeLayouts:
        return WholeLayouts(self.config, self.problem_class)

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
        self._start(
            (x, smooth, lora_down, wgt, wscales, lora_up, wcscale, bias, lora_act_in, y, workspace),
            m,
            n,
            k,
            stream,
        )

    def _start(self, pointers: Any, m: Any, n: Any, k: Any, stream: Any) -> None:
        lay = self._layouts()
        tiles = cute.ceil_div(cute.ceil_div(n, 128) * 4, lay.rows // 32)
        self.kernel(pointers, m, n, k).launch(
            grid=(lay.down.ctas + tiles * lay.splits, cute.ceil_div(m, lay.columns), 1),
            block=[lay.threads, 1, 1],
            cluster=(lay.splits, 1, 1),
            stream=stream,
            min_blocks_per_mp=self.config.ctas_per_sm,
            preferred_smem_carveout=100,
            use_pdl=self.config.use_pdl,
        )

    @cute.kernel
    def kernel(self, pointers: Any, m: Int32, n: Int32, k: Int32):
        lay = self._layouts()
        smem = memory.SmemAllocator()
        regions = {}
        for region in lay.allocations():
            tensor = smem.allocate_tensor(region.dtype, region.layout, region.align)
            regions[region.name] = tensor.iterator
        cta, _, _ = cute.arch.block_idx()
        accs = self.make_sums(lay)
        for acc in accs:
            acc.fill(0.0)
        if cutlass.const_expr(lay.down.ctas > 0):
            if cta < lay.down.ctas:
                self.down(lay.down, self._begin(lay.down, pointers, regions, m, n, k), accs)
            else:
                self.up(lay, self._begin(lay, pointers, regions, m, n, k), accs)
        else:
            self.up(lay, self._begin(lay, pointers, regions, m, n, k), accs)

    def _begin(
        self, lay: NarrowLayouts, pointers: Any, regions: dict[str, Any], m: Int32, n: Int32, k: Int32
    ) -> dict[str, Any]:
        """Announce what this CTA gets of its cluster; where it stands."""
        cta, row_tile, _ = cute.arch.block_idx()
        if cutlass.const_expr(lay.splits > 1):
            self.announce(lay, regions["arrived"], cta % lay.splits, m - row_tile * lay.columns)
        place = self._place(lay, pointers, regions, m, n, k)
        pairs = place["workspace"] + Int64(COUNTERS) + Int64(place["first_row"]) * (lay.r * TAGGED)
        return place | {"taken": place["workspace"] + Int64(row_tile * 4), "pairs": pairs}

    # -- lora_act_in = x @ lora_down ----------------------------------------------------------------------------

    @cute.jit
    def down(self, lay: DownLayouts, place: Any, accs: Any):
        """A tile of lora_act_in."""
        place = self._down_place(lay, place)
        self._stream_down(lay, place, accs)
        self.reduce(lay, place, accs)

    @staticmethod
    def _down_place(lay: DownLayouts, place: dict[str, Any]) -> dict[str, Any]:
        """Its columns of lora_down in place of rows of weights: 8 octet + g of 32."""
        own, lane = place["lane"] // 4, place["lane"]
        first = place["tile"] * lay.rows
        return place | {
            "is_down": True, "lora_count": Int32(0), "xs_ring": place["ring"],
            "down_exists": [Int32(lay.r) - first - own - 8 * octet for octet in range(OCTETS)],
            "down": place["lora_down"] + Int64(first * CHUNK_ROW),
            "down_piece": own * CHUNK_ROW + ((place["quarter"] * 2) ^ own) * 16,
            "line_exists": Int32(lay.r) - first - lane,
        }  # fmt: skip

    @cute.jit
    def _stream_down(self, lay: DownLayouts, place: Any, accs: Any):
        """Units of K of this warp; lora_down of the next one is on its way while the one before is multiplied."""
        held = make_held()
        held.fill(0)
        if place["k_count"] > 0:
            self._load_down(lay, place, Int32(0), held)
        for i in cutlass.range(1, place["k_count"], unroll=1):
            self._prefetch_down(lay, place, i)
        if cutlass.const_expr(self.config.use_pdl):
            cute.arch.griddepcontrol_wait()
            cute.arch.griddepcontrol_launch_dependents()
        for i in cutlass.range(lay.xs_stages, unroll=1):
            if i < self.units_of_xs(place):
                self.copy_xs(lay, place, i, i)
            cute.arch.cp_async_commit_group()
        slot = Int32(0)
        for i in cutlass.range(place["k_count"], unroll=1):
            cute.arch.cp_async_wait_group(lay.xs_stages - 1)
            self.meet(lay, place)
            _, x = self.slots(lay, place, Int32(0), slot)
            for word in cutlass.range_constexpr(SPANS * SPAN_WORDS):
                self.multiply_word(lay, self.columns(lay, place, 0, x, word), self.rows_of(held, word), accs)
            if i + 1 < place["k_count"]:
                self._load_down(lay, place, i + 1, held)
            self.meet(lay, place)
            if i + lay.xs_stages < self.units_of_xs(place):
                self.copy_xs(lay, place, i + lay.xs_stages, slot)
            cute.arch.cp_async_commit_group()
            slot = following(slot, lay.xs_stages)
        cute.arch.cp_async_wait_group(0)

    @staticmethod
    def _prefetch_down(lay: DownLayouts, place: Any, i: Any) -> None:
        """Unit ``i`` into the L2: a column of each span a lane."""
        for span in range(SPANS):
            chunk = (place["k_begin"] + i) * SPANS + span
            at = place["down"] + Int64(chunk) * (lay.r * CHUNK_ROW) + Int64(place["lane"] * CHUNK_ROW)
            prefetch_global_if(at, exists(cutlass.min(place["line_exists"], place["k_blocks"] - chunk)))

    @staticmethod
    def _load_down(lay: DownLayouts, place: Any, i: Any, held: Any) -> None:
        """Unit ``i``: of each span this lane's two pieces of its columns, as of x; zeros where there is none."""
        for span in range(SPANS):
            chunk = (place["k_begin"] + i) * SPANS + span
            is_there = place["k_blocks"] - chunk
            begin = place["down"] + Int64(chunk) * (lay.r * CHUNK_ROW)
            for half in range(SPAN_WORDS):
                for octet in range(OCTETS):
                    at = begin + Int64((place["down_piece"] ^ 16 * half) + octet * (8 * CHUNK_ROW))
                    wanted = exists(cutlass.min(place["down_exists"][octet], is_there))
                    words = load_four_if(at, wanted)
                    for w in range(PAIRS):
                        held[((span * SPAN_WORDS + half) * OCTETS + octet) * PAIRS + w] = words[w]

    # -- y ------------------------------------------------------------------------------------------------------

    @cute.jit
    def up(self, lay: WholeLayouts, place: Any, accs: Any):
        """A tile of y."""
        place = self._up_place(lay, place)
        self.stream(lay, place, accs)
        taken = Int32(0)
        if cutlass.const_expr(lay.down.ctas > 0):
            # Every warp of this CTA has its pairs. What the atomic returns is not waited for here.
            cute.arch.sync_threads()
            if place["thread"] == 0:
                taken = cute.arch.atomic_add(_counter(place["taken"]), Int32(1), sem="acq_rel", scope="gpu")
        self.reduce(lay, place, accs)
        if cutlass.const_expr(lay.down.ctas > 0):
            self._clear(lay, place, taken)

    @cute.jit
    def _clear(self, lay: WholeLayouts, place: Any, taken: Int32):
        """The last CTA of a tile of rows leaves what the next launch begins with: nobody of this one looks again."""
        # Where x was, which all warps are done with.
        shared = place["xs_ring"] - place["part"] * (lay.xs_slot_bytes * lay.xs_stages)
        if place["thread"] == 0:
            store_shared(shared, [taken])
        cute.arch.sync_threads()
        ctas, _, _ = cute.arch.grid_dim()
        if Int32(load_shared(shared, 1)[0]) == ctas - lay.down.ctas - 1:
            if place["thread"] == 0:
                counter = cute.make_tensor(_counter(place["taken"]), cute.make_layout(1))
                counter[0] = Int32(0)
            rows = cutlass.min(place["m"] - place["first_row"], Int32(lay.columns))
            vectors = rows * (lay.r * TAGGED // 16)
            for vector in cutlass.range(place["thread"], vectors, lay.threads, unroll=1):
                clear_tagged(place["pairs"] + Int64(vector * 16))

    def _up_place(self, lay: WholeLayouts, place: dict[str, Any]) -> dict[str, Any]:
        """Its rows of weights."""
        own = place | {"is_down": False, "tile": place["tile"] - lay.down.tiles}
        NarrowGemm.add_weight_rows(self, lay, own)
        return own

    def add_weight_rows(self, lay: NarrowLayouts, place: dict[str, Any]) -> None:
        """Later: which kind of CTA it is, is not known yet."""

    @staticmethod
    def row_of(place: Any) -> tuple[Any, Any]:
        return place["k"] * 2, place["k"]

    @cute.jit
    def lora(self, lay: WholeLayouts, place: Any, slot: Int32, x: Int32, accs: Any):
        """This warp's LoRA units: columns from the L2 to registers, when they are there."""
        count = place["k_count"] + place["lora_count"]
        for i in cutlass.range(place["k_count"], count, unroll=1):
            columns = self._load_columns(lay, place, place["lora_begin"] + i - place["k_count"])
            cute.arch.cp_async_wait_group(lay.xs_stages - 1)
            self.meet(lay, place)
            own, _ = self.slots(lay, place, slot, x)
            rows = [load_shared(own + place["piece"] + octet * PIECE, 4) for octet in range(OCTETS)]
            self.multiply_word(lay, columns, rows, accs)
            self.meet(lay, place)
            self.refill(lay, place, i, slot, x)
            slot, x = following(slot, lay.stages), following(x, lay.xs_stages)

    @cute.jit
    def _load_columns(self, lay: WholeLayouts, place: Any, unit: Any):
        """32 of R: this lane's eight neighbours of its row of each tile, when they are there."""
        column = unit * LORA_UNIT_K + place["quarter"] * (LORA_UNIT_K // 4)
        found = []
        for tile in cutlass.range_constexpr(lay.act_tiles):
            row = 8 * tile + place["lane"] // 4
            wanted = exists(cutlass.min(place["m"] - place["first_row"] - row, Int32(lay.r) - column))
            at = place["pairs"] + Int64(row) * (lay.r * TAGGED) + Int64(column * TAGGED)
            found.append(load_pairs(at, wanted))
        return found

    # -- sums ---------------------------------------------------------------------------------------------------

    def _finish(self, lay: NarrowLayouts, place: Any, quad: Any, sums: Any) -> None:
        """Of y as ``narrow``; of lora_act_in one rounding, 8 bytes, and the same for the other CTAs."""
        if not place["is_down"]:
            NarrowGemm._finish(self, lay, place, quad, sums)
            return
        piece, row = quad % lay.quads, place["first_row"] + quad // lay.quads
        column = place["tile"] * lay.rows + piece * 4
        words = [round_pair(sums[i], sums[i + 1], is_bf16=lay.is_bf16) for i in (0, 2)]
        at = place["lora_act_in"] + (Int64(row) * lay.r + Int64(column)) * 2
        store_if(at, words, exists(Int32(lay.r) - column))
        tagged = place["pairs"] + Int64(quad // lay.quads) * (lay.r * TAGGED) + Int64(column * TAGGED)
        store_tagged(tagged, words, exists(Int32(lay.r) - column))


def _counter(address: Any) -> Any:
    return cute.make_ptr(Int32, address, cute.AddressSpace.gmem, assumed_align=4)


def host_function(
    config: WholeConfig, problem_class: ProblemClass, arch: Arch
) -> tuple[Any, tuple[Any, ...]]:
    """The function to compile and arguments that give it the types of a call, in the order of the signature."""
    return WholeLayer(config, problem_class), typed_arguments(problem_class)

"""Activations to NVFP4 and ``x @ lora_down`` on sm_90a: one launch that reads x once, by warps with roles.

``act, ascales = nvfp4(x * (1 / smooth))``, ``lora_act_in = x @ lora_down`` with fp32 sums

| warps | role |
|---|---|
| 0 | x by TMA, lora_down by bulk copies |
| 1 - 3 | 1 / smooth |
| 4 - 7 | wgmma: sums of ``lora_down.T @ x.T``, both operands from shared memory |
| 8 .. | quantize: x from shared memory, codes and scales to global memory |

One ring, a chunk of 64 along K a slot: ``[tile_m, 64]`` of x and ``[R, 64]`` of lora_down, rows of 128 bytes with the
128-byte swizzle, and 64 fp32 of 1 / smooth. A slot is full when its bytes and 1 / smooth are there, and empty when all
warps that multiply it or quantize it have said so.

wgmma takes rows of x as its N: a tile may have any multiple of 8 rows. Rows of a wgmma beyond R are zeros that stay
behind lora_down in its slot, and give sums that nobody reads.

Quantizing warps take turns with the chunks, ``quant_warps / turns`` of them at once. A warp takes 8 rows at once, four
lanes a row: lane t has the 16 elements of one scale. It goes on with the rows after those that it has, over chunk and
chunk of its turn, so that no warp has more than the others.

Multiplying warps send the CTA's sums to those CTAs of the cluster that add them up, while the others still quantize
(``sums.py``).

With ``use_pdl`` smooth and lora_down are read before the previous kernel has ended (``griddepcontrol.wait``, in warp 0
before it loads x): that kernel must not be the one that writes them. Nothing is written before a chunk of x has come.
"""

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.memory as memory
import cutlass.utils.hopper_helpers as sm90_utils
from cutlass import Float32, Int32, Int64, cute
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup

from kernel_space.core.arch import Arch
from kernel_space.core.problem import ProblemClass
from kernel_space.operators.nvfp4_quantize.lora_mma import kernel as lora_mma_kernel
from kernel_space.operators.nvfp4_quantize.lora_tma.config import GROUP_WARPS, ROLE_WARPS, LoraTmaConfig
from kernel_space.operators.nvfp4_quantize.lora_tma.layouts import MMA_ROWS, LoraTmaLayouts
from kernel_space.operators.nvfp4_quantize.lora_tma.roles import Roles
from kernel_space.operators.nvfp4_quantize.lora_tma.sums import Sums
from kernel_space.operators.nvfp4_quantize.packing import CHUNK_K


class QuantizeLoraTma(Sums, Roles):
    """Generator of one kernel: a resolved config and a problem class."""

    pointers: tuple[str, ...] = ("smooth", "lora_down", "act", "ascales", "lora_act_in")

    def __init__(self, config: LoraTmaConfig, problem_class: ProblemClass) -> None:
        self.config = config
        self.layouts = LoraTmaLayouts(config, problem_class)
        self.half = lora_mma_kernel.DTYPES[problem_class.x_dtype]
        self.has_fp4 = False

    @cute.jit
    def __call__(
        self,
        x: cute.Pointer,
        smooth: cute.Pointer,
        lora_down: cute.Pointer,
        act: cute.Pointer,
        ascales: cute.Pointer,
        lora_act_in: cute.Pointer,
        m: Int32,
        k: Int32,
        max_active_clusters: Int32,
        stream: cuda.CUstream,
    ):
        """Launch a cluster for every tile of rows; not persistent, no workspace."""
        self.launch(x, (smooth, lora_down, act, ascales, lora_act_in), m, k, stream)

    def launch(self, x: Any, pointers: Any, m: Any, k: Any, stream: Any) -> None:
        """``pointers``: as the class names them."""
        lay = self.layouts
        box = self._slots(lay.tile_m)
        gmem = cute.make_tensor(x, cute.make_layout((m, k), stride=(cute.assume(k, 32), 1)))
        op = cpasync.CopyBulkTensorTileG2SOp()
        atom, coords = cpasync.make_tiled_tma_atom(op, gmem, box, (lay.tile_m, CHUNK_K))
        self.kernel(atom, coords, pointers, m, k).launch(
            grid=(cute.ceil_div(m, lay.tile_m) * lay.splits, 1, 1),  # one dimension: the others end at 65535
            block=[lay.threads, 1, 1],
            cluster=(lay.splits, 1, 1),
            stream=stream,
            min_blocks_per_mp=self.config.ctas_per_sm,
            # As the GEMM that follows: an SM that has to change it must be empty first.
            preferred_smem_carveout=100,
            use_pdl=self.config.use_pdl,
        )

    def _slots(self, rows: int, stages: int = 0) -> Any:
        """Rows of a chunk, 128 bytes with the 128-byte swizzle; in ``stages`` slots, or one box."""
        atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, self.half)
        if stages:
            return cute.tile_to_shape(atom, (rows, CHUNK_K, stages), order=(0, 1, 2))
        return cute.tile_to_shape(atom, (rows, CHUNK_K), order=(0, 1))

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
        elif warp < ROLE_WARPS:
            cute.arch.setmaxregister_increase(multipliers)
            if cutlass.const_expr(self.config.use_pdl):
                if warp == ROLE_WARPS - 1:
                    self.begin_prefetch(place, atom, self._partition(atom, coords, regions["x"]))
            self.multiply(place, *self._operands(regions))
        else:
            if cutlass.const_expr(quantizers < self._at_launch):
                cute.arch.setmaxregister_decrease(quantizers)
            self.quantize(place)

    @property
    def _at_launch(self) -> int:
        """Registers of a thread."""
        return 65536 // (self.config.threads * self.config.ctas_per_sm) // 8 * 8

    def _partition(self, atom: Any, coords: Any, ring: Any) -> Any:
        """TMA views (bytes, slot) of shared memory and (bytes, tile of rows, chunk) of x."""
        lay = self.layouts
        slots = self._tensor(ring, self._slots(lay.tile_m, lay.stages))
        tiled = cute.local_tile(coords, (lay.tile_m, CHUNK_K), (None, None))
        return cpasync.tma_partition(
            atom, 0, cute.make_layout(1), cute.group_modes(slots, 0, 2), cute.group_modes(tiled, 0, 2)
        )

    def _tensor(self, begin: Any, layout: Any) -> Any:
        return cute.make_tensor(cute.recast_ptr(begin, layout.inner, dtype=self.half), layout.outer)

    def _operands(self, regions: dict[str, Any]) -> tuple[Any, Any, Any]:
        """The instruction; lora_down and x in every slot as its operands."""
        lay = self.layouts
        mma = sm90_utils.make_trivial_tiled_mma(
            self.half,
            self.half,
            OperandMajorMode.K,
            OperandMajorMode.K,
            Float32,
            (1, 1, 1),
            (MMA_ROWS, lay.tile_m),
            warpgroup.OperandSource.SMEM,
        )
        mma.set(warpgroup.Field.ACCUMULATE, True)
        thread = mma.get_slice(0)
        columns = self._tensor(regions["lora_down"], self._slots(lay.columns, lay.stages))
        rows = self._tensor(regions["x"], self._slots(lay.tile_m, lay.stages))
        return (
            mma,
            mma.make_fragment_A(thread.partition_A(columns)),
            mma.make_fragment_B(thread.partition_B(rows)),
        )

    def _place(self, pointers: Any, regions: dict[str, Any], warp: Any, m: Any, k: Any) -> dict[str, Any]:
        """Where this thread stands: rows and chunks of its CTA; addresses."""
        lay = self.layouts
        names = zip(self.pointers, pointers, strict=True)
        place: dict[str, Any] = {name: pointer.toint() for name, pointer in names}
        at = {name: pointer.toint() for name, pointer in regions.items()}
        cta, _, _ = cute.arch.block_idx()
        thread, _, _ = cute.arch.thread_idx()
        lane = cute.arch.lane_idx()
        rank, tile = cta % lay.splits, cta // lay.splits
        chunks = (k + (CHUNK_K - 1)) // CHUNK_K
        each, rest = chunks // lay.splits, chunks % lay.splits
        mine = each + Int32(rank < rest)
        if lay.has_smooth:
            place["inverses"] = at["1 / smooth"]
        if "sums full" in at:
            place |= {"sums": at["sums of the cluster"], "sums_full": at["sums full"]}
        return place | {
            "m": m, "k": k, "thread": thread, "lane": lane, "warp": warp, "quarter": lane % 4,
            "rank": rank, "tile": tile, "part_r": 0, "first_row": tile * lay.tile_m,
            "k_blocks": chunks, "first_chunk": rank * each + cutlass.min(rank, rest),
            "chunks": mine, "padded_m": (m + 127) // 128 * 128,
            "x_ring": at["x"], "ring": at["lora_down"],
            "full": at["full"], "empty": at["empty"], "half_k": Int64(k // 2),
        }  # fmt: skip


ARGUMENTS = lora_mma_kernel.ARGUMENTS


def host_function(
    config: LoraTmaConfig, problem_class: ProblemClass, arch: Arch
) -> tuple[Any, tuple[Any, ...]]:
    """The function to compile and arguments that give it the types of a call, in the order of ``ARGUMENTS``.

    ``config`` must be legal. Addresses and sizes are run-time values: those given here only carry types.
    """
    return QuantizeLoraTma(config, problem_class), lora_mma_kernel._typed_arguments(problem_class)

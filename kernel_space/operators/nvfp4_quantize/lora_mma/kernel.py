"""Activations to NVFP4 and ``x @ lora_down`` on sm_90a and sm_100a: one launch that reads x once.

``act, ascales = nvfp4(x * (1 / smooth))``, ``lora_act_in = x @ lora_down`` with fp32 sums

| what | value |
|---|---|
| CTA | ``warps_m * rows_per_warp`` rows and its part of K (``split_k``) and of R (``split_r``) |
| warp | 16 or 32 rows; its chunks of 64 along K are every ``warps_k``-th of the CTA's |
| lane | rows g, g + 8 …, g = lane / 4; of each the 16 elements 16 (lane % 4) … of a chunk: one block of NVFP4 |
| x | from global memory to registers, which are operands of ``mma.sync`` as they are (``Stream._multiply``) |
| lora_down | chunks by bulk copies into a ring of shared memory, which the warps along M share |
| sums | in registers until the end; parties along K then exchange pieces of them (``reduce``) |

A lane multiplies a chunk, then quantizes its rows one by one, and loads each anew for the next chunk when it is done
with it. So tensor core, arithmetic and memory work at the same time, on warps that are not in step.

With ``use_pdl`` smooth and lora_down are read before the previous kernel has ended (``griddepcontrol.wait``): that
kernel must not be the one that writes them.
"""

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.memory as memory
from cutlass import Float32, Int32, Int64, cute

from kernel_space.core.arch import Arch
from kernel_space.core.problem import ProblemClass
from kernel_space.operators.nvfp4_quantize.lora_mma.config import LoraMmaConfig
from kernel_space.operators.nvfp4_quantize.lora_mma.layouts import LoraMmaLayouts
from kernel_space.operators.nvfp4_quantize.lora_mma.reduce import Reduce
from kernel_space.operators.nvfp4_quantize.lora_mma.stream import ROW_STEP, Stream
from kernel_space.operators.nvfp4_quantize.packing import CHUNK_K
from kernel_space.operators.nvfp4_quantize.signature import SIGNATURE

DTYPES = {"fp16": cutlass.Float16, "bf16": cutlass.BFloat16}


class QuantizeLora(Stream, Reduce):
    """Generator of one kernel: a resolved config, a problem class and whether the chip converts to E2M1 by itself."""

    def __init__(self, config: LoraMmaConfig, problem_class: ProblemClass, *, has_fp4: bool) -> None:
        self.config = config
        self.layouts = LoraMmaLayouts(config, problem_class)
        self.has_fp4 = has_fp4

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
        """Launch a cluster for every tile of rows and part of R; not persistent, no workspace."""
        lay = self.layouts
        ctas = cute.ceil_div(m, lay.tile_m) * (lay.parts_r * lay.splits)
        self.kernel((x, smooth, lora_down, act, ascales, lora_act_in), m, k).launch(
            grid=(ctas, 1, 1),  # one dimension: the others end at 65535
            block=[lay.threads, 1, 1],
            cluster=(lay.splits, 1, 1),
            stream=stream,
            min_blocks_per_mp=self.config.ctas_per_sm,
            # As the GEMM that follows: an SM that has to change it must be empty first.
            preferred_smem_carveout=100,
            use_pdl=self.config.use_pdl,
        )

    @cute.kernel
    def kernel(self, pointers: Any, m: Int32, k: Int32):
        lay = self.layouts
        smem = memory.SmemAllocator()
        regions = {}
        for region in lay.allocations():
            shape = cute.make_layout(region.bytes)
            regions[region.name] = smem.allocate_tensor(cutlass.Uint8, shape, region.align).iterator
        place = self._place(pointers, regions, m, k)
        self.init_barriers(place)
        cute.arch.sync_threads()
        acc = cute.make_rmem_tensor((4, lay.pieces), Float32)
        acc.fill(0.0)
        self.stream(place, acc)
        self.clear_padding(place)
        self.reduce(place, acc)

    def _place(self, pointers: Any, regions: dict[str, Any], m: Int32, k: Int32) -> dict[str, Any]:
        """Where this lane stands: its rows, its chunks, its part of R; addresses."""
        lay = self.layouts
        names = ("x", "smooth", "lora_down", "act", "ascales", "lora_act_in")
        place: dict[str, Any] = {name: pointer.toint() for name, pointer in zip(names, pointers, strict=True)}
        at = {name: pointer.toint() for name, pointer in regions.items()}
        cta, _, _ = cute.arch.block_idx()
        thread, _, _ = cute.arch.thread_idx()
        lane = cute.arch.lane_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        rank, tile = cta % lay.splits, cta // lay.splits
        place |= {
            "m": m, "k": k, "thread": thread, "lane": lane, "quarter": lane % 4, "rank": rank,
            "warp_m": warp % lay.warps_m, "warp_k": warp // lay.warps_m,
            "part_r": tile % lay.parts_r, "first_row": tile // lay.parts_r * lay.tile_m,
            "ring": at["lora_down"], "full": at["full"], "empty": at["empty"],
        }  # fmt: skip
        if lay.has_smooth:
            place["inverse"] = at["1 / smooth"] + warp * (2 * CHUNK_K * 4)
        chunks = (k + (CHUNK_K - 1)) // CHUNK_K
        each, rest = chunks // lay.splits, chunks % lay.splits
        place["k_blocks"] = chunks
        place["first_chunk"] = rank * each + cutlass.min(rank, rest)
        mine = each + Int32(rank < rest)
        place["chunks"] = mine
        place["chunk"] = place["first_chunk"] + place["warp_k"]
        place["count"] = (mine - place["warp_k"] + (lay.warps_k - 1)) // lay.warps_k
        place["row"] = place["first_row"] + place["warp_m"] * lay.rows + lane // 4
        place["piece_row"] = place["row"] - lane // 4 + place["quarter"] * 2
        place["ahead"] = place["row"] - lane // 4 + lane
        place["x_ahead"] = place["x"] + Int64(place["ahead"]) * k * 2
        place["x_row"] = place["x"] + Int64(place["row"]) * k * 2
        place["x_step"] = Int64(k) * (2 * ROW_STEP)
        place["act_row"] = place["act"] + Int64(place["row"]) * (k // 2)
        place["act_step"] = Int64(k // 2) * ROW_STEP
        place["padded_m"] = (m + 127) // 128 * 128
        place["columns"] = place["own_columns"] = place["part_r"] * lay.columns
        if not lay.even:
            place["columns"] = cutlass.min(place["columns"], Int32(lay.r - lay.columns))
        return place


ARGUMENTS = SIGNATURE.abi


def host_function(
    config: LoraMmaConfig, problem_class: ProblemClass, arch: Arch
) -> tuple[Any, tuple[Any, ...]]:
    """The function to compile and arguments that give it the types of a call, in the order of ``ARGUMENTS``.

    ``config`` must be legal. Addresses and sizes are run-time values: those given here only carry types.
    """
    has_fp4 = arch.compute_capability >= (10, 0)
    return QuantizeLora(config, problem_class, has_fp4=has_fp4), _typed_arguments(problem_class)


def _typed_arguments(problem_class: ProblemClass) -> tuple[Any, ...]:
    half = DTYPES[problem_class.x_dtype]
    bytes_ = {"smooth": Float32, "act": cutlass.Uint8, "ascales": cutlass.Uint8}
    pointers = [
        cute.runtime.make_ptr(bytes_.get(name, half), 256, cute.AddressSpace.gmem, assumed_align=16)
        for name in SIGNATURE.pointers
    ]
    return (*pointers, *(Int32(256) for _ in SIGNATURE.integers), cuda.CUstream(0))

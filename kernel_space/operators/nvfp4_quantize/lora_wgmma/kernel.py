"""Activations to NVFP4 and ``x @ lora_down`` on sm_90a by wgmma: one launch that reads x once.

``act, ascales = nvfp4(x * (1 / smooth))``, ``lora_act_in = x @ lora_down`` with fp32 sums

| what | value |
|---|---|
| CTA | ``groups_m * 64`` rows and its part of K (``split_k``) |
| warpgroup | 64 rows; its chunks of 64 along K are every ``groups_k``-th of the CTA's |
| lane | rows g, g + 8 of a warp's 16, g = lane / 4; of each the elements 16 (lane % 4) … of a chunk: a block of NVFP4 |
| x | by ``cp.async`` into a ring of each warp, from there to registers: operands of wgmma as they are (``packing``) |
| lora_down | chunks by bulk copies into a ring of shared memory, which the warpgroups along M share; wgmma reads |
| sums | in registers until the end; parties along K then exchange pieces of them (``lora_mma.reduce``) |

wgmma of a chunk run while its words are quantized. x waits in shared memory, not in registers: so there are warps
enough to hide what each of them waits for.

With ``use_pdl`` smooth and lora_down are read before the previous kernel has ended (``griddepcontrol.wait``): that
kernel must not be the one that writes them.
"""

from typing import Any

import cutlass
import cutlass.memory as memory
import cutlass.utils.hopper_helpers as sm90_utils
from cutlass import Float32, Int32, Int64, cute
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup

from kernel_space.core.arch import Arch
from kernel_space.core.problem import ProblemClass
from kernel_space.operators.nvfp4_quantize.lora_mma import kernel as lora_mma_kernel
from kernel_space.operators.nvfp4_quantize.lora_wgmma import ptx as wgmma_ptx
from kernel_space.operators.nvfp4_quantize.lora_wgmma.config import GROUP_WARPS, WARP_ROWS, LoraWgmmaConfig
from kernel_space.operators.nvfp4_quantize.lora_wgmma.layouts import INVERSES, LoraWgmmaLayouts
from kernel_space.operators.nvfp4_quantize.lora_wgmma.stream import COPY_ROWS, PIECES, WgmmaStream
from kernel_space.operators.nvfp4_quantize.packing import CHUNK_K

GROUP_ROWS = 64
ROW_STEP = 8  # rows between those of a lane


class QuantizeLoraWgmma(WgmmaStream, lora_mma_kernel.QuantizeLora):
    """Generator of one kernel: a resolved config and a problem class. Launch and reduction are ``lora_mma``'s."""

    def __init__(self, config: LoraWgmmaConfig, problem_class: ProblemClass) -> None:
        self.config = config
        self.layouts = LoraWgmmaLayouts(config, problem_class)
        self.half = lora_mma_kernel.DTYPES[problem_class.x_dtype]
        self.has_fp4 = False

    @cute.kernel
    def kernel(self, pointers: Any, m: Int32, k: Int32):
        lay = self.layouts
        smem = memory.SmemAllocator()
        regions = {}
        for region in lay.allocations():
            shape = cute.make_layout(region.bytes)
            regions[region.name] = smem.allocate_tensor(cutlass.Uint8, shape, region.align).iterator
        place = self._place(pointers, regions, m, k)
        self._make_mma(regions["lora_down"])
        self.init_barriers(place)
        cute.arch.sync_threads()
        acc = cute.make_rmem_tensor(self.mma.partition_shape_C((GROUP_ROWS, lay.columns)), Float32)
        acc.fill(0.0)
        self.stream(place, acc)
        self.clear_padding(place)
        # 16 rows x 8 columns after each other, as ``reduce`` takes them.
        self.reduce(place, cute.make_tensor(acc.iterator, cute.make_layout((4, lay.pieces))))

    def _make_mma(self, ring: Any) -> None:
        """The instruction, and lora_down in every slot as its operand: rows of 128 bytes with the 128-byte swizzle."""
        lay = self.layouts
        self.mma = sm90_utils.make_trivial_tiled_mma(
            self.half,
            self.half,
            OperandMajorMode.K,
            OperandMajorMode.K,
            Float32,
            (1, 1, 1),
            (GROUP_ROWS, lay.columns),
            warpgroup.OperandSource.RMEM,
        )
        self.mma.set(warpgroup.Field.ACCUMULATE, True)
        atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, self.half)
        shape = (lay.columns, CHUNK_K, lay.stages * lay.warps_k)
        slots = cute.tile_to_shape(atom, shape, order=(0, 1, 2))
        begin = cute.recast_ptr(ring, slots.inner, dtype=self.half)
        columns = cute.make_tensor(begin, slots.outer)
        self.slots = self.mma.make_fragment_B(self.mma.get_slice(0).partition_B(columns))

    def _place(self, pointers: Any, regions: dict[str, Any], m: Int32, k: Int32) -> dict[str, Any]:
        """Besides what ``lora_mma`` knows: where this lane copies x from and to, and where it reads its own."""
        lay = self.layouts
        place = super()._place(pointers, regions, m, k)
        lane = place["lane"]
        warp = place["warp_k"] * lay.warps_m + place["warp_m"]
        own = lane // 4
        place["group"], place["group_warp"] = warp // GROUP_WARPS, warp % GROUP_WARPS
        if lay.has_smooth:
            place["inverses"] = regions["1 / smooth"].toint() + place["group"] * (INVERSES * CHUNK_K * 4)
        place["x_ring"] = regions["x"].toint() + warp * lay.x_warp_bytes
        at = place["x_ring"] + own * lay.row_bytes + ((place["quarter"] * 2) ^ own) * 16
        place["x_own"] = (at, at ^ 16)  # slots and rows are multiples of 32 bytes apart
        place["row_copy"] = place["first_row"] + place["warp_m"] * WARP_ROWS + lane // PIECES
        place["x_copy"] = place["x"] + Int64(place["row_copy"]) * k * 2 + Int64(lane % PIECES * 16)
        place["x_copy_step"] = Int64(k) * (2 * COPY_ROWS)
        return place

    def _store(self, place: Any, piece: Any, sums: list[Any]) -> None:
        """Four sums, two columns of two rows, rounded to the dtype of lora_down."""
        lay = self.layouts
        column = piece * 8 + place["quarter"] * 2
        for octet in range(2):
            row = place["row"] + octet * ROW_STEP
            address = place["lora_act_in"] + (Int64(row) * lay.r + column) * 2
            low, high = sums[2 * octet : 2 * octet + 2]
            wgmma_ptx.store_pair_if(address, low, high, row < place["m"], is_bf16=lay.is_bf16)


ARGUMENTS = lora_mma_kernel.ARGUMENTS


def host_function(
    config: LoraWgmmaConfig, problem_class: ProblemClass, arch: Arch
) -> tuple[Any, tuple[Any, ...]]:
    """The function to compile and arguments that give it the types of a call, in the order of ``ARGUMENTS``.

    ``config`` must be legal. Addresses and sizes are run-time values: those given here only carry types.
    """
    _, arguments = lora_mma_kernel.host_function(config, problem_class, arch)
    return QuantizeLoraWgmma(config, problem_class), arguments

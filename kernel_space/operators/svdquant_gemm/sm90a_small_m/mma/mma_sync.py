"""The kernel ``sm90a_small_m`` for few rows of act: no rings between warps, no descriptors, one wave.

Weights are read once whatever is done, so latency decides: launch, first bytes, last sum. Each warp owns 32 weight
rows and a part of K and works alone until the sums are added up:

1. every lane copies (``cp.async``) the 16-byte pieces that it will read itself, ``num_ab_stage`` units ahead; no
   barrier and no other lane is involved, so neither is any waiting but for its own bytes;
2. it dequantizes weights and act to fp16 in registers, which are the operands of ``mma.sync.m16n8k16`` as they are:
   weights the 16 rows, act the 8 columns (K is permuted for both alike);
3. sums of the warps that share rows are added through shared memory in the order of the warps, those of the CTAs of
   a cluster (``split_k`` along K) in the order of their ranks; then epilogue and store.

LoRA units come last in a warp, after its sums were multiplied by 2^14 (what both dequantized operands together lack;
exact).

With ``use_pdl`` weights, their scale factors, lora_up, wcscale and bias are read before the previous kernel has ended
(``griddepcontrol.wait``): that kernel must not be the one that writes them. Dependents are let go after that wait, so
all kernels before the previous one are complete by then.
"""

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.memory as memory
from cutlass import Int32, Int64, cute

from kernel_space.core.problem import ProblemClass
from kernel_space.operators.svdquant_gemm.sm90a_small_m.mma.layouts import OCTETS, UNIT_K, LayoutsSmallM
from kernel_space.operators.svdquant_gemm.sm90a_small_m.mma.reduce import SmallMReduce
from kernel_space.operators.svdquant_gemm.sm90a_small_m.mma.stream import SCALE_BLOCK, SmallMStream, exists
from kernel_space.operators.svdquant_gemm.sm90a_small_m.mma.sync import SmallMSync


class SmallMSm90a(SmallMStream, SmallMSync, SmallMReduce):
    """Generator of one kernel: a resolved config without dq slots and a problem class."""

    def __init__(self, config: Any, problem_class: ProblemClass):
        self.config = config
        self.problem_class = problem_class

    def _layouts(self) -> LayoutsSmallM:
        return LayoutsSmallM(self.config, self.problem_class)

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
        # Rows 32 apart share scale factors: a tile takes octets of a 128-row block, four at a time.
        tiles = cute.ceil_div(cute.ceil_div(n, 128) * 4, lay.rows // 32)
        self.kernel((act, ascales, wgt, wscales, lora_act_in, lora_up, wcscale, bias, y), m, n, k).launch(
            grid=(tiles * lay.splits, cute.ceil_div(m, lay.columns), 1),
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
        if cutlass.const_expr(lay.splits > 1):
            cta, row_tile, _ = cute.arch.block_idx()
            self.announce(lay, regions["arrived"], cta % lay.splits, m - row_tile * lay.columns)
        place = self._place(lay, pointers, regions, m, n, k)
        accs = self.make_sums(lay)
        for acc in accs:
            acc.fill(0.0)
        self.stream(lay, place, accs)
        self.reduce(lay, place, accs)

    @staticmethod
    def _place(
        lay: LayoutsSmallM, pointers: Any, regions: dict[str, Any], m: Int32, n: Int32, k: Int32
    ) -> dict[str, Any]:
        """Where this lane stands: its units, its rows in every operand, its ring."""
        names = ("act", "ascales", "wgt", "wscales", "lora_act_in", "lora_up", "wcscale", "bias", "y")
        place: dict[str, Any] = {name: pointer.toint() for name, pointer in zip(names, pointers, strict=True)}
        at = {name: pointer.toint() for name, pointer in regions.items()}
        thread, _, _ = cute.arch.thread_idx()
        cta, row_tile, _ = cute.arch.block_idx()
        lane = cute.arch.lane_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        rank, tile = cta % lay.splits, cta // lay.splits
        part, row_warp = warp // lay.warps_n, warp % lay.warps_n
        place |= {
            "m": m, "n": n, "k": k, "k_blocks": (k + 63) // 64, "thread": thread, "lane": lane,
            "quarter": lane % 4, "rank": rank, "tile": tile, "part": part, "first_row": row_tile * lay.columns,
            "rings": at["operands"], "wcscale_smem": at["wcscale"], "bias_smem": at["bias"],
            "received": at.get("sums of the cluster"), "arrived": regions.get("arrived"),
            "ring": at["operands"] + warp * (lay.slot_bytes * lay.stages),
        }  # fmt: skip
        _add_units(lay, place)
        _add_weight_rows(lay, place, tile * (lay.rows // 32) + row_warp)
        _add_act_rows(lay, place)
        return place


def _add_units(lay: LayoutsSmallM, place: dict[str, Any]) -> None:
    """Units of this warp: its first one and their number, along K and along R.

    K is dealt out evenly, the first get one more; LoRA units from the last on, who have less to do.
    """
    units = (place["k"] + UNIT_K - 1) // UNIT_K
    workers = lay.splits * lay.warps_k
    worker = place["rank"] * lay.warps_k + place["part"]
    place["k_begin"], place["k_count"] = _share(units, workers, worker)
    place["lora_begin"], place["lora_count"] = _share(Int32(lay.lora_units), workers, workers - 1 - worker)


def _share(units: Any, workers: int, worker: Any) -> tuple[Any, Any]:
    """(first, number) of the consecutive units of one worker; the first workers take the remainder."""
    each, rest = units // workers, units % workers
    return worker * each + cutlass.min(worker, rest), each + exists(rest - worker)


def _add_weight_rows(lay: LayoutsSmallM, place: dict[str, Any], index: Any) -> None:
    """First row of this lane, the step to the next one, and 16 or 0 bytes of each of its four rows."""
    block, octet = index // 4, index % 4
    in_octet = octet * 8 + place["lane"] // 4
    row = block * 128 + in_octet
    half_k = place["k"] // 2
    place["wgt"] = place["wgt"] + Int64(row) * half_k + Int64(place["quarter"] * 16)
    place["wgt_step"] = Int64(half_k) * 32
    place["lora_up"] = place["lora_up"] + Int64(row) * (lay.r * 2) + Int64(place["quarter"] * 16)
    place["row_sizes"] = [exists(place["n"] - row - 32 * i) * 16 for i in range(OCTETS)]
    place["tile_exists"] = exists((place["n"] + 127) // 128 - block)
    place["wscales"] = (
        place["wscales"] + Int64(block) * place["k_blocks"] * SCALE_BLOCK + Int64(in_octet * 16)
    )


def _add_act_rows(lay: LayoutsSmallM, place: dict[str, Any]) -> None:
    """The same of the rows of act: row g of every own tile."""
    row = place["first_row"] + place["lane"] // 4
    half_k = place["k"] // 2
    place["act"] = place["act"] + Int64(row) * half_k + Int64(place["quarter"] * 16)
    place["act_step"] = Int64(half_k) * 8
    place["lora_act_in"] = place["lora_act_in"] + Int64(row) * (lay.r * 2) + Int64(place["quarter"] * 16)
    rows = [row + 8 * x for x in range(lay.act_tiles)]
    place["act_sizes"] = [exists(place["m"] - at) * 16 for at in rows]
    blocks = place["ascales"] + Int64(place["first_row"] // 128) * place["k_blocks"] * SCALE_BLOCK
    place["ascales"] = [blocks + Int64(at % 32 * 16 + at % 128 // 32 * 4) for at in rows]

"""The kernel ``narrow``: y.T = weights @ xs.T for few rows of xs, by ``mma.sync``; one wave, no descriptors.

It is ``sm90a_small_m`` of ``svdquant_gemm`` with ``mma.sync`` on 16-bit activations. Each warp owns 32 rows of weights
and a part of K, and works without the others until the sums are added up:

1. it copies (``cp.async``) its weights ``num_ab_stage`` units of 128 K ahead; with the warps that share its part of K
   it copies xs, of which ``ldmatrix`` makes operands as they are, since xs comes in the order of packed codes;
2. it dequantizes weights in registers to operands of ``mma.sync.m16n8k16``: weights the 16 rows, xs the 8 columns;
3. sums of the warps that share rows are added through shared memory in the order of the warps, those of the CTAs of
   a cluster (``split_k`` along K) in the order of their ranks; then epilogue and store (``SmallMReduce``).

LoRA units come last in a warp, after its sums were multiplied by 2^7 (what dequantized weights lack; exact).

With ``use_pdl`` weights, their scale factors, lora_up, wcscale and bias are read, and with ``dequant_ahead`` a unit of
weights of every warp is dequantized, before the previous kernel has ended (``griddepcontrol.wait``): that kernel must
not be the one that writes them. Dependents are let go after that wait, so all kernels before the previous one are
complete by then.
"""

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.memory as memory
from cutlass import Int32, Int64, cute

from kernel_space.core.arch import Arch
from kernel_space.core.problem import ProblemClass
from kernel_space.operators.svdquant_gemm.sm90a_small_m.mma.stream import SCALE_BLOCK, exists
from kernel_space.operators.svdquant_gemm_16bit.host import typed_arguments
from kernel_space.operators.svdquant_gemm_16bit.narrow.config import NarrowConfig
from kernel_space.operators.svdquant_gemm_16bit.narrow.layouts import OCTETS, UNIT_K, XS_ROW, NarrowLayouts
from kernel_space.operators.svdquant_gemm_16bit.narrow.stream import ROW_PIECES, ROWS_OF_COPY, NarrowStream

SPAN_BYTES = 128  # of 64 elements of xs
POINTERS = ("xs", "wgt", "wscales", "lora_act_in", "lora_up", "wcscale", "bias", "y")


class NarrowGemm(NarrowStream):
    """Generator of one kernel: a resolved config (no ``auto``) and a problem class."""

    pointers: tuple[str, ...] = POINTERS

    def __init__(self, config: NarrowConfig, problem_class: ProblemClass):
        self.config = config
        self.problem_class = problem_class

    def _layouts(self) -> NarrowLayouts:
        return NarrowLayouts(self.config, self.problem_class)

    @cute.jit
    def __call__(
        self,
        xs: cute.Pointer,
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
        self.kernel((xs, wgt, wscales, lora_act_in, lora_up, wcscale, bias, y), m, n, k).launch(
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

    def _place(
        self, lay: NarrowLayouts, pointers: Any, regions: dict[str, Any], m: Int32, n: Int32, k: Int32
    ) -> dict[str, Any]:
        """Where this lane stands: its units, its rows in every operand, its rings."""
        place: dict[str, Any] = {
            name: pointer.toint() for name, pointer in zip(self.pointers, pointers, strict=True)
        }
        at = {name: pointer.toint() for name, pointer in regions.items()}
        thread, _, _ = cute.arch.thread_idx()
        cta, row_tile, _ = cute.arch.block_idx()
        lane = cute.arch.lane_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        part, row_warp = warp // lay.warps_n, warp % lay.warps_n
        octet_row, quarter = lane // 4, lane % 4
        # Rows 2, 3, 6 and 7 have the halves of their 64 bytes exchanged: other banks.
        swap = (octet_row & 2) * 16
        place |= {
            "m": m, "n": n, "k": k, "k_blocks": (k + 63) // 64, "thread": thread, "lane": lane,
            "quarter": quarter, "rank": cta % lay.splits, "tile": cta // lay.splits,
            "part": part, "row_warp": row_warp, "first_row": row_tile * lay.columns,
            "rings": at["weights"], "wcscale_smem": at["wcscale"], "bias_smem": at["bias"],
            "received": at.get("sums of the cluster"), "arrived": regions.get("arrived"),
            "ring": at["weights"] + warp * (lay.slot_bytes * lay.stages),
            "xs_ring": at["xs"] + part * (lay.xs_slot_bytes * lay.xs_stages),
            "piece": octet_row * 64 + (quarter * 16 ^ swap),
            "words": octet_row * 64 + (quarter * 8 ^ swap),
            "matrices": self.matrices_offset(lane),
        }  # fmt: skip
        _add_units(lay, place)
        self.add_weight_rows(lay, place)
        _add_xs_rows(lay, place, *self.row_of(place))
        return place

    def add_weight_rows(self, lay: NarrowLayouts, place: dict[str, Any]) -> None:
        """First row of this lane, the step to the next one, and 16 or 0 bytes of each of its four rows."""
        _add_weight_rows(lay, place, place["tile"] * lay.warps_n + place["row_warp"])

    @staticmethod
    def row_of(place: Any) -> tuple[Any, Any]:
        """Bytes from a row of xs to the next one, and its columns."""
        return place["k_blocks"] * SPAN_BYTES, place["k_blocks"] * (SPAN_BYTES // 2)


def _add_units(lay: NarrowLayouts, place: dict[str, Any]) -> None:
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


def _add_weight_rows(lay: NarrowLayouts, place: dict[str, Any], index: Any) -> None:
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


def _add_xs_rows(lay: NarrowLayouts, place: dict[str, Any], pitch: Any, columns: Any) -> None:
    """This lane's piece of its first row of xs, and the step to its next one; how many rows and K are from there on.

    Piece p of row r of a tile lies at place ``p ^ r`` of 16.
    """
    row, piece = place["row_warp"] * ROWS_OF_COPY + place["lane"] // ROW_PIECES, place["lane"] % ROW_PIECES
    place["xs"] = place["xs"] + Int64(place["first_row"] + row) * pitch + Int64(piece * 16)
    place["xs_step"] = Int64(pitch) * (ROWS_OF_COPY * lay.warps_n)
    place["xs_target"] = row * XS_ROW + (piece ^ row) * 16
    place["rows_left"] = place["m"] - place["first_row"] - row
    place["xs_left"] = columns - piece * 8


def host_function(
    config: NarrowConfig, problem_class: ProblemClass, arch: Arch
) -> tuple[Any, tuple[Any, ...]]:
    """The function to compile and arguments that give it the types of a call, in the order of the signature."""
    return NarrowGemm(config, problem_class), typed_arguments(problem_class)

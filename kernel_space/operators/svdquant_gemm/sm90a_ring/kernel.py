"""SVDQuant W4A4 linear layer for sm_90a.

``y[M,N] = (scaled_mma(act[M,K], wgt[N,K]) + lora_act_in[M,R] @ lora_up[N,R].T) * wcscale[N] + bias[N]``

act, wgt: E2M1, K-major, two elements a byte; ascales, wscales: E4M3, one per 16 K elements, in the 32x4x4 blocked
layout; lora_act_in, lora_up: fp16 or bf16, R-major; wcscale, bias: fp32; y: fp16 or bf16, row-major; accumulation
in fp32, one rounding.

Hopper has no FP4 tensor cores: both operands become fp16 on chip, exactly (``dequant_sm90a``). The *row* operand
(act, or wgt with ``register_operand=wgt``, which computes y.T) goes from its packed SMEM slot to the registers that
wgmma reads; the *column* operand is dequantized once per CTA into a swizzled SMEM ring. So SMEM carries 16 bits an
element of only one operand.

| warps | role |
|---|---|
| 0 | TMA loads of packed operands and scale factors |
| 1 | TMA loads of LoRA slices |
| 2, 3 | none: setmaxnreg works on whole warpgroups |
| dequant warpgroups | column operand: packed ring -> fp16 in the dq ring |
| consumer warpgroups | row operand: packed ring -> registers; wgmma; epilogue |

| ring | producer -> consumer | slots | full barrier | empty barrier |
|---|---|---|---|---|
| ab | TMA -> dequant and consumer warps | num_ab_stage | bytes of one k-tile | a lane of every reading warp |
| dq | dequant -> consumer warps | num_dq_stage (64 of K) | a lane of every dequant warp | as above, consumers |
| lora | TMA -> consumer warps | num_lora_stage | bytes of one slice | a lane of every consumer warp |

With ``pingpong`` the consumer warps of a slot are those of the warpgroup whose tile it belongs to (``pingpong_sm90a``).

K order: in a k-tile of 128 the MMA's K index is permuted, for both operands alike, so that lane c of a quad owns the
32 consecutive elements 32c..32c+31 of a row: one 16-byte shared load and two scale factors.

LoRA comes first in a tile; its sum is then multiplied by 2^-14, which is what both dequantized operands together lack,
and the epilogue multiplies by 2^14 (all exact).

``split_k`` CTAs share a tile: each writes its fp32 partial sums to the workspace and counts itself in; the last
to arrive adds all partials in the order of the split index, so the result does not depend on who was last.

Not supported: batches, other scale-factor vector sizes, K-major operands other than packed E2M1.
"""

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Int32, cute
from cutlass.cute.nvgpu import cpasync

from kernel_space.core.arch import Arch
from kernel_space.core.problem import ProblemClass
from kernel_space.operators.svdquant_gemm.sm90a_parts.barriers import BarriersSm90a
from kernel_space.operators.svdquant_gemm.sm90a_parts.consumer import ConsumerSm90a
from kernel_space.operators.svdquant_gemm.sm90a_parts.host import typed_arguments
from kernel_space.operators.svdquant_gemm.sm90a_parts.layouts import WARPS_PER_GROUP, LayoutsSm90a
from kernel_space.operators.svdquant_gemm.sm90a_parts.split_k import GROUP_THREADS
from kernel_space.operators.svdquant_gemm.sm90a_ring.config import RingConfig
from kernel_space.operators.svdquant_gemm.sm90a_ring.epilogue import EpilogueSm90a
from kernel_space.operators.svdquant_gemm.sm90a_ring.producer import ProducerSm90a

# Registers per thread of each role by number of dequantizing warpgroups; with what the launch gives every thread
# (64 K over the CTA's threads, in eights) their sum must not grow.
REGISTERS = {1: (24, 56, 216), 2: (24, 40, 184)}


class RingSm90a(ProducerSm90a, EpilogueSm90a, ConsumerSm90a, BarriersSm90a):
    """Generator of one kernel: a resolved config (no ``auto``) and a problem class."""

    def __init__(self, config: RingConfig, problem_class: ProblemClass):
        self.config = config
        self.problem_class = problem_class
        self.cta_group_size = 1
        self.split_k = config.split_k
        self.stream_k = False
        self.has_lora = problem_class.r > 0
        self.interleave = False
        self.threads = GROUP_THREADS * (1 + config.num_dequant_warpgroups + config.consumer_warpgroups)

    def _layouts(self) -> LayoutsSm90a:
        return LayoutsSm90a(self.config, self.problem_class)

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
        """Build TMA descriptors for M, N, K and launch. ``max_active_clusters`` bounds the persistent grid."""
        lay = self._layouts()
        if cutlass.const_expr(self.config.swap_ab):
            a_ptr, sfa_ptr, la_ptr, rows = wgt, wscales, lora_up, n
            b_ptr, sfb_ptr, lb_ptr, columns = act, ascales, lora_act_in, m
        else:
            a_ptr, sfa_ptr, la_ptr, rows = act, ascales, lora_act_in, m
            b_ptr, sfb_ptr, lb_ptr, columns = wgt, wscales, lora_up, n
        cluster_m, cluster_n = self.config.cluster_shape_mn
        tma_a, mA = self._tma_packed(lay.a_box, a_ptr, rows, k, cluster_n)
        tma_b, mB = self._tma_packed(lay.b_box, b_ptr, columns, k, cluster_m)
        tma_sfa, mSFA = self._tma_scales(lay, lay.sfa, sfa_ptr, rows, k)
        tma_sfb, mSFB = self._tma_scales(lay, lay.sfb, sfb_ptr, columns, k)
        tma_la, mLA, tma_lb, mLB = None, None, None, None
        if cutlass.const_expr(self.has_lora):
            tma_la, mLA = self._tma_lora(lay.lora_a_box, la_ptr, rows)
            tma_lb, mLB = self._tma_lora(lay.lora_b_box, lb_ptr, columns)
        mC = cute.make_tensor(y, self._layout_of_y(lay, m, n))
        tma_c, mC_tma = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileS2GOp(), mC, lay.c_box, lay.store_shape
        )
        clusters_m = cute.ceil_div(rows, lay.rows * cluster_m)
        clusters_n = cute.ceil_div(columns, lay.columns * cluster_n)
        num_work = clusters_m * clusters_n * self.split_k
        self.kernel(
            (tma_a, tma_b, tma_sfa, tma_sfb),
            (mA, mB, mSFA, mSFB),
            (tma_la, tma_lb),
            (mLA, mLB),
            tma_c,
            mC_tma,
            wcscale,
            bias,
            workspace,
            clusters_m,
            clusters_n,
            cute.ceil_div(k, lay.k),
            n,
        ).launch(
            grid=(cluster_m, cluster_n, cutlass.min(num_work, max_active_clusters)),
            block=[self.threads, 1, 1],
            cluster=(cluster_m, cluster_n, 1),
            stream=stream,
            min_blocks_per_mp=self.config.ctas_per_sm,
            # Left out, the DSL asks a driver for the shared memory of the device when several CTAs share an SM.
            preferred_smem_carveout=100,
            use_pdl=self.config.use_pdl,
        )

    @staticmethod
    def _layout_of_y(lay: LayoutsSm90a, m: Int32, n: Int32) -> cute.Layout:
        columns = n // 2 if lay.gated else n
        return cute.make_layout((m, columns), stride=(cute.assume(columns, 8), 1))

    @cute.kernel
    def kernel(
        self,
        atoms: Any,
        tensors: Any,
        lora_atoms: Any,
        lora_tensors: Any,
        tma_c: cute.CopyAtom,
        mC: cute.Tensor,
        wcscale: cute.Pointer,
        bias: cute.Pointer,
        workspace: cute.Pointer,
        clusters_m: Int32,
        clusters_n: Int32,
        k_tiles: Int32,
        n: Int32,
    ):
        lay = self._layouts()
        warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        group = warp_idx // WARPS_PER_GROUP
        if warp_idx == 0:
            for atom in (*atoms, *lora_atoms, tma_c):
                if cutlass.const_expr(atom is not None):
                    cpasync.prefetch_descriptor(atom)
        buffers = self._allocate(lay)
        self._init_barriers(lay, buffers, warp_idx)
        if cutlass.const_expr(self.config.use_pdl):
            # Everything above overlaps the previous kernel; from here on its writes are visible.
            cute.arch.griddepcontrol_wait()
            cute.arch.griddepcontrol_launch_dependents()

        tiles = (clusters_m, clusters_n, k_tiles)
        producer_registers, dequant_registers, consumer_registers = REGISTERS[
            self.config.num_dequant_warpgroups
        ]
        moves_registers = self.config.ctas_per_sm == 1
        if group == 0:
            if cutlass.const_expr(moves_registers):
                cute.arch.setmaxregister_decrease(producer_registers)
            if warp_idx == 0:
                self.tma_warp(tiles, atoms, tensors, buffers)
            if cutlass.const_expr(self.has_lora):
                if warp_idx == 1:
                    self.lora_warp(tiles, lora_atoms, lora_tensors, buffers)
        elif group <= self.config.num_dequant_warpgroups:
            if cutlass.const_expr(moves_registers):
                cute.arch.setmaxregister_decrease(dequant_registers)
            self.dequant_warps(tiles, buffers)
        else:
            if cutlass.const_expr(moves_registers):
                cute.arch.setmaxregister_increase(consumer_registers)
            self.consumer_warps(tiles, (tma_c, mC), (wcscale, bias, workspace), n, buffers)

    def _arrivals(self, lay: LayoutsSm90a) -> dict[str, int]:
        """Arrivals per phase of every barrier of a ring: see the table of rings in the module's docstring."""
        readers = lay.num_reading_warps + lay.num_dequant_warps
        return {
            "ab_full": 1,
            "ab_empty": readers,
            "dq_full": WARPS_PER_GROUP,  # of the warpgroup that fills the slot
            "dq_empty": lay.num_reading_warps,
            "lora_full": 1,
            "lora_empty": lay.num_reading_warps,
        }


def host_function(config: RingConfig, problem_class: ProblemClass, arch: Arch) -> tuple[Any, tuple[Any, ...]]:
    """The function to compile and arguments that give it the types of a call, in the order of the signature.

    ``config`` must be resolved and legal. Addresses and sizes are run-time values: those given here only carry types.
    """
    return RingSm90a(config, problem_class), typed_arguments(problem_class)

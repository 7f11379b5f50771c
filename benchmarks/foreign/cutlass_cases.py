"""NVIDIA's CuTe DSL examples: each runs as the script it is, with its own reference, at small sizes."""

from __future__ import annotations

from benchmarks.foreign.case import Case

EXAMPLES = "examples/python/CuTeDSL"


_ONE_LANE = (
    "32 lanes read the slot, then one of them, elected, arrives on its barrier. The arrival releases what its own "
    "thread did, elect.sync orders no memory (bar.warp.sync would): the producer may overwrite what 31 lanes read"
)
_TWICE = "write the same words with equal values and without order"
_PAIR_DEALLOC = (
    "one CTA frees the tensor memory of the pair behind a barrier of its own threads; loads of the other CTA are not "
    "ordered before it"
)
_FOUR_READERS = (
    "one warp of the four that read the output accumulator frees tensor memory of the pair after a handshake with its "
    "counterpart in the other CTA; nothing waits for the other three"
)
_STAYS = "a peer's multicast commit arrives on a barrier of a CTA that does not wait for it before it ends"
_UNFENCED = "what cp.async wrote (generic proxy) is read by the tensor core without fence.proxy.async"
_ONE_WARP = "setmaxnreg is executed by one warp of a warpgroup; the ISA wants all four"
SETTLED = {
    "dense_gemm_alpha_beta": _ONE_LANE,
    "primitives mapa": "a CTA reads shared memory of the next one, which does not wait for that before it ends",
    "primitives pipeline_software_fill": _ONE_LANE,
    "primitives warp_named_barrier": _ONE_LANE,
    "hopper fmha": (
        "O overlays Q: a warp that has waited for its own wgmma stores O where another warp's wgmma may still read Q; "
        "and its last bulk store may still read shared memory of a CTA that is gone"
    ),
    "hopper fmha causal": (
        "its epilogue commits a bulk store and waits with wait_group.read 1, then the warps end: the last store may "
        "still read shared memory of a CTA that is gone"
    ),
    "fmha_bwd": (
        "tcgen05.dealloc follows a barrier of the compute warps only; the last product of dQ and its loads by the "
        "reduction warps are not ordered before it"
    ),
    "mla_decode_fp16": f"two warps {_TWICE}: the LSE of a row",
    "mla_decode_fp8": f"two warps {_TWICE}: the LSE of a row",
    "masked_grouped_gemm": (
        "the scheduler reads the size of the group behind the last one, 4 bytes behind the tensor, and does not use it"
    ),
    "mixed_input_fmha_decode": (
        "O is set to zero by tcgen05.st without tcgen05.wait::st before the arrival that lets the MMA add to it"
    ),
    "mixed_input_fmha_prefill_d256": _FOUR_READERS,
    "mixed_input_fmha_prefill_d512": (
        f"{_FOUR_READERS}; the second half of O overlays S, and the MMA warp's first acquire of the exchange passes at "
        "once: the first product of P and V may overwrite S before it has been loaded; the exchange's tcgen05.ld and "
        "st name another address in each lane"
    ),
    "primitives reduction/cluster_tmem_reduce": (
        f"four warps {_TWICE}; tcgen05.wait::st does not wait for tcgen05.cp, which needs a commit and its barrier; "
        "a relaxed arrival at the cluster barrier releases no shared memory"
    ),
    "primitives tcgen05/1cta_mma_a_from_tmem": (
        "tcgen05.st of all four warps names lane 0; a warp may touch the 32 lanes of its rank in the warpgroup alone"
    ),
    "primitives tcgen05/2cta_mma_basic": _PAIR_DEALLOC,
    "primitives tcgen05/2cta_mma_tma_store": _PAIR_DEALLOC,
    "primitives tcgen05/clusterMxN_2cta_mma": _PAIR_DEALLOC,
    "primitives tcgen05/mcast_clusterMxN_1cta_mma": _STAYS,
    "primitives tcgen05/mcast_clusterMxN_2cta_mma": f"{_PAIR_DEALLOC}; {_STAYS}",
    "primitives tcgen05/2cta_mma_blockscale_m128": (
        f"{_UNFENCED}; the leader does not wait for the barrier of the other CTA's SFB, which tcgen05.cp reads; its "
        f"instruction descriptor has bit 12 set, which is reserved in this kind; {_PAIR_DEALLOC}"
    ),
    "primitives tcgen05/slicek_m32n8k128": _UNFENCED,
    "primitives tma/tma_load_store": f"four elected threads store one tile: they {_TWICE}",
    "primitives tma/tma_store": f"four elected threads store one tile: they {_TWICE}",
    "primitives tma/tma_multicast": "a relaxed arrival at the cluster barrier releases nothing; peers read behind it",
    "primitives tma/tma_pipeline_single_warp": (
        "the next load is issued into a buffer that other warps read in the iteration before, without a barrier between"
    ),
    "primitives tutorial/05_minimal_tensor_mma": _ONE_WARP,
    "primitives tutorial/10_minimal_tensor_mma_fp8": _ONE_WARP,
    "primitives tutorial/gemm_M128_N128_Kany_TN_warpspec_multistage": (
        f"{_ONE_WARP}, here again in every iteration; the address in tensor memory is read without a barrier after "
        "the allocation"
    ),
    "primitives tutorial/06_softmax": (
        "the first warp overwrites the maximum with its sum while other warps may still read it: no barrier between"
    ),
}


def _case(name: str, arch: str, path: str, arguments: str) -> Case:
    return Case(
        name=name,
        arch=arch,
        script=f"{EXAMPLES}/{path}",
        arguments=tuple(arguments.split()),
        corpora=("cutlass",),
        settled=SETTLED.get(name, ""),
    )


_HOPPER, _BLACKWELL = "cute/hopper/kernel", "cute/blackwell/kernel"
_DENSE, _BLOCKSCALED = f"{_BLACKWELL}/dense_gemm", f"{_BLACKWELL}/blockscaled_gemm"
_ATTENTION = f"{_BLACKWELL}/attention"
_F16 = "--ab_dtype Float16 --c_dtype Float16"
_PAIR = "--use_2cta_instrs --mma_tiler_mn 256,128 --cluster_shape_mn 2,1"
_NVFP4 = "--ab_dtype Float4E2M1FN --sf_dtype Float8E4M3FN --sf_vec_size 16 --c_dtype Float16"
_SIMPLE = {
    "sm_80": [
        ("ampere elementwise_add", "cute/ampere/kernel/elementwise/elementwise_add.py", "--M 63 --N 250"),
        ("ampere elementwise_apply", "cute/ampere/kernel/elementwise/elementwise_apply.py", "--M 64 --N 256"),
    ],
    "sm_90a": [
        ("hopper cta_norm", f"{_HOPPER}/cta_norm/cta_norm.py", "--M 3 --N 520"),
        ("hopper cta_norm rms", f"{_HOPPER}/cta_norm/cta_norm.py", "--M 3 --N 1000 --norm_type rms"),
        ("hopper dense_gemm", f"{_HOPPER}/dense_gemm/dense_gemm.py", "--mnkl 200,136,72,1"),
        (
            "hopper dense_gemm cluster",
            f"{_HOPPER}/dense_gemm/dense_gemm.py",
            "--mnkl 256,256,128,1 --cluster_shape_mn 2,1 --tile_shape_mn 64,64",
        ),
        (
            "hopper dense_gemm_persistent",
            f"{_HOPPER}/dense_gemm/dense_gemm_persistent.py",
            "--mnkl 264,136,72,2",
        ),
        (
            "hopper grouped_gemm",
            f"{_HOPPER}/grouped_gemm/grouped_gemm.py",
            "--num_groups 2 --problem_sizes_mnkl (128,128,64,1),(64,136,128,1)",
        ),
        ("hopper fmha", f"{_HOPPER}/attention/fmha.py", "--q_shape 1,128,2,64 --k_shape 1,256,2,64"),
        (
            "hopper fmha causal",
            f"{_HOPPER}/attention/fmha.py",
            "--q_shape 1,128,1,128 --k_shape 1,128,1,128 --is_causal --is_persistent",
        ),
    ],
    "sm_100a": [
        ("dense_gemm", f"{_DENSE}/dense_gemm.py", f"--mnkl 256,136,128,1 {_F16} --use_tma_store"),
        (
            "dense_gemm_persistent",
            f"{_DENSE}/dense_gemm_persistent.py",
            f"--mnkl 512,256,128,1 {_F16} --use_tma_store {_PAIR}",
        ),
        ("dense_gemm_persistent no tma store", f"{_DENSE}/dense_gemm_persistent.py", "--mnkl 256,256,64,1"),
        (
            "dense_gemm_persistent_prefetch",
            f"{_DENSE}/dense_gemm_persistent_prefetch.py",
            f"--mnkl 256,256,160,1 {_F16} --use_tma_store",
        ),
        (
            "dense_gemm_persistent_dynamic",
            f"{_DENSE}/dense_gemm_persistent_dynamic.py",
            f"--mnkl 384,256,160,1 {_F16} --use_tma_store",
        ),
        ("dense_gemm_alpha_beta", f"{_DENSE}/dense_gemm_alpha_beta_persistent.py", "--mnkl 256,128,128,1"),
        (
            "dense_gemm_software_pipeline",
            f"{_DENSE}/dense_gemm_software_pipeline.py",
            f"--mnkl 256,128,192,1 {_F16}",
        ),
        (
            "blockscaled_gemm nvfp4",
            f"{_BLOCKSCALED}/dense_blockscaled_gemm_persistent.py",
            "--mnkl 256,256,256,1",
        ),
        (
            "blockscaled_gemm nvfp4 2-CTA",
            f"{_BLOCKSCALED}/dense_blockscaled_gemm_persistent.py",
            "--mnkl 512,256,512,1 --mma_tiler_mn 256,128 --cluster_shape_mn 2,1",
        ),
        (
            "blockscaled_gemm mxfp8",
            f"{_BLOCKSCALED}/dense_blockscaled_gemm_persistent.py",
            "--mnkl 256,128,256,1 --a_dtype Float8E4M3FN --b_dtype Float8E4M3FN "
            "--sf_dtype Float8E8M0FNU --sf_vec_size 32",
        ),
        (
            "blockscaled_gemm prefetch",
            f"{_BLOCKSCALED}/dense_blockscaled_gemm_persistent_prefetch.py",
            f"--mnkl 128,256,256,1 {_NVFP4}",
        ),
        (
            "blockscaled_gemm amax",
            f"{_BLOCKSCALED}/dense_blockscaled_gemm_persistent_amax.py",
            f"--mnkl 128,256,256,1 {_NVFP4}",
        ),
        (
            "grouped_gemm",
            f"{_BLACKWELL}/grouped_gemm/grouped_gemm.py",
            "--num_groups 3 --problem_sizes_mnkl (128,128,64,1),(200,136,128,1),(64,256,72,1)",
        ),
        (
            "grouped_gemm gmem 2-CTA",
            f"{_BLACKWELL}/grouped_gemm/grouped_gemm.py",
            "--num_groups 2 --problem_sizes_mnkl (256,128,64,1),(200,136,128,1) --tensormap_update_mode GMEM "
            "--use_2cta_instrs --mma_tiler_mn 256,128 --cluster_shape_mn 2,1",
        ),
        (
            "grouped_blockscaled_gemm",
            f"{_BLACKWELL}/blockscaled_grouped_gemm/grouped_blockscaled_gemm.py",
            "--num_groups 2 --problem_sizes_mnkl (128,128,256,1),(128,256,128,1)",
        ),
        ("blockwise_gemm", f"{_BLACKWELL}/blockwise_gemm/blockwise_gemm.py", "--mnkl 128,128,256,1"),
        (
            "contiguous_grouped_gemm",
            f"{_BLACKWELL}/blockwise_gemm/contiguous_grouped_gemm.py",
            "--mnkl 128,128,256,2",
        ),
        (
            "masked_grouped_gemm",
            f"{_BLACKWELL}/blockwise_gemm/masked_grouped_gemm.py",
            "--mnkl 128,128,256,2",
        ),
        ("mixed_input_gemm", f"{_BLACKWELL}/mixed_input_gemm/mixed_input_gemm.py", "--mnkl 128,128,256,1"),
        (
            "mixed_input_gemm int8",
            f"{_BLACKWELL}/mixed_input_gemm/mixed_input_gemm.py",
            "--mnkl 256,128,128,1 --a_dtype Int8 --scale_granularity_m 0 --scale_granularity_k 0 --use_2cta_instrs "
            "--mma_tiler_mnk 256,128,128 --cluster_shape_mn 2,1",
        ),
        (
            "grouped_mixed_input_gemm",
            f"{_BLACKWELL}/mixed_input_gemm/grouped_mixed_input_gemm.py",
            "--mnkl 128,128,256,2",
        ),
        ("fmha", f"{_ATTENTION}/fmha/fmha.py", "--q_shape 1,256,1,64 --k_shape 1,256,1,64"),
        (
            "fmha causal",
            f"{_ATTENTION}/fmha/fmha.py",
            "--q_shape 1,256,1,128 --k_shape 1,384,1,128 --is_causal --is_persistent --lse_calculation",
        ),
        ("fmha_bwd", f"{_ATTENTION}/fmha/fmha_bwd.py", "--s_q 128 --s_k 128 --d 64 --h_q 1 --h_k 1"),
        ("mla_decode_fp16", f"{_ATTENTION}/mla/mla_decode_fp16.py", "--seq_len_k 256 --page_size 128"),
        ("mla_decode_fp8", f"{_ATTENTION}/mla/mla_decode_fp8.py", "--seq_len_k 256 --page_size 128"),
        ("mamba2_ssd", f"{_ATTENTION}/mamba2_ssd/mamba2_ssd.py", "--gbehcdln 1,2,1,2,2,64,128,128"),
        (
            "mixed_input_fmha_decode",
            f"{_ATTENTION}/mixed_input_fmha/mixed_input_fmha_decode.py",
            "--seqlen 256 --heads_q 8 --heads_k 1",
        ),
        (
            "mixed_input_fmha_prefill_d256",
            f"{_ATTENTION}/mixed_input_fmha/mixed_input_fmha_prefill_d256.py",
            "--q_shape 1,1,256,256 --k_shape 1,1,256,256",
        ),
        (
            "mixed_input_fmha_prefill_d512",
            f"{_ATTENTION}/mixed_input_fmha/mixed_input_fmha_prefill_d512.py",
            "",
        ),
        ("rmsnorm", f"{_BLACKWELL}/rmsnorm/rmsnorm.py", "--M 9 --N 1000"),
    ],
}
_ARGUMENTS = {"cp_narrow_a_to_tmem_mma": "--a-dtype all"}  # of these scripts; the others have none
# The scripts of experimental/primitives, each a few instructions of PTX with its own check.
_PRIMITIVES: dict[str, list[str]] = {
    "": [
        "async_pipeline",
        "bar_warp_sync",
        "barrier_cta_red",
        "barrier_cta_sync",
        "basic_types",
        "cp_async_bulk",
        "cp_async_bulk_prefetch",
        "cp_async_mbarrier_arrive_cluster",
        "cp_async_mbarrier_arrive_cta",
        "cp_async_shared_global",
        "cp_async_shared_global_swizzled",
        "elect_sync",
        "ldmatrix_stmatrix",
        "mapa",
        "mbarrier",
        "mbarrier_lifecycle",
        "pipeline_software_fill",
        "red",
        "redux_sync",
        "shfl_sync",
        "vote_sync",
        "warp_named_barrier",
    ],
    "reduction/": [
        "block_smem_reduce",
        "cluster_smem_reduce",
        "cluster_tmem_reduce",
        "thread_vector_reduce",
        "warp_vector_reduce",
    ],
    "tcgen05/": [
        "1cta_mma_a_from_tmem",
        "1cta_mma_basic",
        "1cta_mma_mn_major",
        "1cta_mma_pipeline",
        "2cta_mma_basic",
        "2cta_mma_blockscale_m128",
        "2cta_mma_tma_store",
        "clusterMxN_2cta_mma",
        "cp_narrow_a_to_tmem_mma",
        "mcast_clusterMxN_1cta_mma",
        "mcast_clusterMxN_2cta_mma",
        "slicek_m32n8k128",
        "tmem_ld_st",
        "tmem_ld_to_stmatrix_transpose",
    ],
    "tma/": [
        "tma_1cta_mbarrier",
        "tma_load_store",
        "tma_load_to_ldmatrix",
        "tma_multicast",
        "tma_pipeline_count2",
        "tma_pipeline_pingpong",
        "tma_pipeline_single_warp",
        "tma_pipeline_warpspec",
        "tma_store",
        "tma_swizzle_modes",
        "tma_tensormap_replace",
    ],
    "tutorial/": [
        "02_naive_gemm",
        "03_gemm_tiled_smem",
        "04_tma_load",
        "05_minimal_tensor_mma",
        "06_softmax",
        "07_vectorized_array",
        "09_tma_4d_to_2d",
        "10_minimal_tensor_mma_fp8",
        "gemm_M128_N128_Kany_TN_warpspec_multistage",
    ],
}


CASES = [
    *(_case(name, arch, path, arguments) for arch, rows in _SIMPLE.items() for name, path, arguments in rows),
    *(
        _case(
            f"primitives {folder}{name}",
            "sm_100a",
            f"experimental/primitives/{folder}{name}.py",
            _ARGUMENTS.get(name, ""),
        )
        for folder, names in _PRIMITIVES.items()
        for name in names
    ),
]

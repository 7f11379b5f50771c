"""Tests of kernel_space/operators/svdquant_gemm_nvfp4."""

"""Tests of kernel_space/operators/nvfp4_quantize."""

"""``svdquant_gemm`` whose y leaves as the NVFP4 activations of the next layer."""

"""``svdquant_gemm`` on 16-bit activations: weights in NVFP4 are dequantized where they are multiplied."""

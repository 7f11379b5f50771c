"""A linear layer on 16-bit activations: they are quantized, then multiplied with weights in NVFP4."""

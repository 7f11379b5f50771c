"""A linear layer on 16-bit activations as they are, multiplied with weights in NVFP4."""

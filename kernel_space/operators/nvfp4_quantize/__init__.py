"""Activations to NVFP4: problem and oracle. See docs/kernel_quantize.md."""

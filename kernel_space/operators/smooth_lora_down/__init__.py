"""What comes before a GEMM on 16-bit activations whose weights stay packed. See docs/kernel_smooth.md."""

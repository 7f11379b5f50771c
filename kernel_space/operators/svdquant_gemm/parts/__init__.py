"""What its kernels of all architectures share."""

"""The kernel ``narrow``, for few rows of xs. See docs/kernel_16bit.md."""

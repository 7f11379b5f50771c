"""The kernel for sm_100a and sm_103a. See docs/kernel.md."""

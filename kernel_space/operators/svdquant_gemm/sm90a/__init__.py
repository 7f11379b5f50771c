"""The kernel for sm_90a, which is one of three designs: rules and budget of all. See docs/kernel_sm90a.md."""

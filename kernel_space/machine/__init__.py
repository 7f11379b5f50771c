"""The executable model of sm_100a (and of what kernels for sm_90a need). See docs/simulator.md."""

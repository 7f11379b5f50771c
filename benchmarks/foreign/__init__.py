"""Kernels that others wrote, compiled and run in the machine: what stands in for a card, and one line a kernel."""

"""A folder per operator, in it a folder per kernel."""

DEFAULT = "svdquant_gemm"
"""The operator that a command means when it is not told another one."""

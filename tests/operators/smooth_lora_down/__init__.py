"""Tests of kernel_space/operators/smooth_lora_down."""

"""The kernel that also computes ``x @ lora_down``: rows of x in registers are quantized, and multiplied by mma.sync."""

"""The kernel without LoRA-down: rows of x are smoothed and put in order."""

"""The kernel ``lora_tcgen05``: quantize and LoRA-down on sm_100a, sums in tensor memory."""

"""The kernel ``lora_tma``: TMA, wgmma and quantizing warps on the same shared memory (sm_90a)."""
